r"""Dependence between latents, from codes only, and the information of each latent about its row.

Total correlation TC = KL(q(z) || prod_d q(z_d)) has four protocols, because they disagree:

- `exact`: log q(z) and log q(z_d) summed over every row of the evaluation (see `elbo`).
- `stratified`: the same from batches, as in training (esmaeili2018, eq. 13); saturates for narrow posteriors.
- `gaussian`: -1/2 log det of the correlation matrix, the TC of a Gaussian with the codes' covariance (locatello2019).
  It sees only linear dependence: a lower bound if the marginals are Gaussian, otherwise no bound.
- `ratio`: by a discriminator of joint and shuffled codes (daunhawer2019, table 3); too low if TC is large. Needs
  thousands of rows; with too few it is refused.

The mutual information of a row's index and one latent (esmaeili2018, figure 6) needs no sampling: with
q(z_d) = 1/N sum_n N(z_d; mu_nd, sigma_nd^2), I(n; z_d) = H(z_d) - E_n H(z_d | n), the first term by quadrature, the
second in closed form. It cannot exceed log N, nor can the mutual information of all latents.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unbraid.density.density_ratio import estimate_log_ratios
from unbraid.errors import DataError, UsageError
from unbraid.latents import Normal
from unbraid.metrics.arrays import check_known, find_device, name_latents, to_matrix, to_normal_tensors
from unbraid.metrics.base import Evaluation, Score, metric
from unbraid.metrics.information.quadrature import integrate_information
from unbraid.metrics.intervals import EXACT, NORMAL_95, Range, no_interval, spread_at

WIDTH = 256
"""Hidden units in a layer of the discriminator."""


def total_correlation(
    codes: Any,
    *,
    protocol: str = "gaussian",
    seed: int = 0,
    **network: Any,
) -> Score:
    """Return the TC of codes [rows, latents] in nats: of a Gaussian with their covariance, or by a density ratio.

    `network` (width, depth, steps, batch, lr, held_out, groups) goes to the discriminator of `ratio`, which has 5
    layers of 256 units by default; the 1000 units of daunhawer2019 take ten times as long and are as accurate. With
    `groups=[[0, 1], [2]]` the result is the total correlation of these groups of latents. If the discriminator learns
    the rows by heart (ten latents need about 5,000), a `DataError` says so.
    """
    check_known("protocol", protocol, ["gaussian", "ratio"])
    values = to_matrix("codes", codes)
    if values.shape[1] < 2:
        raise UsageError(f"A total correlation needs at least 2 latents, not {values.shape[1]}.")
    if len(values) < 2:
        raise DataError(f"A score needs at least 2 rows, not {len(values)}.")
    if protocol == "gaussian":
        return _score_gaussian(values)
    rows = torch.as_tensor(values, device=find_device(codes))
    network.setdefault("width", WIDTH)
    ratios = estimate_log_ratios(rows, seed=seed, **network).double()
    covers = no_interval("the network is trained once, and training it again on other rows takes too long")
    value = max(0.0, float(ratios.mean()))  # independent latents scatter around 0
    return Score("tc", "ratio", value, len(values), covers=covers)


@metric("tc/gaussian", reference="locatello2019", needs=("normal",), invariant=("scale",))
def gaussian(evaluation: Evaluation, *, samples: int = 10_000) -> list[Score]:
    """Total correlation of Gaussians with the covariance of posterior samples, and with that of posterior means."""
    chosen = evaluation.choose(samples)
    codes = {"sampled": evaluation.draw_codes(chosen), "mean": evaluation.encode_means(chosen)}
    return [replace(total_correlation(c), part=part) for part, c in codes.items()]


@metric("tc/ratio", reference="daunhawer2019", bounds=(0, math.inf), trial={"width": 32, "steps": 40})
def ratio(
    evaluation: Evaluation,
    *,
    samples: int = 10_000,
    width: int = WIDTH,
    depth: int = 5,
    steps: int = 500,
    batch: int = 128,
    lr: float = 2e-3,
) -> Score:
    """Total correlation of posterior samples, by a network that distinguishes joint from shuffled ones."""
    codes = evaluation.draw_codes(evaluation.choose(samples))
    network = {"width": width, "depth": depth, "steps": steps, "batch": batch, "lr": lr}
    groups = evaluation.space.leaf_columns()  # the coordinates of a discrete variable stay together
    return total_correlation(codes, protocol="ratio", seed=evaluation.seed, groups=groups, **network)


@metric(
    "latent-mi/exact",
    reference="esmaeili2018",
    needs=("some normal",),
    bounds=(0, math.inf),
    invariant=("sign", "scale"),
    deterministic=True,
)
def latent_mi(evaluation: Evaluation) -> list[Score]:
    """I(n; z_d) of a row's index and each Normal latent, by quadrature over all rows."""
    blocks = evaluation.space.blocks
    normal = [name for name, block in blocks.items() if isinstance(block, Normal)]
    owners = [name for name, block in blocks.items() for _ in range(block.width)]
    names = [name for name, owner in zip(evaluation.code_names, owners, strict=True) if owner in normal]
    means, stds = _stack_normals([evaluation.posterior[name] for name in normal])
    return latent_information(means, stds, latents=names)


