r"""Information about each factor in c and in each s_m (after daunhawer2019, who look at swapped images).

Codes are one draw of each row's posterior, so that no block carries more nats than its KL. Posterior means differ a
little from row to row even if a block has collapsed, and a probe of means (`codes=mean`) can read these differences.
`linear`: test accuracy of a softmax regression (C = 1) of a factor from standardised codes of one block; 10,000 rows to
train and 5,000 to test. `knn`: mutual information, in nats, of a factor and the block's best latent by 10 nearest
neighbours (ross2014), a lower bound for the whole block. `knn-block`: that of a factor and all latents of the block
together, which a rotation of the latents does not change; in several dimensions the estimate is below the information,
more so for fewer rows. A shared factor should be in c only, a factor of one modality in its s_m only.

**Ceiling.** `linear`: 1, but a regularised softmax does not separate many values on one latent (see `downstream`).
Both `knn`: H(v), in the details. **Chance.** `linear`: the share of the most frequent training value, in the details.
They also give the regression's information in nats, H(v) - E[-log p(v|code)] on test rows; it is at most I(block; v),
and negative if the regression is worse than the marginal. Both `knn`: 0 up to noise.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from unbraid.errors import SettingError
from unbraid.metrics.arrays import check_at_least, check_known, entropy, find_device, to_labels, to_matrix
from unbraid.metrics.base import Evaluation, Score, metric
from unbraid.metrics.information.nearest_neighbours import estimate_with_halves
from unbraid.metrics.intervals import Spread, halves_interval, measure_halves, no_interval, spread_at
from unbraid.metrics.multimodal.block_dependence import draw_blocks
from unbraid.metrics.multimodal.conditional_draws import find_rows_with_block
from unbraid.metrics.predictive.logistic import standardise
from unbraid.metrics.predictive.softmax import fit_softmax
from unbraid.metrics.train_test_split import split_rows
from unbraid.models import as_multimodal

Codes = Literal["sampled", "mean"]
REFITS = 10
"""Halves of the rows to which the regression is fitted again."""

FACTS: dict[str, Any] = {"reference": "daunhawer2019", "needs": ("modalities", "factors")}


@metric("probe/linear", **FACTS, bounds=(0, 1))
def linear(
    evaluation: Evaluation,
    *,
    factors: tuple[str, ...] | None = None,
    codes: Codes = "sampled",
    train: int = 10_000,
    test: int = 5_000,
    C: float = 1.0,
) -> list[Score]:
    """Accuracy of softmax regression of each factor from c, and from each s_m."""
    return _probe_run(evaluation, "linear", codes, factors, train + test, train=train, test=test, C=C)


@metric("probe/knn", **FACTS, bounds=(0, float("inf")), trial={"resamples": 3})
def knn(
    evaluation: Evaluation,
    *,
    factors: tuple[str, ...] | None = None,
    codes: Codes = "sampled",
    samples: int = 10_000,
    neighbours: int = 10,
    resamples: int = 20,
) -> list[Score]:
    """Mutual information, in nats, of each factor and the best latent of c, and of each s_m, by nearest neighbours."""
    return _probe_run(evaluation, "knn", codes, factors, samples, neighbours=neighbours, resamples=resamples)


@metric("probe/knn-block", **FACTS, bounds=(0, float("inf")), trial={"resamples": 2})
def knn_block(
    evaluation: Evaluation,
    *,
    factors: tuple[str, ...] | None = None,
    codes: Codes = "sampled",
    samples: int = 5_000,
    neighbours: int = 10,
    resamples: int = 10,
) -> list[Score]:
    """Mutual information, in nats, of each factor and all latents of c, and of each s_m, by nearest neighbours."""
    return _probe_run(evaluation, "knn-block", codes, factors, samples, neighbours=neighbours, resamples=resamples)


def probe(
    codes: Mapping[str, Any],
    factors: Any,
    *,
    protocol: str = "linear",
    train: int = 10_000,
    test: int = 5_000,
    C: float = 1.0,
    neighbours: int = 10,
    resamples: int = 20,
    names: Sequence[str] | None = None,
    seed: int = 0,
) -> list[Score]:
    """Return the scores of parts of a code, as `{"c": c, "s": s}`, each [rows, latents], for factors [rows, factors].

    The 95% intervals are for means over draws of as many rows. They come from halves of the rows, since a bootstrap
    repeats rows, and repeated rows break nearest neighbours.
    """
    check_known("protocol", protocol, ["linear", "knn", "knn-block"])
    scores = []
    for part, values in codes.items():
        if protocol == "linear":
            scores += _linear(values, factors, names, part, (train, test), C, seed)
        else:
            scores += _knn(protocol, values, factors, names, part, neighbours, resamples, seed)
    return scores


def _linear(
    codes: Any, factors: Any, names: Sequence[str] | None, block: str, sizes: tuple[int, int], C: float, seed: int
) -> list[Score]:
    if not C > 0:
        raise SettingError(f"C must be above 0, not {C}.")
    values = to_matrix("codes", codes)
    known = to_labels(factors, len(values), names)
    split = split_rows(len(values), *sizes, np.random.default_rng(seed))
    x, y = standardise(*(torch.as_tensor(values[rows], device=find_device(codes)) for rows in split))
    labels, truth = known.values[split.train], known.values[split.test]
    fitted = fit_softmax(x, labels, C=C, precision=1e-9)
    right, log_probabilities, scores = fitted.predict(y) == truth, fitted.log_probabilities(y), []

    def measure_half(half: np.ndarray) -> np.ndarray:
        return fit_softmax(x[half], labels[half], C=2 * C, precision=1e-8, start=fitted).predict(y) == truth

    refits = np.array(measure_halves(measure_half, [len(labels)], REFITS, np.random.default_rng(seed)), dtype=float)
    for k, name in enumerate(known.names):
        frequency = np.bincount(labels[:, k])
        details = {
            "chance": float((truth[:, k] == frequency.argmax()).mean()),
            "nats": _nats(log_probabilities[k], fitted.values[k], truth[:, k]),
            "entropy": entropy(np.bincount(truth[:, k])),
            "test": len(truth),
        }
        value, part = float(right[:, k].mean()), f"{block}/{name}"
        spread = Spread.of_refits(right[:, k].astype(float), refits[:, :, k], 0.5)
        interval = spread and spread.share_interval(value, len(truth))
        covers = spread_at(len(labels) + len(truth))
        scores.append(
            Score("probe", "linear", value, len(labels), interval, part, "logistic", details=details, covers=covers)
        )
    return scores


def _nats(log_probabilities: Tensor, values: np.ndarray, truth: np.ndarray) -> float:
    """Return H(v) - E[-log p(v|code)] over test rows whose value occurs in training."""
    place = np.searchsorted(values, truth).clip(0, len(values) - 1)
    known = np.flatnonzero(values[place] == truth)
    log_p = log_probabilities.cpu().numpy()[known, place[known]]
    return entropy(np.bincount(truth[known])) + float(log_p.mean()) if len(known) else 0.0


def _knn(
    protocol: str, codes: Any, factors: Any, names: Sequence[str] | None, block: str, neighbours: int, resamples: int,
    seed: int,
) -> list[Score]:  # fmt: skip
    check_at_least(1, neighbours=neighbours)
    values = to_matrix("codes", codes)
    known = to_labels(factors, len(values), names)
    rng, device = np.random.default_rng(seed), find_device(codes)
    together = protocol == "knn-block"
    estimates = estimate_with_halves(values, known, neighbours, resamples, rng, seed, device, together)
    found, *halves = (information for information, _ in estimates)  # [latents, factors], or one row for all latents
    covers = spread_at(len(values)) if len(halves) > 1 else no_interval("it needs resamples=2 or more")
    scores = []
    for k, name in enumerate(known.names):
        value, details = float(found[:, k].max()), {"entropy": float(known.entropy[k])}
        details |= {} if together else {"latents": found[:, k].tolist()}
        ceiling = max(value, float(known.entropy[k]))  # an estimate may exceed the entropy
        interval = halves_interval(value, [half[:, k].max() for half in halves], (0.0, ceiling))
        scores.append(
            Score("probe", protocol, value, len(values), interval, f"{block}/{name}", details=details, covers=covers)
        )
    return scores


def _probe_run(
    evaluation: Evaluation, protocol: str, codes: Codes, factors: Sequence[str] | None, count: int, **settings: Any
) -> list[Score]:
    """Return the scores of each block, over the random rows that have its modality."""
    model, positions = as_multimodal(evaluation.model), evaluation.choose(max(2, count))
    values, names = evaluation.choose_factors(factors)
    known, scores = values[positions], []
    if codes == "mean":
        found = model.space.unjoin(evaluation.encode_means(positions))
    else:
        found = {name: one.value for name, one in draw_blocks(evaluation, model, max(2, count)).items()}
    for block, present in find_rows_with_block(evaluation, model, evaluation.rows[positions]).items():
        part = {block: found[block][present]}
        scores += probe(part, known[present], protocol=protocol, names=names, seed=evaluation.seed, **settings)
    return scores
