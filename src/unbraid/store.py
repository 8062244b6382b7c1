"""A run is a folder that can be read without this library.

    config.yaml        every setting                    history.jsonl   one line per logging point
    model.safetensors  final weights and buffers        scores.jsonl    one line per score, only ever appended
    checkpoints/       the last two, each one file      status.json, environment.json, data.json
    snapshot/          the run before its last steps, if it was asked for

Nothing is pickled: opening a stranger's run executes nothing. No link inside a run is followed, every file is checked
against its table (`unbraid.schema`) when it is read, and `unbraid check` checks them all.
"""

import json
import os
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from unbraid import atomic
from unbraid.config import FORMAT, Config, list_changes
from unbraid.errors import RunError, UnbraidError
from unbraid.invocation import choose_wording
from unbraid.plain_text import ParseError, add_sum, parse_yaml
from unbraid.records import (
    MAX_LINES_BYTES,
    append_line,
    drop_partial_line,
    read_lines,
    read_record,
    replace_non_finite as replace_non_finite,
)
from unbraid.replaced_runs import find_replaced, restore_replaced, set_aside
from unbraid.safe_files import check_inside, open_plain_file, read_text, try_lock
from unbraid.schema import CONFIG, check_fields
from unbraid.tensor_files import (
    FormatError,
    checkpoint_name,
    content_hash as content_hash,
    has_digest,
    load_checkpoint,
    load_tensors as load_tensors,
    save_checkpoint,
    save_tensors as save_tensors,
)

MAX_CHECKPOINTS = 2
ALLOWED_BEFORE_CREATION = {"lock", "members.json"}
"""Files that a folder may hold before a run or a sweep is created in it."""


