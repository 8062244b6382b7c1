"""Shared parts of objectives that train a discriminator to estimate a total correlation (kim2018).

The discriminator tells joint codes, of the batch's first half, from shuffled ones, of its second half: no row is on
both sides. With a perfect discriminator the difference of its two logits is the log density ratio.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from unbraid.errors import UsageError
from unbraid.objectives.base import Context
from unbraid.types import Player

JOINT, SHUFFLED = 0, 1
MIN_BATCH = 4
ADAM: dict[str, Any] = {"lr": 1e-4, "betas": (0.5, 0.9)}
"""Optimizer of the discriminator (kim2018), independent of the model's rate."""


def check_batch(batch: int, name: str) -> None:
    """Raise a `UsageError` for a batch that is too small to be halved and permuted."""
    if batch < MIN_BATCH:
        raise UsageError(f"{name} permutes half of a batch: it needs {MIN_BATCH} rows, not {batch}.")


def make_discriminator_player(prefix: str, loss: Callable[..., Any]) -> Player:
    """Return the player that trains the discriminators whose parameter names begin with `prefix`."""
    return Player("discriminator", (prefix,), loss, optimizer=ADAM)


def apply_discriminator(context: Context, name: str, codes: Tensor) -> Tensor:
    """Return a discriminator's two logits [..., rows, 2] of codes, in the precision of the codes."""
    return context.apply(name, codes).to(codes.dtype)


def log_ratio(logits: Tensor) -> Tensor:
    """Return the log density ratio [..., rows] of joint to shuffled codes."""
    return logits[..., JOINT] - logits[..., SHUFFLED]
