"""Data sets on disk: one safetensors file each, written atomically and checked when read."""

import hashlib
import json
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from unbraid.atomic import replacing
from unbraid.data.factors import Factor, FactorDataset, Pixels
from unbraid.errors import DataError

FORMAT = 1
_BYTES_PER_HASH = 1 << 24


def save(path: Path, data: FactorDataset, facts: Mapping[str, Any] | None = None) -> None:
    """Write a data set with its checksum; `facts` is anything else worth keeping that JSON holds."""
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
    try:
        with replacing(path) as part:
            save_file(arrays, part, metadata)
            part.chmod(0o644)  # safetensors makes files for one user only; a data folder is often shared
    except OSError as error:
        reason = error.strerror or error
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
    description = json.loads(metadata["description"])
    factors = tuple(
        Factor(f["name"], f["size"], None if f["values"] is None else tuple(f["values"]))
        for f in description["factors"]
    )
    pixels = Pixels(arrays["images"], tuple(description["shape"]), description["bits"])
    rows = arrays.get("table"), arrays.get("held_out")
    return FactorDataset(description["name"], pixels, factors, *rows, description["source"])


def read_or_make(path: Path, make: Callable[[], FactorDataset]) -> FactorDataset:
    """Return the data set in a file, or make and store it; a file that cannot be used only causes a warning."""
    try:
        if path.exists():
            return read(path)
    except DataError as error:
        warnings.warn(f"{error} It is made again.", stacklevel=4)
    data = make()
    try:
        save(path, data)
    except DataError as error:
        warnings.warn(f"{data.name} is not kept: {error}", stacklevel=4)
    return data


def checksum(arrays: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 over names, shapes, types and the SHA-256 of every 16 MiB of data, hashed on all cores."""
    digest = hashlib.sha256()
    with ThreadPoolExecutor() as pool:
        for name in sorted(arrays):
            array = arrays[name]
            digest.update(f"{name} {tuple(array.shape)} {array.dtype}\n".encode())
            for part in pool.map(_sha256, array.reshape(-1).view(torch.uint8).split(_BYTES_PER_HASH)):
                digest.update(part)
    return digest.hexdigest()


def _sha256(part: Tensor) -> bytes:
    return hashlib.sha256(part.numpy().data).digest()
