r"""How dependent latents are on each other, from codes alone, and how much each of them knows of its row.

Total correlation TC = KL(q(z) || prod_d q(z_d)) has four protocols, side by side because they disagree:

- `exact`: log q(z) and log q(z_d) summed over every row of the evaluation (see `bound`).
- `stratified`: the same from batches, as in training (esmaeili2018, eq. 13); saturates where posteriors are narrow.
- `gaussian`: -1/2 log det of the correlation matrix, the TC of a Gaussian with the codes' covariance (locatello2019).
  It sees linear dependence only: where the marginals are Gaussian it is a lower bound, elsewhere no bound.
- `ratio`: by a discriminator of joint and shuffled codes (daunhawer2019, table 3); falls short where TC is large.

The mutual information of a row's index and one latent (esmaeili2018, figure 6) needs no sampling: with
q(z_d) = 1/N sum_n N(z_d; mu_nd, sigma_nd^2), I(n; z_d) = H(z_d) - E_n H(z_d | n), the first by quadrature, the second
in closed form. It cannot exceed log N, nor can the mutual information of all latents.
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
from unbraid.metrics.intervals import resampling_interval, score_mean


def total_correlation(
    codes: Any,
    *,
    protocol: str = "gaussian",
    resamples: int = 100,
    seed: int = 0,
    **network: Any,
) -> Score:
    """TC of codes [rows, latents] in nats: of a Gaussian with their covariance, or by a density ratio.

    `network` (width, depth, steps, batch, lr, held_out, groups) goes to the discriminator of `ratio`; with
    `groups=[[0, 1], [2]]` it is the total correlation of these groups of latents.
    """
    check_known("protocol", protocol, ["gaussian", "ratio"])
    values = to_matrix("codes", codes)
    if values.shape[1] < 2:
        raise UsageError(f"A total correlation needs at least 2 latents, not {values.shape[1]}.")
    if len(values) < 2:
        raise DataError(f"A score needs at least 2 rows, not {len(values)}.")
    if protocol == "gaussian":
        return _gaussian(values, resamples, seed)
    rows = torch.as_tensor(values, device=find_device(codes))
    ratios = estimate_log_ratios(rows, seed=seed, **network).double().cpu().numpy()
    return replace(score_mean("tc", "ratio", ratios), samples=len(values))


@metric("tc/gaussian", year=2019, reference="locatello2019", needs=("normal",), invariant=("scale",))
def gaussian(evaluation: Evaluation, *, samples: int = 10_000, resamples: int = 100) -> list[Score]:
    """Total correlation of Gaussians with the covariance of posterior samples, and with that of posterior means."""
    chosen, seed = evaluation.choose(samples), evaluation.seed
    codes = {"sampled": evaluation.draw_codes(chosen), "mean": evaluation.encode_means(chosen)}
    return [replace(total_correlation(c, resamples=resamples, seed=seed), part=part) for part, c in codes.items()]


@metric("tc/ratio", year=2019, reference="daunhawer2019", trial={"width": 32, "steps": 40})
def ratio(
    evaluation: Evaluation,
    *,
    samples: int = 10_000,
    width: int = 1000,
    depth: int = 5,
    steps: int = 500,
    batch: int = 128,
    lr: float = 2e-3,
) -> Score:
    """Total correlation of posterior samples, by a network that tells joint from shuffled ones."""
    codes = evaluation.draw_codes(evaluation.choose(samples))
    network = {"width": width, "depth": depth, "steps": steps, "batch": batch, "lr": lr}
    groups = evaluation.space.leaf_columns()  # the coordinates of a discrete variable stay together
    return total_correlation(codes, protocol="ratio", seed=evaluation.seed, groups=groups, **network)


@metric(
    "latent-mi/exact",
    year=2018,
    reference="esmaeili2018",
    needs=("some normal",),
    invariant=("sign", "scale"),
    deterministic=True,
)
def latent_mi(evaluation: Evaluation) -> list[Score]:
    """I(n; z_d) of a row's index and each Normal latent, by quadrature over all rows."""
    normal = [isinstance(b, Normal) for b in evaluation.space.blocks.values()]
    widths = [own for b, own in zip(evaluation.space.blocks.values(), normal, strict=True) for _ in range(b.width)]
    parameters = [p for p, own in zip(evaluation.posterior.values(), normal, strict=True) if own]
    means, stds = _means_and_deviations(parameters)
    names = [name for name, own in zip(evaluation.code_names, widths, strict=True) if own]
    return latent_information(means, stds, latents=names)


def latent_information(means: Any, stds: Any, *, latents: Sequence[str] | None = None) -> list[Score]:
    """I(n; z_d) in nats of every latent of Normal posteriors [rows, latents], one score per latent."""
    centres, widths = to_normal_tensors(means, stds)
    named, rows = name_latents(centres.shape[1], latents), len(centres)
    alone = torch.zeros(rows, 1, dtype=torch.long, device=centres.device)  # one class: only H(z_d) is asked for
    entropy = integrate_information(centres, widths, alone, (1,), named).entropy.numpy()
    own = 0.5 * math.log(2 * math.pi * math.e) + widths.log().mean(0).cpu().numpy()
    values = np.clip(entropy - own, 0, math.log(rows))  # rounding may step over either end
    details = {"ceiling": math.log(rows)}
    return [
        Score("latent-mi", "exact", float(v), rows, (float(v), float(v)), part=name, details=details)
        for name, v in zip(named, values, strict=True)
    ]


def stack_normal_posteriors(evaluation: Evaluation) -> tuple[Tensor, Tensor]:
    """Return means and standard deviations [rows, latents] of a model whose latents are all Normal."""
    return _means_and_deviations(list(evaluation.posterior.values()))


def _means_and_deviations(flat: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Of the flat parameters of Normal blocks, side by side."""
    parameters = [p.chunk(2, dim=-1) for p in flat]
    means = torch.cat([mean for mean, _ in parameters], dim=-1)
    return means, torch.cat([(0.5 * log_variance).exp() for _, log_variance in parameters], dim=-1)


def _gaussian(codes: np.ndarray, resamples: int, seed: int) -> Score:
    live = codes.std(0) > 0
    if not live.any():
        raise DataError("All codes are constant, so there is nothing that could be correlated.")
    centred = (codes[:, live] - codes[:, live].mean(0)) / codes[:, live].std(0)
    value = _half_log_determinant(centred, np.full(len(codes), 1 / len(codes)))
    if not math.isfinite(value):
        raise DataError("Some latents are linear functions of others, so the Gaussian total correlation is infinite.")
    rng = np.random.default_rng(seed)
    weights = (rng.multinomial(len(codes), np.full(len(codes), 1 / len(codes))) / len(codes) for _ in range(resamples))
    spread = [_half_log_determinant(centred, w) for w in weights]
    constant = [int(j) for j in np.flatnonzero(~live)]
    interval = resampling_interval(value, spread, bounds=(0.0, math.inf))
    return Score("tc", "gaussian", value, len(codes), interval, details={"constant": constant} if constant else {})


def _half_log_determinant(codes: np.ndarray, weights: np.ndarray) -> float:
    """-1/2 log det of the correlation matrix of weighted rows."""
    centred = codes - weights @ codes
    covariance = centred.T @ (centred * weights[:, None])
    scale = np.sqrt(np.diag(covariance))
    sign, value = np.linalg.slogdet(covariance / np.outer(scale, scale))
    return max(0.0, -0.5 * float(value)) if sign > 0 else math.inf
