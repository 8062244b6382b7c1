"""Code of a user's own that adds objectives, networks, data sets and metrics: files, and installed packages.

Only files that the user names and packages that the user installed are imported, never what a run folder names.
"""

import hashlib
import importlib.metadata
import importlib.util
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from unbraid.errors import UnbraidError, UsageError

GROUP = "unbraid.plugins"
"""Group of entry points; each names a module that registers something when it is imported."""

VARIABLE = "UNBRAID_WITH"
"""Environment variable with the paths of files to import, so that the workers of a sweep know them, too."""

_installed_are_loaded = False


def load_files(paths: Sequence[str | Path]) -> None:
    """Import Python files, and those that the environment names; workers that this process starts import them, too."""
    named = [Path(part) for part in os.environ.get(VARIABLE, "").split(os.pathsep) if part]
    # unlike those of Path, these functions leave a home folder or a loop of links that they cannot resolve
    resolved = (os.path.realpath(os.path.expanduser(path)) for path in [*named, *paths])  # noqa: PTH111
    files = [Path(path) for path in dict.fromkeys(resolved)]
    for file in files:
        _load_file(file)
    if files:
        os.environ[VARIABLE] = os.pathsep.join(map(str, files))


def _load_file(path: Path) -> ModuleType:
    if path.suffix != ".py" or not path.stem.isidentifier() or not path.is_file():
        raise UsageError(f"--with takes a Python file such as my_module.py, and {path} is not one.")
    known = sys.modules.get(path.stem)
    if known is not None:
        if Path(getattr(known, "__file__", None) or "").resolve() == path:
            return known
        raise UsageError(f"A module named {path.stem} is imported already; rename {path}.")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} cannot be imported.")
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # for other modules beside the file
    try:
        spec.loader.exec_module(module)
    except UnbraidError:
        del sys.modules[path.stem]
        raise
    except Exception as error:
        del sys.modules[path.stem]
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        where = f", line {lines[-1]}" if lines else ""
        raise UsageError(f"{path}{where} cannot be imported: {type(error).__name__}: {error}.") from error
    return module


def load_installed() -> None:
    """Import the plugins of installed packages, once; one that fails only causes a warning."""
    global _installed_are_loaded
    if _installed_are_loaded or _is_importing():
        return
    _installed_are_loaded = True
    for point in importlib.metadata.entry_points(group=GROUP):
        try:
            point.load()
        except Exception as error:
            warnings.warn(
                f"The plugin {point.name} ({point.value}) cannot be imported: {type(error).__name__}: {error}.",
                stacklevel=3,
            )


def _is_importing() -> bool:
    """Return whether a module of this package is being imported; a plugin would see half of it."""
    ours = [module for name, module in sys.modules.items() if name.partition(".")[0] == "unbraid"]
    return any(getattr(getattr(module, "__spec__", None), "_initializing", False) for module in ours)


def describe_origin(make: Any) -> dict[str, str]:
    """Return module, file and SHA-256 of a registered function that is not part of this package; otherwise nothing."""
    name = getattr(make, "__module__", "") or ""
    if name.partition(".")[0] == "unbraid":
        return {}
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is None or not Path(file).is_file():
        return {"module": name}
    return {"module": name, "file": Path(file).name, "sha256": hashlib.sha256(Path(file).read_bytes()).hexdigest()}
