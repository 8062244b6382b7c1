"""Files of runs of half or twice the steps, which show how far a claim's estimates move when training is longer.

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
from unbraid.experiments.lengths import LENGTHS, Length
from unbraid.experiments.result_files import read_runs
from unbraid.experiments.writing import Provenance, list_networks, list_runs
from unbraid.printable import format_setting
from unbraid.report.tables import write_csv

STARTS_OF_NOTES = tuple(
    start
    for length in LENGTHS.values()
    for start in (f"Runs of {length.words}, which", f"Of the runs of {length.words},", f"The runs of {length.words} in")
)
"""Words of the notes on such runs, on scores that are left out, and on runs that are."""

STAND_IN = " stand in for "
"""Words of a note on data that replace others, whose files are missing."""

FIELDS = {"scale", "command", "runs", "rows", "minutes", "commit", "notes", "settings", "seeds", "networks", "tries"}


@dataclass(frozen=True)
class OtherRuns:
    """Runs of another length, and the record of their origin."""

    length: Length
    results: Results
    record: Mapping[str, Any]

    def describe(self) -> str:
        """Return a note about the runs."""
        of = self.record
        made = f"`{of['command']}`, {of['runs']} runs, {of['minutes']:.1f} minutes, commit {of['commit']}"
        what = f"Runs of {self.length.words}, which show how far the estimates move with more steps"
        return " ".join([f"{what}, are in `{self.length.runs}` ({made}).", *of["notes"]])


def write_other_length(
    folder: Path, length: Length, facts: Experiment, results: Results, provenance: Provenance, notes: Sequence[str]
) -> None:
    """Write the scores of runs of another length, the command that made them, and notes about them."""
    record = {"format": FORMAT, **provenance.as_record(), "rows": len(results.members), "notes": list(notes)}
    record |= {"settings": list_settings(facts, provenance.scale, results.series), "networks": list_networks(results)}
    record |= {"seeds": _list_seeds(facts, provenance.scale)}
    record |= {"tries": _count_tries(folder, length, len(results.members))}
    (folder / length.record).unlink(missing_ok=True)  # an interruption must not leave it beside other scores
    write_csv(folder / length.runs, list_runs(results))
    atomic.write_text(folder / length.record, json.dumps(record, indent=2) + "\n")


def list_settings(facts: Experiment, scale: str, series: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the settings of some series at a scale, as they are written, without the seeds."""
    sweeps = facts.build_sweeps(scale)
    return {
        name: {key: str(format_setting(value)) for key, value in sweeps[name].items() if key != "seed"}
        for name in sweeps
        if name in series
    }


def refuse_fewer_seeds(folder: Path, length: Length, facts: Experiment, scale: str) -> None:
    """Raise if a folder has runs of this length with seeds that these, of an experiment with these facts, lack."""
    record = _read_record(folder, length)
    if record is None or record["scale"] != scale:
        return
    if lost := set(record["seeds"]) - set(_list_seeds(facts, scale)):
        raise UsageError(
            f"{folder / length.runs} has seeds that these runs would lack, such as {min(lost)}. "
            f"Give --seeds {max(record['seeds']) + 1} or more, or choose another place with --out."
        )


def read_other_lengths(folder: Path, facts: Experiment, scale: str) -> list[OtherRuns]:
    """Return the runs of other lengths in a folder of results, as far as they have this scale.

    `facts` are those of the whole runs.
    """
    found = [_read_other_length(folder, length, facts, scale) for length in LENGTHS.values()]
    return [each for each in found if each is not None]


def _read_other_length(folder: Path, length: Length, facts: Experiment, scale: str) -> OtherRuns | None:
    path, record = folder / length.runs, _read_record(folder, length)
    if record is None or record["scale"] != scale:
        return None
    try:
        results = read_runs(path, facts, scale)
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise _explain_damage(path, length) from error
    if len(results.members) != record["rows"]:
        raise _explain_damage(path, length)
    here = list_settings(facts.with_length(scale, length), scale, results.series)
    for name, settings in record["settings"].items():
        for key in sorted(settings.keys() | here.get(name, {}).keys()):
            one, other = settings.get(key, "none"), here.get(name, {}).get(key, "none")
            if one != other:
                raise UsageError(
                    f"{path} has {key} {one} in {name}, and with {length.words} the experiment now has {other}; delete "
                    f"it and {length.record}."
                )
    looks = {claim.text: record["tries"] for claim in facts.claims}
    return OtherRuns(length, replace(results, looks=looks), record)


def attach_other_lengths(
    results: Results, others: Sequence[OtherRuns], networks: Mapping[str, Sequence[str]], notes: Sequence[str]
) -> tuple[Results, list[str]]:
    """Return whole runs with those of other lengths beside them, and notes.

    `networks` are those behind scores of the whole runs, and `notes` name data that stand in for others. A score by
    another feature network is left out, and so are all runs if their data are others.
    """
    attached, said = {}, []
    for other in others:
        if _list_stand_ins(notes) != _list_stand_ins(other.record["notes"]):
            files = f"The runs of {other.length.words} in `{other.length.runs}`"
            said.append(f"{files} are left out: they have other data.")
            continue
        unknown = sorted(
            name for name, known in other.record["networks"].items() if list(networks.get(name, ())) != known
        )
        members = tuple(
            m._replace(scores={name: score for name, score in m.scores.items() if name not in unknown})
            for m in other.results.members
        )
        attached[other.length.name] = replace(other.results, members=members)
        said.append(other.describe())
        if unknown:
            said.append(
                f"Of the runs of {other.length.words}, the scores {', '.join(unknown)} are left out: they were "
                "measured by a feature network that is not known to be that of the whole runs."
            )
    return replace(results, other_lengths=attached), said


def _list_stand_ins(notes: Sequence[str]) -> set[str]:
    return {note for note in notes if STAND_IN in note}


def _list_seeds(facts: Experiment, scale: str) -> list[int]:
    return sorted({seed for settings in facts.build_sweeps(scale).values() for seed in settings.get("seed", ())})


def _count_tries(folder: Path, length: Length, rows: int) -> int:
    """Return how often runs of a length were made, with these: once more whenever there are more of them."""
    record = _read_record(folder, length)
    return 1 if record is None else record["tries"] + (rows > record["rows"])


def _read_record(folder: Path, length: Length) -> dict[str, Any] | None:
    path = folder / length.record
    if not (path.exists() and (folder / length.runs).exists()):
        return None
    try:
        record = dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise _explain_damage(path, length) from error
    if not record.keys() >= FIELDS:
        raise _explain_damage(path, length)
    return record


def _explain_damage(path: Path, length: Length) -> UsageError:
    return UsageError(
        f"{path} is damaged; delete {length.runs} and {length.record}, and repeat `unbraid reproduce --length "
        f"{length.name}`."
    )
