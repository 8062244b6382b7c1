"""Groups of leaves, and the members of a stack, as the operators for densities take them."""

import math
from collections.abc import Sequence

from torch import Tensor

from unbraid.shapes import broadcast_leading


def make_mask(leaves: Sequence[int]) -> int:
    """Return a group as the bits of a signed 64-bit number."""
    bits = sum(1 << leaf for leaf in leaves)
    return bits - 2**64 if bits >= 2**63 else bits


def list_leaves(mask: int) -> tuple[int, ...]:
    """Return the leaves of a group."""
    return tuple(leaf for leaf in range(64) if (mask >> leaf) & 1)


def flatten_members(sample: Tensor, parameters: Tensor) -> tuple[tuple[int, ...], Tensor, Tensor]:
    """Return the leading axes of samples [..., i, D] and parameters [..., j, 2 D], and both with these axes as one."""
    lead = tuple(broadcast_leading([sample, parameters], trailing=2))
    members = math.prod(lead)
    samples, components = (t.expand(*lead, *t.shape[-2:]).reshape(members, *t.shape[-2:]) for t in (sample, parameters))
    return lead, samples, components
