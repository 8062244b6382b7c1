r"""Log density ratios by classification: a network that tells joint from shuffled codes measures their dependence.

    TC = E_q(z) [ log q(z) / prod_g q(z_g) ]  ~  E_q(z) [ D(z)_joint - D(z)_shuffled ]

with the two logits D of a network trained by cross-entropy on codes and on codes whose groups of columns were drawn
from different rows (sugiyama2012; kim2018; daunhawer2019, eq. 6 and table 3). The expectation is taken over held-out
rows. The network misses some of the dependence: the larger the total correlation, the more the estimate lies below it.

A network that learns few rows by heart is sure of the others and wrong, and its log ratios are then far below 0, which
a total correlation cannot be. So they are also compared on held-out rows with the same log ratios times a slope from 0
to 1. If the best slope lowers the cross-entropy by more than 0.01 nats, the rows are too few and nothing is returned.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unbraid.density.small_fit import descend
from unbraid.errors import DataError, UsageError
from unbraid.seeding import seeded

NEGATIVE_SLOPE = 0.2
MIN_ROWS = 8
MAX_OVERCONFIDENCE = 0.01
"""Nats of held-out cross-entropy: at most .002 from 5,000 rows of ten Normal latents, .03 to .08 from 2,000 (where the
estimate is up to .3 too low), .3 from 600 and 3 from 120."""

SHUFFLED_TEST_ROWS = 10_000
MIN_WIDTH_FOR_BF16 = 512
"""Narrower networks are not faster in bf16."""


def check_layers(width: int, depth: int) -> None:
    """Raise a `UsageError` for a discriminator without layers."""
    if width < 1 or depth < 1:
        raise UsageError(f"The discriminator needs at least 1 layer of width 1, not {depth} of {width}.")


class Discriminator(nn.Sequential):
    """`depth` layers of `width` with leaky ReLUs, and two logits: joint, shuffled (daunhawer2019, table 3)."""

    width: int

    def __init__(self, inputs: int, *, width: int = 1000, depth: int = 5) -> None:
        sizes = [inputs] + [width] * depth
        layers = [(nn.Linear(a, b), nn.LeakyReLU(NEGATIVE_SLOPE)) for a, b in pairwise(sizes)]
        super().__init__(*(part for layer in layers for part in layer), nn.Linear(sizes[-1], 2))
        self.width = sizes[-1]


def number_groups(groups: Sequence[Sequence[int]]) -> Tensor:
    """Return the number of the group to which each column belongs [columns]."""
    numbers = torch.zeros(sum(map(len, groups)), dtype=torch.int64)
    for number, group in enumerate(groups):
        numbers[list(group)] = number
    return numbers


def shuffle_groups(codes: Tensor, group_of_column: Tensor, rows: Tensor) -> Tensor:
    """Return draws from the product of the groups' marginals; each group takes its own `rows` [groups, n]."""
    return codes.gather(0, rows.index_select(0, group_of_column).T)


