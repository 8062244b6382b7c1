r"""Learned conditional class probabilities (esmaeili2018, section 5): a chain p(c_0) p(c_1|c_0) … of Concrete ones.

p(c_i|c_{i-1}) is a Concrete variable whose class probabilities are the row P_i[k] of a table, with k = argmax c_{i-1}.
The largest coordinate of a Concrete draw has exactly its class probabilities (maddison2017), so that the classes are a
Markov chain, k_i ~ P_i[k_{i-1}], and the density of any of the variables is a finite sum: where c_{i-1} is not among
them,

    p(c_i | earlier ones) = sum_k P(k_{i-1} = k | earlier ones) Concrete(c_i; P_i[k]).

All variables have the temperature of the posterior that they are compared with.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from unbraid.latents.blocks import Block
from unbraid.latents.concrete import Concrete
from unbraid.latents.learned_priors import Prior, Tensors, prior


@prior("conditional", year=2018, reference="esmaeili2018")
class ConditionalPrior(Prior):
    """Learned class probabilities of a chain of Concrete variables; starts with equal ones."""

    covers = Concrete
    fewest = 2

    def __init__(self, blocks: Mapping[str, Block]) -> None:
        super().__init__(blocks)
        self.chain = [Concrete(classes=b.width // b.leaves) for b in self.covered.values() for _ in range(b.leaves)]
        sizes = [b.classes for b in self.chain]
        self.shapes = {"first": (sizes[0],)}
        self.shapes |= {f"given_{i}": (sizes[i - 1], sizes[i]) for i in range(1, len(sizes))}

    def tables(self, prior: Tensors) -> list[Tensor]:
        """Return log probabilities of the first class [..., 1, K_0], then of each given the one before [..., K, K']."""
        found = [part.log_softmax(-1) for part in self.parameters(prior).values()]
        return [found[0].unsqueeze(-2), *found[1:]]

    def marginal_densities(self, prior: Tensors, values: Tensors) -> Tensor:
        """Return the density of each variable, a mixture over the classes of the one before."""
        return torch.stack([self.joint_density(prior, values, [i]) for i in range(len(self.chain))], -1)

    def joint_density(self, prior: Tensors, values: Tensors, own: Sequence[int]) -> Tensor:
        """Go forwards along the chain, summing over the classes of variables that are not in `own`."""
        tables, temperatures, seen = self.tables(prior), self._temperatures(prior), self._split(values)
        ahead, unseen = tables[0], None  # log probabilities of this class, and of the last one where it is unknown
        total = torch.zeros_like(seen[0][..., 0])
        for i in range(max(own) + 1):
            if i in own:
                total = total + self._density(i, seen[i], temperatures[i], ahead, unseen, tables[i])
            if i < max(own):
                unseen = None if i in own else ahead
                ahead = chosen(seen[i], tables[i + 1]) if i in own else _mixed(ahead, tables[i + 1])
        return total

    def draw(self, prior: Tensors, noise: Tensors) -> dict[str, Tensor]:
        """Draw one variable after the other."""
        tables, temperatures = self.tables(prior), self._temperatures(prior)
        drawn: list[Tensor] = []
        for i, (b, own) in enumerate(zip(self.chain, self._split(noise), strict=True)):
            logits = chosen(drawn[-1], tables[i]) if i else tables[0]
            drawn.append(b.sample(_parameters(logits, temperatures[i]), own))
        return self.split_blocks(torch.cat(drawn, -1))

    def center(self, prior: Tensors) -> dict[str, Tensor]:
        """Return the probabilities of each variable's classes."""
        tables = self.tables(prior)
        ahead = [tables[0]]
        for table in tables[1:]:
            ahead.append(_mixed(ahead[-1], table))
        return self.split_blocks(torch.cat(ahead, -1).exp())

    def _density(
        self, i: int, seen: Tensor, temperature: Tensor, ahead: Tensor, unseen: Tensor | None, table: Tensor
    ) -> Tensor:
        """Return the log density of variable i [..., batch], given all that was seen before it."""
        if unseen is None:
            return self.chain[i].log_density(_parameters(ahead, temperature), seen).squeeze(-1)
        parameters = _parameters(table.unsqueeze(-3), temperature.unsqueeze(-2))  # one row for each class before
        each = self.chain[i].log_density(parameters, seen.unsqueeze(-2)).squeeze(-1)
        return (unseen + each).logsumexp(-1)

    def _split(self, values: Tensors) -> list[Tensor]:
        """Return coordinates [..., batch, K] of each variable."""
        return list(self.join_blocks(values).split([b.classes for b in self.chain], -1))

    def _temperatures(self, prior: Tensors) -> list[Tensor]:
        """Return the log temperature [..., 1] of each variable."""
        return [prior[name][..., -1:] for name, b in self.covered.items() for _ in range(b.leaves)]


def chosen(value: Tensor, table: Tensor) -> Tensor:
    """Return the row of a table [..., K, K'] for the class of each value [..., batch, K]."""
    classes = torch.arange(value.shape[-1], device=value.device)
    row = (value.argmax(-1, keepdim=True) == classes).to(table.dtype)
    return (row.unsqueeze(-1) * table.unsqueeze(-3)).sum(-2)


def _mixed(ahead: Tensor, table: Tensor) -> Tensor:
    """Return the log probabilities of the next class, where this one has the log probabilities `ahead`."""
    return (ahead.unsqueeze(-1) + table.unsqueeze(-3)).logsumexp(-2)


def _parameters(logits: Tensor, temperature: Tensor) -> Tensor:
    """Return the flat parameters of a Concrete variable."""
    lead = torch.broadcast_shapes(logits.shape[:-1], temperature.shape[:-1])
    return torch.cat([logits.expand(*lead, -1), temperature.expand(*lead, -1)], -1)