class RunFolder:
    """The files of a run; every write is atomic, and nothing outside `root` is read or written.

    `root` is the folder that the user named: the run itself, or the sweep that the run is part of.
    """

    def __init__(self, path: Path | str, root: Path | str | None = None) -> None:
        self.path = Path(path)
        self.root = self.path if root is None else Path(root)

    def locate(self, *parts: str) -> Path:
        """Return the path of a file in this folder; raise if a link is on the way."""
        path = self.path.joinpath(*parts)
        check_inside(self.root, path)
        return path

    @classmethod
    def create(cls, path: Path | str, config: Config, root: Path | None = None) -> "RunFolder":
        """Create a folder, or return an existing one of the same config; refuse a folder with other files."""
        folder = cls(path, root)
        stored = folder.locate("config.yaml")
        present = {each.name for each in folder.path.iterdir()} if folder.path.is_dir() else set()
        others = {name for name in present - ALLOWED_BEFORE_CREATION if not name.endswith(".part")}
        if "sweep.yaml" in present or (others and not stored.exists()):
            raise RunError(f"{folder.path} has files, and they are not those of a run; choose another name.")
        if stored.exists():
            if folder.config != config:
                raise RunError(_explain_other_settings(stored, folder.config, config))
        else:
            atomic.write_text(stored, config.to_yaml())
        return folder

    @classmethod
    def open(cls, path: Path | str) -> "RunFolder":
        folder = cls(path)
        restore_replaced(folder.path, finished=False)
        if not folder.path.is_dir():
            raise RunError(f"There is no run folder {folder.path}; unbraid runs lists those under runs/.")
        if not (folder.path / "config.yaml").exists():
            raise RunError(f"{folder.path} is not a run: it has no config.yaml.")
        return folder

    @classmethod
    def set_aside(cls, path: Path | str) -> Path | None:
        """Rename a run out of the way of a new one, and return where it is; refuse anything else than a run.

        `remove_replaced` removes it once the new run has finished.
        """
        restore_replaced(Path(path), finished=False)
        if not Path(path).exists():
            return None
        folder = cls.open(path)
        if (folder.path / "sweep.yaml").exists():
            raise RunError(f"{folder.path} is a sweep, not a run; choose another name.")
        with folder.locked():
            set_aside(folder.path, whole=folder.finished)
        return find_replaced(folder.path)

    def remove_replaced(self) -> None:
        """Remove the run that this one has replaced, if this one is finished."""
        restore_replaced(self.path, self.finished)

    @property
    def config(self) -> Config:
        return read_config(self.locate("config.yaml"))

    @property
    def written_config(self) -> dict[str, Any]:
        """The settings in config.yaml, without those that later versions have added."""
        return _read_written_config(self.locate("config.yaml"))

    def is_busy(self) -> bool:
        """Return whether another process holds the lock of this folder at this moment."""
        if not self.locate("lock").exists():
            return False
        with os.fdopen(open_plain_file(self.locate("lock"), os.O_RDONLY), "rb") as handle:
            return not try_lock(handle.fileno())

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep a second process out of this run; the system releases the lock if the process dies."""
        check_inside(self.root, self.path)
        with atomic.explain_disk_errors(self.path / "lock"):
            self.path.mkdir(parents=True, exist_ok=True)
            lock = open_plain_file(self.locate("lock"), os.O_RDWR | os.O_CREAT)
        with os.fdopen(lock, "r+b") as handle:
            if not try_lock(handle.fileno()):
                raise RunError(f"{self.path} is in use by another process; wait for it, or train under another name.")
            atomic.remove_partial_files(self.path)
            atomic.remove_partial_files(self.checkpoint_folder)
            yield

    def write_json(self, name: str, facts: Mapping[str, Any]) -> None:
        content = add_sum({"format": FORMAT, **facts})
        atomic.write_text(self.locate(f"{name}.json"), json.dumps(content, indent=2) + "\n")

    def read_json(self, name: str) -> dict[str, Any]:
        """Return the content of `name`.json, empty if there is none."""
        path = self.locate(f"{name}.json")
        return read_record(read_text(path), name, str(path)) if path.exists() else {}

    @property
    def finished(self) -> bool:
        """True if training reached its last step and the weights exist."""
        return self.read_json("status").get("state") == "finished" and self.model_path.exists()

    @property
    def status(self) -> dict[str, Any]:
        """The content of status.json; a finished run with neither weights nor scores is damaged."""
        status = {"state": "waiting", **self.read_json("status")}
        if status["state"] == "finished" and not self.model_path.exists() and not self.read_lines("scores"):
            status["state"] = "damaged"
        return status

    @property
    def ended(self) -> bool:
        """True if the run will not be trained any further."""
        return self.status["state"] in ("finished", "diverged")

    def append_line(self, name: str, record: Mapping[str, Any]) -> None:
        """Append a line to `name`.jsonl, after dropping a line that a killed process left unfinished."""
        append_line(self.locate(f"{name}.jsonl"), {"format": FORMAT, **record})

    def drop_partial_line(self, name: str) -> None:
        """Drop a line of `name`.jsonl that a killed process left unfinished."""
        drop_partial_line(self.locate(f"{name}.jsonl"))

    def check_writable(self, name: str) -> None:
        """Raise if no line can be appended to `name`.jsonl, before anything is computed for it."""
        path = self.locate(f"{name}.jsonl")
        if not os.access(path if path.exists() else self.path, os.W_OK):
            save = "keep the scores elsewhere with --out FILE, or use --no-save"
            elsewhere = choose_wording(save, "save=False scores without storing")
            raise RunError(f"{path} cannot be written; {elsewhere}.")

    def read_lines(self, name: str) -> list[dict[str, Any]]:
        """Return the complete lines of `name`.jsonl."""
        return read_lines(self.locate(f"{name}.jsonl"))

    def cut_history(self, step: int) -> None:
        """Drop the history after `step`, which a resumed run writes again."""
        lines = [line for line in self.read_lines("history") if line["step"] <= step]
        text = "".join(json.dumps(add_sum(line)) + "\n" for line in lines)
        atomic.write_text(self.locate("history.jsonl"), text)

    @property
    def model_path(self) -> Path:
        return self.locate("model.safetensors")

    @property
    def parent_path(self) -> Path:
        """The weights of the run that this one refines, until its own final weights contain them."""
        return self.locate("parent.safetensors")

    @property
    def checkpoint_folder(self) -> Path:
        return self.locate("checkpoints")

    def save_model(self, tensors: Mapping[str, Any]) -> None:
        save_tensors(self.model_path, tensors)

    def load_model(self) -> dict[str, Any]:
        self.check_has_weights()
        if not self.model_path.exists():
            raise RunError(f"{self.path} has no model.safetensors: {self._explain_missing_model()}.")
        self.check_unchanged()
        return load_tensors(self.model_path)[0]

    def _explain_missing_model(self) -> str:
        """Return why a run has no final weights yet, and what to do: a phrase for a message."""
        if self.is_busy():
            return "another process is still training it; wait for it"
        status = self.read_json("status")
        if status.get("state") == "diverged":
            fresh = choose_wording("--fresh", "fresh=True")
            return (
                f"it diverged at step {status['step']}; train it with other settings, such as a smaller lr, and {fresh}"
            )
        file = shlex.quote(str(self.path / "config.yaml"))
        command = f"unbraid train --config {file} --resume" if self.config.parent is None else "--resume"
        continue_it = choose_wording(f"resume it with {command}", "train it with the same arguments again")
        return f"it did not finish; {f'repeat {self._name_sweep_command()}' if self.in_sweep else continue_it}"

    def check_has_weights(self) -> None:
        """Raise if training ended and its weights are missing, which only the user can decide to train again."""
        if self.read_json("status").get("state") == "finished" and not self.model_path.exists():
            fresh = choose_wording(
                f"--fresh --name {shlex.quote(self.path.name)}", f"fresh=True, name={self.path.name!r}"
            )
            train_again = f"train it again with {fresh}"
            if self.in_sweep:
                train_again = f"remove this folder and repeat {self._name_sweep_command()}, which trains it again"
            raise RunError(
                f"{self.path} is finished, but its weights are missing: restore model.safetensors, or {train_again}."
            )

    @property
    def in_sweep(self) -> bool:
        """True if this run is a member of a sweep."""
        path = Path(os.path.abspath(self.path))  # noqa: PTH100 (links are kept)
        return path.parent.name == "runs" and (path.parent.parent / "sweep.yaml").exists()

    def _name_sweep_command(self) -> str:
        """Return the command that trained this member, quoted anew, as the file may be a stranger's."""
        try:
            words = shlex.split(self.read_json("environment").get("command", ""))
        except ValueError:  # a quote without its partner
            words = []
        by_command = words[:1] == ["unbraid"] and not {"sweep", "reproduce"}.isdisjoint(words)
        return shlex.join(words) if by_command else "the sweep"

    def content(self) -> str:
        """Return a hash of the final weights and of config.yaml, by which other runs refer to this one."""
        return content_hash(self.model_path, self.written_config)

    def check_unchanged(self) -> None:
        """Raise if weights or settings were changed after training, or if the file with their hash is gone.

        A status.json of an older version has no hash.
        """
        status = self.read_json("status")
        if self.model_path.exists() and not status:
            raise RunError(
                f"{self.path} has no status.json, by which its weights are verified; restore it, or train again."
            )
        content = status.get("content")
        if content is None or not self.model_path.exists() or self.content() == content:
            return
        load_tensors(self.model_path)  # raises if the weights are unreadable
        raise RunError(
            f"The files of {self.path} were changed after its training: config.yaml or model.safetensors is not "
            "the one that it finished with; train it again, or restore them."
        )

    def stamp(self) -> list[tuple[int, ...]]:
        """Return what changes whenever the final weights or config.yaml are written."""
        found = [path.stat() for path in (self.model_path, self.locate("config.yaml")) if path.exists()]
        return [(facts.st_mtime_ns, facts.st_ctime_ns, facts.st_size, facts.st_ino) for facts in found]

    @property
    def snapshot(self) -> "RunFolder":
        """The weights of some steps before the end, in a folder that opens as a finished run."""
        return RunFolder(self.locate("snapshot"), self.root)

    def save_snapshot(self, step: int, tensors: Mapping[str, Any]) -> None:
        """Write the weights after `step` steps to `snapshot`, with all that is needed to score them."""
        taken = self.snapshot
        shutil.rmtree(taken.path, ignore_errors=True)
        for name in ("config.yaml", "data.json", "history.jsonl"):
            if self.locate(name).exists():
                atomic.write_text(taken.locate(name), read_text(self.locate(name), MAX_LINES_BYTES))
        taken.save_model(tensors)
        taken.write_json("status", {"state": "finished", "step": step, "content": taken.content()})

    def save_checkpoint(self, step: int, tensors: Mapping[str, Any], owner: Mapping[str, Any] | None = None) -> None:
        """Write a checkpoint that is bound to its owner (run ids, data, players), and remove all but the last two."""
        save_checkpoint(self.checkpoint_folder / checkpoint_name(step), step, tensors, owner or {})
        for old in self.checkpoints()[:-MAX_CHECKPOINTS]:
            old.unlink(missing_ok=True)

    def checkpoints(self) -> list[Path]:
        """Return the checkpoint files, oldest first."""
        paths = sorted(self.checkpoint_folder.glob("step-*.safetensors"))
        for path in paths:
            check_inside(self.root, path)
        return paths

    def latest_checkpoint(
        self,
        owner: Mapping[str, Any] | None = None,
        max_step: int | None = None,
        report: Callable[[str], None] = lambda sentence: None,
    ) -> tuple[int, dict[str, Any]] | None:
        """Return step and tensors of the newest whole checkpoint of an owner, or None if there is none.

        `report` gets a sentence about every checkpoint that is passed over, and about one that cannot prove itself.
        """
        paths = self.checkpoints()
        for path in reversed(paths):
            try:
                found = load_checkpoint(path, owner, max_step)
            except FormatError:
                raise
            except RunError as error:
                report(f"{error} It is not used.")
                continue  # the one before it may be whole
            if not has_digest(path):
                report(f"{path} is of an older version, without a digest; it is used unverified.")
            if path != paths[-1]:
                report(f"{self.path} continues from the older checkpoint at step {found[0]}.")
            return found
        if paths:
            report(f"No checkpoint of {self.path} can be used; training starts again at step 0.")
        return None


