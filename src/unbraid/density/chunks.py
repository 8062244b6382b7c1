"""Log densities of a mixture, summed over chunks of its components, so that no tensor of all pairs is needed."""

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

CHUNK_ELEMENTS = {"cpu": 2**22, "cuda": 2**26}
"""Numbers in a chunk of the pairwise tensor [..., i, leaves, chunk], few enough for a CPU's cache, or to fill a GPU."""


def sum_over_components(
    posterior: Mapping[str, Tensor],
    sample: Mapping[str, Tensor],
    numbers_per_pair: int,
    sum_chunk: Callable[[Tensor, dict[str, Tensor], dict[str, Tensor]], Tensor],
) -> Tensor:
    """Return the logarithm of a sum over all components j, by a running sum over chunks of them.

    `sum_chunk(columns, posterior, sample)` returns the logarithm [..., i, groups] for the components `columns`. A pair
    takes `numbers_per_pair` numbers in it. Gradients recompute each chunk, if there are several.
    """
    first = next(iter(posterior.values()))
    rows = next(iter(sample.values()))
    total = first.shape[-2]
    per_component = math.prod(rows.shape[:-1]) * numbers_per_pair
    chunk = max(1, min(total, CHUNK_ELEMENTS.get(first.device.type, 2**24) // max(per_component, 1)))
    names = list(posterior)

    def sum_tensors(columns, *tensors):
        parameters = dict(zip(names, tensors[: len(names)], strict=True))
        values = dict(zip(names, tensors[len(names) :], strict=True))
        return sum_chunk(columns, parameters, values)

    values = [sample[name] for name in names]
    running: Tensor | None = None
    for start in range(0, total, chunk):
        columns = torch.arange(start, min(start + chunk, total), device=first.device)
        parameters = [posterior[name][..., start : start + chunk, :] for name in names]
        if chunk < total and torch.is_grad_enabled():
            part = checkpoint(sum_tensors, columns, *parameters, *values, use_reentrant=False, preserve_rng_state=False)
        else:
            part = sum_tensors(columns, *parameters, *values)
        running = part if running is None else torch.logaddexp(running, part)
    assert running is not None
    return running
