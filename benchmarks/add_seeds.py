"""Add runs of further seeds to committed results, and judge their claims again.

    unbraid reproduce split2020/fig3 --scale budget --seeds 10:36 --series FactorVAE --out more
    python benchmarks/add_seeds.py split2020/fig3 more/split2020/fig3

Scale and settings have to be those of the results, or some of the values that these sweep (`--only`), and no run may
be there already. This is a further look at the claims whose evidence changes, so their intervals become wider
(`unbraid.experiments.judging`); other claims stay as they are. Several folders, such as of series with different seeds,
are added together, in one look. `benchmarks/run_papers.py` prints this command after it has trained further seeds.

A score by a classifier can be compared only between runs that the same classifier measured. If that of the further
runs is another, or may be, `--without frechet/classifier` leaves this score out of them, with those that begin with it.
"""

import argparse
import csv
import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from judge_again import judge_again, read_results

from unbraid import atomic
from unbraid.experiments import Results, experiment
from unbraid.experiments.combining import Setting, find_settings, identify_setting
from unbraid.experiments.results import MissingResultsError
from unbraid.experiments.writing import AT_SNAPSHOT, read_looks
from unbraid.report.tables import write_csv

Row = dict[str, str]
Networks = Mapping[str, Sequence[str]]
"""Digests of the networks that measured scores, by score."""

SEED_ROW = "seed"
TAKEN_FROM = "taken from"
"""Key of a record that names the experiment whose stored runs are added (`benchmarks/share_runs.py`)."""


def read_rows(folder: Path) -> tuple[list[str], list[Row]]:
    """Return the columns and rows of a folder's `runs.csv`."""
    with (folder / "runs.csv").open(newline="", encoding="utf-8") as handle:
        reader = csv.DictReader(handle)
        rows = list(reader)
    return list(reader.fieldnames or ()), rows


def read_settings(folder: Path) -> dict[str, str]:
    """Return the settings of a folder's page, without its seeds and those that only scale `paper` has."""
    table = (folder / "README.md").read_text("utf-8").partition("## Settings")[2]
    rows = [[cell.strip() for cell in line.split(" | ")] for line in table.splitlines() if line.startswith("| ")]
    named = {row[0].lstrip("| "): row[1] for row in rows[2:]}
    return {key: value for key, value in named.items() if value and key.split(": ")[-1] != SEED_ROW}


def contains_values(stored: str, added: str) -> bool:
    """Return whether a stored setting is the added one, or an axis that has all of its values."""
    axes = [text[1:-1].split(",") for text in (stored, added) if text.startswith("[")]
    return stored == added or (len(axes) == 2 and set(axes[1]) <= set(axes[0]))


def is_named(column: str, scores: Collection[str]) -> bool:
    """Return whether a column has one of these scores, at the end of training or before, or a part of it."""
    score = column.removesuffix(AT_SNAPSHOT)
    return any(score == each or score.startswith(f"{each}/") for each in scores)


def join_runs(
    stored: Path, columns: list[str], rows: list[Row], added: Path, without: Collection[str] = ()
) -> list[Row]:
    """Return the stored rows and those of another folder, or exit if the folders do not fit together."""
    records = [json.loads((folder / "verdicts.json").read_text("utf-8")) for folder in (stored, added)]
    for key in ("experiment", "scale"):
        if records[0][key] != records[1][key]:
            raise SystemExit(f"{added} has the {key} {records[1][key]}, and {stored} {records[0][key]}.")
    known, new = read_settings(stored), read_settings(added)
    for key, value in new.items():
        here = known.get(key, known.get(key.rpartition(": ")[2]))  # --only gives a shared setting to its series
        if here is not None and not contains_values(here, value):
            raise SystemExit(f"{key} is {value} in {added}, and {here} in {stored}.")
    more_columns, more = read_rows(added)
    scores = more_columns[more_columns.index("state") + 1 :]
    for score in without:
        if not any(is_named(column, [score]) for column in scores):
            raise SystemExit(f"{added} has no score {score} to leave out.")
    dropped = {column for column in scores if is_named(column, without)}
    more = [row | dict.fromkeys(dropped, "") for row in more]
    refuse_other_networks(*(record.get("networks", {}) for record in records), rows, more, added)
    if strange := set(more_columns) - set(columns):
        raise SystemExit(f"{stored} has no {', '.join(sorted(strange))}.")
    settings = columns[: columns.index("state")]
    there = {tuple(row[key] for key in settings) for row in rows}
    if twice := [row for row in more if tuple(row.get(key, "") for key in settings) in there]:
        raise SystemExit(f"{stored} has seed {twice[0]['seed']} of {twice[0]['series']} already.")
    order = {name: place for place, name in enumerate(dict.fromkeys(row["series"] for row in rows))}
    if unknown := {row["series"] for row in more} - order.keys():
        raise SystemExit(f"{stored} has no series {', '.join(sorted(unknown))}.")
    return sorted([*rows, *more], key=lambda row: order[row["series"]])  # stable: seeds stay in their order