def read_config(path: Path) -> Config:
    """Return the config in a file."""
    try:
        return Config.from_dict(_read_written_config(path))
    except RunError:
        raise
    except UnbraidError as error:
        raise RunError(f"{path}: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunError(f"{path} does not hold the settings of a run ({error}); restore it.") from error


def _read_written_config(path: Path) -> dict[str, Any]:
    try:
        content = parse_yaml(read_text(path))
    except ParseError as error:
        raise RunError(f"{path} cannot be read: {error}.") from error
    check_fields(content, CONFIG, str(path))
    return content


def advise_other_name() -> str:
    """Return what to do if a folder holds another run: a phrase for a message."""
    return f"choose another name, or {choose_wording('--fresh', 'fresh=True')}"


def _explain_other_settings(file: Path, stored: Config, wanted: Config) -> str:
    """Return why a config file is not that of a run; if only its steps differ, also how to train longer."""
    changes = list_changes(stored.as_dict(), wanted.as_dict())
    steps = wanted.training.steps
    if wanted != replace(stored, training=replace(stored.training, steps=steps)):
        return f"{file} holds other settings ({'; '.join(changes[:3])}); {advise_other_name()}."
    first = f"--config {shlex.quote(str(file))} " if stored.parent is None else ""
    new = choose_wording(f"{first}steps={steps} --name NAME", f"steps={steps}, name=…")
    return (
        f"{file} holds other settings ({changes[0]}), and a run keeps its number of steps, on which schedules depend; "
        f"for more or fewer, train a new run from step 0: {new}."
    )


def select_prefix(prefix: str, named: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries whose name starts with a prefix, named by the rest."""
    return {name[len(prefix) :]: value for name, value in named.items() if name.startswith(prefix)}
