"""Verify every file of runs, sweeps and stored data, and repair what needs no guess; `unbraid check` calls this.

A file is damaged if its content cannot be trusted: only its owner can restore it, or train again. It is untidy if a
killed process left it behind and nothing is lost: these findings have a repair.
"""

import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from unbraid import atomic
from unbraid.data import check as check_dataset, dataset, storage
from unbraid.errors import RunError, UnbraidError, UsageError
from unbraid.folder_contents import find_enclosing, is_run, is_sweep, list_contents, recognise
from unbraid.metrics.generative.features.classifier import read_stored
from unbraid.models import CUSTOM
from unbraid.run import Run
from unbraid.schema import FILES
from unbraid.store import RunFolder
from unbraid.sweeps.folder import SweepFolder
from unbraid.tensor_files import FormatError, OwnerError, has_digest, load_checkpoint, read_header
from unbraid.training.first_stage import load_first_stages

State = Literal["damaged", "untidy", "repaired"]
LINES = ("history", "scores")
_LINK = "It is a link, and a folder of runs may not lead elsewhere."
_NO_SEAL = "it is in no run, and it has no checksum of a data set or classifier that unbraid stored"


@dataclass
class Finding:
    """Something that is wrong with a file; `state` is what it is after a repair, if there was one."""

    file: str
    state: State
    what: str


@dataclass
class Report:
    """Findings of a check.

    `files` is the number of files that were read, `runs` that of the runs below a folder, and `unknown` are files that
    were not checked, as they have no checksum of this library. `notes` name files of your own code, outside the runs,
    that have changed since runs were trained with them.
    """

    path: str
    kind: Literal["run", "sweep", "data", "folder"]
    files: int = 0
    runs: int = 0
    whole_runs: int = 0
    unknown: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def damaged(self) -> bool:
        return any(finding.state == "damaged" for finding in self.findings)

    def as_record(self) -> dict[str, Any]:
        return {**asdict(self), "damaged": self.damaged}


def check(path: str | Path, *, repair: bool = False) -> Report:
    """Verify a run, a sweep, a folder that holds some, a file or folder of stored data, or a data set by name.

    A file inside a run stands for the run. With `repair`, partial files, free locks and other remains are removed, and
    a run that a dead process left as "running" becomes "interrupted". A damaged file is never changed, except a
    checkpoint, which nothing would use.
    """
    place = Path(path)
    if is_sweep(place):
        checker = _Checker(Report(str(path), "sweep"), place, repair)
        checker.check_sweep(SweepFolder(place))
    elif is_run(place):
        checker = _Checker(Report(str(path), "run"), place, repair)
        checker.check_run(RunFolder(place))
    elif place.is_dir():
        return _check_contents(place, repair)
    elif place.exists() and (not place.is_file() or recognise(place) is None):  # a pipe is not read
        return check(_find_owner(place, f"{place} is not a file that unbraid can check: {_NO_SEAL}."), repair=repair)
    else:
        checker = _Checker(Report(str(path), "data"), place, repair)
        checker.check_data(place)
    return checker.report


def _find_owner(place: Path, otherwise: str) -> Path:
    """Return the run or sweep that a file or folder is in, or raise a `UsageError`."""
    owner = find_enclosing(place)
    if owner is None:
        raise UsageError(otherwise)
    return owner


def _check_contents(place: Path, repair: bool) -> Report:
    """Check every run, sweep and sealed file below a folder."""
    contents = list_contents(place)
    sealed = [file for file in contents.files if recognise(file) is not None]
    if not (contents.runs or contents.sweeps or sealed):
        return check(_find_owner(place, f"{place} holds neither runs nor sweeps nor stored data."), repair=repair)
    report = Report(str(place), "folder" if contents.runs or contents.sweeps else "data")
    report.unknown = [str(file) for file in contents.files if file not in sealed]
    for folder in (*contents.runs, *contents.sweeps):
        found = check(folder, repair=repair)
        members = [folder] if folder in contents.runs else list_contents(folder / "runs").runs
        damaged = [Path(each.file) for each in found.findings if each.state == "damaged"]
        whole = [each for each in members if not any(file.is_relative_to(each) for file in damaged)]
        report.files += found.files
        report.findings += found.findings
        report.notes += [note for note in found.notes if note not in report.notes]
        report.runs += len(members)
        report.whole_runs += len(whole) if found.files else 0  # behind a link nothing is read
    _Checker(report, place, repair).check_files(sealed)
    return report


