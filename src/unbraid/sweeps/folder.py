"""A sweep is a folder of ordinary runs and the files that they share.

    sweep.yaml     recipes, axes, fixed settings, metrics      runs/ID/     ordinary run folders
    members.json   run id -> settings of the member           groups/ID/   group.json and checkpoints, while unfinished
    table.csv, table.parquet, summary.csv, report.html         slurm/       logs of a cluster

The folder holds everything that a worker needs to train a group, so a path and a group's id are a complete job.
"""

import dataclasses
import hashlib
import shutil
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from unbraid import atomic
from unbraid.config import Config, hash_settings, to_plain
from unbraid.errors import RunError, UsageError
from unbraid.printable import shorten
from unbraid.safe_files import read_text
from unbraid.store import ALLOWED_BEFORE_CREATION, RunFolder
from unbraid.sweeps.plan import SweepPlan
from unbraid.training import Cadence


class SweepFolder:
    """The files of a sweep; every write is atomic."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    @classmethod
    def open(cls, path: Path | str) -> "SweepFolder":
        folder = cls(path)
        if not folder.plan_path.exists():
            raise RunError(f"{folder.path} is not a sweep: it has no sweep.yaml.")
        return folder

    @property
    def plan_path(self) -> Path:
        return RunFolder(self.path).locate("sweep.yaml")

    @property
    def plan(self) -> SweepPlan:
        try:
            return SweepPlan.from_yaml(read_text(self.plan_path), str(self.plan_path))
        except UsageError as error:
            raise RunError(f"{self.plan_path} cannot be read: {error}.") from error

    @property
    def members(self) -> dict[str, dict[str, Any]]:
        """The settings of each member, by run id."""
        return RunFolder(self.path).read_json("members").get("members", {})

    def check_extends(self, plan: SweepPlan) -> None:
        """Raise if the folder holds anything but an earlier part of this sweep."""
        if self.plan_path.exists():
            plan.extend(self.plan, self.path)
        elif self.path.is_dir() and any(
            path.name not in ALLOWED_BEFORE_CREATION and path.suffix != ".part" for path in self.path.iterdir()
        ):
            raise RunError(f"{self.path} is not a sweep: it has files, but no sweep.yaml; choose another name.")

    def add(self, plan: SweepPlan, members: Mapping[str, Mapping[str, Any]]) -> None:
        """Add a plan and its members to those of earlier calls."""
        if self.plan_path.exists():
            plan = plan.extend(self.plan, self.path)
        joined = {**self.members, **{run: to_plain(settings) for run, settings in members.items()}}
        RunFolder(self.path).write_json("members", {"members": joined})
        atomic.write_text(self.plan_path, plan.to_yaml())

    def locked(self) -> AbstractContextManager[None]:
        """Keep a second process from running this sweep."""
        return RunFolder(self.path).locked()

    def create_run(self, config: Config) -> RunFolder:
        """Create the folder of a run unless it exists; its name is a hash of its config."""
        folder = self.run_folder(config.run_id)
        if not (folder.path / "config.yaml").exists():
            RunFolder.create(folder.path, config, self.path)
        return folder

    def run_folder(self, run: str) -> RunFolder:
        return RunFolder(self.path / "runs" / run, self.path)

    def group_folder(self, group: str) -> RunFolder:
        return RunFolder(self.path / "groups" / group, self.path)

    def list_groups(self) -> list[str]:
        """Return the ids of unfinished groups, oldest first."""
        return sorted(path.parent.name for path in self.path.glob("groups/*/group.json"))

    def add_group(self, runs: Sequence[str], cadence: Cadence | None = None) -> str:
        """Create a group and return its id; its checkpoints stack the members in the order of `runs`."""
        numbers = [name.partition("-")[0] for name in self.list_groups()]
        number = 1 + max((int(each) for each in numbers if each.isdecimal()), default=0)
        name = f"{number:04d}-{_hash_runs(runs)}"
        facts = {"runs": list(runs), "cadence": dataclasses.asdict(cadence or Cadence())}
        self.group_folder(name).write_json("group", facts)
        return name

    def list_runs(self, group: str) -> list[str]:
        facts = self.group_folder(group).read_json("group")
        if "runs" not in facts:
            raise RunError(f"{self.path} has no group {group}.")
        if group.partition("-")[2] != _hash_runs(facts["runs"]):
            path = self.group_folder(group).path
            raise RunError(f"{path / 'group.json'} was changed: these are not the runs of {group}; remove {path}.")
        return list(facts["runs"])

    def divide(self, group: str, parts: Sequence[Sequence[str]]) -> None:
        """Replace a group by smaller ones, which its folder lists until they are done."""
        facts = self.group_folder(group).read_json("group")
        names = [self.add_group(part, self.read_cadence(group)) for part in parts]
        self.group_folder(group).write_json("group", {**facts, "parts": names})
        self.forget_checkpoints(group)

    def describe_values(self, runs: Sequence[str]) -> str:
        """Return the values of the axes that all these runs have, as 'beta=6, seed=0'; recipes are left out."""
        members = self.members  # empty on a worker that does not see the folder
        settings = [members.get(run, {}) for run in runs]
        shared = [
            key for key in self.plan.axes if all(key in each and each[key] == settings[0][key] for each in settings)
        ]
        return ", ".join(f"{key}={shorten(settings[0][key])}" for key in shared if key != "recipe")

    def list_parts(self, group: str) -> list[str]:
        """Return the groups that replace a divided group."""
        return list(self.group_folder(group).read_json("group").get("parts", ()))

    def is_busy(self, group: str) -> bool:
        """Return whether another process trains or scores a group at this moment."""
        return self.group_folder(group).is_busy()

    def check_id(self, run: str) -> None:
        """Raise unless the settings of a run are those by which its folder is named."""
        folder = self.run_folder(run)
        if hash_settings(folder.written_config) != run.rpartition("-")[2]:
            raise RunError(f"{folder.path / 'config.yaml'} was changed: these are not the settings of {run}.")

    def forget_checkpoints(self, group: str) -> None:
        """Remove the checkpoints of a group, which then trains from step 0."""
        for checkpoint in self.group_folder(group).checkpoints():
            checkpoint.unlink(missing_ok=True)

    def describe_busy(self, group: str) -> str:
        return f"Group {group} of {self.path} is being trained by another process; try again when that has ended."

    def read_cadence(self, group: str) -> Cadence:
        stored = self.group_folder(group).read_json("group").get("cadence", {})
        try:
            return Cadence(**stored)
        except (TypeError, UsageError) as error:
            path = self.group_folder(group).path / "group.json"
            raise RunError(f"{path}: 'cadence' is not one that unbraid writes ({error}); restore it.") from error

    def remove_group(self, group: str) -> None:
        """Remove the folder of a group; its runs stay."""
        shutil.rmtree(self.group_folder(group).path, ignore_errors=True)

    def files_for_worker(self, group: str) -> list[str]:
        """Return the files, relative to the folder, that a worker on another machine needs."""
        of_sweep = [f"groups/{group}/group.json", "sweep.yaml"]
        runs = [self.run_folder(run).path for run in self.list_runs(group)]
        of_runs = [path for run in runs for path in sorted(run.glob("*")) if path.is_file() and path.name != "lock"]
        return of_sweep + [path.relative_to(self.path).as_posix() for path in of_runs]


def _hash_runs(runs: Sequence[str]) -> str:
    """Return the second part of a group's id, which binds the folder to its runs and their order."""
    return hashlib.sha256(" ".join(runs).encode()).hexdigest()[:8]
