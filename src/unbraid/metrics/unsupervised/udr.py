r"""Unsupervised disentanglement ranking (duan2020): do models trained separately find the same latents?

Two disentangled models have the same latents up to order and sign, while entangled ones differ from seed to seed. With
the similarity R(a, b) >= 0 of latent a of one model and latent b of another, on the same rows,

    UDR_ij = 1/(d_i + d_j) [ sum_b max_a R(a,b)^2 / sum_a R(a,b)  +  sum_a max_b R(a,b)^2 / sum_b R(a,b) ],

over the d_i and d_j informative latents, those with KL(q(z_a|x) || p(z_a)) above .01 nats. A model's score is the
median over the other models (eqs. 2 and 3).

| protocol   | R(a, b)                                                                                             |
|------------|------------------------------------------------------------------------------------------------------|
| `spearman` | absolute rank correlation                                                                            |
| `lasso`    | absolute weight of the other model's latent a in a lasso regression of the scored model's latent b;  |
|            | all standardised, penalty .1                                                                         |

UDR needs no labels, but several models: usually one recipe under several seeds. Equal models of independent latents
score 1, or .9 by the lasso, whose penalty shrinks every weight. A model without informative latents scores 0.
(disentanglement_lib takes the mean of the two sums' means, which is the same if d_i = d_j.)
"""

import math
from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
import torch

from unbraid.errors import DataError, UsageError
from unbraid.metrics.arrays import check_at_least, check_known, to_matrix, to_numpy
from unbraid.metrics.base import Evaluation, Score, metric
from unbraid.metrics.intervals import median_interval, no_interval
from unbraid.metrics.unsupervised.elbo import compute_latent_kl
from unbraid.progress import progress

Correlation = Literal["spearman", "lasso"]

PARTNERS = "median over all partners"
TOLERANCE = 1e-9
MAX_SWEEPS = 10_000

FACTS: dict[str, Any] = {"reference": "duan2020", "needs": ("peers",), "invariant": ("order", "sign")}


@metric("udr/spearman", bounds=(0, 1), **FACTS)
def spearman(evaluation: Evaluation, *, samples: int = 10_000, threshold: float = 0.01) -> Score:
    """Agreement of a model's latents with those of other models, by rank correlation."""
    return _score_among_peers(evaluation, samples, correlation="spearman", threshold=threshold)


@metric("udr/lasso", bounds=(0, math.inf), **FACTS)  # a weight in a regression on correlated latents may exceed 1
def lasso(
    evaluation: Evaluation,
    *,
    samples: int = 10_000,
    threshold: float = 0.01,
    penalty: float = 0.1,
) -> Score:
    """Agreement of a model's latents with those of other models, by lasso regression."""
    settings = {"threshold": threshold, "penalty": penalty}
    return _score_among_peers(evaluation, samples, correlation="lasso", **settings)


def udr(
    codes: Sequence[Any],
    kl: Sequence[Any] | None = None,
    *,
    correlation: Correlation = "spearman",
    threshold: float = 0.01,
    penalty: float = 0.1,
    names: Sequence[str] | None = None,
    first: int | None = None,
) -> list[Score]:
    """Return the UDR of each model, or of the `first` models, from their codes [rows, latents] of the same rows.

    `kl` holds each model's KL to the prior by latent, the mean over rows; without it every latent that varies is
    informative. Models may have different numbers of latents. `names` names the models in the details. The 95% interval
    is for the median over more partners like these, if there are at least six.
    """
    check_known("correlation", correlation, get_args(Correlation))
    check_at_least(0, penalty=penalty)
    models = StandardisedModels(codes, kl, threshold, ranks=correlation == "spearman")
    names = [f"model {m}" for m in range(len(codes))] if names is None else list(names)
    if len(names) != len(codes):
        raise UsageError(f"There are codes of {len(codes)} models, but {len(names)} names.")
    first = len(codes) if first is None else first
    agreement = models.compare(first, penalty if correlation == "lasso" else None)
    scores = []
    for m in range(first):
        pairs = np.delete(agreement[:, m], m)
        value = float(np.median(pairs))
        interval = median_interval(pairs)
        covers = PARTNERS if interval else no_interval("it needs at least 6 other models")
        details = {
            "model": names[m],
            "pairs": dict(zip([name for k, name in enumerate(names) if k != m], pairs.tolist(), strict=True)),
            "informative": np.flatnonzero(models.informative[m]).tolist(),
        }
        rows = models.codes.shape[1]
        scores.append(Score("udr", correlation, value, rows, interval, details=details, covers=covers))
    return scores


