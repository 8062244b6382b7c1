r"""Unsupervised disentanglement ranking (duan2020): do models trained apart find the same latents?

Two disentangled models have the same latents up to order and sign, while entangled ones differ from seed to seed. With
the similarity R(a, b) >= 0 of latent a of one model and latent b of another, on the same rows,

    UDR_ij = 1/(d_i + d_j) [ sum_b max_a R(a,b)^2 / sum_a R(a,b)  +  sum_a max_b R(a,b)^2 / sum_b R(a,b) ],

over informative latents only, those with KL(q(z_a|x) || p(z_a)) above .01 nats, d_i and d_j in number. A model's score
is the median over the models it is compared with (eqs. 2 and 3).

| protocol   | R(a, b)                                                                                             |
|------------|------------------------------------------------------------------------------------------------------|
| `spearman` | absolute rank correlation                                                                            |
| `lasso`    | absolute weight of the other model's latent a in a lasso regression of the scored model's latent b;  |
|            | all standardised, penalty .1                                                                         |

No labels are needed, but several models: usually one recipe under several seeds. Equal models of independent latents
score 1, by the lasso .9, since its penalty shrinks every weight. A model with no informative latent scores 0.
(disentanglement_lib takes the mean of the two sums' means, which is the same where d_i = d_j.)
"""

import math
from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
import torch

from unbraid.errors import DataError, UsageError
from unbraid.metrics.arrays import check_at_least, check_known, to_matrix, to_numpy
from unbraid.metrics.base import Evaluation, Score, metric
from unbraid.metrics.intervals import resampling_interval
from unbraid.metrics.unsupervised.elbo import compute_latent_kl
from unbraid.progress import progress

Correlation = Literal["spearman", "lasso"]

TOLERANCE = 1e-9
MOST_SWEEPS = 10_000

FACTS: dict[str, Any] = {
    "year": 2020,
    "reference": "duan2020",
    "needs": ("peers",),
    "invariant": ("order", "sign"),
}


@metric("udr/spearman", bounds=(0, 1), **FACTS)
def spearman(evaluation: Evaluation, *, samples: int = 10_000, threshold: float = 0.01, resamples: int = 200) -> Score:
    """Agreement of a model's latents with those of other models, by rank correlation."""
    return _of(evaluation, samples, correlation="spearman", threshold=threshold, resamples=resamples)


@metric("udr/lasso", bounds=(0, math.inf), **FACTS)  # a weight in a regression on correlated latents may exceed 1
def lasso(
    evaluation: Evaluation,
    *,
    samples: int = 10_000,
    threshold: float = 0.01,
    penalty: float = 0.1,
    resamples: int = 200,
) -> Score:
    """Agreement of a model's latents with those of other models, by lasso regression."""
    settings = {"threshold": threshold, "penalty": penalty, "resamples": resamples}
    return _of(evaluation, samples, correlation="lasso", **settings)


def udr(
    codes: Sequence[Any],
    kl: Sequence[Any] | None = None,
    *,
    correlation: Correlation = "spearman",
    threshold: float = 0.01,
    penalty: float = 0.1,
    names: Sequence[str] | None = None,
    resamples: int = 200,
    seed: int = 0,
    first: int | None = None,
) -> list[Score]:
    """UDR of each of several models, or of the `first` of them, from their codes [rows, latents] of the same rows.

    `kl` has each model's KL to the prior by latent, the mean over rows; without it every latent counts that is not
    constant. Models may differ in their number of latents. `names` names the models in the scores' details. The 95%
    interval is the value -+ 1.96 standard errors over resampled partners, from three partners on.
    """
    check_known("correlation", correlation, get_args(Correlation))
    check_at_least(0, penalty=penalty)
    models = Models(codes, kl, threshold, ranks=correlation == "spearman")
    named = [f"model {m}" for m in range(len(codes))] if names is None else list(names)
    if len(named) != len(codes):
        raise UsageError(f"There are codes of {len(codes)} models, but {len(named)} names.")
    first = len(codes) if first is None else first
    agreement = models.agreement(first, penalty if correlation == "lasso" else None)
    rng, scores = np.random.default_rng(seed), []
    for m in range(first):
        pairs = np.delete(agreement[:, m], m)
        value = float(np.median(pairs))
        drawn = pairs[rng.integers(len(pairs), size=(resamples, len(pairs)))] if len(pairs) > 2 else pairs[:0]
        greatest = 1.0 if correlation == "spearman" else math.inf
        interval = resampling_interval(value, np.median(drawn, axis=-1) if len(drawn) else [], bounds=(0.0, greatest))
        details = {
            "model": named[m],
            "pairs": dict(zip([name for k, name in enumerate(named) if k != m], pairs.tolist(), strict=True)),
            "informative": np.flatnonzero(models.informative[m]).tolist(),
        }
        scores.append(Score("udr", correlation, value, models.codes.shape[1], interval, details=details))
    return scores


