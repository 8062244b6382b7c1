r"""Densities of the aggregate posterior q(z) = 1/N sum_n q(z|x_n), from a batch or from the whole data set.

Every estimator is one formula,

    log q(z_i) = logsumexp_j [ log q(z_i | x_j) + log w_ij ],

and differs from the others only in its weights, which take at most three values: for j = i, for j = i + 1 (mod B), and
for all other j. The same holds for q of any group of latent variables and of each single variable.

| estimator  | own (j = i) | next       | other             | source                      |
|------------|-------------|------------|-------------------|-----------------------------|
| mws        | 1/(NB)      | 1/(NB)     | 1/(NB)            | chen2018, section 3.2       |
| mss        | 1/N         | (N-M)/(NM) | 1/M, M = B - 1    | chen2018, appendix B.2, S7  |
| stratified | 1/N         | as other   | (N-1)/(N(B-1))    | esmaeili2018, eq. 13        |
| exact      | 1/N         | 1/N        | 1/N, over all N   | the definition              |

mss, stratified and exact estimate q(z) itself without bias as long as no index repeats inside a batch; their logarithm
is biased downwards by Jensen's inequality. mws with its constant lies about log N below log q(z), so its total
correlation is about (D - 1) log N too high. You can train with it; scores never use it.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import NamedTuple

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.autograd.forward_ad import unpack_dual

from unbraid.density.chunks import sum_over_components
from unbraid.density.mixed_estimator import is_mixed, join_normals, list_normal_leaves, mixed_densities
from unbraid.errors import UsageError, unknown
from unbraid.kernels import allows_kernels
from unbraid.latents import Normal, Space
from unbraid.latents.positions import select

MAX_FUSED_LEAVES = 64

MIN_TILED_PAIRS = 2**18
"""Parameters of a member times its rows, or components if these are more, from which on tiles pay on a CPU.

With 64 rows of 10 latents, chunks take less time. A member of a group and a single run take the same form.
"""

MIN_TRITON_VERSION = (3, 3)
"""Earlier versions do not compile tuples that are carried through loops."""


def _has_triton() -> bool:
    if find_spec("triton") is None:
        return False
    try:
        major, minor = version("triton").split(".")[:2]
    except PackageNotFoundError:  # a nightly build has another name, and is new enough
        return True
    return (int(major), int(minor)) >= MIN_TRITON_VERSION


TRITON = _has_triton()
"""True if the fused kernels can be imported; the first call does so, because it takes a while."""


class Weighting(NamedTuple):
    """Log weights of the mixture's components for row i: j = i, j = i + 1 (mod B), and all other j."""

    own: float
    next: float
    other: float


def mws(batch: int, size: int) -> Weighting:
    """Return the weights of minibatch weighted sampling (chen2018)."""
    each = -math.log(size * batch)
    return Weighting(each, each, each)


def mss(batch: int, size: int) -> Weighting:
    """Return the weights of minibatch stratified sampling (chen2018)."""
    others = batch - 1
    return Weighting(-math.log(size), math.log((size - others) / (size * others)), -math.log(others))


def stratified(batch: int, size: int) -> Weighting:
    """Return weights with the own component in full and all others in proportion (esmaeili2018)."""
    other = math.log((size - 1) / (size * (batch - 1)))
    return Weighting(-math.log(size), other, other)


ESTIMATORS: dict[str, Callable[[int, int], Weighting]] = {"mws": mws, "mss": mss, "stratified": stratified}


def weighting(estimator: str, batch: int, size: int) -> Weighting:
    """Return the weights of a minibatch estimator for `batch` of `size` data points."""
    if estimator not in ESTIMATORS:
        raise unknown("estimator", estimator, ESTIMATORS)
    if batch < 2 or batch > size:
        if size < 2:
            rows = "only 1 row" if size == 1 else "no row"
            raise UsageError(f"The {estimator} estimator compares different rows, and there is {rows} to train on.")
        raise UsageError(
            f"The {estimator} estimator compares different rows: it needs a batch from 2 to the {size} rows of the "
            f"training data, not {batch}."
        )
    return ESTIMATORS[estimator](batch, size)


