"""The latent space: named blocks, and the groups of their leaves in a decomposition of the KL."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from unbraid.config import Choice
from unbraid.errors import UsageError, unknown
from unbraid.latents.blocks import Block, block
from unbraid.latents.learned_priors import Prior, Tensors, prior
from unbraid.noise import Need

Tree = Sequence[Any]
"""Leaves in nested groups, to any depth, e.g. `((0, 1), (2,))`."""


class Space:
    """Named latent blocks, in order. The decoder sees their codes, concatenated. A later stage may have no block.

    `tree` groups the leaves for the hierarchical decomposition (esmaeili2018), to any depth; by default every leaf is a
    group. `learned` replaces the standard prior; the model holds its parameters.

    Posteriors, priors and values are dictionaries of tensors [..., batch, numbers] by block.
    """

    def __init__(self, blocks: Mapping[str, Block], tree: Tree | None = None, learned: Prior | None = None) -> None:
        self.blocks = dict(blocks)
        self.leaves = sum(b.leaves for b in blocks.values())
        self.width = sum(b.width for b in blocks.values())
        self.tree: Tree = tuple(range(self.leaves)) if tree is None else tree
        self.levels = _levels(self.tree, self.leaves)
        self.learned = learned
        self.has_density = all(b.has_density for b in blocks.values())
        self.closed_form = all(b.closed_form for b in blocks.values()) and (learned is None or learned.closed_form)

    @classmethod
    def from_config(
        cls, latents: Mapping[str, Mapping[str, Any]], groups: Any = None, learned: Choice | None = None
    ) -> "Space":
        """Build the space of `{"z": {"kind": "normal", "size": 10}}`; `groups` nests leaves, or is `blocks`."""
        blocks = {}
        for name, spec in latents.items():
            entry = block[spec["kind"]]
            blocks[name] = entry.make(**entry.resolve({k: v for k, v in spec.items() if k != "kind"}))
        learned_prior = None if learned is None else prior[learned.name].make(blocks, **learned.settings)
        return cls(blocks, None if groups is None else cls(blocks)._parse_groups(groups), learned_prior)

    def _parse_groups(self, groups: Any) -> Tree:
        if groups == "blocks":
            numbers = iter(range(self.leaves))
            return tuple(tuple(next(numbers) for _ in range(b.leaves)) for b in self.blocks.values())
        if not isinstance(groups, (list, tuple)):
            raise UsageError(f"groups must be blocks, or leaves in brackets as [[z0,z1],[z2]], not {groups}.")
        return tuple(self._parse_node(node) for node in groups)

    def _parse_node(self, node: Any) -> Any:
        if isinstance(node, (list, tuple)):
            return tuple(self._parse_node(child) for child in node)
        names = self.leaf_names()
        if isinstance(node, bool) or not isinstance(node, (str, int)):
            raise UsageError(f"groups holds names or numbers of latent variables, not {node!r}.")
        if isinstance(node, str) and node not in names:
            raise unknown("latent variable", node, names)
        return names.index(node) if isinstance(node, str) else node

    @property
    def last_stage(self) -> "Space":
        """The latents that the last stage adds; of a model without stages, all of them."""
        return self

    @property
    def outputs(self) -> dict[str, int]:
        """Names and widths of an encoder's outputs, in order: `{"z.mean": 10, "z.log_variance": 10}`."""
        return {f"{name}.{key}": width for name, b in self.blocks.items() for key, width in b.parameters.items()}

    @property
    def code_names(self) -> list[str]:
        """Names of a code's coordinates: `z0`, `z1`, …, or the block's name if it has one coordinate."""
        blocks = self.blocks.items()
        return [name if b.width == 1 else f"{name}{i}" for name, b in blocks for i in range(b.width)]

    def needs(self, batch: int) -> dict[str, Need]:
        return {key: need for name, b in self.blocks.items() for key, need in b.needs(name, batch).items()}

    def split(self, flat: Tensor, noise: Tensors | None = None) -> dict[str, Tensor]:
        """Split an encoder's flat output into parameters by block; `noise` holds the step for blocks that need it."""
        parts = flat.split([b.parameter_count for b in self.blocks.values()], dim=-1)
        steps = noise or {}
        return {
            name: b.complete(part, steps.get(f"{name}.step"))
            for (name, b), part in zip(self.blocks.items(), parts, strict=True)
        }

    def join(self, values: Tensors) -> Tensor:
        """Return the code [..., width] of values."""
        return torch.cat([b.to_code(values[name]) for name, b in self.blocks.items()], dim=-1)

    def unjoin(self, code: Tensor) -> dict[str, Tensor]:
        """Return the values of a code: the inverse of `join`."""
        parts = code.split([b.width for b in self.blocks.values()], dim=-1)
        return {name: b.from_code(part) for (name, b), part in zip(self.blocks.items(), parts, strict=True)}

    def sample(self, posterior: Tensors, noise: Tensors) -> dict[str, Tensor]:
        return {name: b.sample(posterior[name], noise[name]) for name, b in self.blocks.items()}

    def center(self, posterior: Tensors) -> Tensor:
        """Return the deterministic code [..., width]."""
        return torch.cat([b.center(posterior[name]) for name, b in self.blocks.items()], dim=-1)

    def sample_prior(self, prior: Tensors, noise: Tensors) -> dict[str, Tensor]:
        """Draw from the prior, learned or not, with the noise of a posterior's draw."""
        if self.learned is not None:
            return self.learned.sample(prior, noise)
        return {name: b.sample_prior(prior[name], noise[name]) for name, b in self.blocks.items()}

    def center_prior(self, prior: Tensors) -> Tensor:
        """Return the code [..., width] in the middle of the prior."""
        learned = {} if self.learned is None else self.learned.center(prior)
        parts = [learned[n] if n in learned else b.center(prior[n]) for n, b in self.blocks.items()]
        return torch.cat(parts, dim=-1)

    def prior(self, like: Tensor) -> dict[str, Tensor]:
        """Return the parameters of the standard prior, in the type and on the device of `like`."""
        return {name: b.standard(like) for name, b in self.blocks.items()}

    def prior_of(self, posterior: Tensors) -> dict[str, Tensor]:
        """Return the standard prior at the temperatures of these posteriors."""
        return {name: b.prior_of(posterior[name]) for name, b in self.blocks.items()}

    def log_density(self, parameters: Tensors, values: Tensors) -> Tensor:
        """Return the log density of each leaf [..., leaves]."""
        return torch.cat([b.log_density(parameters[n], values[n]) for n, b in self.blocks.items()], dim=-1)

    def joint_density(self, parameters: Tensors, values: Tensors) -> Tensor:
        """Return the joint log density of all leaves [...]."""
        separate = self.log_density(parameters, values).sum(-1)
        extra = self.coupling(parameters, values, range(self.leaves))
        return separate if extra is None else separate + extra

    def coupling(self, parameters: Tensors, values: Tensors, group: Sequence[int]) -> Tensor | None:
        """Return a group's joint log density minus the sum over its leaves [...]; None if they are independent."""
        total, first = None, 0
        for name, b in self.blocks.items():
            inside = [leaf - first for leaf in group if first <= leaf < first + b.leaves]
            first += b.leaves
            if b.coupled and len(inside) > 1:
                part = b.coupling(parameters[name], values[name], inside)
                total = part if total is None else total + part
        return total

    def prior_levels(self, prior: Tensors, values: Tensors) -> list[Tensor]:
        """Return the summed log density [...] of the prior's groups at each level, from all leaves to single ones."""
        if self.learned is not None:
            return self.learned.levels(prior, values, self.levels)
        return [self.log_density(prior, values).sum(-1)] * len(self.levels)

    def pairwise(self, parameters: Tensors, values: Tensors) -> Tensor:
        """Return the log density of every value i under every posterior j [..., i, leaves, j]."""
        parts = [b.pairwise(parameters[n], values[n]) for n, b in self.blocks.items()]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-2)

    def kl(self, posterior: Tensors, prior: Tensors, values: Tensors) -> Tensor:
        """Return the KL of each leaf [..., leaves], in closed form if its block has one, else at the draw `values`."""
        if self.learned is not None:
            return self.learned.leaf_kl(posterior, prior, values)
        return torch.cat([b.kl(posterior[n], prior[n], values[n]) for n, b in self.blocks.items()], dim=-1)

    def joint_kl(self, posterior: Tensors, prior: Tensors, values: Tensors) -> Tensor:
        """Return KL(posterior || prior) of the whole code [...], in closed form if it has one, else at the draw."""
        if self.learned is not None:
            return self.learned.kl(posterior, prior, values)
        separate, extra = self.kl(posterior, prior, values).sum(-1), sum(b.extra_kl for b in self.blocks.values())
        return separate + extra if extra else separate

    def leaf_columns(self) -> list[list[int]]:
        """Return the coordinates of each leaf in the code: one for a Normal variable, K for K classes."""
        columns = iter(range(self.width))
        blocks = (b for b in self.blocks.values() for _ in range(b.leaves))
        return [[next(columns) for _ in range(b.width // b.leaves)] for b in blocks]

    def leaf_names(self) -> list[str]:
        """Return `z0`, `z1`, … by block; the only leaf of a block has the block's name."""
        return [name if b.leaves == 1 else f"{name}{i}" for name, b in self.blocks.items() for i in range(b.leaves)]


def _levels(tree: Tree, leaves: int) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Return partitions of the leaves, from one group of all to single leaves; each refines the one before."""
    if sorted(_flatten(tree)) != list(range(leaves)):
        raise UsageError(f"groups must name each of the {leaves} latent variables exactly once, not {tree!r}.")
    levels, nodes = [], [tree]
    while True:
        levels.append(tuple(tuple(_flatten(node)) for node in nodes))
        if all(isinstance(node, int) for node in nodes):
            return tuple(levels)
        nodes = [child for node in nodes for child in ((node,) if isinstance(node, int) else node)]


def _flatten(tree: int | Tree) -> list[int]:
    return [tree] if isinstance(tree, int) else [leaf for child in tree for leaf in _flatten(child)]


EARLIER_BLOCK = "c"
"""Name of the earlier stage's only block, and prefix of the names of several."""


class StackedSpace(Space):
    """C, then Z.

    C keeps its groups and its prior, also a learned one. If one of the stages has groups, Z is one more group.
    """

    def __init__(self, earlier: Space, later: Space) -> None:
        single = len(earlier.blocks) == 1
        self.names = {name: EARLIER_BLOCK if single else f"{EARLIER_BLOCK}_{name}" for name in earlier.blocks}
        self._later = later
        renamed = {self.names[name]: block for name, block in earlier.blocks.items()}
        for name in later.blocks:
            if name in renamed:
                raise UsageError(f"{name} names latents of the earlier stage here; choose other latents for this one.")
        learned = None if earlier.learned is None else earlier.learned.rename_blocks(self.names, later.blocks)
        super().__init__({**renamed, **later.blocks}, _join_trees(earlier, later), learned)

    @property
    def last_stage(self) -> Space:
        return self._later

    def rename_blocks(self, by_block: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return tensors of the earlier stage's blocks under their names in this space."""
        return {self.names.get(name, name): value for name, value in by_block.items()}


def _join_trees(earlier: Space, later: Space) -> Any:
    if len(earlier.levels) == len(later.levels) == 2:  # no groups
        return None
    return (*earlier.tree, _shift(later.tree, earlier.leaves)) if later.leaves else earlier.tree


def _shift(tree: Any, by: int) -> Any:
    return tree + by if isinstance(tree, int) else tuple(_shift(node, by) for node in tree)