def latent_information(means: Any, stds: Any, *, latents: Sequence[str] | None = None) -> list[Score]:
    """Return I(n; z_d) in nats of every latent of Normal posteriors [rows, latents], one score per latent."""
    centres, widths = to_normal_tensors(means, stds)
    names, rows = name_latents(centres.shape[1], latents), len(centres)
    one_class = torch.zeros(rows, 1, dtype=torch.long, device=centres.device)  # because only H(z_d) is needed
    entropy = integrate_information(centres, widths, one_class, (1,), names).entropy.numpy()
    conditional = 0.5 * math.log(2 * math.pi * math.e) + widths.log().mean(0).cpu().numpy()
    values = np.clip(entropy - conditional, 0, math.log(rows))  # rounding may cross either end
    details = {"ceiling": math.log(rows)}
    return [
        Score("latent-mi", "exact", float(v), rows, (float(v), float(v)), part=name, details=details, covers=EXACT)
        for name, v in zip(names, values, strict=True)
    ]


def stack_normal_posteriors(evaluation: Evaluation) -> tuple[Tensor, Tensor]:
    """Return means and standard deviations [rows, latents] of a model whose latents are all Normal."""
    return _stack_normals(list(evaluation.posterior.values()))


def _stack_normals(blocks: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    parameters = [block.chunk(2, dim=-1) for block in blocks]
    means = torch.cat([mean for mean, _ in parameters], dim=-1)
    return means, torch.cat([(0.5 * log_variance).exp() for _, log_variance in parameters], dim=-1)


def _score_gaussian(codes: np.ndarray) -> Score:
    varies = codes.std(0) > 0
    if not varies.any():
        raise DataError("All codes are constant, so they have no total correlation.")
    centred = (codes[:, varies] - codes[:, varies].mean(0)) / codes[:, varies].std(0)
    value = _compute_tc(centred)
    if not math.isfinite(value):
        raise DataError("Some latents are linear functions of others, so the Gaussian total correlation is infinite.")
    constant = [int(j) for j in np.flatnonzero(~varies)]
    interval, details = _find_gaussian_interval(centred, value), {"constant": constant} if constant else {}
    return Score("tc", "gaussian", value, len(codes), interval, details=details, covers=spread_at(len(codes)))


def _compute_tc(codes: np.ndarray) -> float:
    """Return -1/2 log det of the correlation matrix of standardised rows."""
    sign, value = np.linalg.slogdet(codes.T @ codes / len(codes))
    return max(0.0, -0.5 * float(value)) if sign > 0 else math.inf


def _find_gaussian_interval(codes: np.ndarray, value: float) -> Range:
    """Return the 95% interval of the mean m of TC over draws of as many rows, from standardised rows.

    Each row's influence on TC is 1/2 (|u|^2 - u' R^-1 u), with variance V over the rows. Independent latents have none;
    their TC is 1 / 2n times a chi-square of as many degrees of freedom as there are pairs of latents. So

        m = TC + pairs / 2n,      variance(m) = pairs / 2n^2 + TC V' / n,      V' = V / TC

    V' is 2 for latents that are almost independent. Chance raises the V and the TC of n rows alike, and so V' not at
    all. The interval holds every m that is within 1.96 deviations of the value, as wilson1927 does for shares: a
    deviation from m itself, because that of the value would be too small whenever the value is.
    """
    rows, latents = codes.shape
    pairs, solved = latents * (latents - 1) / 2, np.linalg.solve(codes.T @ codes / rows, codes.T).T
    influence = 0.5 * ((codes * codes).sum(1) - (codes * solved).sum(1))
    slope = float(influence.var()) / value / rows if value > 0 else 2 / rows
    chance, of_chance, z2 = pairs / 2 / rows, pairs / 2 / rows**2, NORMAL_95**2

    def find_end(side):
        """Return the root m of (value - m)^2 = z2 variance(m) on one side; TC is at least 0."""
        without_tc = value + side * math.sqrt(z2 * of_chance)
        if without_tc <= chance:
            return without_tc
        shift = z2 * slope / 2
        return value + shift + side * math.sqrt(shift**2 + z2 * (of_chance + slope * (value - chance)))

    return min(value, max(0.0, find_end(-1))), find_end(1)