class Models:
    """Standardised codes (or their ranks) [models, rows, latents], narrow models filled up with latents of 0."""

    def __init__(self, codes: Sequence[Any], kl: Sequence[Any] | None, threshold: float, ranks: bool) -> None:
        from scipy.stats import rankdata

        given = [to_matrix(f"codes of model {m}", one) for m, one in enumerate(codes)]
        _check(given, kl)
        width = max(one.shape[1] for one in given)
        self.codes = np.zeros((len(given), len(given[0]), width))
        self.informative = np.zeros((len(given), width), dtype=bool)
        for m, one in enumerate(given):
            standard = _standardised(rankdata(one, axis=0) if ranks else one)
            known = standard.any(0) if kl is None else _divergence(m, kl[m], one.shape[1]) > threshold
            self.codes[m, :, : one.shape[1]] = standard * known  # the others shall not explain anything, either
            self.informative[m, : one.shape[1]] = known

    def agreement(self, first: int, penalty: float | None) -> np.ndarray:
        """UDR of every model with each of the first ones [models, first]; a penalty asks for the lasso."""
        count, rows, width = self.codes.shape
        flat = self.codes.transpose(1, 0, 2).reshape(rows, -1)
        cross = (flat.T @ flat[:, : first * width] / rows).reshape(count, width, first * width)
        if penalty is not None:
            cross = fit_lasso(self.codes.transpose(0, 2, 1) @ self.codes / rows, cross, penalty)
        else:
            cross = cross.clip(-1, 1)  # what rounding adds to a correlation
        similarity = np.abs(cross).reshape(count, width, first, width)
        strength = _strength(similarity, 1).sum(-1) + _strength(similarity, 3).sum(1)
        informative = self.informative.sum(1)
        return strength / np.maximum(informative[:, None] + informative[:first], 1)


def fit_lasso(gram: np.ndarray, cross: np.ndarray, penalty: float) -> np.ndarray:
    """Lasso regressions of targets t on the columns of each model m, by coordinate descent on all of them at once.

    With the second moments `gram` [m, a, a] of the columns and `cross` [m, a, t] with the targets, the weights
    [m, a, t] minimise 1/2 w'Gw - c'w + penalty |w|_1, each step in one column at a time. A column of zeros gets 0.
    """
    weights = np.zeros_like(cross)
    scale = np.diagonal(gram, axis1=1, axis2=2)
    with progress("lasso", None) as bar:
        for _ in range(MOST_SWEEPS):
            change = 0.0
            for a in range(gram.shape[1]):
                size = scale[:, a, None]
                old = weights[:, a]
                partial = cross[:, a] - np.einsum("mb,mbt->mt", gram[:, a], weights) + size * old
                shrunk = np.sign(partial) * np.maximum(np.abs(partial) - penalty, 0)
                new = np.divide(shrunk, size, out=np.zeros_like(shrunk), where=size > 0)
                change = max(change, float(np.abs(new - old).max()))
                weights[:, a] = new
            bar.advance()
            if change < TOLERANCE:
                break
    return weights


def _of(evaluation: Evaluation, samples: int, correlation: Correlation, **settings: Any) -> Score:
    """The score of the evaluation's own model among its peers."""
    peers = evaluation.peers
    together = (evaluation, *peers)
    if any(len(peer) != len(evaluation) or not torch.equal(peer.rows.cpu(), evaluation.rows.cpu()) for peer in peers):
        raise UsageError("udr compares models on the same rows, but the runs are evaluated on different ones.")
    positions = evaluation.choose(samples)
    codes = [one.encode_means(positions.to(one.rows.device)) for one in together]
    kl = [_kl_by_coordinate(one) for one in together]
    names = ["this", *(f"peer {m}" for m in range(1, len(together)))]
    return udr(codes, kl, correlation=correlation, names=names, seed=evaluation.seed, first=1, **settings)[0]


def _kl_by_coordinate(evaluation: Evaluation) -> np.ndarray:
    """Mean KL to the prior of each coordinate of the code; those of one categorical variable share its KL."""
    wide = [block.width // block.leaves for block in evaluation.space.blocks.values() for _ in range(block.leaves)]
    return np.repeat(compute_latent_kl(evaluation).numpy(), wide)


def _strength(similarity: np.ndarray, axis: int) -> np.ndarray:
    """max^2 / sum along an axis: 1 where one latent of the other model says it all; 0 where none says anything."""
    total = similarity.sum(axis)
    return np.divide(similarity.max(axis) ** 2, total, out=np.zeros_like(total), where=total > 0)


def _standardised(codes: np.ndarray) -> np.ndarray:
    """Columns of mean 0 and variance 1; a constant one becomes 0."""
    centred = codes - codes[0]  # first, so that a constant column is exactly 0
    centred = centred - centred.mean(0)
    std = centred.std(0)
    return np.divide(centred, std, out=np.zeros_like(centred), where=std > 0)


def _divergence(model: int, kl: Any, latents: int) -> np.ndarray:
    values = to_numpy(kl)
    if values.shape != (latents,):
        raise UsageError(f"kl of model {model} must have one number for each of {latents} latents.")
    if not np.isfinite(values).all():
        raise DataError(f"kl of model {model} holds NaN or infinite values.")
    return values


def _check(codes: Sequence[np.ndarray], kl: Sequence[Any] | None) -> None:
    if len(codes) < 2:
        raise UsageError(f"udr compares models with each other, so it needs at least 2 of them, not {len(codes)}.")
    rows = {len(one) for one in codes}
    if len(rows) > 1:
        raise UsageError(f"udr compares models on the same rows, but the codes have {sorted(rows)} rows.")
    if min(rows) < 2:
        raise DataError(f"A score needs at least 2 rows, not {min(rows)}.")
    if kl is not None and len(kl) != len(codes):
        raise UsageError(f"There are codes of {len(codes)} models, but KLs of {len(kl)}.")
