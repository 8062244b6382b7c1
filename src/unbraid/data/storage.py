"""Data sets on disk: one safetensors file each, written atomically and checked when read.

The header has a checksum of the arrays, and a seal: the SHA-256 of checksum and description. Older files have no seal.
"""

import hashlib
import json
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from unbraid.data.factors import Factor, FactorDataset, Pixels
from unbraid.errors import DataError, RunError, UnbraidError
from unbraid.plain_text import parse_json
from unbraid.tensor_files import checksum, describe_failure, save_tensors

FORMAT = 1


def save(path: Path, data: FactorDataset, facts: Mapping[str, Any] | None = None, sync: bool = True) -> None:
    """Write a data set with its checksum; `facts` is anything else worth keeping that JSON holds.

    Without `sync` nothing waits for the disk: a loss of power may leave a file that its checksum reveals.
    """
    arrays = {"images": data.pixels.stored, "table": data.table, "held_out": data.held_out}
    arrays = {name: array.detach().cpu().contiguous() for name, array in arrays.items() if array is not None}
    description = {
        "name": data.name,
        "shape": data.shape,
        "bits": data.pixels.bits,
        "factors": [factor._asdict() for factor in data.factors],
        "source": data.source,
        **(facts or {}),
    }
    metadata = {"format": str(FORMAT), "checksum": checksum(arrays), "description": json.dumps(description)}
    metadata["seal"] = _seal(metadata)
    try:
        save_tensors(path, arrays, metadata, sync)
    except RunError as error:
        reason = describe_failure(error.__cause__ or error)
        raise DataError(f"{path} cannot be written ({reason}); set UNBRAID_DATA to another folder.") from error


def read(path: Path) -> FactorDataset:
    """Return the data set in a file; a damaged or foreign file raises a `DataError` that names it."""
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            metadata = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except (SafetensorError, OSError) as error:
        raise DataError(f"{path} cannot be read ({error}); remove it and make it again.") from error
    if (found := metadata.get("format", "none")) != str(FORMAT):
        raise DataError(f"{path} has format {found}, not {FORMAT}; remove it and make it again.")
    if metadata.get("checksum") != checksum(arrays):
        raise DataError(f"{path} is damaged (its checksum differs); remove it and make it again.")
    sealed = metadata.keys() != {"format", "checksum", "description"}  # older files have no seal
    if sealed and metadata.get("seal") != _seal(metadata):
        raise DataError(f"{path} is damaged (its description was changed); remove it and make it again.")
    try:
        return _make_dataset(arrays, parse_json(metadata["description"]))
    except (UnbraidError, KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise DataError(
            f"{path} has a description that does not fit ({error}); remove it and make it again."
        ) from error


def _make_dataset(arrays: Mapping[str, Any], description: Mapping[str, Any]) -> FactorDataset:
    factors = tuple(
        Factor(f["name"], f["size"], None if f["values"] is None else tuple(f["values"]))
        for f in description["factors"]
    )
    pixels = Pixels(arrays["images"], tuple(description["shape"]), description["bits"])
    rows = arrays.get("table"), arrays.get("held_out")
    return FactorDataset(description["name"], pixels, factors, *rows, description["source"])


def _seal(metadata: Mapping[str, str]) -> str:
    sealed = [metadata.get(name) for name in ("format", "checksum", "description")]
    return hashlib.sha256(json.dumps(sealed).encode()).hexdigest()


def read_or_make(path: Path, make: Callable[[], FactorDataset]) -> FactorDataset:
    """Return the data set in a file, or make and store it; a file that cannot be used only causes a warning.

    The result is in the memory of the CPU, wherever it was made.
    """
    try:
        if path.exists():
            return read(path)
    except DataError as error:
        warnings.warn(f"{error} It is made again.", stacklevel=4)
    data = make().to("cpu")
    try:
        save(path, data, sync=False)  # a damaged file is made again, and half a gigabyte takes a disk seconds
    except DataError as error:
        warnings.warn(f"{data.name} is not kept: {error}", stacklevel=4)
    return data
