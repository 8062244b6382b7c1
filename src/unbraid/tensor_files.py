"""Files of tensors (safetensors): written atomically, with a header of facts, and checkpoints that prove themselves.

The header of a checkpoint holds what it belongs to (step, run ids, data, players) and a SHA-256 over these facts and
over the names, types, shapes and bytes of all tensors. Checkpoints of older versions hold only their step.
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from unbraid import atomic
from unbraid.errors import DiskError, RunError
from unbraid.invocation import choose_wording
from unbraid.safe_files import open_plain_file
from unbraid.schema import FORMAT

DIGEST = "digest"
OLD_FACTS = {"format", "step"}
"""Facts in the header of a checkpoint without a digest, as older versions wrote it."""

_BYTES_PER_HASH = 1 << 24


class OwnerError(RunError):
    """A whole checkpoint belongs to another run, or its own run was given other settings."""


class FormatError(RunError):
    """A file has the format of another version, and is not damaged."""


def save_tensors(
    path: Path, tensors: Mapping[str, Any], facts: Mapping[str, str] | None = None, sync: bool = True
) -> None:
    """Write a safetensors file atomically, with `facts` in its header; `sync` waits for the disk."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        with atomic.replacing(path, sync) as part:
            try:
                save_file(plain, str(part), {"format": str(FORMAT), **(facts or {})})
            except SafetensorError as error:
                raise _find_system_error(error) from error
            part.chmod(0o644)  # safetensors lets only the owner read, but runs are shared
    except DiskError:
        raise
    except (SafetensorError, OSError) as error:
        raise RunError(f"{path} cannot be written ({describe_failure(error)}); files before it are whole.") from error


def _find_system_error(error: Exception) -> Exception:
    """Return the error of the system that safetensors names at the end of its message, or else the same error."""
    number = re.search(r"\(os error (\d+)\)", str(error))
    return OSError(int(number[1]), os.strerror(int(number[1]))) if number else error


def describe_failure(error: BaseException) -> str:
    """Return the reason of a failed write in a few words."""
    reason = getattr(error, "strerror", None) or next(iter(str(error).splitlines()), "")
    return (reason or type(error).__name__).rstrip(".")


def load_tensors(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the tensors and the header of a safetensors file."""
    from safetensors import SafetensorError, safe_open

    try:
        os.close(open_plain_file(path, os.O_RDONLY))  # refuses links and pipes
        with safe_open(str(path), framework="pt") as handle:
            return {name: handle.get_tensor(name) for name in handle.keys()}, handle.metadata() or {}  # noqa: SIM118
    except (SafetensorError, OSError, RuntimeError, ValueError, OverflowError) as error:
        reason = describe_failure(error)
        raise RunError(f"{path} cannot be read: {reason}.") from error


def read_header(path: Path) -> dict[str, str]:
    """Return the header of a safetensors file without its tensors."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="pt") as handle:
            return handle.metadata() or {}
    except (SafetensorError, OSError, RuntimeError, ValueError, OverflowError) as error:
        raise RunError(f"{path} cannot be read: {describe_failure(error)}.") from error


def save_checkpoint(path: Path, step: int, tensors: Mapping[str, Any], owner: Mapping[str, Any]) -> None:
    """Write a checkpoint whose header binds it to its owner: the run ids, the data and the players."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    facts = {"step": str(step), "owner": json.dumps(owner, sort_keys=True)}
    save_tensors(path, plain, {**facts, DIGEST: _digest(facts, plain)})


def load_checkpoint(path: Path, owner: Mapping[str, Any] | None, max_step: int | None) -> tuple[int, dict[str, Any]]:
    """Return step and tensors of a checkpoint; raise a `RunError` that names the file if anything is wrong with it.

    Only the facts in `owner` are compared; an `owner` or a `max_step` of None is not.
    """
    tensors, facts = load_tensors(path)
    if facts.get("format") != str(FORMAT):
        raise FormatError(
            f"{path} has format {facts.get('format', 'none')!r}, and this version reads format {FORMAT}; continue with "
            f"the version that wrote it, or train again with {choose_wording('--fresh', 'fresh=True')}."
        )
    if DIGEST in facts:
        known = {name: facts.get(name, "") for name in ("step", "owner")}
        if facts[DIGEST] != _digest(known, tensors):
            raise RunError(f"{path} is damaged: its content does not fit its digest.")
        found = json.loads(facts["owner"])
        for key, wanted in (owner or {}).items():
            if found.get(key) != wanted:
                what = f"its {key} is {str(found.get(key))[:80]}, not {str(wanted)[:80]}"
                raise OwnerError(f"{path} belongs to another run: {what}.")
    elif facts.keys() != OLD_FACTS:
        raise RunError(f"{path} is damaged: its header has no digest.")
    step = facts.get("step", "")
    if not (step.isascii() and step.isdecimal()) or path.name != checkpoint_name(int(step[:18])):
        raise RunError(f"{path} is damaged: its header says step {step[:30]!r}.")
    if max_step is not None and int(step) > max_step:
        raise RunError(f"{path} says step {step}, and the run has {max_step} steps.")
    return int(step), tensors


def has_digest(path: Path) -> bool:
    """Return whether a readable checkpoint proves itself; those of older versions do not."""
    from safetensors import safe_open

    with safe_open(str(path), framework="pt") as handle:
        return DIGEST in (handle.metadata() or {})


def checkpoint_name(step: int) -> str:
    return f"step-{step:09d}.safetensors"


def _digest(facts: Mapping[str, str], tensors: Mapping[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps({"format": FORMAT, **facts}, sort_keys=True).encode())
    digest.update(checksum(tensors).encode())
    return digest.hexdigest()


def checksum(arrays: Mapping[str, Any]) -> str:
    """Return the SHA-256 over names, shapes, types and the SHA-256 of every 16 MiB of data, hashed on all cores."""
    import torch

    digest = hashlib.sha256()
    with ThreadPoolExecutor() as pool:
        for name in sorted(arrays):
            array = arrays[name]
            digest.update(f"{name} {tuple(array.shape)} {array.dtype}\n".encode())
            parts = array.reshape(-1).view(torch.uint8).split(_BYTES_PER_HASH)
            for part in (pool.map if len(parts) > 1 else map)(_sha256, parts):  # a thread takes time to start
                digest.update(part)
    return digest.hexdigest()


def _sha256(part: Any) -> bytes:
    return hashlib.sha256(part.numpy().data).digest()


def content_hash(weights: Path, settings: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a stored config and a file of weights."""
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    with os.fdopen(open_plain_file(weights, os.O_RDONLY), "rb") as handle:
        while chunk := handle.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
