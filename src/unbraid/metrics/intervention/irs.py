r"""The interventional robustness score (suter2019): do other factors move a latent whose own factor is fixed?

With the rows where factor i has the value a, their mean E[z_j|a], and Q a high quantile over rows,

    IRS_ji = 1 - sum_a p(a) Q(|z_j - E[z_j|a]|) / max |z_j - E[z_j]|,    D_j = max_i IRS_ji,

and the score is the mean of D_j, weighted by the latent's reach max |z_j - E[z_j]|. The paper takes the maximum
(`quantile=1`); the .99 quantile, as in its published code, does not depend on one row. Every row counts as a noise-free
intervention, which is true for a grid of rendered images.

| protocol              | values of a factor                                                                        |
|-----------------------|-------------------------------------------------------------------------------------------|
| `quantile`            | its own, each weighted by its share of the rows                                           |
| `disentanglement_lib` | 20 equal-width bins, whatever its size, all bins weighted equally                         |

The score is 1 if every latent encodes one factor, even if some factors have no latent. Constant latents are left out,
and if all are constant the score is 0. Noise does not score 0, since its .99 quantile lies below its maximum (.35 for
10,000 normal rows). A latent with rare outliers at every value may score below 0, at worst -1.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from unbraid.errors import SettingError
from unbraid.metrics.arrays import FactorLabels, name_latents, to_matrix
from unbraid.metrics.base import Score
from unbraid.metrics.code_metrics import code_metric
from unbraid.metrics.information.histogram import discretise
from unbraid.metrics.intervals import no_interval
from unbraid.metrics.intervention.fixed_factor_batches import read_fixable_factors, sort_rows
from unbraid.metrics.train_test_split import Compat, is_published

BINS_OF_DISENTANGLEMENT_LIB = 20
NO_INTERVAL = no_interval("its normaliser is a maximum, whose spread cannot be resampled")

irs_metric = partial(
    code_metric,
    settings="samples quantile",
    defaults={"samples": 10_000},
    needs=("factors",),
    bounds=(-1, 1),
    invariant=("order", "sign"),
    perfect=1.0,
)


@irs_metric(
    "irs/quantile",
    "Interventional robustness: how little other factors move a latent whose own factor is fixed.",
    "suter2019",
)
@irs_metric("irs/disentanglement_lib", "Interventional robustness as disentanglement_lib computes it.", "locatello2019")
def irs(
    codes: Any,
    factors: Any,
    *,
    quantile: float = 0.99,
    names: Sequence[str] | None = None,
    latents: Sequence[str] | None = None,
    compat: Compat | None = None,
) -> Score:
    """Return the interventional robustness score of codes [rows, latents] and discrete factors [rows, factors].

    Nothing is random. There is no interval, because a bootstrap misjudges the spread of a maximum, the normaliser.
    """
    published = is_published(compat)
    if not 0 < quantile <= 1:
        raise SettingError(f"quantile must lie between 0 and 1, not {quantile}.")
    values = to_matrix("codes", codes)
    labels = read_fixable_factors(factors, len(values), names)
    all_latents = name_latents(values.shape[1], latents)
    reach = np.abs(values - values.mean(0)).max(0)
    active = np.flatnonzero(values.max(0) > values.min(0))
    protocol = compat or "quantile"
    if not len(active):
        why = "Every latent is constant."
        return Score("irs", protocol, 0.0, len(values), details={"why": why}, covers=NO_INTERVAL)
    columns = [_spread(values[:, active], column, quantile, published) for column in labels.values.T]
    robust = 1 - np.stack(columns, axis=1) / reach[active, None]  # [active latents, factors]
    value = float(np.average(robust.max(1), weights=reach[active]))
    details = _details(robust, reach[active], [all_latents[j] for j in active], labels)
    details["constant"] = [name for j, name in enumerate(all_latents) if j not in active]
    return Score("irs", protocol, value, len(values), details=details, covers=NO_INTERVAL)


def _spread(codes: np.ndarray, column: np.ndarray, quantile: float, published: bool) -> np.ndarray:
    """Return the mean deviation of each latent from its mean at a value of the factor [latents]."""
    if published:
        bins = discretise(column[:, None].astype(np.float64), BINS_OF_DISENTANGLEMENT_LIB)
        column = np.unique(bins, return_inverse=True)[1].reshape(-1)
    order, counts = sort_rows(column, int(column.max()) + 1)
    groups = np.split(codes[order], counts.cumsum()[:-1])
    deviations = [np.quantile(np.abs(group - group.mean(0)), quantile, axis=0) for group in groups]
    return np.average(deviations, axis=0, weights=None if published else counts)


def _details(robust: np.ndarray, reach: np.ndarray, latents: Sequence[str], labels: FactorLabels) -> dict[str, Any]:
    return {
        "latents": dict(zip(latents, robust.max(1).tolist(), strict=True)),
        "parents": {name: labels.names[k] for name, k in zip(latents, robust.argmax(1), strict=True)},
        "weights": dict(zip(latents, (reach / reach.sum()).tolist(), strict=True)),
        "robustness": {
            name: dict(zip(labels.names, r.tolist(), strict=True)) for name, r in zip(latents, robust, strict=True)
        },
    }
