"""Give figures the stored runs of other figures that trained the same series, and judge their claims again.

    python benchmarks/share_runs.py split2020          # say what each figure lacks
    python benchmarks/share_runs.py split2020 --write  # add it, as benchmarks/add_seeds.py does

Several figures of a paper read the same runs. Further seeds that were trained for one of them belong to all: a claim
that rests on fewer runs than are stored may be right or wrong by the choice of its figure. A run that a figure has
already, with the same seed, stays as it is there. Scores by a classifier or another feature network are not shared,
since each experiment may have its own.
"""

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from add_seeds import TAKEN_FROM, Row, add_seeds, read_rows

from unbraid import atomic
from unbraid.experiments import experiment
from unbraid.experiments.base import AS_LARGE_AS, REFINES
from unbraid.printable import format_setting
from unbraid.report.tables import write_csv

BY_CLASSIFIER = ("classifier", "kept/", "generated/", "coherence/")
"""Words in the names of metrics whose scores a classifier measured."""


class Stored(NamedTuple):
    """Stored results: their record, columns and rows, and by series the settings that its runs were trained with."""

    record: dict[str, Any]
    columns: list[str]
    rows: list[Row]
    settings: Mapping[str, str]

    @property
    def keys(self) -> list[str]:
        """Columns that tell runs apart."""
        return self.columns[: self.columns.index("state")]


def read_stored(results: Path) -> dict[str, Stored]:
    """Return the stored results that have runs whose scores can be shared, by experiment."""
    found = {}
    for name in experiment:
        if (results / name / "runs.csv").exists():
            record = json.loads((results / name / "verdicts.json").read_text("utf-8"))
            columns, rows = read_rows(results / name)
            if not any(
                word in metric for metric in list_metrics(name, record["scale"], columns) for word in BY_CLASSIFIER
            ):
                found[name] = Stored(record, columns, rows, describe_settings(name, record["scale"]))
    return found


def list_metrics(name: str, scale: str, columns: Sequence[str]) -> list[str]:
    """Return the metrics of the scores in some columns, by the names of the library where the experiment has others."""
    measures = experiment[name].facts.get_scale(scale).measures
    return [measures[column][0] if column in measures else column for column in columns]


def describe_settings(name: str, scale: str) -> dict[str, str]:
    """Return the settings of each series and of its scores, with those of the series it follows from, as a text.

    Its seeds are left out.
    """
    facts, described = experiment[name].facts, {}
    measures = str(sorted(facts.get_scale(scale).measures.items()))
    for series, settings in facts.build_sweeps(scale).items() if facts.measure is None else ():
        of_others = [described[settings[key]] for key in (REFINES, AS_LARGE_AS) if key in settings]
        own = {k: str(format_setting(v)) for k, v in settings.items() if k not in ("seed", REFINES, AS_LARGE_AS)}
        described[series] = json.dumps(
            [of_others, own, facts.only.get(series, {}), measures], sort_keys=True, default=str
        )
    return described


def find_missing(name: str, stored: Mapping[str, Stored]) -> dict[str, list[Row]]:
    """Return the runs that an experiment lacks and others have, by experiment, under its own names of series.

    Where several have a run of the same seed, that of the experiment with most runs of its series is taken.
    """
    own, missing = stored[name], dict[str, list[Row]]()
    named = {settings: series for series, settings in own.settings.items()}
    there = {tuple(row[key] for key in own.keys) for row in own.rows}
    scores = {series: find_scores(own, series) for series in own.settings}
    found = [
        (other, group)
        for other, theirs in stored.items()
        if other != name and theirs.keys == own.keys and theirs.record["scale"] == own.record["scale"]
        for group in group_rows(theirs, named)
    ]
    for other, rows in sorted(found, key=lambda each: -len(each[1])):
        series = named[stored[other].settings[rows[0]["series"]]]
        for row in rows:
            taken = {column: row.get(column, "") for column in own.columns} | {"series": series}
            place = tuple(taken[key] for key in own.keys)
            if place not in there and all(taken[score] for score in scores[series]):
                there.add(place)
                missing.setdefault(other, []).append(taken)
    return missing


def group_rows(stored: Stored, named: Mapping[str, str]) -> list[list[Row]]:
    """Return the finished runs of each series whose settings have a name."""
    wanted = [series for series, settings in stored.settings.items() if settings in named]
    groups = [[row for row in stored.rows if row["series"] == each and row["state"] == "finished"] for each in wanted]
    return [rows for rows in groups if rows]


def count_conflicts(name: str, stored: Mapping[str, Stored]) -> int:
    """Return the runs of other experiments whose seeds an experiment has, with other scores."""
    own, named = stored[name], {settings: series for series, settings in stored[name].settings.items()}
    there = {tuple(row[key] for key in own.keys): row for row in own.rows}
    conflicts = 0
    for other, theirs in stored.items():
        if other == name or theirs.keys != own.keys or theirs.record["scale"] != own.record["scale"]:
            continue
        for row in (row for rows in group_rows(theirs, named) for row in rows):
            renamed = {**row, "series": named[theirs.settings[row["series"]]]}
            known = there.get(tuple(renamed[key] for key in own.keys), renamed)
            conflicts += any(known.get(key) and renamed[key] and known[key] != renamed[key] for key in renamed)
    return conflicts


def find_scores(stored: Stored, series: str) -> list[str]:
    """Return the scores that every run of a series has."""
    rows = [row for row in stored.rows if row["series"] == series]
    scores = stored.columns[stored.columns.index("state") + 1 :]
    return [score for score in scores if all(row[score] for row in rows)]


def add_missing(name: str, missing: Mapping[str, list[Row]], stored: Mapping[str, Stored], results: Path) -> None:
    """Add runs of other experiments to the results of one, in one look."""
    with tempfile.TemporaryDirectory() as made:
        folders = []
        for number, (other, rows) in enumerate(missing.items()):
            folder = Path(made) / str(number)
            folder.mkdir()
            record = {**stored[other].record, "experiment": name, "runs": len(rows), TAKEN_FROM: other}
            record["minutes"] *= len(rows) / stored[other].record["runs"]
            atomic.write_text(folder / "verdicts.json", json.dumps(record))
            atomic.write_text(folder / "README.md", (results / name / "README.md").read_text("utf-8"))
            write_csv(folder / "runs.csv", rows)
            folders.append(folder)
        add_seeds(name, folders, results)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("papers", nargs="*", help="papers or experiments; all by default")
    parser.add_argument("--write", action="store_true", help="add the runs and judge again")
    parser.add_argument("--results", type=Path, default=Path("results"))
    arguments = parser.parse_args()
    stored = read_stored(arguments.results)
    chosen = [n for n in stored if not arguments.papers or {n, n.partition("/")[0]} & set(arguments.papers)]
    if not chosen:
        parser.error(
            f"{arguments.results} has no runs of {', '.join(arguments.papers) or 'any experiment'} to be shared."
        )
    lacking = 0
    for name in chosen:
        if conflicts := count_conflicts(name, stored):
            print(f"{name} has other scores for {conflicts} runs of other figures; its own stay.")
        missing = find_missing(name, stored)
        for other, rows in missing.items():
            print(f"{name} lacks {len(rows)} runs of {other}: {', '.join(dict.fromkeys(r['series'] for r in rows))}")
        if missing and arguments.write:
            add_missing(name, missing, stored, arguments.results)
        lacking += bool(missing)
    if not lacking:
        print("No figure lacks runs that another one has.")


if __name__ == "__main__":
    main()
