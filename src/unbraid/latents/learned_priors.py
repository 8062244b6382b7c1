r"""Learned priors p(z) (esmaeili2018, section 5; chen2018, appendix C.2).

A prior holds no tensors, as a block does not. Its parameters belong to the model and travel as one flat tensor, next to
those of the standard prior. It *covers* some blocks; the others keep their standard prior and are independent of it.
The decomposition of the KL needs its densities of groups of leaves. With the levels of a space's groups,

    KL(q(z|x) || p(z)) = MI + sum_levels [ TC_q - E_q log prod_g p(z_g) / prod_h p(z_h) ] + sum_d KL(q(z_d) || p(z_d))

where the groups h refine the groups g (esmaeili2018, fig. 4, with the signs of a loss).
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from math import prod

import torch
from torch import Tensor

from unbraid.errors import UsageError
from unbraid.latents.blocks import Block
from unbraid.latents.positions import select
from unbraid.registry import Facts, Registry

prior: Registry[type["Prior"], Facts] = Registry("prior")
"""Decorator for a `Prior`; its keyword arguments are the prior's settings."""

LEARNED_PRIOR = "prior/learned"
"""Key of a learned prior's flat parameters [..., P] among the parameters of the prior by block."""

Tensors = Mapping[str, Tensor]


class Prior(ABC):
    """A learned prior over the blocks of a space.

    The argument `prior` holds the parameters of the standard prior by block, and the learned ones under
    `LEARNED_PRIOR`. Values are [..., batch, width] by block. `leaves` in arguments counts covered leaves only.
    """

    covers: type[Block]
    min_leaves = 1
    closed_form = False  # the KL of covered blocks needs no draw
    factorised = False  # covered leaves are independent
    shapes: dict[str, tuple[int, ...]]  # of the parameters by name, in order

    def __init__(self, blocks: Mapping[str, Block]) -> None:
        self.blocks = dict(blocks)
        self.covered = {name: b for name, b in blocks.items() if isinstance(b, self.covers)}
        names = [name for name, b in blocks.items() for _ in range(b.leaves)]
        self.leaves = [leaf for leaf, name in enumerate(names) if name in self.covered]
        if len(self.leaves) < self.min_leaves:
            raise UsageError(
                f"This prior needs at least {self.min_leaves} {self.covers.__name__} "
                f"variable{'s' * (self.min_leaves > 1)}; these latents have {len(self.leaves)}."
            )

    @abstractmethod
    def marginal_densities(self, prior: Tensors, values: Tensors) -> Tensor:
        """Return the marginal log density of each covered leaf [..., batch, covered leaves]."""

    @abstractmethod
    def draw(self, prior: Tensors, noise: Tensors) -> dict[str, Tensor]:
        """Draw values of the covered blocks from the noise that a posterior's draw takes."""

    @abstractmethod
    def center(self, prior: Tensors) -> dict[str, Tensor]:
        """Return codes [..., 1, width] in the middle of the covered blocks' priors."""

    def joint_density(self, prior: Tensors, values: Tensors, leaves: Sequence[int]) -> Tensor:
        """Return the joint log density of several covered leaves [..., batch]."""
        return select(self.marginal_densities(prior, values), leaves).sum(-1)

    def initial_parameters(self) -> dict[str, Tensor]:
        """Return zeros, which stand for the standard prior, or other first values."""
        return {name: torch.zeros(shape) for name, shape in self.shapes.items()}

    def parameters(self, prior: Tensors) -> dict[str, Tensor]:
        """Split the flat parameters by name [..., *shape]."""
        parts = prior[LEARNED_PRIOR].split([prod(shape) for shape in self.shapes.values()], -1)
        return {n: part.unflatten(-1, shape) for (n, shape), part in zip(self.shapes.items(), parts, strict=True)}

    def leaf_densities(self, prior: Tensors, values: Tensors) -> Tensor:
        """Return the marginal log density of every leaf, covered or not [..., batch, leaves]."""
        covered = self._marginals_by_block(prior, values)
        each = [covered[n] if n in covered else b.log_density(prior[n], values[n]) for n, b in self.blocks.items()]
        return torch.cat(each, -1)

    def levels(self, prior: Tensors, values: Tensors, levels: Sequence[Sequence[Sequence[int]]]) -> list[Tensor]:
        """Return the log density of all groups of each level, summed [..., batch]."""
        each = self.leaf_densities(prior, values)
        if self.factorised:
            return [each.sum(-1)] * len(levels)
        return [self._level(each, prior, values, groups) for groups in levels]

    def _level(self, each: Tensor, prior: Tensors, values: Tensors, groups: Sequence[Sequence[int]]) -> Tensor:
        covered = [[self.leaves.index(leaf) for leaf in group if leaf in self.leaves] for group in groups]
        joint = [leaves for leaves in covered if len(leaves) > 1]
        inside = {self.leaves[position] for leaves in joint for position in leaves}
        total = select(each, [leaf for leaf in range(each.shape[-1]) if leaf not in inside]).sum(-1)
        for leaves in joint:
            total = total + self.joint_density(prior, values, leaves)
        return total

    def kl(self, posterior: Tensors, prior: Tensors, values: Tensors) -> Tensor:
        """Return KL(posterior || prior) of the whole code [..., batch], in closed form or at the draw `values`."""
        total = self.covered_kl(posterior, prior, values)
        for name, b in self.blocks.items():
            if name not in self.covered:
                total = total + b.kl(posterior[name], prior[name], values[name]).sum(-1) + b.extra_kl
        return total

    def covered_kl(self, posterior: Tensors, prior: Tensors, values: Tensors) -> Tensor:
        """Return KL(posterior || prior) of the covered blocks [..., batch]: log q - log p at the draw."""
        total = -self.joint_density(prior, values, range(len(self.leaves)))
        for name, b in self.covered.items():
            total = total + b.log_density(posterior[name], values[name]).sum(-1)
            if b.coupled:
                total = total + b.coupling(posterior[name], values[name], range(b.leaves))
        return total

    def leaf_kl(self, posterior: Tensors, prior: Tensors, values: Tensors) -> Tensor:
        """Return the KL of each leaf to its marginal prior [..., batch, leaves]."""
        covered = self._marginals_by_block(prior, values)
        parts = [
            b.log_density(posterior[n], values[n]) - covered[n]
            if n in covered
            else b.kl(posterior[n], prior[n], values[n])
            for n, b in self.blocks.items()
        ]
        return torch.cat(parts, -1)

    def _marginals_by_block(self, prior: Tensors, values: Tensors) -> dict[str, Tensor]:
        parts = self.marginal_densities(prior, values).split([b.leaves for b in self.covered.values()], -1)
        return dict(zip(self.covered, parts, strict=True))

    def sample(self, prior: Tensors, noise: Tensors) -> dict[str, Tensor]:
        """Draw values of all blocks from the prior."""
        drawn = self.draw(prior, noise)
        return {n: drawn[n] if n in drawn else b.sample_prior(prior[n], noise[n]) for n, b in self.blocks.items()}

    def rename_blocks(self, names: Mapping[str, str], others: Mapping[str, Block]) -> "Prior":
        """Return the same prior for blocks of other names, followed by blocks that it does not cover."""
        renamed = copy.copy(self)
        renamed.blocks = {**{names[name]: b for name, b in self.blocks.items()}, **others}
        renamed.covered = {names[name]: b for name, b in self.covered.items()}
        return renamed

    def join_blocks(self, values: Tensors) -> Tensor:
        """Concatenate the values of the covered blocks."""
        return torch.cat([values[name] for name in self.covered], -1)

    def split_blocks(self, flat: Tensor) -> dict[str, Tensor]:
        """Split concatenated values by covered block: the inverse of `join_blocks`."""
        parts = flat.split([b.width for b in self.covered.values()], -1)
        return dict(zip(self.covered, parts, strict=True))
