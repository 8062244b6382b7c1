"""Runs of half the steps, which show how far a claim's estimates move when training is twice as long.

Where the learning rate falls to 0, the last fifth of training says little about a longer one: scores move there because
the rate falls, and would do so at the end of any schedule. A run of half the steps has a whole schedule of its own.
"""

import json
from pathlib import Path

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


def write_half(folder: Path, results: Results, provenance: Provenance) -> None:
    """Write the scores of runs of half the steps, and the command that made them."""
    write_csv(folder / RUNS, list_runs(results))
    record = {"format": FORMAT, **provenance.as_record()}
    atomic.write_text(folder / RECORD, json.dumps(record, indent=2) + "\n")


def read_half(folder: Path, facts: Experiment, scale: str) -> Results | None:
    """Return the runs of half the steps in a folder of results; None if it has none of this scale."""
    if not (folder / RUNS).exists() or not (folder / RECORD).exists():
        return None
    try:
        same = json.loads((folder / RECORD).read_text(encoding="utf-8"))["scale"] == scale
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{folder / RECORD} is not readable; delete it, and repeat `reproduce --half`.") from error
    return read_runs(folder / RUNS, facts, scale) if same else None


def describe_half(folder: Path) -> str:
    """Return a note about the runs of half the steps."""
    record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    made = f"`{record['command']}`, {record['runs']} runs, {record['minutes']:.1f} minutes, commit {record['commit']}"
    return f"{START_OF_NOTE} are in `{RUNS}` ({made})."