class StandardisedModels:
    """Standardised codes (or their ranks) [models, rows, latents]; models with fewer latents are padded with 0."""

    def __init__(self, codes: Sequence[Any], kl: Sequence[Any] | None, threshold: float, ranks: bool) -> None:
        from scipy.stats import rankdata

        matrices = [to_matrix(f"codes of model {m}", one) for m, one in enumerate(codes)]
        _check_models(matrices, kl)
        width = max(one.shape[1] for one in matrices)
        self.codes = np.zeros((len(matrices), len(matrices[0]), width))
        self.informative = np.zeros((len(matrices), width), dtype=bool)
        for m, one in enumerate(matrices):
            standard = _standardise(rankdata(one, axis=0) if ranks else one)
            informative = standard.any(0) if kl is None else _to_divergences(m, kl[m], one.shape[1]) > threshold
            self.codes[m, :, : one.shape[1]] = standard * informative  # the others explain nothing, either
            self.informative[m, : one.shape[1]] = informative

    def compare(self, first: int, penalty: float | None) -> np.ndarray:
        """Return the UDR of every model with each of the first ones [models, first]; with a penalty, by the lasso."""
        count, rows, width = self.codes.shape
        flat = self.codes.transpose(1, 0, 2).reshape(rows, -1)
        cross = (flat.T @ flat[:, : first * width] / rows).reshape(count, width, first * width)
        if penalty is not None:
            cross = fit_lasso(self.codes.transpose(0, 2, 1) @ self.codes / rows, cross, penalty)
        else:
            cross = cross.clip(-1, 1)  # rounding may exceed 1
        similarity = np.abs(cross).reshape(count, width, first, width)
        strength = _concentrate(similarity, 1).sum(-1) + _concentrate(similarity, 3).sum(1)
        informative = self.informative.sum(1)
        return strength / np.maximum(informative[:, None] + informative[:first], 1)


def fit_lasso(gram: np.ndarray, cross: np.ndarray, penalty: float) -> np.ndarray:
    """Return lasso regressions of targets t on the columns of each model m, by coordinate descent on all at once.

    With the second moments `gram` [m, a, a] of the columns and `cross` [m, a, t] with the targets, the weights
    [m, a, t] minimise 1/2 w'Gw - c'w + penalty |w|_1, one column at a time. A column of zeros gets 0.
    """
    weights = np.zeros_like(cross)
    scale = np.diagonal(gram, axis1=1, axis2=2)
    with progress("lasso", None) as bar:
        for _ in range(MAX_SWEEPS):
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


def _score_among_peers(evaluation: Evaluation, samples: int, correlation: Correlation, **settings: Any) -> Score:
    peers = evaluation.peers
    together = (evaluation, *peers)
    if any(len(peer) != len(evaluation) or not torch.equal(peer.rows.cpu(), evaluation.rows.cpu()) for peer in peers):
        raise UsageError("udr compares models on the same rows, but the runs are evaluated on different ones.")
    positions = evaluation.choose(samples)
    codes = [one.encode_means(positions.to(one.rows.device)) for one in together]
    kl = [_compute_kl_by_coordinate(one) for one in together]
    names = ["this", *(f"peer {m}" for m in range(1, len(together)))]
    return udr(codes, kl, correlation=correlation, names=names, first=1, **settings)[0]


def _compute_kl_by_coordinate(evaluation: Evaluation) -> np.ndarray:
    """Return the mean KL of each coordinate of the code; the coordinates of one categorical variable share it."""
    widths = [block.width // block.leaves for block in evaluation.space.blocks.values() for _ in range(block.leaves)]
    return np.repeat(compute_latent_kl(evaluation).numpy(), widths)


def _concentrate(similarity: np.ndarray, axis: int) -> np.ndarray:
    """Return max^2 / sum along an axis: 1 if one latent of the other model explains all, 0 if none explains any."""
    total = similarity.sum(axis)
    return np.divide(similarity.max(axis) ** 2, total, out=np.zeros_like(total), where=total > 0)


def _standardise(codes: np.ndarray) -> np.ndarray:
    centred = codes - codes[0]  # first, so that a constant column is exactly 0
    centred = centred - centred.mean(0)
    std = centred.std(0)
    return np.divide(centred, std, out=np.zeros_like(centred), where=std > 0)


def _to_divergences(model: int, kl: Any, latents: int) -> np.ndarray:
    values = to_numpy(kl)
    if values.shape != (latents,):
        raise UsageError(f"kl of model {model} must have one number for each of {latents} latents.")
    if not np.isfinite(values).all():
        raise DataError(f"kl of model {model} holds NaN or infinite values.")
    return values


def _check_models(codes: Sequence[np.ndarray], kl: Sequence[Any] | None) -> None:
    if len(codes) < 2:
        raise UsageError(f"udr compares models with each other, so it needs at least 2 of them, not {len(codes)}.")
    rows = {len(one) for one in codes}
    if len(rows) > 1:
        raise UsageError(f"udr compares models on the same rows, but the codes have {sorted(rows)} rows.")
    if min(rows) < 2:
        raise DataError(f"A score needs at least 2 rows, not {min(rows)}.")
    if kl is not None and len(kl) != len(codes):
        raise UsageError(f"There are codes of {len(codes)} models, but KLs of {len(kl)}.")
