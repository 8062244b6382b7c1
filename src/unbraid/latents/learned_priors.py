r"""Learned priors p(z) (esmaeili2018, section 5; chen2018, appendix C.2): what a posterior is compared with may adapt.

A prior is static structure, as a block is. Its parameters belong to the model and travel as one flat tensor, beside
those of the standard prior; it *covers* some blocks, and the others keep their standard prior, independent of it. What
the decomposition of the KL asks of it are densities of groups of leaves: with the levels of a space's groups,

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

LEARNED = "prior/learned"
"""Where the flat parameters [..., P] of a learned prior stand among the parameters of a prior by block."""

Tensors = Mapping[str, Tensor]


class Prior(ABC):
    """A learned prior over the blocks of a space.

    `shapes` names its parameters, in order. The arguments `prior` are the parameters of the standard prior by block and
    its own flat ones under `LEARNED`; values are [..., batch, width] by block. `own` counts covered leaves alone.
    """

    covers: type[Block]
    """Kind of the blocks that it covers."""
    fewest = 1
    """Leaves that it must cover."""
    closed_form = False
    """Whether the KL of the blocks that it covers needs no draw."""
    factorised = False
    """Whether its leaves are independent."""
    shapes: dict[str, tuple[int, ...]]

    def __init__(self, blocks: Mapping[str, Block]) -> None:
        self.blocks = dict(blocks)
        self.covered = {name: b for name, b in blocks.items() if isinstance(b, self.covers)}
        names = [name for name, b in blocks.items() for _ in range(b.leaves)]
        self.leaves = [leaf for leaf, name in enumerate(names) if name in self.covered]
        if len(self.leaves) < self.fewest:
            kind = self.covers.__name__
            raise UsageError(
                f"This prior needs {self.fewest} {kind} variable{'s' * (self.fewest > 1)} or more; these latents have "
                f"{len(self.leaves)}."
            )

    @abstractmethod
    def alone(self, prior: Tensors, values: Tensors) -> Tensor:
        """Return the log density of each covered leaf alone [..., batch, own]."""

    @abstractmethod
    def draw(self, prior: Tensors, noise: Tensors) -> dict[str, Tensor]:
        """Return values of the covered blocks, from the noise that a posterior's draw takes."""

    @abstractmethod
    def center(self, prior: Tensors) -> dict[str, Tensor]:
        """Return codes [..., 1, width] in the middle of the covered blocks' priors."""

    def together(self, prior: Tensors, values: Tensors, own: Sequence[int]) -> Tensor:
        """Return the log density of several covered leaves [..., batch]."""
        return select(self.alone(prior, values), own).sum(-1)

    def start(self) -> dict[str, Tensor]:
        """Return the first values of the parameters: zeros are the standard prior."""
        return {name: torch.zeros(shape) for name, shape in self.shapes.items()}

    def parameters(self, prior: Tensors) -> dict[str, Tensor]:
        """Return the flat parameters by name [..., *shape]."""
        parts = prior[LEARNED].split([prod(shape) for shape in self.shapes.values()], -1)
        return {n: part.unflatten(-1, shape) for (n, shape), part in zip(self.shapes.items(), parts, strict=True)}

    def leaf_densities(self, prior: Tensors, values: Tensors) -> Tensor:
        """Return the log density of every leaf alone, covered or not [..., batch, leaves]."""
        parts = iter(self.alone(prior, values).split([b.leaves for b in self.covered.values()], -1))
        each = [
            next(parts) if n in self.covered else b.log_density(prior[n], values[n]) for n, b in self.blocks.items()
        ]
        return torch.cat(each, -1)

    def levels(self, prior: Tensors, values: Tensors, levels: Sequence[Sequence[Sequence[int]]]) -> list[Tensor]:
        """Return the log density of all groups of each level, summed [..., batch]."""
        each = self.leaf_densities(prior, values)
        if self.factorised:
            return [each.sum(-1)] * len(levels)
        return [self._level(each, prior, values, groups) for groups in levels]

    def _level(self, each: Tensor, prior: Tensors, values: Tensors, groups: Sequence[Sequence[int]]) -> Tensor:
        """Return the density of covered leaves of a group together, and of every other leaf by itself."""
        joined = [[self.leaves.index(leaf) for leaf in group if leaf in self.leaves] for group in groups]
        joined = [own for own in joined if len(own) > 1]
        inside = {self.leaves[place] for own in joined for place in own}
        total = select(each, [leaf for leaf in range(each.shape[-1]) if leaf not in inside]).sum(-1)
        for own in joined:
            total = total + self.together(prior, values, own)
        return total

    def kl(self, posterior: Tensors, prior: Tensors, values: Tensors) -> Tensor:
        """Return KL(posterior || prior) of the whole code [..., batch], at a draw where it has no closed form."""
        total = self.covered_kl(posterior, prior, values)
        for name, b in self.blocks.items():
            if name not in self.covered:
                total = total + b.kl(posterior[name], prior[name], values[name]).sum(-1) + b.extra_kl
        return total

    def covered_kl(self, posterior: Tensors, prior: Tensors, values: Tensors) -> Tensor:
        """Return KL(posterior || prior) of the covered blocks [..., batch]: log q - log p at the draw."""
        total = -self.together(prior, values, range(len(self.leaves)))
        for name, b in self.covered.items():
            total = total + b.log_density(posterior[name], values[name]).sum(-1)
            if b.coupled:
                total = total + b.coupling(posterior[name], values[name], range(b.leaves))
        return total

    def leaf_kl(self, posterior: Tensors, prior: Tensors, values: Tensors) -> Tensor:
        """Return the KL of each leaf to its own marginal prior [..., batch, leaves]."""
        marginal = iter(self.alone(prior, values).split([b.leaves for b in self.covered.values()], -1))
        parts = [
            b.log_density(posterior[name], values[name]) - next(marginal)
            if name in self.covered
            else b.kl(posterior[name], prior[name], values[name])
            for name, b in self.blocks.items()
        ]
        return torch.cat(parts, -1)

    def sample(self, prior: Tensors, noise: Tensors) -> dict[str, Tensor]:
        """Return values of all blocks, drawn from the prior."""
        drawn = self.draw(prior, noise)
        return {n: drawn[n] if n in drawn else b.sample_prior(prior[n], noise[n]) for n, b in self.blocks.items()}

    def moved(self, names: Mapping[str, str], behind: Mapping[str, Block] | None = None) -> "Prior":
        """Return the same prior of blocks under other names, followed by blocks that it does not cover."""
        made = copy.copy(self)
        made.blocks = {**{names[name]: b for name, b in self.blocks.items()}, **(behind or {})}
        made.covered = {names[name]: b for name, b in self.covered.items()}
        return made

    def cover(self, values: Tensors) -> Tensor:
        """Return values of the covered blocks side by side."""
        return torch.cat([values[name] for name in self.covered], -1)

    def apart(self, flat: Tensor) -> dict[str, Tensor]:
        """Split values side by side into those of the covered blocks: the inverse of `cover`."""
        parts = flat.split([b.width for b in self.covered.values()], -1)
        return dict(zip(self.covered, parts, strict=True))