def refuse_other_networks(known: Networks, new: Networks, rows: list[Row], more: list[Row], added: Path) -> None:
    """Exit if further runs have a score by another network than the stored runs have, or if one of them is unknown."""
    for score in known.keys() | new.keys():
        if not all(any(row.get(score) for row in each) for each in (rows, more)):
            continue
        if score not in known or score not in new or not set(new[score]) <= set(known[score]):
            measured = "measured" if score in known and score in new else "may have measured"
            problem = f"Another network {measured} {score} in {added} than in the stored runs"
            raise SystemExit(f"{problem}; --without {score} leaves it out.")


def describe_addition(rows: list[Row], record: dict[str, Any]) -> str:
    """Return a note about the runs that were added."""
    seeds = sorted({int(row["seed"]) for row in rows})
    series = "; ".join(dict.fromkeys(row["series"] for row in rows))
    what = f"Runs of seeds {seeds[0]} to {seeds[-1]} of {series} were"
    if TAKEN_FROM in record:
        return f"{what} taken from {record[TAKEN_FROM]}, which trained the same series; its page has their commands."
    return f"{what} added (`{record['command']}`, commit {record['commit']})."


def count_looks_after_adding(name: str, record: dict[str, Any], earlier: Results, joined: Results) -> dict[str, int]:
    """Return how often each claim was judged, once more for those that further runs give other evidence.

    An interval of other runs may change by chance; that is no look.
    """
    claims, counts = experiment[name].facts.claims, count_by_setting(earlier)
    grown = {setting for setting, count in count_by_setting(joined).items() if count > counts.get(setting, 0)}
    looks = read_looks(record, claims)
    for claim in claims:
        with suppress(MissingResultsError):
            before, after = ([e.estimate for e in claim.evidence(each)] for each in (earlier, joined))
            looks[claim.text] += before != after and bool(grown.intersection(find_settings(claim, joined)))
    return looks


def count_by_setting(results: Results) -> Counter[Setting]:
    return Counter(map(identify_setting, results.members))


def add_seeds(
    name: str, added: Sequence[Path], out: Path, notes: Sequence[str] = (), without: Collection[str] = ()
) -> None:
    """Add runs to the results of an experiment with notes about them, and judge it again, once."""
    folder = out / name
    columns, rows = read_rows(folder)
    for each in added:
        rows = join_runs(folder, columns, rows, each, without)
    before, *more = (json.loads((each / "verdicts.json").read_text("utf-8")) for each in (folder, *added))
    new, stored = [read_rows(each)[1] for each in added], read_results(folder / "runs.csv", name, before["scale"])
    facts = {key: sum(record[key] for record in (before, *more)) for key in ("minutes", "runs")}
    left_out = [f"These runs have no {' and no '.join(without)}: theirs may be by another network."] if without else []
    facts |= {"notes": [*map(describe_addition, new, more), *left_out, *notes]}
    networks = {score: of for record in (*more, before) for score, of in record.get("networks", {}).items()}
    known = {s: of for s, of in networks.items() if s in before.get("networks", {}) or not is_named(s, without)}
    facts |= {"networks": known} if known else {}
    earlier = (folder / "runs.csv").read_text("utf-8")
    write_csv(folder / "runs.csv", [{column: row.get(column, "") for column in columns} for row in rows])
    try:
        joined = read_results(folder / "runs.csv", name, before["scale"])
        looks = count_looks_after_adding(name, before, stored, joined)
        facts["verdicts"] = [{**each, "looks": looks.get(each["claim"], 1)} for each in before["verdicts"]]
        judge_again(name, out, facts)
    except BaseException:
        atomic.write_text(folder / "runs.csv", earlier)
        raise


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="the experiment, PAPER/ID")
    parser.add_argument("added", type=Path, nargs="+", help="a folder of results with further seeds")
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--without", action="append", default=[], metavar="SCORE", help="leave this score out")
    parser.add_argument("--note", action="append", default=[], help="a sentence about these runs for the page")
    arguments = parser.parse_args()
    add_seeds(arguments.name, arguments.added, arguments.out, arguments.note, arguments.without)


if __name__ == "__main__":
    main()
