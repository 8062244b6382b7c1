r"""Information as other rows might have it: what was measured, plus random errors.

InfoM and InfoC are ratios of information. Where latents know nothing, a ratio compares one chance with another, and its
spread does not shrink with the number of rows, while that of information falls with 1/n. So halves of the rows would
misjudge the ratio by an amount that depends on the latents. They are good for the information itself:

- The errors of information that is there are those of pairs of disjoint halves, (I_a - I_b) / 2, with Normal weights.
  They keep the dependence between latents and factors.
- Information within three errors of chance counts as chance, and its errors are independent. For histograms chance has
  the mean and the variance of rows with the factors of other rows. For nearest neighbours its mean is 0, and its
  variance that of the halves.

The ratio of many such draws has the spread of the ratio over draws of as many rows.
"""

import math
from collections.abc import Sequence

import numpy as np

SIGNIFICANT = 3.0
"""Errors by which information must exceed chance to count as more; chance does so for 1 of 700 latents and factors."""

DRAWS = 200


def draw_information(
    information: np.ndarray,
    halves: Sequence[np.ndarray],
    chance: tuple[np.ndarray, np.ndarray] | None,
    rng: np.random.Generator,
) -> np.ndarray:
    """Draw I [draws, latents, factors] from I [latents, factors] of all rows and of pairs of halves.

    `chance` holds mean and deviation [latents, factors] for histograms; None is that of nearest neighbours.
    """
    both = np.stack(halves)
    errors = (both[::2] - both[1::2]) / 2  # [pairs, latents, factors]
    level, spread = (0.0, np.sqrt(np.square(errors).mean(0))) if chance is None else chance
    together = np.tensordot(rng.standard_normal((DRAWS, len(errors))) / math.sqrt(len(errors)), errors, axes=1)
    alone = spread * rng.standard_normal((DRAWS, *information.shape))
    known = information - level > SIGNIFICANT * spread
    return np.maximum(np.where(known, information + together, level + alone), 0.0)