def estimate_log_ratios(
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
    """Return log q(z) - sum_g log q(z_g) of held-out rows, by a discriminator trained on the other rows.

    `codes` are [rows, columns]. `groups` partitions the columns; None makes each column a group. `held_out` is the
    share of held-out rows. The learning rate rises to `lr` and falls to 0 in one cycle. A `DataError` says that the
    rows are too few for the network.
    """
    groups = [[column] for column in range(codes.shape[1])] if groups is None else groups
    _check_groups(codes, groups)
    generator = torch.Generator().manual_seed(seed)
    codes = _standardise(codes)
    order = torch.randperm(len(codes), generator=generator).to(codes.device)
    test, train = codes[order].tensor_split([max(2, round(held_out * len(codes)))])
    with seeded(seed):
        network = Discriminator(codes.shape[1], width=width, depth=depth).to(codes)  # whatever torch's default is
    label = torch.arange(2, device=codes.device).repeat_interleave(batch)
    group_of_column = number_groups(groups).to(codes.device)
    drawn = torch.randint(len(train), (steps, 1 + len(groups), batch), generator=generator).to(codes.device)

    def loss(step: Tensor) -> Tensor:
        rows = drawn.index_select(0, step)[0]  # [1 + groups, batch]
        codes = torch.cat([train[rows[0]], shuffle_groups(train, group_of_column, rows[1:])])
        return F.cross_entropy(_classify(network, codes), label)

    descend("density ratio", network.parameters(), loss, one_cycle_rates(lr, steps), betas=(0.9, 0.99))
    rows = torch.randint(len(test), (len(groups), SHUFFLED_TEST_ROWS), generator=generator).to(codes.device)
    with torch.no_grad():
        logits = network(torch.cat([test, shuffle_groups(test, group_of_column, rows)]))
    joint, shuffled = (logits[:, 0] - logits[:, 1]).tensor_split([len(test)])
    _check_generalises(joint, shuffled, len(train))
    return joint


def measure_overconfidence(joint: Tensor, shuffled: Tensor) -> float:
    """Return by how many nats a slope from 0 to 1 lowers the cross-entropy of log ratios of held-out rows."""
    slopes = torch.linspace(0, 1, 51, dtype=torch.float64)[:, None]
    losses = F.softplus(-slopes * joint.cpu()).mean(1) / 2 + F.softplus(slopes * shuffled.cpu()).mean(1) / 2
    return float(losses[-1] - losses.min())


def _check_generalises(joint: Tensor, shuffled: Tensor, trained: int) -> None:
    excess = measure_overconfidence(joint, shuffled)
    if excess > MAX_OVERCONFIDENCE:
        raise DataError(
            f"{trained:,} rows are too few to train the network of a density ratio: on {len(joint):,} other rows it is "
            f"surer than it is right, by {excess:.2g} nats of cross-entropy ({MAX_OVERCONFIDENCE} are allowed), and "
            "its estimate would be far too low. Ten Normal latents need about 5,000 rows."
        )


def one_cycle_rates(highest: float, steps: int, rise: float = 0.1) -> Tensor:
    """Return rates [steps] along two half cosines: from 1/25 of the highest up to it, then to almost 0 (smith2019)."""
    top = max(1.0, rise * steps - 1)
    step = torch.arange(steps, dtype=torch.float64)
    up, down = (step / top).clamp(max=1.0), ((step - top) / max(1.0, steps - 1 - top)).clamp(0.0, 1.0)
    rising = highest / 25 + (highest - highest / 25) * (1 - (torch.pi * up).cos()) / 2
    falling = (1 + (torch.pi * down).cos()) / 2
    return torch.where(step <= top, rising, highest * (falling + (1 - falling) * 4e-6))


def _classify(network: Discriminator, codes: Tensor) -> Tensor:
    # Without a cache, because a captured step must cast the weights anew. Most CPUs emulate bf16, 13 times as slowly.
    use_bf16 = codes.is_cuda and network.width >= MIN_WIDTH_FOR_BF16
    with torch.autocast(codes.device.type, torch.bfloat16, enabled=use_bf16, cache_enabled=False):
        return network(codes).float()


def _standardise(codes: Tensor) -> Tensor:
    """Scale columns to mean 0 and variance 1, in float32; a constant column becomes 0."""
    codes = codes.detach().double()
    spread = codes.std(0)
    return ((codes - codes.mean(0)) / torch.where(spread > 0, spread, 1.0)).float()


def _check_groups(codes: Tensor, groups: Sequence[Sequence[int]]) -> None:
    if len(codes) < MIN_ROWS:
        raise DataError(f"A density ratio needs at least {MIN_ROWS} rows, not {len(codes)}.")
    if sorted(column for group in groups for column in group) != list(range(codes.shape[1])):
        raise UsageError(f"groups must hold each of the {codes.shape[1]} columns once, not {groups}.")
    if len(groups) < 2:
        raise UsageError("A density ratio needs at least 2 groups of columns.")
