r"""Active units (burda2016, section 5.2): the number of latents whose posterior mean moves with the data.

    AU = #{ j : Var_x( E_{q(z_j|x)}[z_j] ) > .01 }

The posterior of an unused latent is the prior, so its mean is the same for all rows. The count does not say what the
active latents carry. It depends on their scale: codes without a standard Normal prior need another threshold.
"""

import math
from collections.abc import Sequence
from typing import Any

from unbraid.errors import DataError
from unbraid.metrics.arrays import check_at_least, name_latents, to_matrix
from unbraid.metrics.base import Evaluation, Score, metric
from unbraid.metrics.intervals import EXACT


@metric(
    "units/active",
    reference="burda2016",
    bounds=(0, math.inf),
    invariant=("order", "sign"),
    deterministic=True,
)
def active(evaluation: Evaluation, *, threshold: float = 0.01) -> Score:
    """Number of latents whose posterior mean varies over all rows by more than a threshold."""
    return active_units(evaluation.means, threshold=threshold, latents=evaluation.code_names)


def active_units(means: Any, *, threshold: float = 0.01, latents: Sequence[str] | None = None) -> Score:
    """Return the number of active units among posterior means [rows, latents].

    The rows are the whole population, so the interval is the value itself. `details` holds each latent's variance.
    """
    check_at_least(0, threshold=threshold)
    values = to_matrix("means", means)
    if len(values) < 2:
        raise DataError(f"A variance needs at least 2 rows, not {len(values)}.")
    names = name_latents(values.shape[1], latents)
    variance = (values - values[0]).var(0)  # without the first row's value a constant latent has exactly 0
    count = float((variance > threshold).sum())
    details = {
        "variance": dict(zip(names, variance.tolist(), strict=True)),
        "active": [name for name, one in zip(names, variance, strict=True) if one > threshold],
    }
    return Score("units", "active", count, len(values), (count, count), details=details, covers=EXACT)
