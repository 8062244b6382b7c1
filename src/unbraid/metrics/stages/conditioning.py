r"""Conditioning: do the images of the second stage keep the first stage's code? (msvae2020, section 4 and equation 6)

With the first stage's encoder mean E, C_R = E(x) and the code C of an image that the model generates from x,

    MI[C_R; C] = 1/n sum_i I(c^i; c_R^i) / H(c_R^i)

| protocol  | C                                | the paper's name |
|-----------|----------------------------------|------------------|
| `Y`       | E(y), y the first stage's mean   | M1               |
| `X`       | E(G(y, z)), G the second stage   | M2               |
| `Z-noise` | E(G(y, e)), e ~ N(0, I)          | M3               |
| `Y-noise` | E(G(e, z)), e ~ N(0, I)          | M4               |

If C determines the image and Z adds the missing detail, M2 > M1 > M3 >> M4. Codes are cut into 20 bins (our choice)
between their minimum and maximum, so shifting or scaling a code changes nothing.

**Ceiling** 1, for equal codes. **Chance** is above 0: from N rows in b and b' bins, I is up to about
(b - 1)(b' - 1) / 2N nats too high. Independent Normal codes have .006 with 10,000 rows and .06 with 1,000. The details
hold the value for the same codes with shuffled rows (`chance`).
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unbraid import noise
from unbraid.errors import DataError, UsageError
from unbraid.metrics.arrays import check_at_least, name_latents, to_matrix
from unbraid.metrics.base import Evaluation, Score, metric_protocol
from unbraid.metrics.information.histogram import MIN_ROWS_PER_CELL, discretise, judge_halves
from unbraid.metrics.intervals import Spread, measure_halves, no_interval
from unbraid.models import LaterStage, as_stage
from unbraid.progress import track

BATCH = 256
SHUFFLES = 4
"""Random orders of the rows that estimate chance."""

conditioning_metric = partial(metric_protocol, reference="msvae2020", needs=("staged",), bounds=(0, 1))


@conditioning_metric("cond/Y", "Information about the code of x in the code of the first stage's y, by histograms.")
@conditioning_metric(
    "cond/X", "Information about the code of x in the code of the second stage's reconstruction, by histograms."
)
@conditioning_metric("cond/Z-noise", "As cond/X, with Normal noise in place of z: the information that y conveys.")
@conditioning_metric(
    "cond/Y-noise", "As cond/X, with Normal noise in place of y: the information that z conveys, which should be 0."
)
def on_run(
    evaluation: Evaluation, protocol: str, *, bins: int = 20, samples: int = 10_000, resamples: int = 100
) -> Score:
    model = as_stage(evaluation.model)
    check_at_least(2, samples=samples)
    if protocol == "Z-noise" and not model.space.last_stage.width:
        raise UsageError("cond/Z-noise puts noise in place of z, and the second stage of this model has no z.")
    positions = evaluation.choose(samples)
    real, others = _encode(evaluation, model, positions, protocol)
    settings: dict[str, Any] = {"bins": bins, "resamples": resamples, "seed": evaluation.seed}
    latents = evaluation.code_names[: others.shape[1]]
    return conditioning(real, others, protocol=protocol, latents=latents, **settings)


def conditioning(
    codes_of_x: Any,
    codes_of_other: Any,
    *,
    protocol: str = "X",
    bins: int = 20,
    resamples: int = 100,
    latents: Sequence[str] | None = None,
    seed: int = 0,
) -> Score:
    """Return the mean over latents of I(c^i; c_R^i) / H(c_R^i), of codes [rows, latents] of the same rows.

    Latents whose code of x is constant are left out. The 95% interval is for the mean over draws of as many
    rows, from random halves of the rows. The details hold the value of each latent, and chance.
    """
    check_at_least(2, bins=bins)
    real, other = to_matrix("codes_of_x", codes_of_x), to_matrix("codes_of_other", codes_of_other)
    if real.shape != other.shape:
        raise UsageError(f"Both codes must have one shape, not {list(real.shape)} and {list(other.shape)}.")
    if len(real) < 2:
        raise DataError(f"A score needs at least 2 rows, not {len(real)}.")
    varies = np.ptp(real, axis=0) > 0
    if not varies.any():
        raise DataError(
            "Every latent of the first stage is constant over these rows, so there is no information to measure."
        )
    names = [name for name, chosen in zip(name_latents(real.shape[1], latents), varies, strict=True) if chosen]
    first = discretise(real[:, varies], bins).T + bins * np.arange(len(names))[:, None]  # [latents, rows]
    second = discretise(other[:, varies], bins).T
    rng = np.random.default_rng(seed)
    count, cells = len(real), first * bins + second
    spread, covers = _measure_spread(real[:, varies], other[:, varies], bins, resamples, rng)
    shuffled = [_shares(first * bins + second[:, rng.permutation(count)], bins).mean() for _ in range(SHUFFLES)]
    shares = _shares(cells, bins)
    details = {
        "shares": dict(zip(names, shares.tolist(), strict=True)),
        "chance": float(np.mean(shuffled)),
        "bins": bins,
    }
    value = float(shares.mean())
    interval = spread and spread.interval(value, (0.0, 1.0))
    return Score("cond", protocol, value, len(real), interval, details=details, covers=covers)


def _measure_spread(
    real: np.ndarray, other: np.ndarray, bins: int, count: int, rng: np.random.Generator
) -> tuple[Spread | None, str]:
    """Return the spread from halves of the rows, and what it covers.

    Halves are cut into the bins of all rows, whose spread is that of `intervals`, and into bins of their own. What this
    changes depends on the extremes of a code, and varies with n / 2 rows about as much as with n.
    """
    if len(real) < MIN_ROWS_PER_CELL * bins**2:
        return None, no_interval(f"{len(real):,} rows are too few for histograms of {bins**2:,} cells")
    of_all = discretise(real, bins), discretise(other, bins)

    def measure(rows: np.ndarray) -> tuple[np.ndarray, tuple[float, float]]:
        own, first = (discretise(real[rows], bins), discretise(other[rows], bins)), bins * np.arange(real.shape[1])
        binned = (of_all[0][rows], of_all[1][rows]), own
        equal, moved = (_shares(((a + first) * bins + b).T, bins).mean() for a, b in binned)
        return np.concatenate([np.ptp(real[rows], axis=0), np.ptp(other[rows], axis=0)]), (equal, moved - equal)

    drawn = measure_halves(measure, [len(real)], count, rng)
    found, covers = judge_halves([ranges for ranges, _ in drawn], [value for _, value in drawn], len(real))
    if not found:
        return None, covers
    of_rows, of_bins = (Spread.of_halves(values) for values in np.array(found).T)
    return of_rows and of_bins and Spread(of_rows.variance + 2 * of_bins.variance, of_rows.degrees), covers


def _shares(cells: np.ndarray, bins: int) -> np.ndarray:
    """Return I / H(c_R) of each latent; cells [latents, rows] are numbered consecutively over all latents."""
    from scipy.special import entr

    joint = np.bincount(cells.ravel(), minlength=len(cells) * bins**2).reshape(len(cells), bins, bins)
    joint = joint / cells.shape[1]
    real, other = (entr(joint.sum(axis)).sum(1) for axis in (2, 1))
    information = real + other - entr(joint).sum((1, 2))
    return (information / np.where(real > 0, real, 1.0)).clip(0, 1)  # a resample in one bin has I = 0


def _encode(evaluation: Evaluation, model: LaterStage, positions: Tensor, protocol: str) -> tuple[Tensor, Tensor]:
    """Return the first stage's codes [rows, width] of rows, and of the images that the protocol generates from them."""
    space = model.first.space
    seeds = noise.seed_tensor(evaluation.seed, device=evaluation.dataset.device)
    real, others = [], []
    with torch.no_grad():
        for step, part in enumerate(track(f"cond/{protocol}", positions.split(BATCH))):
            c, z = evaluation.encode_means(part).tensor_split([space.width], dim=1)
            images = evaluation.dataset.images(evaluation.rows[part])
            real.append(space.center(model.encode_first(images)))  # differs from c if a student encodes
            if protocol == "Y":
                x = model.decode_first(real[-1])
            elif protocol == "Y-noise":
                y = noise.normal(seeds, step, "cond", (len(part), *model.shape))[0]
                x = model.likelihood.mean(model.refine(y, z))
            else:
                z = noise.normal(seeds, step, "cond", tuple(z.shape))[0] if protocol == "Z-noise" else z
                x = model.likelihood.mean(model.decode(torch.cat([c, z], dim=1)))
            others.append(space.center(model.first.encode(x)))
    return torch.cat(real), torch.cat(others)
