"""Recompute the intervals and verdicts of committed results from the scores of their runs.

    python benchmarks/judge_again.py split2020/fig3 split2020/fig8
    python benchmarks/judge_again.py msvae2020/fig29 --twice runs/papers/msvae2020/fig29

Use it after a change of statistics or claims, which needs no new runs, or to add runs of twice the steps from a
folder. It reads `runs.csv` and writes the files of the experiment anew, but keeps command, commit, versions, device,
minutes and the figure (after runs were added, only one that needs models, which then shows the earlier runs). An
experiment with a claim that needs the models themselves is refused, and keeps its files.
"""

import argparse
import csv
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import unbraid.papers  # noqa: F401 (registers the experiments)
from unbraid import atomic
from unbraid.errors import UnbraidError
from unbraid.experiments import Results, experiment, judge
from unbraid.experiments.longer_runs import (
    RECORD,
    RUNS,
    STARTS_OF_NOTES,
    attach_longer_runs,
    count_tries,
    read_longer_runs,
    read_record,
)
from unbraid.experiments.result_files import read_runs
from unbraid.experiments.writing import Provenance, find_commit, read_looks, write_results

UNCHANGED_FACTS = ("command", "scale", "commit", "versions", "device", "minutes", "runs", "networks")

AGAIN = "Intervals and verdicts were computed again at commit"


class StoredProvenance(Provenance):
    """The provenance of results as it is stored."""

    record: Mapping[str, Any] = {}

    def as_record(self) -> dict[str, Any]:
        return {key: self.record[key] for key in UNCHANGED_FACTS if key in self.record}


def read_results(path: Path, name: str, scale: str) -> Results:
    """Return the results of an experiment from `runs.csv`."""
    return read_runs(path, experiment[name].facts, scale)


def read_judged(name: str, record: Mapping[str, Any], folder: Path) -> tuple[Results, list[str]]:
    """Return the results that the claims of an experiment are judged by, and the notes of its page.

    Runs of twice the steps are beside the whole ones, if there are any that are comparable.
    """
    facts, page = experiment[name].facts, (folder / "README.md").read_text("utf-8")
    listed = [line[2:] for line in page.partition("## Settings")[2].splitlines() if line.startswith("- ")]
    own = [note for note in listed if note not in facts.notes and not note.startswith((AGAIN, *STARTS_OF_NOTES))]
    whole = replace(read_results(folder / "runs.csv", name, record["scale"]), looks=read_looks(record, facts.claims))
    results, of_longer = attach_longer_runs(whole, read_longer_runs(folder, facts, record["scale"]), own)
    return results, [*facts.notes, *own, *record.get("notes", ()), *of_longer]


def check_files(name: str, out: Path) -> None:
    """Exit if results lack a file without which they cannot be judged again."""
    for file in ("verdicts.json", "runs.csv", "figure.png"):
        if not (out / name / file).exists():
            raise SystemExit(f"{name}: there is no {out / name / file}, so it cannot be judged again.")


def judge_again(name: str, out: Path, added: Mapping[str, Any] | None = None) -> None:
    """Write the files of one experiment anew, and print what became of each verdict.

    `added` replaces facts of the record after runs were added to `runs.csv`.
    """
    folder, entry = out / name, experiment[name]
    before = {**json.loads((folder / "verdicts.json").read_text("utf-8")), **(added or {})}
    if seeds := re.search(r" --seeds (?:(\d+):)?(\d+)", before["command"]):
        wanted = range(int(seeds[1] or 0), int(seeds[2]))
        entry = replace(entry, facts=entry.facts.with_seeds(before["scale"], wanted))
    figure = folder / "figure.png"
    picture = figure.read_bytes()
    results, notes = read_judged(name, before, folder)
    verdicts = tuple(judge(claim, results) for claim in entry.facts.claims)
    for verdict in verdicts:
        if not verdict.evidence:
            raise SystemExit(f"{name}: '{verdict.claim}' cannot be judged from runs.csv: {verdict.why}")
    provenance = StoredProvenance("", before["scale"], 0.0, 0, torch.device("cpu"))
    StoredProvenance.record = before
    notes += [f"{AGAIN} {find_commit()}."]
    lacks = write_results(folder, entry, results, verdicts, provenance, notes)  # the models of the figure
    for lacking in lacks:
        made = (folder / "README.md").read_text("utf-8").replace(f"\n- {lacking}", "")
        made = made.replace("\n## Settings", "\n![figure](figure.png)\n\n## Settings", 1)
        (folder / "README.md").write_text(made, encoding="utf-8")
    if lacks or not added:
        figure.write_bytes(picture)
    old = {verdict["claim"]: verdict["verdict"] for verdict in before["verdicts"]}
    for verdict in verdicts:
        print(f"{name}: {old.get(verdict.claim, 'new')} -> {verdict.verdict}: {verdict.claim}")


def add_longer_runs(name: str, added: Path, out: Path) -> None:
    """Add runs of twice the steps to the results of an experiment, and judge it again.

    More of them than before are a further try.
    """
    folder, facts = out / name, experiment[name].facts
    scale = json.loads((folder / "verdicts.json").read_text("utf-8"))["scale"]
    longer, before = read_longer_runs(added, facts, scale), read_record(folder, scale)
    if longer is None:
        raise SystemExit(f"{added} has no runs of twice the steps at scale {scale}.")
    if before and (lost := list_places(folder) - list_places(added)):
        raise SystemExit(f"{folder / RUNS} has runs that {added / RUNS} lacks, such as {', '.join(min(lost))}.")
    tries = max(count_tries(before, longer.record["rows"]), longer.record["tries"])
    earlier = {path: path.read_bytes() if path.exists() else None for path in (folder / RUNS, folder / RECORD)}
    (folder / RECORD).unlink(missing_ok=True)
    atomic.write_text(folder / RUNS, (added / RUNS).read_text("utf-8"))
    atomic.write_text(folder / RECORD, json.dumps({**longer.record, "tries": tries}, indent=2) + "\n")
    try:
        judge_again(name, out)
    except BaseException:
        for path, content in earlier.items():
            path.unlink(missing_ok=True) if content is None else path.write_bytes(content)
        raise


def list_places(folder: Path) -> set[tuple[str, ...]]:
    """Return series, settings and seed of the runs of twice the steps in a folder."""
    with (folder / RUNS).open(newline="", encoding="utf-8") as handle:
        rows = list(csv.DictReader(handle))
    return {tuple(row[key] for key in list(row)[: list(row).index("state")]) for row in rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--twice", type=Path, help="a folder with runs of twice the steps of the one experiment named")
    arguments = parser.parse_args()
    if arguments.twice and len(arguments.names) > 1:
        parser.error("--twice belongs to one experiment.")
    for name in arguments.names:
        if name not in experiment:
            parser.error(f"{name} is no experiment; `unbraid list experiments` lists them.")
        check_files(name, arguments.out)
        try:
            if arguments.twice:
                add_longer_runs(name, arguments.twice, arguments.out)
            else:
                judge_again(name, arguments.out)
        except UnbraidError as error:
            raise SystemExit(str(error)) from error


if __name__ == "__main__":
    main()
