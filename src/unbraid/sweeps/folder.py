"""A sweep is a folder of ordinary runs and of what they share.

    sweep.yaml     recipes, axes, fixed settings, metrics      runs/ID/     ordinary run folders
    members.json   run id -> the settings that were asked for  groups/ID/   group.json and checkpoints, while unfinished
    table.csv, table.parquet, summary.csv, report.html         slurm/       logs, where there was a cluster

Whatever a worker needs to train a group is here, so that a path and a group's id are all that it must be told.
"""

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from unbraid import atomic
from unbraid.config import FORMAT, Config
from unbraid.errors import RunError, UsageError
from unbraid.store import BEFORE, RunFolder
from unbraid.training import Cadence

ENDED = ("finished", "diverged")


@dataclass(frozen=True)
class Statement:
    """What a sweep asks for: the values of every setting, the recipe's name among them, and the metrics."""

    values: Mapping[str, Sequence[Any]]
    metrics: Sequence[str]

    @property
    def axes(self) -> dict[str, list[Any]]:
        """Settings with several values."""
        return {key: list(values) for key, values in self.values.items() if len(values) > 1}

    @property
    def fixed(self) -> dict[str, Any]:
        """Settings with one value."""
        return {key: values[0] for key, values in self.values.items() if len(values) == 1}

    @property
    def name(self) -> str:
        """The recipes and a hash of the fixed settings and of the axes' names: longer axes extend the same sweep."""
        canonical = json.dumps([plain(self.fixed), sorted(self.axes)], sort_keys=True, default=str)
        return "-".join([*self.values["recipe"], hashlib.sha256(canonical.encode()).hexdigest()[:8]])

    def extending(self, stored: "Statement", where: Path) -> "Statement":
        """This statement and an earlier one in the same folder, joined; only axes may grow."""
        for key in {**stored.values, **self.values}:
            old, new = list(stored.values.get(key, ())), list(self.values.get(key, ()))
            if not old or not new or (len(old) == 1 and plain(old[0]) not in plain(new)):
                told = f"{key}={old[0]}" if len(old) == 1 else f"an axis {key}" if old else f"no setting '{key}'"
                raise UsageError(f"{where} holds a sweep with {told}; add to its axes, or choose another name.")
        values = {key: _union(stored.values[key], self.values[key]) for key in self.values}
        return Statement(values, self.metrics)

    def to_yaml(self) -> str:
        """Text of sweep.yaml."""
        parts = {"format": FORMAT, "axes": self.axes, "fixed": self.fixed, "metrics": list(self.metrics)}
        return yaml.safe_dump(plain(parts), sort_keys=False, allow_unicode=True, default_flow_style=None, width=100)

    @classmethod
    def from_yaml(cls, text: str) -> "Statement":
        """Inverse of `to_yaml`."""
        stored = yaml.safe_load(text)
        if not isinstance(stored, Mapping) or stored.get("format") != FORMAT:
            raise UsageError(f"A sweep must be a YAML mapping of format {FORMAT}.")
        values = {**{key: [value] for key, value in stored["fixed"].items()}, **stored["axes"]}
        return cls(values, stored["metrics"])


