r"""Log density ratios by classification: a network that tells joint from shuffled codes knows how dependent they are.

    TC = E_q(z) [ log q(z) / prod_g q(z_g) ]  ~  E_q(z) [ D(z)_joint - D(z)_shuffled ]

with the two logits D of a network trained by cross-entropy on codes and on codes whose groups of columns were drawn
from different rows (sugiyama2012; kim2018; daunhawer2019, eq. 6 and table 3). The expectation is taken over rows that
the network was not trained on. What the network cannot tell apart is missing: the larger the total correlation, the
more the estimate lies below it.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unbraid.errors import DataError, UsageError
from unbraid.progress import progress

SLOPE = 0.2
FEWEST_ROWS = 8
WIDE = 512


class Discriminator(nn.Sequential):
    """`depth` layers of `width` with leaky ReLUs, and two logits: joint, shuffled (daunhawer2019, table 3)."""

    width: int

    def __init__(self, inputs: int, *, width: int = 1000, depth: int = 5) -> None:
        sizes = [inputs] + [width] * depth
        layers = [(nn.Linear(a, b), nn.LeakyReLU(SLOPE)) for a, b in pairwise(sizes)]
        super().__init__(*(part for layer in layers for part in layer), nn.Linear(sizes[-1], 2))
        self.width = sizes[-1]


def shuffled(codes: Tensor, groups: Sequence[Sequence[int]], rows: int, generator: torch.Generator) -> Tensor:
    """`rows` draws from the product of the groups' marginals: each group of columns comes from another row."""
    made = codes.new_empty(rows, codes.shape[1])
    for group in groups:
        drawn = torch.randint(len(codes), (rows,), generator=generator).to(codes.device)
        made[:, list(group)] = codes[drawn][:, list(group)]
    return made


def log_ratios(
    codes: Tensor,
    groups: Sequence[Sequence[int]] | None = None,
    *,
    width: int = 1000,
    depth: int = 5,
    steps: int = 500,
    batch: int = 128,
    lr: float = 2e-3,
    held_out: float = 0.2,
    seed: int = 0,
) -> Tensor:
    """log q(z) - sum_g log q(z_g) of held-out rows of codes [rows, columns], by a discriminator trained on the others.

    `groups` partitions the columns; None takes each column alone. The rate rises to `lr` and falls to 0 in one cycle.
    """
    groups = _checked(codes, groups)
    generator = torch.Generator().manual_seed(seed)
    codes = _standardised(codes)
    order = torch.randperm(len(codes), generator=generator).to(codes.device)
    test, train = codes[order].tensor_split([max(2, round(held_out * len(codes)))])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = Discriminator(codes.shape[1], width=width, depth=depth).to(codes.device)
    optimizer = torch.optim.Adam(network.parameters(), lr=lr, betas=(0.9, 0.99))
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=steps, pct_start=0.1)
    label = torch.arange(2, device=codes.device).repeat_interleave(batch)
    with progress("density ratio", steps) as bar:
        for _ in range(steps):
            joint = train[torch.randint(len(train), (batch,), generator=generator).to(codes.device)]
            logits = _logits(network, torch.cat([joint, shuffled(train, groups, batch, generator)]))
            loss = F.cross_entropy(logits, label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            rate.step()
            bar.advance()
    with torch.no_grad():
        joint, apart = network(test).unbind(-1)
    return joint - apart


def _logits(network: Discriminator, codes: Tensor) -> Tensor:
    """In bf16 where that is faster: a narrow network spends its time elsewhere."""
    with torch.autocast(codes.device.type, torch.bfloat16, enabled=network.width >= WIDE):
        logits = network(codes)
    return logits.float()


def _standardised(codes: Tensor) -> Tensor:
    """Mean 0 and variance 1 per column, float32; a constant column becomes 0, since it depends on nothing."""
    codes = codes.detach().double()
    spread = codes.std(0)
    return ((codes - codes.mean(0)) / torch.where(spread > 0, spread, 1.0)).float()


def _checked(codes: Tensor, groups: Sequence[Sequence[int]] | None) -> Sequence[Sequence[int]]:
    if len(codes) < FEWEST_ROWS:
        raise DataError(f"A density ratio needs at least {FEWEST_ROWS} rows, not {len(codes)}.")
    groups = [[column] for column in range(codes.shape[1])] if groups is None else groups
    if sorted(column for group in groups for column in group) != list(range(codes.shape[1])):
        raise UsageError(f"groups must hold each of the {codes.shape[1]} columns once, not {groups}.")
    if len(groups) < 2:
        raise UsageError("A density ratio needs at least 2 groups of columns.")
    return groups
