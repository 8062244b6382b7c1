"""Files of runs of twice the steps, which show whether a claim's verdict would be the same after longer training.

`settling.py` says what verdicts make of them. They count only beside whole runs with the same settings and data.
"""

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from unbraid import atomic
from unbraid.config import FORMAT
from unbraid.errors import UsageError
from unbraid.experiments.base import Experiment
from unbraid.experiments.result_files import read_runs
from unbraid.experiments.results import Results
from unbraid.experiments.writing import Provenance, list_runs
from unbraid.printable import format_setting
from unbraid.report.tables import write_csv

RUNS, RECORD = "twice.csv", "twice.json"
"""Files beside those of the whole runs: scores of all runs, and where they come from."""

STARTS_OF_NOTES = ("Runs of twice the steps are in", "The runs of twice the steps in")
"""Words of the notes on such runs, and on those that are left out."""

STAND_IN = " stand in for "
"""Words of a note on data that replace others, whose files are missing."""

FIELDS: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("scale", "command", "commit"), str),
    **dict.fromkeys(("runs", "rows", "tries"), int),
    **dict.fromkeys(("notes", "seeds"), list),
    "minutes": (int, float),
    "settings": dict,
}


@dataclass(frozen=True)
class LongerRuns:
    """Runs of twice the steps, and the record of their origin."""

    results: Results
    record: Mapping[str, Any]

    def describe(self) -> str:
        """Return a note about the runs."""
        of = self.record
        made = f"`{of['command']}`, {of['runs']} runs, {of['minutes']:.1f} minutes, commit {of['commit']}"
        return " ".join([f"{STARTS_OF_NOTES[0]} `{RUNS}` ({made}).", *of["notes"]])


def write_longer_runs(
    folder: Path, facts: Experiment, results: Results, provenance: Provenance, notes: Sequence[str]
) -> None:
    """Write the scores of runs of twice the steps, the command that made them, and notes about them."""
    earlier, seeds = read_record(folder, provenance.scale), _list_seeds(facts, provenance.scale)
    record = {"format": FORMAT, **provenance.as_record(), "rows": len(results.members), "notes": list(notes)}
    record |= {"settings": list_settings(facts, provenance.scale, results.series), "seeds": seeds}
    record |= {"tries": count_tries(earlier, len(results.members))}
    (folder / RECORD).unlink(missing_ok=True)  # an interruption must not leave it beside other scores
    write_csv(folder / RUNS, list_runs(results))
    atomic.write_text(folder / RECORD, json.dumps(record, indent=2) + "\n")


def list_settings(facts: Experiment, scale: str, series: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the settings of some series at a scale, as they are written, without the seeds."""
    sweeps = facts.build_sweeps(scale)
    return {
        name: {key: str(format_setting(value)) for key, value in sweeps[name].items() if key != "seed"}
        for name in sweeps
        if name in series
    }


def refuse_fewer_runs(folder: Path, facts: Experiment, scale: str) -> None:
    """Raise if a folder has runs of twice the steps that these, of an experiment with these facts, lack."""
    record = read_record(folder, scale)
    if record is None:
        return
    if lost := set(record["settings"]) - set(facts.series):
        raise UsageError(
            f"{folder / RUNS} has the series {min(lost)}, which these runs would lack. Give it with --series, too, or "
            "choose another place with --out."
        )
    if lost := set(record["seeds"]) - set(_list_seeds(facts, scale)):
        raise UsageError(
            f"{folder / RUNS} has seeds that these runs would lack, such as {min(lost)}. "
            f"Give --seeds {max(record['seeds']) + 1} or more, or choose another place with --out."
        )


def read_longer_runs(folder: Path, facts: Experiment, scale: str) -> LongerRuns | None:
    """Return the runs of twice the steps in a folder of results; None if it has none of this scale.

    `facts` are those of the whole runs.
    """
    record = read_record(folder, scale)
    if record is None:
        return None
    try:
        results = read_runs(folder / RUNS, facts, scale)
    except (UsageError, OSError, ValueError, AttributeError, TypeError, csv.Error) as error:
        raise _explain_damage(folder / RUNS) from error
    if len(results.members) != record["rows"]:
        raise _explain_damage(folder / RUNS)
    now = list_settings(facts.with_twice_the_steps(scale), scale, results.series)
    for name, settings in record["settings"].items():
        for key in sorted(settings.keys() | now.get(name, {}).keys()):
            one, other = settings.get(key, "none"), now.get(name, {}).get(key, "none")
            if one != other:
                raise UsageError(
                    f"{folder / RUNS} has {key} {one} in {name}, and with twice the steps the experiment now has "
                    f"{other}; delete it and {RECORD}."
                )
    looks = {claim.text: record["tries"] for claim in facts.claims}
    return LongerRuns(replace(results, looks=looks), record)


def attach_longer_runs(results: Results, longer: LongerRuns | None, notes: Sequence[str]) -> tuple[Results, list[str]]:
    """Return whole runs with those of twice the steps beside them, and a note on these.

    `notes` name data that stand in for others. Runs on other data are left out.
    """
    if longer is None:
        return results, []
    if _list_stand_ins(notes) != _list_stand_ins(longer.record["notes"]):
        return results, [f"{STARTS_OF_NOTES[1]} `{RUNS}` are left out: they have other data."]
    return replace(results, longer=longer.results), [longer.describe()]


def count_tries(earlier: Mapping[str, Any] | None, rows: int) -> int:
    """Return how often such runs were made, with these: once more than the record says if there are more of them."""
    return 1 if earlier is None else earlier["tries"] + (rows > earlier["rows"])


def read_record(folder: Path, scale: str) -> dict[str, Any] | None:
    """Return the record of the runs of twice the steps in a folder; None if it has none of this scale."""
    path = folder / RECORD
    if not (path.exists() and (folder / RUNS).exists()):
        return None
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _explain_damage(path) from error
    if not _is_record(record):
        raise _explain_damage(path)
    return record if record["scale"] == scale else None


def _is_record(found: Any) -> bool:
    if not isinstance(found, dict) or not all(isinstance(found.get(key), kind) for key, kind in FIELDS.items()):
        return False
    settings = found["settings"].values()
    whole = all(isinstance(seed, int) for seed in found["seeds"]) and all(isinstance(of, dict) for of in settings)
    return whole and all(isinstance(note, str) for note in found["notes"])


def _list_stand_ins(notes: Sequence[str]) -> set[str]:
    """Return what the notes say of stand-ins, without the reason."""
    return {note.partition(",")[0] for note in notes if STAND_IN in note}


def _list_seeds(facts: Experiment, scale: str) -> list[int]:
    return sorted({seed for settings in facts.build_sweeps(scale).values() for seed in settings.get("seed", ())})


def _explain_damage(path: Path) -> UsageError:
    return UsageError(f"{path} is damaged; delete {RUNS} and {RECORD}, and repeat `unbraid reproduce --twice`.")
