r"""Information as other rows might have it: what was measured, plus random errors.

InfoM and InfoC are ratios of information. Where latents know nothing, a ratio compares one chance with another, and its
spread does not shrink with the number of rows, while that of information falls with 1/n. So halves of the rows would
misjudge the ratio by an amount that depends on the latents. They are good for the information itself:

- The errors of information that is there are those of pairs of disjoint halves, (I_a - I_b) / 2, with Normal weights.
  They keep the dependence between latents and factors.
- Information within three errors of chance counts as chance, and its errors are independent. For histograms chance has
  the mean and the variance of rows with the factors of other rows. For nearest neighbours its mean is 0, and its
  variance that of the halves.
- The greatest number of a row is ahead of the second also by chance. The square of the gap d is on average that of the
  true gap plus the variance s^2 of its error, so the draws have a gap of sqrt(d^2 - s^2), or none. Otherwise ratios of
  equal latents would vary as if one of them were ahead.

The ratio of many such draws has the spread of the ratio over draws of as many rows. How well it is known depends on its
source: what errors of known information add rests on as many pairs of halves, what chance adds on those of every latent
and factor at chance. Two sets of draws that share the former tell one from the other: their covariance is its variance.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from unbraid.metrics.intervals import Spread

SIGNIFICANT = 3.0
"""Errors by which information must exceed chance to count as more; chance does so for 1 of 700 latents and factors."""

DRAWS = 200


class DrawnInformation(NamedTuple):
    """Two sets of draws of I [draws, owners, others], which share the errors of information that is there.

    `pairs` of halves showed the errors, and `at_chance` is the number of latents and factors without information.
    """

    first: np.ndarray
    second: np.ndarray
    pairs: int
    at_chance: int

    def find_spread(self, measure: Callable[[np.ndarray], float]) -> Spread:
        """Return the spread of a number that is measured from I [owners, others]; degrees: satterthwaite1946."""
        together = np.cov([[measure(one) for one in drawn] for drawn in (self.first, self.second)])
        variance = float(together[0, 0] + together[1, 1]) / 2
        if variance == 0:
            return Spread(0.0, self.pairs)
        known = min(1.0, max(0.0, float(together[0, 1]) / variance))
        unsure = known**2 / self.pairs + (1 - known) ** 2 / (self.pairs * max(1, self.at_chance)) + 1 / DRAWS
        return Spread(variance, 1 / unsure)


def draw_information(
    information: np.ndarray,
    halves: Sequence[np.ndarray],
    chance: tuple[np.ndarray, np.ndarray] | None,
    rng: np.random.Generator,
) -> DrawnInformation:
    """Draw information of as many other rows from I [owners, others] of all rows and of pairs of halves.

    Owners are latents and others factors, or vice versa; a ratio compares the others of each owner. `chance` holds mean
    and deviation [owners, others] for histograms; None is that of nearest neighbours.
    """
    both = np.stack(halves)
    errors = (both[::2] - both[1::2]) / 2  # [pairs, latents, factors]
    level, spread = (0.0, np.sqrt(np.square(errors).mean(0))) if chance is None else chance
    together = np.tensordot(rng.standard_normal((DRAWS, len(errors))) / math.sqrt(len(errors)), errors, axes=1)
    known, centre = information - level > SIGNIFICANT * spread, _narrow_gaps(information, errors)
    first, second = (
        np.maximum(np.where(known, centre + together, level + alone), 0.0)
        for alone in spread * rng.standard_normal((2, DRAWS, *information.shape))
    )
    return DrawnInformation(first, second, len(errors), int((~known).sum()))


def _narrow_gaps(information: np.ndarray, errors: np.ndarray) -> np.ndarray:
    """Return I [owners, others] with the gap of the two greatest numbers of each owner as wide as without errors."""
    if information.shape[1] < 2:
        return information
    second, best = np.moveaxis(np.argsort(information, axis=1)[:, -2:], 1, 0)
    owners, narrowed = np.arange(len(information)), information.copy()
    gaps = information[owners, best] - information[owners, second]
    variances = np.square(errors[:, owners, best] - errors[:, owners, second]).mean(0)
    excess = gaps - np.sqrt(np.maximum(gaps**2 - variances, 0.0))
    narrowed[owners, best] -= excess / 2
    narrowed[owners, second] += excess / 2
    return narrowed
