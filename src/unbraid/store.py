"""A run is a folder that can be read without this library.

    config.yaml        every setting                    history.jsonl   one line per logging point
    model.safetensors  final weights and buffers        scores.jsonl    one line per score, only ever appended
    checkpoints/       the last two, each one file      status.json, environment.json, data.json
    snapshot/          the run before its last steps, if it was asked for

Nothing is pickled: opening a stranger's run executes nothing.
"""

import hashlib
import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from unbraid import atomic
from unbraid.config import FORMAT, Config
from unbraid.errors import RunError, UnbraidError, UsageError

MAX_CHECKPOINTS = 2
ALLOWED_BEFORE_CREATION = {"lock", "members.json"}
"""Files that a folder may hold before a run or a sweep is created in it."""


class RunFolder:
    """The files of a run; every write is atomic."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    @classmethod
    def create(cls, path: Path | str, config: Config) -> "RunFolder":
        """Create a folder, or return an existing one of the same config; refuse a folder with other files."""
        folder = cls(path)
        stored = folder.path / "config.yaml"
        present = {each.name for each in folder.path.iterdir()} if folder.path.is_dir() else set()
        others = {name for name in present - ALLOWED_BEFORE_CREATION if not name.endswith(".part")}
        if "sweep.yaml" in present or (others and not stored.exists()):
            raise RunError(f"{folder.path} has files, and they are not those of a run; choose another name.")
        if stored.exists():
            if folder.config != config:
                changes = "; ".join(_list_changes(folder.config.as_dict(), config.as_dict())[:3])
                raise RunError(
                    f"{folder.path} holds a run with other settings ({changes}); choose another name, or --fresh."
                )
        else:
            atomic.write_text(stored, config.to_yaml())
        return folder

    @classmethod
    def open(cls, path: Path | str) -> "RunFolder":
        folder = cls(path)
        if not folder.path.is_dir():
            raise RunError(f"There is no run folder {folder.path}.")
        if not (folder.path / "config.yaml").exists():
            raise RunError(f"{folder.path} is not a run: it has no config.yaml.")
        return folder

    @classmethod
    def discard(cls, path: Path | str) -> None:
        """Remove a run if there is one; refuse to remove anything else."""
        if Path(path).exists():
            folder = cls.open(path)
            if (folder.path / "sweep.yaml").exists():
                raise RunError(f"{folder.path} is a sweep, not a run; choose another name.")
            with folder.locked():
                shutil.rmtree(folder.path)

    @property
    def config(self) -> Config:
        stored = self.path / "config.yaml"
        try:
            return Config.from_yaml(stored.read_text(encoding="utf-8"))
        except UnbraidError as error:
            raise RunError(f"{stored}: {error}") from error
        except Exception as error:
            raise RunError(f"{stored} is not readable YAML: {str(error).splitlines()[0]}.") from error

    @property
    def written_config(self) -> dict[str, Any]:
        """The settings in config.yaml, without those that later versions have added."""
        _ = self.config  # raises if the file is damaged
        return yaml.safe_load((self.path / "config.yaml").read_text(encoding="utf-8"))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep a second process out of this run; the system releases the lock if the process dies."""
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / "lock").open("a+") as handle:
            if not _try_lock(handle.fileno()):
                raise RunError(f"{self.path} is in use by another process; wait for it, or train under another name.")
            atomic.remove_partial_files(self.path)
            atomic.remove_partial_files(self.checkpoint_folder)
            yield

    def write_json(self, name: str, facts: Mapping[str, Any]) -> None:
        atomic.write_text(self.path / f"{name}.json", json.dumps({"format": FORMAT, **facts}, indent=2) + "\n")

    def read_json(self, name: str) -> dict[str, Any]:
        """Return the content of `name`.json, empty if there is none."""
        path = self.path / f"{name}.json"
        if not path.exists():
            return {}
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise RunError(f"{path} is not readable JSON: {error}.") from error
        if not isinstance(content, dict):
            raise RunError(f"{path} should hold a JSON object.")
        return content

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
        path = self.path / f"{name}.jsonl"
        with path.open("ab+") as handle:
            _drop_partial_line(handle)
            handle.write((json.dumps(replace_non_finite({"format": FORMAT, **record})) + "\n").encode())
            handle.flush()

    def read_lines(self, name: str) -> list[dict[str, Any]]:
        """Return the complete lines of `name`.jsonl."""
        path = self.path / f"{name}.jsonl"
        if not path.exists():
            return []
        try:
            content = path.read_text(encoding="utf-8")
            return [dict(json.loads(line)) for line in content[: content.rfind("\n") + 1].splitlines()]
        except (ValueError, TypeError) as error:
            raise RunError(f"{path} is damaged: {error}.") from error

    def cut_history(self, step: int) -> None:
        """Drop the history after `step`, which a resumed run writes again."""
        lines = [line for line in self.read_lines("history") if line["step"] <= step]
        atomic.write_text(self.path / "history.jsonl", "".join(json.dumps(line) + "\n" for line in lines))

    @property
    def model_path(self) -> Path:
        return self.path / "model.safetensors"

    @property
    def parent_path(self) -> Path:
        """The weights of the run that this one refines, until its own final weights contain them."""
        return self.path / "parent.safetensors"

    @property
    def checkpoint_folder(self) -> Path:
        return self.path / "checkpoints"

    def save_model(self, tensors: Mapping[str, Any]) -> None:
        save_tensors(self.model_path, tensors)

    def load_model(self) -> dict[str, Any]:
        if not self.model_path.exists():
            raise RunError(f"{self.path} has no model.safetensors: it did not finish; resume it with --resume.")
        return load_tensors(self.model_path)[0]

    def content(self) -> str:
        """Return a hash of the final weights and of config.yaml, by which other runs refer to this one."""
        return content_hash(self.model_path, self.written_config)

    def check_unchanged(self) -> None:
        """Raise if weights or settings were changed after training, as far as status.json holds their hash."""
        content = self.read_json("status").get("content")
        if content is None or not self.model_path.exists() or self.content() == content:
            return
        self.load_model()  # raises if the weights are unreadable
        raise RunError(
            f"The files of {self.path} were changed after its training: config.yaml and model.safetensors are not "
            "those that it finished with; train it again, or restore them."
        )

    @property
    def snapshot(self) -> "RunFolder":
        """The weights of some steps before the end, in a folder that opens as a finished run."""
        return RunFolder(self.path / "snapshot")

    def save_snapshot(self, step: int, tensors: Mapping[str, Any]) -> None:
        """Write the weights after `step` steps to `snapshot`, with all that is needed to score them."""
        taken = self.snapshot
        shutil.rmtree(taken.path, ignore_errors=True)
        for name in ("config.yaml", "data.json", "history.jsonl"):
            if (self.path / name).exists():
                atomic.write_text(taken.path / name, (self.path / name).read_text(encoding="utf-8"))
        taken.save_model(tensors)
        taken.write_json("status", {"state": "finished", "step": step, "content": taken.content()})

    def save_checkpoint(self, step: int, tensors: Mapping[str, Any]) -> None:
        """Write a checkpoint and remove all but the last two."""
        save_tensors(self.checkpoint_folder / f"step-{step:09d}.safetensors", tensors, {"step": str(step)})
        for old in self.checkpoints()[:-MAX_CHECKPOINTS]:
            old.unlink(missing_ok=True)

    def checkpoints(self) -> list[Path]:
        """Return the checkpoint files, oldest first."""
        return sorted(self.checkpoint_folder.glob("step-*.safetensors"))

    def latest_checkpoint(self) -> tuple[int, dict[str, Any]] | None:
        """Return step and tensors of the newest readable checkpoint, or None if there is none."""
        for path in reversed(self.checkpoints()):
            try:
                tensors, facts = load_tensors(path)
            except RunError:
                continue  # a damaged file; the one before it may be whole
            return int(facts["step"]), tensors
        return None