class Aggregate(NamedTuple):
    """Log densities of the aggregate posterior, one tensor [..., i, groups] per level of the space's groups."""

    levels: tuple[Tensor, ...]

    @property
    def joint(self) -> Tensor:
        """log q(z) [..., i]."""
        return self.levels[0].squeeze(-1)

    @property
    def leaves(self) -> Tensor:
        """log q of each single variable [..., i, leaves]."""
        return self.levels[-1]


def batch_aggregate(
    space: Space, posterior: Mapping[str, Tensor], sample: Mapping[str, Tensor], estimator: str, size: int
) -> Aggregate:
    """Estimate log q(z) of a batch's samples from the batch; row i of `sample` is drawn from row i of `posterior`."""
    first = next(iter(sample.values()))
    batch = first.shape[-2]
    weights = weighting(estimator, batch, size)
    tensors = [*posterior.values(), *sample.values()]
    if can_fuse(space, tensors):
        return _fused_aggregate(space, posterior, sample, weights)
    rows = torch.arange(batch, device=first.device)

    def log_weights(columns):
        ahead = (columns[None, :] - rows[:, None]) % batch
        table = torch.full(ahead.shape, weights.other, device=first.device, dtype=first.dtype)
        return table.masked_fill(ahead == 1, weights.next).masked_fill(ahead == 0, weights.own)

    if can_mix(space, tensors):
        return _mixed_aggregate(space, posterior, sample, weights, log_weights)
    return _chunked_aggregate(space, posterior, sample, log_weights)


def exact_aggregate(
    space: Space, posterior: Mapping[str, Tensor], sample: Mapping[str, Tensor], log_p: Tensor | None = None
) -> Aggregate:
    """Return log q(z) of any samples under the posteriors of the whole data set.

    `log_p` [n] holds the log probabilities with which data points are drawn; None means uniform.
    """
    count = next(iter(posterior.values())).shape[-2]
    tensors = [*posterior.values(), *sample.values(), *([] if log_p is None else [log_p])]
    each = 0.0 if log_p is not None else -math.log(count)
    weights = Weighting(each, each, each)
    learns = log_p is not None and log_p.requires_grad and torch.is_grad_enabled()  # fused forms do not derive by it
    if not learns and can_fuse(space, tensors):
        return _fused_aggregate(space, posterior, sample, weights, log_p)
    given = tensors[0].new_full((count,), each) if log_p is None else log_p

    def log_weights(columns):
        return given[None, columns]

    if not learns and can_mix(space, tensors):
        return _mixed_aggregate(space, posterior, sample, weights, log_weights, log_p)
    return _chunked_aggregate(space, posterior, sample, log_weights)


def can_fuse(space: Space, tensors: Iterable[Tensor]) -> bool:
    """Return whether a fused form applies: only Normal blocks, and float32 tensors on one of its devices."""
    normal = space.leaves <= MAX_FUSED_LEAVES and all(type(block) is Normal for block in space.blocks.values())
    return normal and _suit_fused(tensors)


def can_mix(space: Space, tensors: Iterable[Tensor]) -> bool:
    """Return whether a fused form applies to some of several blocks, and float64 products to pairs of the others."""
    return is_mixed(space) and len(list_normal_leaves(space)) <= MAX_FUSED_LEAVES and _suit_fused(tensors)


