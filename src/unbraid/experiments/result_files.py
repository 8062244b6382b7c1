"""Results from the file `runs.csv` that an experiment writes: enough to judge its claims again."""

import csv
from pathlib import Path
from typing import Any

from unbraid.errors import UsageError
from unbraid.experiments.base import Experiment
from unbraid.experiments.measuring import Measures
from unbraid.experiments.results import Results
from unbraid.experiments.writing import AT_SNAPSHOT
from unbraid.metrics import Score
from unbraid.report.tables import Member


def read_runs(path: Path, facts: Experiment, scale: str) -> Results:
    """Return the results in a file of runs; their scores have a value and a metric, but no interval."""
    measures = facts.scales[scale].measures if scale in facts.scales else {}
    with path.open(newline="", encoding="utf-8") as handle:
        rows = list(csv.DictReader(handle))
    if not rows or not {"series", "seed", "state"} <= rows[0].keys():
        raise UsageError(f"{path} holds no runs of an experiment.")
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
