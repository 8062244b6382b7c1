"""Random numbers as a pure function of (seed, step, name, shape).

Every number is a hash of its address, so there is no generator state. Plain, compiled, captured, stacked and resumed
runs see the same numbers on every device, a checkpoint only needs the step, and one tensor operation serves many
members, each with its own seed. The hash is the splitmix64 finaliser (Steele, Lea and Flood, 2014); its 64-bit products
wrap around in torch as they do in C.
"""

import hashlib
import math
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from unbraid.kernels import allows_kernels

TRITON = find_spec("triton") is not None

SCHEME = 1
"""Version of the numbers; increase it when they change. A run resumes only under its own scheme."""

_MIX_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9 as a signed 64-bit number
_MIX_2 = -7723592293110705685  # 0x94D049BB133111EB
_UNIT = 2.0**-53

Kind = Literal["normal", "uniform", "step"]


class Need(NamedTuple):
    """Noise of one step for a model or an objective: the kind of numbers, and their shape per member.

    The kind `step` is not random: it is the step itself, for schedules inside a model.
    """

    kind: Kind
    shape: tuple[int, ...]


def draw(needs: Mapping[str, Need], seeds: Tensor, step: int | Tensor) -> dict[str, Tensor]:
    """Return one tensor [member, *shape] per need; `seeds` holds one integer per member."""
    kinds = {"normal": normal, "uniform": uniform, "step": _step}
    return {name: kinds[need.kind](seeds, step, name, need.shape) for name, need in needs.items()}


def uniform(seeds: Tensor, step: int | Tensor, name: str, shape: tuple[int, ...]) -> Tensor:
    """Draw uniform numbers in (0, 1), float32 [member, *shape]."""
    if seeds.is_cuda and TRITON and allows_kernels():
        return _draw_on_gpu(seeds, step, (name, name), shape, normal=False)
    return _unit(bits(seeds, step, name, shape)).to(torch.float32).clamp_(2.0**-25, 1 - 2.0**-24)


def normal(seeds: Tensor, step: int | Tensor, name: str, shape: tuple[int, ...]) -> Tensor:
    """Draw standard normal numbers, float32 [member, *shape], by Box and Muller (1958) in float64."""
    if seeds.is_cuda and TRITON and allows_kernels():
        return _draw_on_gpu(seeds, step, (name + "/radius", name + "/angle"), shape, normal=True)
    radius = (-2 * _unit(bits(seeds, step, name + "/radius", shape)).log()).sqrt()
    angle = 2 * torch.pi * _unit(bits(seeds, step, name + "/angle", shape))
    return (radius * angle.cos()).to(torch.float32)


def _draw_on_gpu(
    seeds: Tensor, step: int | Tensor, names: tuple[str, str], shape: tuple[int, ...], normal: bool
) -> Tensor:
    """Draw the same numbers in one launch instead of about fifty."""
    from unbraid.noise_kernel import NORMAL, UNIFORM, hash_noise

    step = step if isinstance(step, Tensor) else torch.tensor(step, device=seeds.device)
    numbers = hash_noise(seeds, step, *map(hash_name, names), math.prod(shape), NORMAL if normal else UNIFORM)
    return numbers.view(len(seeds), *shape)


def _step(seeds: Tensor, step: int | Tensor, name: str, shape: tuple[int, ...]) -> Tensor:
    return (torch.zeros(len(seeds), *shape, device=seeds.device) + step).to(torch.float32)


def permutation(seeds: Tensor, epoch: int | Tensor, count: int) -> Tensor:
    """Draw a random order of `count` items per member [member, count]."""
    return bits(seeds, epoch, "permutation", (count,)).argsort(dim=-1, stable=True)


def bits(seeds: Tensor, step: int | Tensor, name: str, shape: tuple[int, ...]) -> Tensor:
    """Draw 64 random bits per element, as int64 [member, *shape]; `step` may hold one number per member."""
    rowwise = isinstance(step, Tensor) and step.shape == seeds.shape and len(seeds) * math.prod(shape) > 0
    # A permutation is drawn once per epoch: not worth compiling a kernel.
    if rowwise and seeds.is_cuda and TRITON and allows_kernels():
        from unbraid.noise_kernel import hash_bits

        return hash_bits(seeds, step, hash_name(name), math.prod(shape)).view(len(seeds), *shape)
    key = _mix(_mix(_mix(seeds) + hash_name(name)) + step)  # [member]
    # Hash the index; a compiler may fold a product (i * large constant) into narrow index arithmetic.
    address = _mix(torch.arange(1, math.prod(shape) + 1, device=seeds.device, dtype=torch.int64))
    return _mix(key[:, None] + address).view(len(seeds), *shape)


_NAME_HASHES: dict[str, int] = {}


def hash_name(name: str) -> int:
    """Return the hash of a name, a signed 64-bit number that is the same on every machine.

    A compiler cannot trace the hash function, but treats a cached number as a constant (see `hash_names`).
    """
    if name not in _NAME_HASHES:
        _NAME_HASHES[name] = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big", signed=True)
    return _NAME_HASHES[name]


def hash_names(needs: Mapping[str, Need]) -> None:
    """Cache the hashes of the names in `needs`, before a step that draws them is compiled."""
    draw({name: Need(need.kind, (1,)) for name, need in needs.items()}, seed_tensor(0), 0)


def seed_tensor(*seeds: int, device: torch.device | str = "cpu") -> Tensor:
    """Return the seeds of members as a tensor."""
    return torch.tensor(seeds, dtype=torch.int64, device=device)


def _unit(random_bits: Tensor) -> Tensor:
    """Return the upper 53 bits as a float64 in (0, 1), never 0, so that its logarithm is finite."""
    return (_shift(random_bits, 11).to(torch.float64) + 0.5) * _UNIT


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shift(x, 30)) * _MIX_1
    x = (x ^ _shift(x, 27)) * _MIX_2
    return x ^ _shift(x, 31)


def _shift(x: Tensor, count: int) -> Tensor:
    """Return a logical right shift; the one of torch copies the sign bit."""
    return (x >> count) & ((1 << (64 - count)) - 1)
