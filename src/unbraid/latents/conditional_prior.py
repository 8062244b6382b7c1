r"""Learned conditional class probabilities (esmaeili2018, section 5): Concrete variables p(c_0) p(c_1|c_0) …

p(c_i|c_{i-1}) is a Concrete variable whose class probabilities are the row P_i[k] of a table, with k = argmax c_{i-1}.
The largest coordinate of a Concrete draw has its class probabilities (maddison2017). So the classes are a Markov
chain, k_i ~ P_i[k_{i-1}], and the density of a subset of the variables is a finite sum. If c_{i-1} is not in it,

    p(c_i | earlier ones) = sum_k P(k_{i-1} = k | earlier ones) Concrete(c_i; P_i[k]).

Each variable has the temperature of its posterior.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from unbraid.latents.blocks import Block
from unbraid.latents.concrete import Concrete
from unbraid.latents.learned_priors import Prior, Tensors, prior
from unbraid.shapes import broadcast_leading


@prior("conditional", reference="esmaeili2018")
class ConditionalPrior(Prior):
    """Learned class probabilities of a chain of Concrete variables; all classes are equally likely at first."""

    covers = Concrete
    min_leaves = 2

    def __init__(self, blocks: Mapping[str, Block]) -> None:
        super().__init__(blocks)
        self.chain = [Concrete(classes=b.width // b.leaves) for b in self.covered.values() for _ in range(b.leaves)]
        sizes = [b.classes for b in self.chain]
        self.shapes = {"first": (sizes[0],)}
        self.shapes |= {f"given_{i}": (sizes[i - 1], sizes[i]) for i in range(1, len(sizes))}

    def tables(self, prior: Tensors) -> list[Tensor]:
        """Return log probabilities: p(k_0) [..., 1, K_0], then p(k_i|k_{i-1}) [..., K, K']."""
        first, *others = (part.log_softmax(-1) for part in self.parameters(prior).values())
        return [first.unsqueeze(-2), *others]

    def marginal_densities(self, prior: Tensors, values: Tensors) -> Tensor:
        return torch.stack([self.joint_density(prior, values, [i]) for i in range(len(self.chain))], -1)

    def joint_density(self, prior: Tensors, values: Tensors, leaves: Sequence[int]) -> Tensor:
        """Go forwards along the chain; sum over the classes of variables that are not in `leaves`."""
        tables, temperatures, variables = self.tables(prior), self._temperatures(prior), self._split(values)
        current, summed = tables[0], None  # log probabilities of this class, and of the last one if it is summed over
        total = torch.zeros_like(variables[0][..., 0])
        for i in range(max(leaves) + 1):
            if i in leaves:
                total = total + self._density(i, variables[i], temperatures[i], current, summed, tables[i])
            if i < max(leaves):
                summed = None if i in leaves else current
                current = select_rows(variables[i], tables[i + 1]) if i in leaves else _step(current, tables[i + 1])
        return total

    def draw(self, prior: Tensors, noise: Tensors) -> dict[str, Tensor]:
        tables, temperatures = self.tables(prior), self._temperatures(prior)
        drawn: list[Tensor] = []
        for i, (b, part) in enumerate(zip(self.chain, self._split(noise), strict=True)):
            logits = select_rows(drawn[-1], tables[i]) if i else tables[0]
            drawn.append(b.sample(_parameters(logits, temperatures[i]), part))
        return self.split_blocks(torch.cat(drawn, -1))

    def center(self, prior: Tensors) -> dict[str, Tensor]:
        """Return the probabilities of each variable's classes."""
        tables = self.tables(prior)
        marginals = [tables[0]]
        for table in tables[1:]:
            marginals.append(_step(marginals[-1], table))
        return self.split_blocks(torch.cat(marginals, -1).exp())

    def _density(
        self, i: int, value: Tensor, temperature: Tensor, current: Tensor, summed: Tensor | None, table: Tensor
    ) -> Tensor:
        """Return the log density of variable i [..., batch] given the earlier variables of the group."""
        if summed is None:
            return self.chain[i].log_density(_parameters(current, temperature), value).squeeze(-1)
        parameters = _parameters(table.unsqueeze(-3), temperature.unsqueeze(-2))  # a row per class of the last one
        each = self.chain[i].log_density(parameters, value.unsqueeze(-2)).squeeze(-1)
        return (summed + each).logsumexp(-1)

    def _split(self, values: Tensors) -> list[Tensor]:
        """Return the coordinates [..., batch, K] of each variable."""
        return list(self.join_blocks(values).split([b.classes for b in self.chain], -1))

    def _temperatures(self, prior: Tensors) -> list[Tensor]:
        return [prior[name][..., -1:] for name, b in self.covered.items() for _ in range(b.leaves)]


def select_rows(value: Tensor, table: Tensor) -> Tensor:
    """Return the row of a table [..., K, K'] for the class of each value [..., batch, K]."""
    classes = torch.arange(value.shape[-1], device=value.device)
    row = (value.argmax(-1, keepdim=True) == classes).to(table.dtype)
    return (row.unsqueeze(-1) * table.unsqueeze(-3)).sum(-2)


def _step(current: Tensor, table: Tensor) -> Tensor:
    """Return the log probabilities of the next class from those of the current one."""
    return (current.unsqueeze(-1) + table.unsqueeze(-3)).logsumexp(-2)


def _parameters(logits: Tensor, temperature: Tensor) -> Tensor:
    lead = broadcast_leading([logits, temperature])
    return torch.cat([logits.expand(*lead, -1), temperature.expand(*lead, -1)], -1)
