"""Groups of runs that train as one program, and how many of them fit in memory.

Members of a group share every shape and every branch (see `group.py`). They differ only in numbers: the seed, the
learning rate, the clipping, and the objective's weights.
"""

import itertools
import json
from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from unbraid.config import Config
from unbraid.memory import available_memory
from unbraid.methods import objective
from unbraid.training.state import REHEARSAL_ROWS, State

Member = TypeVar("Member")

NUMBERS_OF_TRAINING = ("seed", "lr", "clip")
"""Training settings in which the members of a group may differ."""

MAX_MEMBERS = 512
"""Each member holds its lock file open, and systems allow about 1,000 open files."""

MAX_MEMBERS_ON_CPU = 8
"""More members wait for each other on a CPU."""

MAX_OPERATIONS_TOGETHER = 20_000_000
"""Operations of one member's forward pass above which a CPU trains one member after the other faster.

Below it, members share the time of the interpreter; above it, a stacked product is slower than a plain one.
"""

MAX_MEMORY_SHARE = 0.8
"""Share of the free memory that a group may take; the rest is for scratch space, fragmentation and other programs."""

TENSORS_PER_PARAMETER = 4
"""A parameter, its gradient, and the two moments of Adam."""

BYTES_PER_SAVED_BYTE = 2.0
"""Peak memory of a step over what autograd saves for the backward pass: gradients of activations, noise, scratch."""


def group_by_structure(configs: Sequence[Config]) -> list[list[Config]]:
    """Return the configs in groups that can train as one program; groups and members keep their order."""
    groups: dict[str, list[Config]] = {}
    for config in configs:
        groups.setdefault(structure_key(config), []).append(config)
    return list(groups.values())


def structure_key(config: Config) -> str:
    """Return a text of every setting that must be equal in a group."""
    stored: dict[str, Any] = config.as_dict()
    if config.parent is not None:  # members may differ in the weights of their first stages
        stored["parent"] = structure_key(Config.from_dict(config.parent["config"]))
    for key in NUMBERS_OF_TRAINING:
        del stored["training"][key]
    for key in objective[config.objective.name].sweepable:
        del stored["objective"][key]
    return json.dumps(stored, sort_keys=True)


def split_evenly(groups: Sequence[Sequence[Member]], members: int) -> list[list[Member]]:
    """Return the groups in parts of at most `members`, as equal in size as possible."""
    parts: list[list[Member]] = []
    for group in groups:
        count = -(-len(group) // members)
        ends = [len(group) * part // count for part in range(count + 1)]
        parts += [list(group[start:end]) for start, end in itertools.pairwise(ends)]
    return parts


def find_max_members(state: State) -> int:
    """Return how many runs with the structure of this one train together: as many as fit in memory, or one."""
    device = state.group.device
    if device.type == "cpu" and count_operations(state) > MAX_OPERATIONS_TOGETHER:
        return 1
    most = MAX_MEMBERS if device.type == "cuda" else MAX_MEMBERS_ON_CPU
    return max(1, min(most, int(MAX_MEMORY_SHARE * free_bytes(device) // estimate_member_bytes(state))))


def count_operations(state: State) -> int:
    """Return the operations of the layers' products and convolutions in one member's forward pass."""
    rows, total = min(state.epochs.batch, REHEARSAL_ROWS), 0

    def add(layer: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal total
        spread = isinstance(layer, _ConvTransposeNd)  # each number of its input meets the weights of one channel
        total += 2 * (inputs[0] if spread else output).numel() * layer.weight[0].numel()

    layers = [m for m in state.group.skeleton.modules() if isinstance(m, nn.Linear | _ConvNd)]
    hooks = [layer.register_forward_hook(add) for layer in layers]
    try:
        state.rehearse(rows)
    finally:
        for hook in hooks:
            hook.remove()
    return total * state.epochs.batch // rows


def free_bytes(device: torch.device) -> int:
    """Return the free bytes of a device's memory."""
    if device.type != "cuda":
        return available_memory()
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + cached


def parameter_bytes(state: State) -> int:
    """Return the bytes of one member's parameters."""
    return sum(p[0].numel() * p.element_size() for p in state.group.parameters.values())


def estimate_member_bytes(state: State) -> int:
    """Estimate the memory that one member of a group takes in training.

    The bytes that autograd saves are measured for three small batches and extrapolated by the quadratic through them:
    most objectives are linear in the batch, and those that compare all pairs are quadratic.
    """
    batch = state.epochs.batch
    if batch < 4 * REHEARSAL_ROWS:
        saved = float(state.rehearse(batch))
    else:
        rows = [REHEARSAL_ROWS, 2 * REHEARSAL_ROWS, 4 * REHEARSAL_ROWS]
        saved = _extrapolate(rows, [state.rehearse(count) for count in rows], batch)
    return int(TENSORS_PER_PARAMETER * parameter_bytes(state) + BYTES_PER_SAVED_BYTE * saved) + 1


def _extrapolate(at: Sequence[int], values: Sequence[int], to: int) -> float:
    """Return the value at `to` of the quadratic through three points, or of the line if the quadratic bends down."""
    (a, b, c), (u, v, w) = at, values
    slope, later = (v - u) / (b - a), (w - v) / (c - b)
    curvature = max(0.0, (later - slope) / (c - a))
    return u + slope * (to - a) + curvature * (to - a) * (to - b)