def _list_changes(stored: Mapping[str, Any], wanted: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return a phrase for each setting in which two configs differ."""
    changes: list[str] = []
    for key in dict.fromkeys([*stored, *wanted]):
        old, new = stored.get(key), wanted.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            changes += _list_changes(old, new, f"{prefix}{key}.")
        elif old != new:
            changes.append(f"{prefix}{key} is {old} there and {new} here")
    return changes


def check_folder_name(name: str) -> None:
    """Raise a `UsageError` unless the name is that of a single folder."""
    if Path(name).name != name or name in ("", ".", ".."):
        raise UsageError(f"A run's name is the name of one folder, not '{name}'; choose the place with root.")


def replace_non_finite(value: Any) -> Any:
    """Return the value with None for numbers that JSON does not have: NaN and infinities."""
    if isinstance(value, Mapping):
        return {key: replace_non_finite(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [replace_non_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def select_prefix(prefix: str, named: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries whose name starts with a prefix, named by the rest."""
    return {name[len(prefix) :]: value for name, value in named.items() if name.startswith(prefix)}


def content_hash(weights: Path, settings: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a stored config and a file of weights."""
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    with weights.open("rb") as handle:
        while chunk := handle.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def save_tensors(path: Path, tensors: Mapping[str, Any], facts: Mapping[str, str] | None = None) -> None:
    """Write a safetensors file atomically, with `facts` in its header."""
    from safetensors.torch import save_file

    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with atomic.replacing(path) as part:
        save_file(plain, str(part), {"format": str(FORMAT), **(facts or {})})
        part.chmod(0o644)  # safetensors lets only the owner read, but runs are shared


def load_tensors(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the tensors and the header of a safetensors file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="pt") as handle:
            return {name: handle.get_tensor(name) for name in handle.keys()}, handle.metadata() or {}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise RunError(f"{path} cannot be read: {error}.") from error


def _try_lock(handle: int) -> bool:
    try:
        import fcntl
    except ImportError:  # Windows
        import msvcrt

        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)  # pyrefly: ignore[missing-attribute]
        except OSError:
            return False
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _drop_partial_line(handle: Any) -> None:
    if handle.seek(0, os.SEEK_END) == 0:
        return
    handle.seek(-1, os.SEEK_END)
    if handle.read(1) != b"\n":
        handle.seek(0)
        handle.truncate(handle.read().rfind(b"\n") + 1)
    handle.seek(0, os.SEEK_END)
