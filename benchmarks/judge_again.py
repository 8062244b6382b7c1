"""Recompute the intervals and verdicts of committed results from the scores of their runs.

    python benchmarks/judge_again.py split2020/fig3 split2020/fig8

Use it after a change of statistics or claims, which needs no new runs. It reads `runs.csv` and writes the files of the
experiment anew, but keeps command, commit, versions, device, minutes and the figure (after runs were added, only one
that needs models, which then shows the earlier runs). An experiment with a claim that needs the models themselves is
refused, and keeps its files.
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
from unbraid.experiments import Results, experiment, judge
from unbraid.experiments.measuring import Measures
from unbraid.experiments.writing import AT_SNAPSHOT, Provenance, find_commit, read_looks, write_results
from unbraid.metrics import Score
from unbraid.report.tables import Member

UNCHANGED_FACTS = ("command", "scale", "commit", "versions", "device", "minutes", "runs")


class StoredProvenance(Provenance):
    """The provenance of results as it is stored."""

    record: Mapping[str, Any] = {}

    def as_record(self) -> dict[str, Any]:
        return {key: self.record[key] for key in UNCHANGED_FACTS}


def read_results(path: Path, name: str, scale: str) -> Results:
    """Return the results of an experiment from `runs.csv`; its scores have a value and a metric."""
    facts = experiment[name].facts
    measures = facts.scales[scale].measures if scale in facts.scales else {}
    with path.open(newline="", encoding="utf-8") as handle:
        rows = list(csv.DictReader(handle))
    columns = list(rows[0])
    settings, scores = columns[1 : columns.index("state")], columns[columns.index("state") + 1 :]
    members: dict[str, list[Member]] = {"": [], AT_SNAPSHOT: []}
    for number, row in enumerate(rows):
        at = {"recipe": row["series"], **{key: _read_setting(row[key]) for key in settings if row[key]}}
        for suffix, kept in members.items():
            named = [each for each in scores if each.endswith(AT_SNAPSHOT) == bool(suffix) and row[each]]
            found = {each.removesuffix(AT_SNAPSHOT): _read_score(each, row[each], measures) for each in named}
            kept.append(Member(f"{row['series']}/{number}", at, row["state"], "", found))
    earlier = Results(tuple(members[AT_SNAPSHOT]), scale) if any(m.scores for m in members[AT_SNAPSHOT]) else None
    return Results(tuple(members[""]), scale, earlier=earlier, ranges=facts.ranges)


def _read_score(column: str, text: str, measures: Measures) -> Score:
    """Return a score with the metric of its column: METRIC/PROTOCOL/PART, or a name that `measures` explains."""
    column = column.removesuffix(AT_SNAPSHOT)
    name, protocol, part = [*measures.get(column, (column,))[0].split("/", 2), "", ""][:3]
    return Score(name, protocol, float(text), 0, part=part or None)


def _read_setting(text: str) -> Any:
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text


def judge_again(name: str, out: Path, added: Mapping[str, Any] | None = None) -> None:
    """Write the files of one experiment anew, and print what became of each verdict.

    `added` replaces facts of the record after runs were added to `runs.csv`.
    """
    folder, entry = out / name, experiment[name]
    before = {**json.loads((folder / "verdicts.json").read_text("utf-8")), **(added or {})}
    if seeds := re.search(r" --seeds (?:(\d+):)?(\d+)", before["command"]):
        wanted = range(int(seeds[1] or 0), int(seeds[2]))
        entry = replace(entry, facts=entry.facts.with_seeds(before["scale"], wanted))
    figure, page = folder / "figure.png", (folder / "README.md").read_text("utf-8")
    picture = figure.read_bytes()
    results = replace(
        read_results(folder / "runs.csv", name, before["scale"]), looks=read_looks(before, entry.facts.claims)
    )
    verdicts = tuple(judge(claim, results) for claim in entry.facts.claims)
    for verdict in verdicts:
        if not verdict.evidence:
            raise SystemExit(f"{name}: '{verdict.claim}' cannot be judged from runs.csv: {verdict.why}")
    provenance = StoredProvenance("", before["scale"], 0.0, 0, torch.device("cpu"))
    StoredProvenance.record = before
    again = "Intervals and verdicts were computed again at commit"
    listed = [line[2:] for line in page.partition("## Settings")[2].splitlines() if line.startswith("- ")]
    own = [note for note in listed if note not in entry.facts.notes and not note.startswith(again)]
    notes = [*entry.facts.notes, *own, *before.get("notes", ()), f"{again} {find_commit()}."]
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--out", type=Path, default=Path("results"))
    arguments = parser.parse_args()
    for name in arguments.names:
        judge_again(name, arguments.out)


if __name__ == "__main__":
    main()
