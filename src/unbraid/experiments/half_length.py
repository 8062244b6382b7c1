"""Runs of half the steps, which show how far a claim's estimates move when training is twice as long.

Where the learning rate falls to 0, the last fifth of training says little about a longer one: scores move there because
the rate falls, and would do so at the end of any schedule. A run of half the steps has a whole schedule of its own.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unbraid import atomic
from unbraid.config import FORMAT
from unbraid.errors import UsageError
from unbraid.experiments.base import Experiment, Results
from unbraid.experiments.result_files import read_runs
from unbraid.experiments.writing import Provenance, list_runs
from unbraid.report.tables import write_csv

RUNS, RECORD = "half.csv", "half.json"
"""Files beside those of the whole runs: scores of all runs, and where they come from."""

START_OF_NOTE = "Runs of half the steps, which show how far the estimates move with twice as many,"


def write_half(folder: Path, facts: Experiment, results: Results, provenance: Provenance, notes: Sequence[str]) -> None:
    """Write the scores of runs of half the steps, the command that made them, and notes about them."""
    record = {"format": FORMAT, **provenance.as_record(), "rows": len(results.members), "notes": list(notes)}
    record["steps"] = list_steps(facts, provenance.scale, results.series)
    (folder / RECORD).unlink(missing_ok=True)  # an interruption must not leave it beside other scores
    write_csv(folder / RUNS, list_runs(results))
    atomic.write_text(folder / RECORD, json.dumps(record, indent=2) + "\n")


def list_steps(facts: Experiment, scale: str, series: Sequence[str]) -> dict[str, int]:
    """Return the steps of some series at a scale."""
    return {name: settings["steps"] for name, settings in facts.build_sweeps(scale).items() if name in series}


def read_half(folder: Path, facts: Experiment, scale: str) -> Results | None:
    """Return the runs of half the steps in a folder of results; None if it has none of this scale.

    `facts` are those of the whole runs.
    """
    record = _read_record(folder)
    if record is None or record["scale"] != scale:
        return None
    try:
        results = read_runs(folder / RUNS, facts, scale)
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise _explain_damage(folder / RUNS) from error
    if len(results.members) != record["rows"]:
        raise _explain_damage(folder / RUNS)
    if list_steps(facts.with_half_steps(scale), scale, results.series) != record["steps"]:
        raise UsageError(
            f"{folder / RUNS} has other series or steps than half of the experiment's now; delete it and {RECORD}."
        )
    return results


def describe_half(folder: Path) -> str:
    """Return a note about the runs of half the steps."""
    record = _read_record(folder)
    assert record is not None
    made = f"`{record['command']}`, {record['runs']} runs, {record['minutes']:.1f} minutes, commit {record['commit']}"
    return " ".join([f"{START_OF_NOTE} are in `{RUNS}` ({made}).", *record["notes"]])


def _read_record(folder: Path) -> dict[str, Any] | None:
    path = folder / RECORD
    if not (path.exists() and (folder / RUNS).exists()):
        return None
    try:
        record = dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise _explain_damage(path) from error
    if not {"scale", "command", "runs", "rows", "minutes", "commit", "notes", "steps"} <= record.keys():
        raise _explain_damage(path)
    return record


def _explain_damage(path: Path) -> UsageError:
    return UsageError(f"{path} is damaged; delete {RUNS} and {RECORD}, and repeat `unbraid reproduce --half`.")