def _suit_fused(tensors: Iterable[Tensor]) -> bool:
    """Return whether the tensors suit the kernels for a GPU or the tiles for a CPU, where the compiler fuses itself."""
    tensors = list(tensors)
    kinds = {(t.device.type, t.dtype) if t.numel() > 0 else None for t in tensors}
    if kinds == {("cuda", torch.float32)}:
        return TRITON and allows_kernels() and not any(map(_is_transformed, tensors))
    if kinds != {("cpu", torch.float32)} or torch.compiler.is_compiling() or any(map(_is_transformed, tensors)):
        return False
    shapes = [t.shape[-2:] for t in tensors if t.ndim > 1]
    return max(map(math.prod, shapes)) * max(rows for rows, _ in shapes) >= MIN_TILED_PAIRS


def _is_transformed(tensor: Tensor) -> bool:
    """Return whether torch.func maps or derives by a tensor, or forward mode does, which fused forms do not know."""
    if torch.compiler.is_compiling():
        return False
    return is_functorch_wrapped_tensor(tensor) or unpack_dual(tensor).tangent is not None


def find_fused_densities(tensor: Tensor) -> Callable[..., Tensor]:
    """Return the fused form of the device that holds a tensor; neither stores the tensor of all pairs."""
    if tensor.is_cuda:
        from unbraid.density import fused_estimator

        return fused_estimator.log_densities
    from unbraid.density import tiled_estimator

    return tiled_estimator.log_densities


def _fused_aggregate(
    space: Space,
    posterior: Mapping[str, Tensor],
    sample: Mapping[str, Tensor],
    weights: Weighting,
    log_p: Tensor | None = None,
) -> Aggregate:
    """Return log q(z) by a form that never stores the pairwise tensor."""
    groups = [group for level in space.levels[:-1] for group in level]
    values, parameters = join_normals(space, posterior, sample)
    densities = find_fused_densities(values)(values, parameters, groups, weights, log_p)
    return Aggregate(densities.split([len(level) for level in space.levels], dim=-1))


def _mixed_aggregate(
    space: Space,
    posterior: Mapping[str, Tensor],
    sample: Mapping[str, Tensor],
    weights: Weighting,
    log_weights: Callable[[Tensor], Tensor],
    log_p: Tensor | None = None,
) -> Aggregate:
    """Return log q(z) by a fused form for groups of Normal leaves, and by matrix products for all others."""

    def fuse_normals(values, parameters, groups):
        return find_fused_densities(values)(values, parameters, groups, weights, log_p)

    return Aggregate(mixed_densities(space, posterior, sample, log_weights, fuse_normals))


def _chunked_aggregate(
    space: Space, posterior: Mapping[str, Tensor], sample: Mapping[str, Tensor], log_weights: Callable[[Tensor], Tensor]
) -> Aggregate:
    """Return log q(z) by running logsumexps over chunks of components j; gradients recompute each chunk."""
    groups = [list(group) for level in space.levels[:-1] for group in level]

    def sum_chunk(columns, parameters, values):
        pairs = space.pairwise(parameters, values)  # [..., i, leaves, chunk]
        weights = log_weights(columns)
        sums = (_sum_group(space, pairs, parameters, values, group) for group in groups)
        grouped = [(summed + weights).logsumexp(dim=-1, keepdim=True) for summed in sums]
        return torch.cat([*grouped, (pairs + weights[:, None]).logsumexp(dim=-1)], dim=-1)

    densities = sum_over_components(posterior, sample, space.leaves, sum_chunk)
    return Aggregate(densities.split([len(level) for level in space.levels], dim=-1))


def _sum_group(
    space: Space, pairs: Tensor, parameters: Mapping[str, Tensor], values: Mapping[str, Tensor], group: list[int]
) -> Tensor:
    """Return the log density [..., i, j] of a group of leaves, from that of each leaf."""
    independent = pairs.sum(-2) if len(group) == space.leaves else select(pairs, group, -2).sum(-2)
    wide = {name: tensor.unsqueeze(-3) for name, tensor in parameters.items()}
    tall = {name: tensor.unsqueeze(-2) for name, tensor in values.items()}
    coupling = space.coupling(wide, tall, group)
    return independent if coupling is None else independent + coupling
