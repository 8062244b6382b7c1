"""Which runs of a sweep train together, and how many at once.

Members of a group are one program (see `group.py`), so they share every shape and every branch and differ in numbers
alone: the seed, the learning rate, the clipping, and the objective's weights.
"""

import gc
import itertools
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

from unbraid.config import Config
from unbraid.data.factors import FactorDataset
from unbraid.methods import objective
from unbraid.training.loop import prepare

Member = TypeVar("Member")

OWN = ("seed", "lr", "clip")
"""Settings of the training in which the members of a group may differ."""

MOST = 512
"""Members of a group, however small they are: each holds one file open, its lock, and systems allow about 1,000."""

MOST_ON_CPU = 8
"""Members of a group on a CPU, where more of them only wait for each other."""

SHARE = 0.8
"""Of the free memory: the rest is for kernels' scratch space, fragmentation and other programs."""

PROBE_STEPS = 2
GRADIENT_AND_MOMENTS = 3
ACTIVATIONS = 20
"""Rough size of what a step keeps for its backward pass, in batches of observations."""


def plan(configs: Sequence[Config]) -> list[list[Config]]:
    """Configs that can be one program, together; groups and members keep the order in which they were given."""
    groups: dict[str, list[Config]] = {}
    for config in configs:
        groups.setdefault(structure(config), []).append(config)
    return list(groups.values())


def structure(config: Config) -> str:
    """All that must be equal in a group, as text."""
    stored: dict[str, Any] = config.as_dict()
    if config.parent is not None:  # weights of first stages are numbers, too
        stored["parent"] = structure(Config.from_dict(config.parent["config"]))
    for key in OWN:
        del stored["training"][key]
    for key in objective[config.objective.name].sweepable:
        del stored["objective"][key]
    return json.dumps(stored, sort_keys=True)


def at_most(groups: Sequence[Sequence[Member]], members: int) -> list[list[Member]]:
    """The same groups in parts of at most `members`, as equal in size as can be: they all take equally long then."""
    parts: list[list[Member]] = []
    for group in groups:
        count = -(-len(group) // members)
        ends = [len(group) * part // count for part in range(count + 1)]
        parts += [list(group[start:end]) for start, end in itertools.pairwise(ends)]
    return parts


def fitting(configs: Sequence[Config], dataset: FactorDataset) -> int:
    """How many of a group's members fit in the memory of the data set's device."""
    if len(configs) == 1:
        return 1
    fit = _fitting_on_cuda if dataset.device.type == "cuda" else _fitting_on_cpu
    return max(1, min(len(configs), fit(configs, dataset)))


def _fitting_on_cuda(configs: Sequence[Config], dataset: FactorDataset) -> int:
    """From the peaks of a few plain steps with one member and with two."""
    free = torch.cuda.mem_get_info(dataset.device)[0]
    cached = torch.cuda.memory_reserved(dataset.device) - torch.cuda.memory_allocated(dataset.device)
    try:
        one, two = (_peak(configs[:members], dataset) for members in (1, 2))
    except torch.cuda.OutOfMemoryError:
        return 1
    each = max(two - one, 1)
    return min(MOST, int((SHARE * (free + cached) - (one - each)) // each))


def _peak(configs: Sequence[Config], dataset: FactorDataset) -> int:
    """Bytes that a few steps allocate at most, beyond what is there already."""
    gc.collect()  # a state hangs in reference cycles: the last probe's must not count here
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated(dataset.device)
    torch.cuda.reset_peak_memory_stats(dataset.device)
    try:
        state = prepare(configs, dataset, execution="plain")
        for _ in range(PROBE_STEPS):
            state.advance()
        torch.cuda.synchronize(dataset.device)
        return torch.cuda.max_memory_allocated(dataset.device) - before
    finally:
        state = None
        gc.collect()
        torch.cuda.empty_cache()


def _fitting_on_cpu(configs: Sequence[Config], dataset: FactorDataset) -> int:
    state = prepare(configs[0], dataset, execution="plain")
    parameters = sum(p.numel() * p.element_size() for p in state.group.parameters.values())
    batch = configs[0].training.batch * dataset.numbers * 4
    each = (1 + GRADIENT_AND_MOMENTS) * parameters + ACTIVATIONS * batch
    return min(MOST_ON_CPU, int(SHARE * available_memory() // each))


def available_memory() -> int:
    """Bytes of main memory that a new program may take; half of all of it where the system does not say."""
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        facts = dict(line.split(":", 1) for line in meminfo.read_text(encoding="ascii").splitlines() if ":" in line)
        if "MemAvailable" in facts:
            return 1024 * int(facts["MemAvailable"].split()[0])
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (AttributeError, ValueError, OSError):
        return 4 * 2**30
