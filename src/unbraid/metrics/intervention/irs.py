r"""The interventional robustness score (suter2019): if a latent's own factor stands still, can the others move it?

With the rows where factor i has the value a, their mean E[z_j|a], and Q a high quantile over rows,

    IRS_ji = 1 - sum_a p(a) Q(|z_j - E[z_j|a]|) / max |z_j - E[z_j]|,    D_j = max_i IRS_ji,

and the score is the mean of D_j, weighted by the latent's reach max |z_j - E[z_j]|. The paper takes the greatest
deviation (`quantile=1`); the .99 quantile, as in its published code, does not hang on one row. Every row is taken for
one intervention without noise, which is so in a grid of rendered images.

| protocol              | how                                                                                       |
|-----------------------|-------------------------------------------------------------------------------------------|
| `quantile`            | the factors' own values, each weighted by its share of the rows                           |
| `disentanglement_lib` | factors cut into 20 equal-width bins, whatever their size, all bins weighted equally      |

The score is 1 for latents of one factor each, also if other factors have no latent; a constant latent is left out, and
if all are constant the score is 0. Noise does not score 0, since its .99 quantile lies below its maximum (.35 for
10,000 normal rows); a latent with rare outliers in every value may come out below 0, at worst at -1.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from unbraid.errors import SettingError
from unbraid.metrics.arrays import FactorLabels, name_latents, to_matrix
from unbraid.metrics.base import Evaluation, Score, metric_protocol
from unbraid.metrics.information.histogram import discretise
from unbraid.metrics.intervention.fixed_factor_batches import fixable_factors, sorted_rows
from unbraid.metrics.train_test_split import Compat, find_compat, is_published

BINS = 20
"""Bins that disentanglement_lib cuts every factor into."""


FACTS: dict[str, Any] = {"needs": ("factors",), "bounds": (-1, 1), "invariant": ("order", "sign"), "perfect": 1.0}


@metric_protocol(
    "irs/quantile",
    "Interventional robustness: how little other factors move a latent whose own factor stands still.",
    reference="suter2019",
    **FACTS,
)
@metric_protocol(
    "irs/disentanglement_lib",
    "Interventional robustness as disentanglement_lib computes it.",
    reference="locatello2019",
    **FACTS,
)
def on_run(
    evaluation: Evaluation,
    protocol: str,
    *,
    factors: tuple[str, ...] | None = None,
    samples: int | None = 10_000,
    quantile: float = 0.99,
) -> Score:
    """The interventional robustness score of a run."""
    return evaluation.tabulate(samples, factors).score(irs, quantile=quantile, compat=find_compat(protocol))


def irs(
    codes: Any,
    factors: Any,
    *,
    quantile: float = 0.99,
    names: Sequence[str] | None = None,
    latents: Sequence[str] | None = None,
    compat: Compat | None = None,
) -> Score:
    """Interventional robustness score of any codes [rows, latents] and discrete factors [rows, factors].

    Nothing is random. There is no interval: the normaliser is a maximum, which resampled rows do not vary honestly.
    """
    published = is_published(compat)
    if not 0 < quantile <= 1:
        raise SettingError(f"quantile must lie between 0 and 1, not {quantile}.")
    values = to_matrix("codes", codes)
    labels = fixable_factors(factors, len(values), names)
    named = name_latents(values.shape[1], latents)
    reach = np.abs(values - values.mean(0)).max(0)
    active = np.flatnonzero(values.max(0) > values.min(0))
    protocol = compat or "quantile"
    if not len(active):
        return Score("irs", protocol, 0.0, len(values), details={"why": "Every latent is constant."})
    columns = [_spread(values[:, active], column, quantile, published) for column in labels.values.T]
    robust = 1 - np.stack(columns, axis=1) / reach[active, None]  # [active latents, factors]
    value = float(np.average(robust.max(1), weights=reach[active]))
    details = _details(robust, reach[active], [named[j] for j in active], labels)
    details["constant"] = [name for j, name in enumerate(named) if j not in active]
    return Score("irs", protocol, value, len(values), details=details)


def _spread(codes: np.ndarray, column: np.ndarray, quantile: float, published: bool) -> np.ndarray:
    """Mean over a factor's values of how far each latent strays from its mean there [latents]."""
    if published:
        column = np.unique(discretise(column[:, None].astype(np.float64), BINS), return_inverse=True)[1].reshape(-1)
    order, counts = sorted_rows(column, int(column.max()) + 1)
    groups = np.split(codes[order], counts.cumsum()[:-1])
    strays = [np.quantile(np.abs(group - group.mean(0)), quantile, axis=0) for group in groups]
    return np.average(strays, axis=0, weights=None if published else counts)


def _details(robust: np.ndarray, reach: np.ndarray, latents: Sequence[str], labels: FactorLabels) -> dict[str, Any]:
    return {
        "latents": dict(zip(latents, robust.max(1).tolist(), strict=True)),
        "parents": {name: labels.names[k] for name, k in zip(latents, robust.argmax(1), strict=True)},
        "weights": dict(zip(latents, (reach / reach.sum()).tolist(), strict=True)),
        "robustness": {
            name: dict(zip(labels.names, r.tolist(), strict=True)) for name, r in zip(latents, robust, strict=True)
        },
    }