class SweepFolder:
    """Reads and writes a sweep's files; every write is whole or absent."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    @classmethod
    def open(cls, path: Path | str) -> "SweepFolder":
        """An existing sweep."""
        folder = cls(path)
        if not folder.statement_path.exists():
            raise RunError(f"{folder.path} is not a sweep: it has no sweep.yaml.")
        return folder

    @property
    def statement_path(self) -> Path:
        """The file by which a folder is known to be a sweep."""
        return self.path / "sweep.yaml"

    @property
    def statement(self) -> Statement:
        """What was asked for so far."""
        try:
            return Statement.from_yaml(self.statement_path.read_text(encoding="utf-8"))
        except (UsageError, yaml.YAMLError, KeyError, AttributeError) as error:
            raise RunError(f"{self.statement_path} cannot be read: {error}.") from error

    @property
    def members(self) -> dict[str, dict[str, Any]]:
        """Settings that were asked for, by run id."""
        return RunFolder(self.path).read_json("members").get("members", {})

    def refuse(self, statement: Statement) -> None:
        """An error if the folder holds something else than this sweep, before anything is written into it."""
        if self.statement_path.exists():
            statement.extending(self.statement, self.path)
        elif self.path.is_dir() and {path.name for path in self.path.iterdir()} - BEFORE:
            raise RunError(f"{self.path} is not a sweep: it has files, but no sweep.yaml; choose another name.")

    def add(self, statement: Statement, members: Mapping[str, Mapping[str, Any]]) -> None:
        """Record what is asked for now, beside what is there."""
        if self.statement_path.exists():
            statement = statement.extending(self.statement, self.path)
        joined = {**self.members, **{run: plain(settings) for run, settings in members.items()}}
        RunFolder(self.path).write_json("members", {"members": joined})
        atomic.write_text(self.statement_path, statement.to_yaml())

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep a second process from leading this sweep."""
        with RunFolder(self.path).locked():
            yield

    def create_run(self, config: Config) -> None:
        """The folder of a run, unless it is there: its name is a hash of its config."""
        folder = self.run(config.run_id)
        if not (folder.path / "config.yaml").exists():
            RunFolder.create(folder.path, config)

    def run(self, run: str) -> RunFolder:
        """Folder of a run."""
        return RunFolder(self.path / "runs" / run)

    def status(self, run: str) -> dict[str, Any]:
        """How far a run has come: its state, and where it ended."""
        folder = self.run(run)
        status = folder.read_json("status")
        if status.get("state") == "finished" and not folder.model_path.exists() and not folder.lines("scores"):
            status["state"] = "damaged"  # with its scores, a run counts also when its weights were not kept
        return {"state": "waiting", **status}

    def ended(self, run: str) -> bool:
        """Whether a run will not be trained any further."""
        return self.status(run)["state"] in ENDED

    # groups

    def group(self, group: str) -> RunFolder:
        """Folder of a group's checkpoints."""
        return RunFolder(self.path / "groups" / group)

    def groups(self) -> list[str]:
        """Groups that are not done, oldest first."""
        return sorted(path.parent.name for path in self.path.glob("groups/*/group.json"))

    def add_group(self, runs: Sequence[str], cadence: Cadence | None = None) -> str:
        """A new group of runs, in this order for as long as it lives: checkpoints are stacked in it."""
        number = 1 + max((int(name.partition("-")[0]) for name in self.groups()), default=0)
        name = f"{number:04d}-{hashlib.sha256(' '.join(runs).encode()).hexdigest()[:8]}"
        facts = {"runs": list(runs), "cadence": dataclasses.asdict(cadence or Cadence())}
        self.group(name).write_json("group", facts)
        return name

    def runs_of(self, group: str) -> list[str]:
        """Ids of a group's runs, in order."""
        facts = self.group(group).read_json("group")
        if "runs" not in facts:
            raise RunError(f"{self.path} has no group {group}.")
        return list(facts["runs"])

    def divide(self, group: str, parts: Sequence[Sequence[str]]) -> None:
        """Put groups in a group's place; it stays, as their list, until they are done."""
        facts = self.group(group).read_json("group")
        names = [self.add_group(part, self.cadence_of(group)) for part in parts]
        self.group(group).write_json("group", {**facts, "parts": names})
        for checkpoint in self.group(group).checkpoints():
            checkpoint.unlink(missing_ok=True)

    def busy(self, group: str) -> bool:
        """Whether another process trains or scores a group at this moment."""
        try:
            with self.group(group).locked():
                return False
        except RunError:
            return True

    def busy_in_words(self, group: str) -> str:
        """What to say about a group that is busy."""
        return f"Group {group} of {self.path} is being trained by another process; try again when that has ended."

    def parts_of(self, group: str) -> list[str]:
        """Groups that stand in a group's place, if it was divided."""
        return list(self.group(group).read_json("group").get("parts", ()))

    def cadence_of(self, group: str) -> Cadence:
        """How often a group writes."""
        return Cadence(**self.group(group).read_json("group").get("cadence", {}))

    def remove_group(self, group: str) -> None:
        """Forget a group; its runs stay."""
        shutil.rmtree(self.group(group).path, ignore_errors=True)

    def needs(self, group: str) -> list[str]:
        """Files that a worker on another machine must have, relative to the folder."""
        inside = [f"groups/{group}/group.json", "sweep.yaml"]
        runs = [self.run(run).path for run in self.runs_of(group)]
        kept = [path for run in runs for path in sorted(run.glob("*")) if path.is_file() and path.name != "lock"]
        return inside + [path.relative_to(self.path).as_posix() for path in kept]


def plain(value: Any) -> Any:
    """Only what JSON and YAML both hold."""
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    return value.item() if hasattr(value, "item") else value


def _union(first: Iterable[Any], second: Iterable[Any]) -> list[Any]:
    """Values of both, each once; numbers in order of size."""
    joined = list(plain(tuple(first)))
    joined += [value for value in plain(tuple(second)) if value not in joined]
    return sorted(joined) if all(isinstance(value, (int, float)) for value in joined) else joined
