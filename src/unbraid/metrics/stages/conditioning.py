r"""Does what the second stage makes still obey the first stage's code? (msvae2020, section 4 and equation 6)

With the first stage's encoder mean E, C_R = E(x) and the code C of something that the model made out of x,

    MI[C_R; C] = 1/n sum_i I(c^i; c_R^i) / H(c_R^i)

| protocol  | C                                | the paper's name |
|-----------|----------------------------------|------------------|
| `Y`       | E(y), y the first stage's mean   | M1               |
| `X`       | E(G(y, z)), G the second stage   | M2               |
| `Z-noise` | E(G(y, e)), e ~ N(0, I)          | M3               |
| `Y-noise` | E(G(e, z)), e ~ N(0, I)          | M4               |

If C rules and Z adds what is missing, M2 > M1 > M3 >> M4. Codes are cut into 20 bins (ours) between their own least and
greatest value, so shifting or scaling a code changes nothing.

**Ceiling** 1, for equal codes. **Chance.** Independent codes do not reach 0: chance fills cells, and I of N rows in b
and b' bins is up to about (b - 1)(b' - 1) / 2N nats too high. Independent Normal codes have .006 with 10,000 rows and
.06 with 1,000. `details` has what the same codes give with their rows shuffled (`chance`).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unbraid import noise
from unbraid.errors import DataError, UsageError
from unbraid.metrics.arrays import check_at_least, name_latents, to_matrix
from unbraid.metrics.base import Evaluation, Score, metric_protocol
from unbraid.metrics.information.histogram import discretise
from unbraid.metrics.intervals import resampling_interval
from unbraid.models import LaterStage, as_stage
from unbraid.progress import progress

CHUNK = 256
"""Rows that are decoded and encoded again at a time."""

SHUFFLES = 4
"""Orders of rows from which chance is told."""

FACTS: dict[str, Any] = {"reference": "msvae2020", "needs": ("staged",), "bounds": (0, 1)}


@metric_protocol(
    "cond/Y", "Information that the code of the first stage's y has of the code of x, by histograms.", **FACTS
)
@metric_protocol(
    "cond/X",
    "Information that the code of the second stage's reconstruction has of the code of x, by histograms.",
    **FACTS,
)
@metric_protocol("cond/Z-noise", "As cond/X, with Normal noise in the place of z: what y alone conveys.", **FACTS)
@metric_protocol(
    "cond/Y-noise",
    "As cond/X, with Normal noise in the place of y: what z alone conveys, which should be nothing.",
    **FACTS,
)
def on_run(
    evaluation: Evaluation, protocol: str, *, bins: int = 20, samples: int = 10_000, resamples: int = 100
) -> Score:
    """How much the code of something that a model in stages made says of the code of x."""
    model = as_stage(evaluation.model)
    check_at_least(2, samples=samples)
    if protocol == "Z-noise" and not model.space.last_stage.width:
        raise UsageError("cond/Z-noise puts noise in the place of z, and the second stage of this model has no z.")
    positions = evaluation.choose(samples)
    real, others = _codes(evaluation, model, positions, protocol)
    names = evaluation.code_names[: others.shape[1]]
    how: dict[str, Any] = {"bins": bins, "resamples": resamples, "latents": names, "seed": evaluation.seed}
    return conditioning(real, others, protocol=protocol, **how)


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
    """Mean over latents of I(c^i; c_R^i) / H(c_R^i), of codes [rows, latents] of the same rows.

    Latents whose code of x never varies are left out, since nothing can be known of them. The 95% interval is the value
    -+ 1.96 bootstrap standard errors. `details` has each latent's own share, and what chance alone gives.
    """
    check_at_least(2, bins=bins)
    real, other = to_matrix("codes_of_x", codes_of_x), to_matrix("codes_of_other", codes_of_other)
    if real.shape != other.shape:
        raise UsageError(f"Both codes must have one shape, not {list(real.shape)} and {list(other.shape)}.")
    if len(real) < 2:
        raise DataError(f"A score needs at least 2 rows, not {len(real)}.")
    varies = np.ptp(real, axis=0) > 0
    if not varies.any():
        raise DataError("No latent of the first stage varies over these rows, so nothing can be known of it.")
    names = [name for name, kept in zip(name_latents(real.shape[1], latents), varies, strict=True) if kept]
    first = discretise(real[:, varies], bins).T + bins * np.arange(len(names))[:, None]  # [latents, rows]
    second = discretise(other[:, varies], bins).T
    rng = np.random.default_rng(seed)
    count, cells = len(real), first * bins + second
    drawn = [_shares(cells[:, rng.integers(count, size=count)], bins).mean() for _ in range(resamples)]
    shuffled = [_shares(first * bins + second[:, rng.permutation(count)], bins).mean() for _ in range(SHUFFLES)]
    shares = _shares(cells, bins)
    details = {
        "shares": dict(zip(names, shares.tolist(), strict=True)),
        "chance": float(np.mean(shuffled)),
        "bins": bins,
    }
    value = float(shares.mean())
    return Score("cond", protocol, value, len(real), resampling_interval(value, drawn, (0.0, 1.0)), details=details)


def _shares(cells: np.ndarray, bins: int) -> np.ndarray:
    """I / H(c_R) of each latent, from cells [latents, rows] that count on from latent to latent."""
    from scipy.special import entr

    joint = np.bincount(cells.ravel(), minlength=len(cells) * bins**2).reshape(len(cells), bins, bins)
    joint = joint / cells.shape[1]
    real, other = (entr(joint.sum(axis)).sum(1) for axis in (2, 1))
    information = real + other - entr(joint).sum((1, 2))
    return (information / np.where(real > 0, real, 1.0)).clip(0, 1)  # a resample may miss all bins but one: then I = 0


def _codes(evaluation: Evaluation, model: LaterStage, positions: Tensor, protocol: str) -> tuple[Tensor, Tensor]:
    """The first stage's codes [rows, width] of rows, and of what a protocol makes out of them."""
    space = model.first.space
    seeds = noise.seed_tensor(evaluation.seed, device=evaluation.dataset.device)
    real, made = [], []
    with torch.no_grad(), progress(f"cond/{protocol}", len(positions)) as bar:
        for step, part in enumerate(positions.split(CHUNK)):
            c, z = evaluation.encode_means(part).tensor_split([space.width], dim=1)
            seen = evaluation.dataset.images(evaluation.rows[part])
            real.append(space.center(model.encode_first(seen)))  # a student's c is another one, its own
            if protocol == "Y":
                x = model.decode_first(real[-1])
            elif protocol == "Y-noise":
                y = noise.normal(seeds, step, "cond", (len(part), *model.shape))[0]
                x = model.likelihood.mean(model.refine(y, z))
            else:
                z = noise.normal(seeds, step, "cond", tuple(z.shape))[0] if protocol == "Z-noise" else z
                x = model.likelihood.mean(model.decode(torch.cat([c, z], dim=1)))
            made.append(space.center(model.first.encode(x)))
            bar.advance(len(part))
    return torch.cat(real), torch.cat(made)
