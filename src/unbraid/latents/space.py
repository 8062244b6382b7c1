"""The latent space: named blocks side by side, and the groups in which a decomposition looks at them."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from unbraid.errors import UsageError
from unbraid.latents.blocks import Block, block
from unbraid.noise import Need

Tree = Sequence[Any]
"""Leaves in nested groups, to any depth, e.g. `((0, 1), (2,))`."""


class Space:
    """Named latent blocks, in order; the code that a decoder sees is their concatenation.

    `tree` groups the leaves for the hierarchical decomposition (esmaeili2018), to any depth; without one every leaf
    stands for itself.
    """

    def __init__(self, blocks: Mapping[str, Block], tree: Tree | None = None) -> None:
        if not blocks:
            raise UsageError("A latent space needs at least one block.")
        self.blocks = dict(blocks)
        self.tree: Tree = tuple(range(self.leaves)) if tree is None else tree
        self.levels = _levels(self.tree, self.leaves)

    @classmethod
    def from_config(cls, latents: Mapping[str, Mapping[str, Any]]) -> "Space":
        """`{"z": {"kind": "normal", "size": 10}}` -> a space."""
        blocks = {}
        for name, spec in latents.items():
            entry = block[spec["kind"]]
            blocks[name] = entry.make(**entry.resolve({k: v for k, v in spec.items() if k != "kind"}))
        return cls(blocks)

    @property
    def leaves(self) -> int:
        """Number of variables."""
        return sum(b.leaves for b in self.blocks.values())

    @property
    def width(self) -> int:
        """Number of coordinates that a decoder sees."""
        return sum(b.width for b in self.blocks.values())

    @property
    def outputs(self) -> dict[str, int]:
        """What an encoder must produce, in order: `{"z.mean": 10, "z.log_variance": 10}`."""
        return {f"{name}.{key}": width for name, b in self.blocks.items() for key, width in b.parameters.items()}

    def needs(self, batch: int) -> dict[str, Need]:
        """Noise of one batch, by block."""
        return {name: b.need(batch) for name, b in self.blocks.items()}

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        """An encoder's flat output as parameters by block."""
        parts = flat.split([b.parameter_count for b in self.blocks.values()], dim=-1)
        return dict(zip(self.blocks, parts, strict=True))

    def unjoin(self, code: Tensor) -> dict[str, Tensor]:
        """A concatenated code as values by block: the inverse of `join`."""
        parts = code.split([b.width for b in self.blocks.values()], dim=-1)
        return dict(zip(self.blocks, parts, strict=True))

    def join(self, values: Mapping[str, Tensor]) -> Tensor:
        """Values by block as one code [..., width]."""
        return torch.cat([values[name] for name in self.blocks], dim=-1)

    def sample(self, posterior: Mapping[str, Tensor], noise: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """One reparameterised draw per block."""
        return {name: b.sample(posterior[name], noise[name]) for name, b in self.blocks.items()}

    def center(self, posterior: Mapping[str, Tensor]) -> Tensor:
        """The deterministic code [..., width]."""
        return self.join({name: b.center(posterior[name]) for name, b in self.blocks.items()})

    def prior(self, like: Tensor) -> dict[str, Tensor]:
        """Parameters of the standard prior, by block."""
        return {name: b.standard(like) for name, b in self.blocks.items()}

    def log_density(self, parameters: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> Tensor:
        """Log density of each leaf [..., leaves]."""
        return torch.cat([b.log_density(parameters[n], values[n]) for n, b in self.blocks.items()], dim=-1)

    def pairwise(self, parameters: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> Tensor:
        """Log density of every value i under every posterior j [..., i, leaves, j]."""
        parts = [b.pairwise(parameters[n], values[n]) for n, b in self.blocks.items()]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-2)

    def kl(self, posterior: Mapping[str, Tensor], prior: Mapping[str, Tensor]) -> Tensor:
        """Closed-form KL of each leaf [..., leaves]."""
        return torch.cat([b.kl(posterior[n], prior[n]) for n, b in self.blocks.items()], dim=-1)

    def leaf_names(self) -> list[str]:
        """`z0`, `z1`, … by block; a block with one leaf is named after the block alone."""
        return [name if b.leaves == 1 else f"{name}{i}" for name, b in self.blocks.items() for i in range(b.leaves)]


def _levels(tree: Tree, leaves: int) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Partitions of the leaves from everything down to single leaves, each a refinement of the one before."""
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
