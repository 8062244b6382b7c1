"""Data sets that come from files: how each is fetched, converted once, checked and listed.

A family states a `Recipe` and registers it beside its data set, `@dataset("mnist", recipe=…)`. `fetch` turns public
originals, or files that the user has, into one stored file; loading only ever reads that one.
"""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from unbraid.data import storage as stored
from unbraid.data.base import DatasetFacts, data_home, dataset
from unbraid.data.download import Remote, digest, download
from unbraid.data.factors import FactorDataset
from unbraid.errors import DataError, UsageError
from unbraid.registry import Entry

State = Literal["made", "present", "missing", "damaged"]


@dataclass(frozen=True)
class Recipe:
    """How the stored file of a data set is made.

    `convert` turns a file or a folder (the downloads, or what the user gave) into the data set. `wants` says in words
    what that file or folder is. Without `remotes`, only the user can provide it. `settings` are those that change
    what is stored; raise `version` when the conversion changes. `file` is the name of another data set where that one's
    stored file is all that this one needs.
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
        """Where the stored file belongs."""
        given = (key if value is True else str(value) for key, value in self._given)
        words = [self.file or self.name, *given, f"v{self.version}"]
        return data_home() / ("-".join(words) + ".safetensors")

    @property
    def command(self) -> str:
        """The command that makes it."""
        settings = "".join(f" {key}={str(value).lower()}" for key, value in self._given)
        return f"unbraid data fetch {self.name}{settings}"

    @property
    def advice(self) -> str:
        """How to provide it by hand."""
        return f"run `{self.command} --from PATH` with {self.wants}."

    @property
    def _given(self) -> list[tuple[str, Any]]:
        return [(key, value) for key, value in self.settings.items() if value is not None and value is not False]


class Status(NamedTuple):
    """Whether a data set can be loaded: made on demand, present, missing or damaged, and that in words."""

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
    """The data set of a recipe; one that was not fetched yet is a `DataError` with the command for it."""
    if not recipe.path.exists():
        how = f"run `{recipe.command}`." if recipe.remotes else recipe.advice
        raise DataError(f"{recipe.name} is not here yet ({recipe.path} is missing): {how}")
    return stored.read(recipe.path)


def fetch(name: str, source: Path | str | None = None, /, **settings: Any) -> Path:
    """Make a data set's stored file from its public originals, or from the file or folder `source`."""
    recipe = _recipe(name, settings)
    if source is not None:
        return _convert(recipe, Path(source).expanduser())
    if not recipe.remotes:
        raise UsageError(f"{name} has no public download; {recipe.advice}")
    folder = data_home() / "downloads" / recipe.path.stem
    advice = f"get it another way, then {recipe.advice}"
    originals = [download(remote, folder, advice) for remote in recipe.remotes]
    path = _convert(recipe, folder, {"originals": {file.name: digest(file) for file in originals}})
    shutil.rmtree(folder)
    return path


def check(name: str, /, **settings: Any) -> Status:
    """Whether the stored file of a data set is there and whole, by its checksum."""
    entry = dataset[name]
    if entry.facts.recipe is None:
        return Status("made", f"{name} is made when it is loaded.")
    recipe = _recipe(name, settings)
    if not recipe.path.exists():
        return Status("missing", f"{name} is not here yet: run `{recipe.command}`.", recipe.path)
    try:
        found = stored.read(recipe.path)
    except DataError as error:
        return Status("damaged", str(error), recipe.path)
    return Status("present", f"{name} is whole: {len(found)} images in {recipe.path}.", recipe.path)


def describe() -> list[Description]:
    """Every registered data set, with default settings; files are looked for, not read."""
    return [_describe(dataset[name]) for name in dataset]


def find(source: Path, *patterns: str) -> Path:
    """`source` itself if it is a file, else the first file below it that fits a pattern, if one folder has them all."""
    if not source.exists():
        raise DataError(f"{source} does not exist.")
    if source.is_file():
        return source
    for pattern in patterns:
        found = sorted(source.rglob(pattern))
        places = list(dict.fromkeys(path.parent for path in found))
        if len(places) > 1:  # other data may have files of the same names, as Fashion-MNIST has MNIST's
            raise DataError(f"{source} holds {pattern} in {places[0]} and in {places[1]}; give one of them.")
        if found:
            return found[0]
    raise DataError(f"{source} holds no {' or '.join(patterns)}.")


def _recipe(name: str, settings: Mapping[str, Any]) -> Recipe:
    entry = dataset[name]
    if entry.facts.recipe is None:
        raise UsageError(f"{name} is made when it is loaded; there is nothing to fetch.")
    return entry.facts.recipe(**entry.resolve(settings))


def _convert(recipe: Recipe, source: Path, facts: Mapping[str, Any] | None = None) -> Path:
    if not source.exists():
        raise DataError(f"{source} does not exist; {recipe.advice}")
    stored.save(recipe.path, recipe.convert(source), facts)
    return recipe.path


def _describe(entry: Entry[Callable[..., FactorDataset], DatasetFacts]) -> Description:
    facts = entry.facts
    origin, state = "rendered", "made"
    if facts.recipe is not None:
        recipe = facts.recipe(**entry.resolve({}))
        origin = "download" if recipe.remotes else "your files"
        state = "present" if recipe.path.exists() else "missing"
    elif facts.yours:
        origin = "your files"
    return Description(
        entry.name,
        entry.summary,
        facts.images,
        facts.shape,
        facts.factors,
        state,
        origin,
        facts.modalities,
    )
