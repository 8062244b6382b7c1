"""Data sets that come from files: fetch, convert once, check and list them.

A data set registers a `Recipe`, `@dataset("mnist", recipe=…)`. `fetch` turns public originals, or files that the user
has, into one stored file; loading reads only that file.
"""

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from unbraid import atomic
from unbraid.data import storage
from unbraid.data.base import DatasetFacts, data_home, dataset, expand_user, refuse_unwritable
from unbraid.data.download import Remote, digest, download
from unbraid.data.factors import FactorDataset
from unbraid.errors import DataError, UsageError
from unbraid.printable import say
from unbraid.registry import Entry
from unbraid.safe_files import try_lock

State = Literal["made", "present", "missing", "damaged"]
SECONDS_BETWEEN_TRIES = 0.2


@dataclass(frozen=True)
class Recipe:
    """Instructions for making the stored file of a data set.

    `convert` turns a file or a folder (the downloads, or the user's own) into the data set; `wants` describes that
    file or folder. Without `remotes`, only the user can provide it. `settings` are those that change the stored data;
    raise `version` when the conversion changes. `file` names another data set if its stored file serves this one, too.
    """

    name: str
    convert: Callable[[Path], FactorDataset]
    wants: str
    remotes: tuple[Remote, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    version: int = 1
    file: str = ""

    @property
    def path(self) -> Path:
        """Path of the stored file."""
        words = [self.file or self.name, *(key if value is True else str(value) for key, value in self._used_settings)]
        return data_home() / ("-".join([*words, f"v{self.version}"]) + ".safetensors")

    @property
    def command(self) -> str:
        """Command that makes the stored file."""
        settings = "".join(f" {key}={str(value).lower()}" for key, value in self._used_settings)
        return f"unbraid data fetch {self.name}{settings}"

    @property
    def advice(self) -> str:
        """Advice on how to make the stored file from the user's own files."""
        return f"run `{self.command} --from PATH` with {self.wants}."

    @property
    def _used_settings(self) -> list[tuple[str, Any]]:
        return [(key, value) for key, value in self.settings.items() if value is not None and value is not False]


class Status(NamedTuple):
    """State of a data set: made on demand, present, missing or damaged; `words` says it in a sentence."""

    state: State
    words: str
    path: Path | None = None


class Description(NamedTuple):
    """A line of `unbraid data list`."""

    name: str
    summary: str
    images: int | None
    shape: tuple[int, ...] | None
    factors: tuple[str, ...]
    state: State
    origin: Literal["rendered", "download", "your files"]
    modalities: tuple[str, ...] = ()


def load_stored(recipe: Recipe) -> FactorDataset:
    """Return the data set of a recipe, or raise a `DataError` with the command that fetches it."""
    if not recipe.path.exists():
        advice = f"run `{recipe.command}`." if recipe.remotes else recipe.advice
        raise DataError(f"{recipe.name} is not here yet ({recipe.path} is missing): {advice}")
    return storage.read(recipe.path)


def fetch(name: str, source: Path | str | None = None, /, **settings: Any) -> Path:
    """Make a data set's stored file from its public originals, or from the file or folder `source`.

    A stored file that is whole is not downloaded again. One process at a time fetches a data set; others wait.
    """
    recipe = _find_recipe(name, settings)
    if source is not None:
        return _convert(recipe, expand_user(source))
    if not recipe.remotes:
        raise UsageError(f"{name} has no public download; {recipe.advice}")
    with waiting_lock(data_home() / f".{recipe.path.stem}.lock", f"Another process fetches {name}; waiting for it."):
        if recipe.path.exists() and check(name, **settings).state == "present":
            return recipe.path  # also if another process has fetched it in the meantime
        folder = data_home() / "downloads" / recipe.path.stem
        advice = f"get it another way, then {recipe.advice}"
        originals = [download(remote, folder, advice) for remote in recipe.remotes]
        path = _convert(recipe, folder, {"originals": {file.name: digest(file) for file in originals}})
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # other data sets may be on their way
            folder.parent.rmdir()
    return path


def check(name: str, /, **settings: Any) -> Status:
    """Return whether the stored file of a data set exists and matches its checksum."""
    if dataset[name].facts.recipe is None:
        return Status("made", f"{_describe_unstored(name)}.")
    recipe = _find_recipe(name, settings)
    if not recipe.path.exists():
        return Status("missing", f"{name} is not here yet: run `{recipe.command}`.", recipe.path)
    try:
        data = storage.read(recipe.path)
    except DataError as error:
        return Status("damaged", str(error), recipe.path)
    return Status("present", f"{name} is whole: {len(data)} images in {recipe.path}.", recipe.path)


def describe() -> list[Description]:
    """Describe every registered data set with its default settings, without reading files."""
    return [_describe(dataset[name]) for name in dataset]


def _find_recipe(name: str, settings: Mapping[str, Any]) -> Recipe:
    entry = dataset[name]
    if entry.facts.recipe is None:
        raise UsageError(f"{_describe_unstored(name)}; there is nothing to fetch.")
    return entry.facts.recipe(**entry.resolve(settings))


def _describe_unstored(name: str) -> str:
    own = dataset[name].facts.yours
    return f"{name} reads your own files, and nothing is stored" if own else f"{name} is made when it is loaded"


def _convert(recipe: Recipe, source: Path, facts: Mapping[str, Any] | None = None) -> Path:
    if not source.exists():
        raise DataError(f"{source} does not exist; {recipe.advice}")
    data = recipe.convert(source)
    atomic.remove_partial_files(recipe.path.parent, recipe.path.name)
    storage.save(recipe.path, data, facts)
    return recipe.path


def _describe(entry: Entry[Callable[..., FactorDataset], DatasetFacts]) -> Description:
    facts = entry.facts
    origin, state = "your files" if facts.yours else "rendered", "made"
    if facts.recipe is not None:
        recipe = facts.recipe(**entry.resolve({}))
        origin = "download" if recipe.remotes else "your files"
        state = "present" if recipe.path.exists() else "missing"
    shown = (entry.name, entry.summary, facts.images, facts.shape, facts.factors)
    return Description(*shown, state, origin, facts.modalities)


@contextmanager
def waiting_lock(path: Path, message: str) -> Iterator[None]:
    """Hold the lock file `path` for the length of the block; print `message` once if another process holds it.

    The system releases the lock of a process that dies. The file is removed at the end.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = _acquire(path, message)
    except OSError as error:
        raise refuse_unwritable(path, error) from error
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)  # before the lock is released: nobody else has it yet
        os.close(handle)


def _acquire(path: Path, message: str) -> int:
    said = False
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o644)
        if try_lock(handle):
            # the file may have been removed by its last holder between opening and locking
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(handle), path.stat()):
                    return handle
        elif not said:
            say(message)
            said = True
        os.close(handle)
        time.sleep(SECONDS_BETWEEN_TRIES if said else 0)