class _Checker:
    def __init__(self, report: Report, root: Path, repair: bool) -> None:
        self.report, self.root, self.repair = report, root, repair

    def read(self, file: Path, action: Callable[[], Any]) -> Any:
        """Return what reading a file returns, or record why it cannot be trusted and return None."""
        self.report.files += 1
        try:
            return action()
        except UnbraidError as error:
            self.note(file, "damaged", str(error))
        except OSError as error:
            self.note(file, "damaged", f"It cannot be read: {error.strerror or error}.")
        return None

    def note(self, file: Path | str, state: State, what: str) -> None:
        self.report.findings.append(Finding(str(file), state, what))

    def tidy(self, file: Path, what: str, action: Callable[[], object], damaged: bool = False) -> None:
        """Record a finding that has a repair, and repair it if the user wants that."""
        if self.repair:
            action()
        self.note(file, "repaired" if self.repair else "damaged" if damaged else "untidy", what)

    def check_run(self, folder: RunFolder) -> None:
        self._check_links(folder.path)
        if any(finding.what == _LINK for finding in self.report.findings):
            return  # nothing behind a link is read
        config = self.read(folder.path / "config.yaml", lambda: folder.config)
        status = self._check_texts(folder)
        if config is None or status is None:
            return
        self._check_partial_files(folder.path, folder.path / "checkpoints")
        try:
            with folder.locked() if self.repair else nullcontext():
                self._check_weights(folder, config, status)
                owner = {"runs": [config.run_id], "data": folder.read_json("data").get("content")}
                self._check_checkpoints(folder, owner, config.training.steps, "config.yaml")
                self._check_remains(folder, status)
        except RunError as error:
            self.note(folder.path, "untidy", str(error))

    def _check_texts(self, folder: RunFolder) -> dict[str, Any] | None:
        """Check the JSON files, and return the content of status.json, empty if there is none."""
        status: dict[str, Any] | None = {}
        for stem in FILES:
            if (folder.path / f"{stem}.json").exists() and stem not in LINES:
                content = self.read(folder.path / f"{stem}.json", lambda stem=stem: folder.read_json(stem))
                status = content if stem == "status" else status
        for stem in LINES:
            file = folder.path / f"{stem}.jsonl"
            if file.exists() and self.read(file, lambda stem=stem: folder.read_lines(stem)) is not None:
                text = file.read_bytes()
                if text and not text.endswith(b"\n"):
                    self.tidy(file, "Its last line is unfinished.", lambda stem=stem: folder.drop_partial_line(stem))
        return status

    def _check_weights(self, folder: RunFolder, config: Any, status: dict[str, Any]) -> None:
        if status.get("state") == "finished" and not folder.model_path.exists():
            self.note(folder.model_path, "damaged", "The final weights are missing.")
        ended = [name for name in ("model.safetensors", "scores.jsonl") if (folder.path / name).exists()]
        if ended and not status:
            what = (
                f"It is missing, although there is {ended[0]}; without it nothing says whether the weights are whole."
            )
            self.note(folder.path / "status.json", "damaged", what)
        if folder.model_path.exists() and status.get("state") == "finished":
            own = CUSTOM in (config.encoder.name, config.decoder.name)
            self.read(folder.model_path, folder.load_model if own else lambda: self._load(folder))
            if "content" not in status:
                what = "It cannot be verified: status.json of an older version has no hash of it."
                self.note(folder.model_path, "untidy", what)
        if folder.parent_path.exists() and config.parent is not None:
            self.read(folder.parent_path, lambda: load_first_stages([folder], [config]))

    def _load(self, folder: RunFolder) -> Any:
        """Return the model of a run, after noting which files of the user's code have changed."""
        run = Run(folder)
        self.report.notes += [note for note in run.notes if note not in self.report.notes]
        return run.model

    def _check_checkpoints(self, folder: RunFolder, owner: dict[str, Any], steps: int, stated_in: str) -> None:
        """Check the checkpoints of an owner that the file `stated_in` names.

        If all belong to another, that file is the damaged one, and repairing it away would lose them.
        """
        fitting, foreign = 0, {}
        for file in folder.checkpoints():
            self.report.files += 1
            try:
                load_checkpoint(file, owner, steps)
                fitting += 1
            except OwnerError as error:
                foreign[file] = str(error)
            except FormatError as error:
                self.note(file, "damaged", str(error))
            except UnbraidError as error:
                self.tidy(file, str(error), file.unlink, damaged=True)
            else:
                if not has_digest(file):
                    what = "It is of an older version, without a digest."
                    self.note(file, "untidy", what)
        for file, what in foreign.items():
            if fitting:
                self.tidy(file, what, file.unlink, damaged=True)
            else:
                what = f"{what} Restore {stated_in} if it was changed, or else remove the checkpoint."
                self.note(folder.path / stated_in, "damaged", what)

    def _check_remains(self, folder: RunFolder, status: dict[str, Any]) -> None:
        """Find what a killed process left behind, unless the run is in use."""
        if not self.repair and folder.is_busy():
            self.note(folder.path, "untidy", "Another process is using it.")
            return
        if status.get("state") == "running":
            facts = {key: value for key, value in status.items() if key != "format"}
            stopped = {**facts, "state": "interrupted"}
            what = "It says running, but no process trains this run."
            self.tidy(folder.path / "status.json", what, lambda: folder.write_json("status", stopped))
        if status.get("state") == "finished":
            for file in [*folder.checkpoints(), folder.parent_path]:
                if file.exists():
                    self.tidy(file, "A finished run does not need it.", lambda file=file: file.unlink(missing_ok=True))
        if (folder.path / "lock").exists() and not self.repair:
            return  # a free lock keeps nobody out
        (folder.path / "lock").unlink(missing_ok=True)

    def _check_partial_files(self, *folders: Path) -> None:
        for file in [file for folder in folders for file in atomic.list_partial_files(folder)]:
            self.tidy(file, "A killed process left it behind.", lambda file=file: file.unlink(missing_ok=True))

    def _check_links(self, folder: Path) -> None:
        for parent, folders, files in os.walk(folder, followlinks=False):
            for name in (*folders, *files):
                if (Path(parent) / name).is_symlink():
                    self.note(Path(parent) / name, "damaged", _LINK)

    def check_sweep(self, sweep: SweepFolder) -> None:
        self._check_links(sweep.path)
        if self.report.damaged:
            return
        self.read(sweep.path / "sweep.yaml", lambda: sweep.plan)
        members = self.read(sweep.path / "members.json", lambda: sweep.members) or {}
        for run in members:
            folder = sweep.run_folder(run)
            if not (folder.path / "config.yaml").exists():
                what = "It is missing; the same sweep command trains it again."
                self.note(folder.path, "untidy", what)
                continue
            self.read(folder.path / "config.yaml", lambda run=run: sweep.check_id(run))
            self.check_run(folder)
        for group in sweep.list_groups():
            self._check_group(sweep, group)
        self._check_partial_files(sweep.path)

    def _check_group(self, sweep: SweepFolder, group: str) -> None:
        folder = sweep.group_folder(group)
        before = len(self.report.findings)
        runs = self.read(folder.path / "group.json", lambda: (sweep.list_runs(group), sweep.read_cadence(group))[0])
        if runs is None:
            found = self.report.findings.pop() if len(self.report.findings) > before else None
            what = f"{found.what if found else 'It is damaged.'} Without it, its runs train again."
            self.tidy(folder.path / "group.json", what, lambda: sweep.remove_group(group), damaged=True)
            return
        self._check_checkpoints(folder, {"runs": runs}, 1 << 62, "group.json")
        self._check_partial_files(folder.path, folder.path / "checkpoints")

    def check_data(self, place: Path) -> None:
        if not place.exists():
            if str(place) not in dataset:
                raise UsageError(f"{place} is not a run, a sweep, a file of stored data or a registered data set.")
            status = check_dataset(str(place))
            self.report.files += status.state not in ("made", "missing")
            if status.state in ("missing", "damaged"):
                self.note(status.path or place, "damaged", status.words)
            return
        self.check_files([place])

    def check_files(self, files: list[Path]) -> None:
        """Check sealed files: data sets and classifiers."""
        for file in files:
            kind = recognise(file)
            reader = {"data": storage.read, "classifier": read_stored}.get(kind or "", read_header)
            self.read(file, lambda file=file, reader=reader: reader(file))
        self._check_partial_files(*sorted({file.parent for file in files}))
