r"""The mutual information gap as chen2018 measured it: entropies by Monte Carlo over the posteriors (appendix A).

    I(z_j; v_k) = H(z_j) - sum_a p(v_k = a) H(z_j | v_k = a),    H(z_j) ~ - mean_s log q(z_js)

with `samples` draws for H(z_j), stratified over the rows, and as many for every value of every factor. Each density is
a sum over all rows with the value. Shape is left out if the data have it, as in the paper. The second best latent is a
maximum over noise, so the gap lies a little below its limit `mig/exact`; noise may also lift a perfect gap above 1.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unbraid.density import exact_aggregate
from unbraid.latents import Normal, Space
from unbraid.metrics.arrays import check_at_least, find_device, name_latents, to_labels, to_normal_tensors
from unbraid.metrics.base import Evaluation, Score, metric
from unbraid.metrics.information.mig import build_gap_score, note_left_out, refuse_single_latent
from unbraid.metrics.intervals import ALL_DRAWS, NORMAL_95
from unbraid.metrics.unsupervised.code_dependence import stack_normal_posteriors
from unbraid.progress import progress
from unbraid.threads import one_thread

UNSCORED_FACTORS = ("shape",)
"""Factors that chen2018 leaves out."""

SAMPLES_PER_CHUNK = {"cpu": 256, "cuda": 4096}


@metric(
    "mig/chen2018",
    reference="chen2018",
    needs=("factors", "normal"),
    perfect=1.0,
    noise=0.0,
    costly=True,
    trial={"samples": 1_000},
)
def chen2018(evaluation: Evaluation, *, factors: tuple[str, ...] | None = None, samples: int = 10_000) -> Score:
    """Mutual information gap of posterior samples, entropies by Monte Carlo over all rows, shape left out."""
    scored = tuple(name for name in evaluation.dataset.factor_names if name not in UNSCORED_FACTORS) or None
    values, names = evaluation.choose_factors(factors or scored)
    means, stds = stack_normal_posteriors(evaluation)
    named = {"names": names, "latents": evaluation.code_names}
    return note_left_out(
        mig_monte_carlo(means, stds, values, samples=samples, seed=evaluation.seed, **named), evaluation
    )


def mig_monte_carlo(
    means: Any,
    stds: Any,
    factors: Any,
    *,
    samples: int = 10_000,
    names: Sequence[str] | None = None,
    latents: Sequence[str] | None = None,
    seed: int = 0,
) -> Score:
    """Return the mutual information gap of Normal posteriors [rows, latents] and discrete factors, by Monte Carlo.

    It scores all factors that it gets, in float32, on the device of the means.
    """
    centres, widths = (part.cpu().numpy() for part in to_normal_tensors(means, stds))
    refuse_single_latent(centres)
    check_at_least(2, samples=samples)
    labels, named = to_labels(factors, len(centres), names), name_latents(centres.shape[1], latents)
    parameters = np.concatenate([centres, 2 * np.log(widths)], axis=1)
    posterior = torch.as_tensor(parameters, dtype=torch.float32).to(find_device(means))
    estimator = EntropyEstimator(posterior, samples, torch.Generator().manual_seed(seed))
    with one_thread(), progress("Monte Carlo entropies", 1 + sum(labels.sizes)) as bar:
        whole, whole_variance = estimator.estimate(torch.arange(len(centres)))
        bar.advance()
        information, variance = [], []
        for column, size in zip(labels.values.T, labels.sizes, strict=True):
            parts = [torch.as_tensor(np.flatnonzero(column == value)) for value in range(size)]
            conditional = [estimator.estimate(rows) for rows in parts]
            share = np.array([len(rows) for rows in parts])[:, None] / len(centres)
            information.append(whole - (share * [h for h, _ in conditional]).sum(0))
            variance.append(whole_variance + (share**2 * [v for _, v in conditional]).sum(0))
            bar.advance(size)
    score = build_gap_score("chen2018", np.array(information).T, labels.entropy, labels, named)
    error = NORMAL_95 * _standard_error(np.array(information), np.array(variance), labels.entropy)
    interval = (max(0.0, score.value - error), score.value + error)
    return replace(score, interval=interval, details={**score.details, "samples_per_value": samples}, covers=ALL_DRAWS)


class EntropyEstimator:
    """Estimates H(z_j) of the mixture of some rows' posteriors, by draws that are stratified over these rows."""

    def __init__(self, posterior: Tensor, samples: int, generator: torch.Generator) -> None:
        self.posterior, self.samples, self.generator = posterior, samples, generator
        self.space = Space({"z": Normal(size=posterior.shape[1] // 2)})

    def estimate(self, rows: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Return the entropy of each latent [latents] and the variance of that estimate."""
        mixture = self.posterior[rows.to(self.posterior.device)]
        repeated = torch.arange(len(rows)).repeat(self.samples // len(rows))
        rest = torch.randperm(len(rows), generator=self.generator)[: self.samples % len(rows)]
        drawn = torch.cat([repeated, rest]).to(mixture.device)
        mean, log_variance = mixture[drawn].chunk(2, dim=-1)
        noise = torch.randn(mean.shape, generator=self.generator).to(mean.device)
        z = mean + (0.5 * log_variance).exp() * noise
        chunks = z.split(SAMPLES_PER_CHUNK.get(z.device.type, 256))
        with torch.no_grad():
            densities = [exact_aggregate(self.space, {"z": mixture}, {"z": chunk}).leaves for chunk in chunks]
        log_density = torch.cat(densities).double()
        return -log_density.mean(0).cpu().numpy(), (log_density.var(0) / len(z)).cpu().numpy()


def _standard_error(information: np.ndarray, variance: np.ndarray, entropy: np.ndarray) -> float:
    """Return the standard error of the mean gap from I and its variance [factors, latents]."""
    best = np.argsort(information, axis=1)[:, -2:]
    each = np.take_along_axis(variance, best, axis=1).sum(1) / entropy**2
    return math.sqrt(each.sum()) / len(each)
