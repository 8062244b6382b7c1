"""The latent space: named blocks side by side, and the groups in which a decomposition looks at them."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from unbraid.config import Choice
from unbraid.errors import UsageError, unknown
from unbraid.latents.blocks import Block, block
from unbraid.latents.learned_priors import Prior, prior
from unbraid.noise import Need

Tree = Sequence[Any]
"""Leaves in nested groups, to any depth, e.g. `((0, 1), (2,))`."""


class Space:
    """Named latent blocks, in order; the code that a decoder sees is their concatenation. A stage may add none.

    `tree` groups the leaves for the hierarchical decomposition (esmaeili2018), to any depth; without one every leaf
    stands for itself. `learned` is a learned prior, where the standard one is not meant; its parameters are a model's.
    """

    def __init__(self, blocks: Mapping[str, Block], tree: Tree | None = None, learned: Prior | None = None) -> None:
        self.blocks = dict(blocks)
        self.tree: Tree = tuple(range(self.leaves)) if tree is None else tree
        self.levels = _levels(self.tree, self.leaves)
        self.learned = learned

    @classmethod
    def from_config(
        cls, latents: Mapping[str, Mapping[str, Any]], groups: Any = None, learned: Choice | None = None
    ) -> "Space":
        """Return the space of `{"z": {"kind": "normal", "size": 10}}`; `groups` nests leaves, or is `blocks`."""
        blocks = {}
        for name, spec in latents.items():
            entry = block[spec["kind"]]
            blocks[name] = entry.make(**entry.resolve({k: v for k, v in spec.items() if k != "kind"}))
        made = None if learned is None else prior[learned.name].make(blocks, **learned.settings)
        return cls(blocks, None if groups is None else cls(blocks).grouped(groups), made)

    def grouped(self, groups: Any) -> Tree:
        """Return a tree of leaves: one group per block for `blocks`, or nested names or numbers of leaves."""
        if groups == "blocks":
            numbers = iter(range(self.leaves))
            return tuple(tuple(next(numbers) for _ in range(b.leaves)) for b in self.blocks.values())
        if not isinstance(groups, (list, tuple)):
            raise UsageError(f"groups must be blocks, or leaves in brackets as [[z0,z1],[z2]], not {groups}.")
        return tuple(self._node(node) for node in groups)

    def _node(self, node: Any) -> Any:
        if isinstance(node, (list, tuple)):
            return tuple(self._node(child) for child in node)
        names = self.leaf_names()
        if isinstance(node, bool) or not isinstance(node, (str, int)):
            raise UsageError(f"A group has names or numbers of latent variables, not {node!r}.")
        if isinstance(node, str) and node not in names:
            raise unknown("latent variable", node, names)
        return names.index(node) if isinstance(node, str) else node

    @property
    def last_stage(self) -> "Space":
        """The space of the last stage's own latents: the whole space, unless it is one of stages."""
        return self

    @property
    def leaves(self) -> int:
        """Number of variables."""
        return sum(b.leaves for b in self.blocks.values())

    @property
    def width(self) -> int:
        """Number of coordinates that a decoder sees."""
        return sum(b.width for b in self.blocks.values())

    @property
    def closed_form(self) -> bool:
        """Whether the KL of every block is known in closed form."""
        return all(b.closed_form for b in self.blocks.values()) and (self.learned is None or self.learned.closed_form)

    @property
    def has_density(self) -> bool:
        """Whether posteriors have a density."""
        return all(b.has_density for b in self.blocks.values())

    @property
    def outputs(self) -> dict[str, int]:
        """What an encoder must produce, in order: `{"z.mean": 10, "z.log_variance": 10}`."""
        return {f"{name}.{key}": width for name, b in self.blocks.items() for key, width in b.parameters.items()}

    def needs(self, batch: int) -> dict[str, Need]:
        """Return noise of one batch, by block."""
        return {key: need for name, b in self.blocks.items() for key, need in b.needs(name, batch).items()}

    def split(self, flat: Tensor, noise: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        """Return an encoder's flat output as parameters by block; `noise` holds the step for blocks that need it."""
        parts = flat.split([b.parameter_count for b in self.blocks.values()], dim=-1)
        steps = noise or {}
        return {
            name: b.complete(part, steps.get(f"{name}.step"))
            for (name, b), part in zip(self.blocks.items(), parts, strict=True)
        }

    def unjoin(self, code: Tensor) -> dict[str, Tensor]:
        """Return a concatenated code as values by block: the inverse of `join`."""
        parts = code.split([b.width for b in self.blocks.values()], dim=-1)
        return {name: b.from_code(part) for (name, b), part in zip(self.blocks.items(), parts, strict=True)}

    def join(self, values: Mapping[str, Tensor]) -> Tensor:
        """Return values by block as one code [..., width]."""
        return torch.cat([b.to_code(values[name]) for name, b in self.blocks.items()], dim=-1)

    def sample(self, posterior: Mapping[str, Tensor], noise: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Draw from each block's posterior, reparameterised."""
        return {name: b.sample(posterior[name], noise[name]) for name, b in self.blocks.items()}

    def center(self, posterior: Mapping[str, Tensor]) -> Tensor:
        """Return the deterministic code [..., width]."""
        return torch.cat([b.center(posterior[name]) for name, b in self.blocks.items()], dim=-1)

    def sample_prior(self, prior: Mapping[str, Tensor], noise: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Draw from each block's prior, learned or not; `noise` is that of a posterior's draw."""
        if self.learned is not None:
            return self.learned.sample(prior, noise)
        return {name: b.sample_prior(prior[name], noise[name]) for name, b in self.blocks.items()}

    def center_prior(self, prior: Mapping[str, Tensor]) -> Tensor:
        """Return the code [..., width] in the middle of the prior."""
        middle = {} if self.learned is None else self.learned.center(prior)
        parts = [middle[n] if n in middle else b.center(prior[n]) for n, b in self.blocks.items()]
        return torch.cat(parts, dim=-1)

    def prior(self, like: Tensor) -> dict[str, Tensor]:
        """Return parameters of the standard prior, by block."""
        return {name: b.standard(like) for name, b in self.blocks.items()}

    def prior_of(self, posterior: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the prior that these posteriors are compared with: the standard one, at their own temperature."""
        return {name: b.prior_of(posterior[name]) for name, b in self.blocks.items()}

    def log_density(self, parameters: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> Tensor:
        """Return the log density of each leaf [..., leaves]."""
        return torch.cat([b.log_density(parameters[n], values[n]) for n, b in self.blocks.items()], dim=-1)

    def joint_density(self, parameters: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> Tensor:
        """Return the log density of all leaves together [...]."""
        alone = self.log_density(parameters, values).sum(-1)
        extra = self.coupling(parameters, values, range(self.leaves))
        return alone if extra is None else alone + extra

    def coupling(
        self, parameters: Mapping[str, Tensor], values: Mapping[str, Tensor], group: Sequence[int]
    ) -> Tensor | None:
        """Return what leaves of a group add to the sum of their log densities [...]; None if they are independent."""
        total, first = None, 0
        for name, b in self.blocks.items():
            own = [leaf - first for leaf in group if first <= leaf < first + b.leaves]
            first += b.leaves
            if b.coupled and len(own) > 1:
                part = b.coupling(parameters[name], values[name], own)
                total = part if total is None else total + part
        return total

    def prior_levels(self, prior: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> list[Tensor]:
        """Return the summed log density [...] of the prior's groups at each level, from everything to single leaves."""
        if self.learned is not None:
            return self.learned.levels(prior, values, self.levels)
        return [self.log_density(prior, values).sum(-1)] * len(self.levels)

    def pairwise(self, parameters: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> Tensor:
        """Return the log density of every value i under every posterior j [..., i, leaves, j]."""
        parts = [b.pairwise(parameters[n], values[n]) for n, b in self.blocks.items()]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-2)

    def kl(self, posterior: Mapping[str, Tensor], prior: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> Tensor:
        """Return the KL of each leaf [..., leaves], in closed form where a block has one, else at the given draw."""
        if self.learned is not None:
            return self.learned.leaf_kl(posterior, prior, values)
        return torch.cat([b.kl(posterior[n], prior[n], values[n]) for n, b in self.blocks.items()], dim=-1)

    def joint_kl(
        self, posterior: Mapping[str, Tensor], prior: Mapping[str, Tensor], values: Mapping[str, Tensor]
    ) -> Tensor:
        """Return KL(posterior || prior) of the whole code [...], in closed form if it has one, else at the draw."""
        if self.learned is not None:
            return self.learned.kl(posterior, prior, values)
        alone, extra = self.kl(posterior, prior, values).sum(-1), sum(b.extra_kl for b in self.blocks.values())
        return alone + extra if extra else alone

    def leaf_columns(self) -> list[list[int]]:
        """Return the coordinates of the code that belong to each leaf: one for a Normal variable, K for K classes."""
        columns = iter(range(self.width))
        blocks = (b for b in self.blocks.values() for _ in range(b.leaves))
        return [[next(columns) for _ in range(b.width // b.leaves)] for b in blocks]

    def leaf_names(self) -> list[str]:
        """Return `z0`, `z1`, … by block; a block with one leaf is named after the block."""
        return [name if b.leaves == 1 else f"{name}{i}" for name, b in self.blocks.items() for i in range(b.leaves)]


def _levels(tree: Tree, leaves: int) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Return partitions of the leaves from everything down to single leaves, each a refinement of the one before."""
    if sorted(_flatten(tree)) != list(range(leaves)):
        raise UsageError(f"Groups must name each of the {leaves} latent variables exactly once, not {tree!r}.")
    levels, nodes = [], [tree]
    while True:
        levels.append(tuple(tuple(_flatten(node)) for node in nodes))
        if all(isinstance(node, int) for node in nodes):
            return tuple(levels)
        nodes = [child for node in nodes for child in ((node,) if isinstance(node, int) else node)]


def _flatten(tree: int | Tree) -> list[int]:
    return [tree] if isinstance(tree, int) else [leaf for child in tree for leaf in _flatten(child)]
