"""Files of runs of half the steps, which show how far a claim's estimates move when training is twice as long.

`settling.py` says what verdicts make of them. They count only beside whole runs with the same settings, data and
feature networks.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from unbraid import atomic
from unbraid.config import FORMAT
from unbraid.errors import UsageError
from unbraid.experiments.base import Experiment, Results
from unbraid.experiments.result_files import read_runs
from unbraid.experiments.writing import Provenance, list_networks, list_runs
from unbraid.printable import format_setting
from unbraid.report.tables import write_csv

RUNS, RECORD = "half.csv", "half.json"
"""Files beside those of the whole runs: scores of all runs, and where they come from."""

STARTS_OF_NOTES = (
    "Runs of half the steps, which show how far the estimates move with twice as many,",
    "Of the runs of half the steps,",
    "The runs of half the steps",
)
"""Words of the notes on them, on scores that are left out, and on runs that are."""

STAND_IN = " stand in for "
"""Words of a note on data that replace others, whose files are missing."""

FIELDS = {"scale", "command", "runs", "rows", "minutes", "commit", "notes", "settings", "seeds", "networks", "tries"}


@dataclass(frozen=True)
class HalfLength:
    """Runs of half the steps, and the record of their origin."""

    results: Results
    record: Mapping[str, Any]

    def describe(self) -> str:
        """Return a note about the runs."""
        of = self.record
        made = f"`{of['command']}`, {of['runs']} runs, {of['minutes']:.1f} minutes, commit {of['commit']}"
        return " ".join([f"{STARTS_OF_NOTES[0]} are in `{RUNS}` ({made}).", *of["notes"]])


def write_half(folder: Path, facts: Experiment, results: Results, provenance: Provenance, notes: Sequence[str]) -> None:
    """Write the scores of runs of half the steps, the command that made them, and notes about them."""
    record = {"format": FORMAT, **provenance.as_record(), "rows": len(results.members), "notes": list(notes)}
    record |= {"settings": list_settings(facts, provenance.scale, results.series), "networks": list_networks(results)}
    record |= {"seeds": _list_seeds(facts, provenance.scale), "tries": _count_tries(folder, len(results.members))}
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


def refuse_fewer_seeds(folder: Path, facts: Experiment, scale: str) -> None:
    """Raise if a folder has runs of half the steps with seeds that these, of an experiment with these facts, lack."""
    record = _read_record(folder)
    if record is None or record["scale"] != scale:
        return
    if lost := set(record["seeds"]) - set(_list_seeds(facts, scale)):
        raise UsageError(
            f"{folder / RUNS} has seeds that these runs would lack, such as {min(lost)}. "
            f"Give --seeds {max(record['seeds']) + 1} or more, or choose another place with --out."
        )


def read_half(folder: Path, facts: Experiment, scale: str) -> HalfLength | None:
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
    here = list_settings(facts.with_half_steps(scale), scale, results.series)
    for name, settings in record["settings"].items():
        for key in sorted(settings.keys() | here.get(name, {}).keys()):
            one, other = settings.get(key, "none"), here.get(name, {}).get(key, "none")
            if one != other:
                raise UsageError(
                    f"{folder / RUNS} has {key} {one} in {name}, and half of the experiment now has {other}; delete it "
                    f"and {RECORD}."
                )
    return HalfLength(replace(results, looks={claim.text: record["tries"] for claim in facts.claims}), record)


def attach_half(
    results: Results, half: HalfLength | None, networks: Mapping[str, Sequence[str]], notes: Sequence[str]
) -> tuple[Results, list[str]]:
    """Return whole runs with those of half the steps beside them, and notes.

    `networks` are those behind scores of the whole runs, and `notes` name data that stand in for others. A score by
    another feature network is left out, and so are all runs if their data are others.
    """
    if half is None:
        return results, []
    data = [{note for note in each if STAND_IN in note} for each in (notes, half.record["notes"])]
    if data[0] != data[1]:
        return results, [f"{STARTS_OF_NOTES[2]} in `{RUNS}` are left out: they have other data."]
    other = sorted(name for name, known in half.record["networks"].items() if list(networks.get(name, ())) != known)
    members = tuple(
        m._replace(scores={name: score for name, score in m.scores.items() if name not in other})
        for m in half.results.members
    )
    described = [half.describe()]
    if other:
        described.append(
            f"{STARTS_OF_NOTES[1]} the scores {', '.join(other)} are left out: they were measured by a feature network "
            "that is not known to be that of the whole runs."
        )
    return replace(results, shorter=replace(half.results, members=members)), described


def _list_seeds(facts: Experiment, scale: str) -> list[int]:
    return sorted({seed for settings in facts.build_sweeps(scale).values() for seed in settings.get("seed", ())})


def _count_tries(folder: Path, rows: int) -> int:
    """Return how often runs of half the steps were made, with these: once more whenever there are more of them."""
    record = _read_record(folder)
    return 1 if record is None else record["tries"] + (rows > record["rows"])


def _read_record(folder: Path) -> dict[str, Any] | None:
    path = folder / RECORD
    if not (path.exists() and (folder / RUNS).exists()):
        return None
    try:
        record = dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise _explain_damage(path) from error
    if not record.keys() >= FIELDS:
        raise _explain_damage(path)
    return record


def _explain_damage(path: Path) -> UsageError:
    return UsageError(f"{path} is damaged; delete {RUNS} and {RECORD}, and repeat `unbraid reproduce --half`.")
