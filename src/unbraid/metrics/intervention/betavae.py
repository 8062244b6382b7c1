r"""The beta-VAE score (higgins2017, section 3): can a linear classifier tell which factor two images share?

A data point: draw a factor k and a batch of pairs of rows, where both rows of a pair share a value of k, and average

    1/B sum_b |z_1^b - z_2^b|   [latents].

The score is the accuracy, on further points, of a logistic regression that predicts k.

| protocol              | the classifier                                                                            |
|-----------------------|-------------------------------------------------------------------------------------------|
| `logistic`            | multinomial, ridge penalty 1/2 |w|^2 on the sum of losses, each latent's differences      |
|                       | standardised, so that the scale of a latent does not matter                               |
| `logistic-sampled`    | the same, on one sample of each posterior, as chen2018 describes the score (section 4.1)  |
| `disentanglement_lib` | scikit-learn's defaults of the time of locatello2019: one versus rest by liblinear,       |
|                       | on raw differences, the same penalty on weights and intercept                             |

All average 64 pairs and use 10,000 training and 5,000 test points. Chance is one over the number of factors. The score
shows that the code identifies a factor, not that one latent does: most rotations of a perfect code keep it at 1
(chen2018, table 1), and it grows with the batch (figure S5).
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from unbraid.metrics.arrays import check_at_least, name_latents, to_tensor
from unbraid.metrics.base import Score
from unbraid.metrics.code_metrics import code_metric
from unbraid.metrics.intervals import ALL_DRAWS, mean_share_interval
from unbraid.metrics.intervention.fixed_factor_batches import FixedFactorPairs, gather_codes, read_population
from unbraid.metrics.predictive.logistic import standardise
from unbraid.metrics.predictive.softmax import fit_softmax
from unbraid.metrics.train_test_split import Compat, is_published
from unbraid.threads import blas_threads, one_thread

betavae_metric = partial(
    code_metric,
    settings="samples batch train test",
    defaults={"samples": None},
    needs=("factors",),
    bounds=(0, 1),
    core_seconds=0.25,
    prefers_core=True,  # for its regression
)
Protocol = Literal["logistic", "logistic-sampled"]


@betavae_metric(
    "betavae/logistic",
    "beta-VAE score: accuracy of a logistic regression that predicts which factor two images share.",
    "higgins2017",
    invariant=("order", "sign", "scale"),
    perfect=1.0,
)
@betavae_metric(
    "betavae/logistic-sampled",
    "beta-VAE score of posterior samples, as chen2018 describes it.",
    "chen2018",
    codes="sampled",
    invariant=("scale",),  # each latent and each side of 0 meets its own noise
)
@betavae_metric(
    "betavae/disentanglement_lib",
    "beta-VAE score as disentanglement_lib computed it.",
    "locatello2019",
    invariant=("order", "sign"),
    perfect=1.0,
)
def betavae(
    codes: Any,
    factors: Any,
    *,
    batch: int = 64,
    train: int = 10_000,
    test: int = 5_000,
    names: Sequence[str] | None = None,
    latents: Sequence[str] | None = None,
    seed: int = 0,
    compat: Compat | None = None,
    protocol: Protocol = "logistic",
) -> Score:
    """Return the beta-VAE score of codes [rows, latents] and discrete factors [rows, factors].

    Pairs are drawn from these rows. Codes on a GPU are gathered there, with the same rows as on the CPU. The 95%
    interval is that of a share of the test points (wilson1927), for other points drawn from the same rows. `protocol`
    says whether the codes are means or samples of posteriors; it only names the score.
    """
    check_at_least(1, batch=batch, test=test)
    check_at_least(100, train=train)
    values = to_tensor("codes", codes)
    population = read_population("beta-VAE", factors, len(values), names)
    labels, rng = population.labels, np.random.default_rng(seed)
    train_pairs, test_pairs = (population.draw_pairs(rng, count, batch) for count in (train, test))
    x_train, x_test = (average_differences(values, pairs) for pairs in (train_pairs, test_pairs))
    with blas_threads(1):  # of products so small that several would only wait for each other
        of_train, of_test = (
            _predict_as_published(x_train, train_pairs.factor, x_test, seed)
            if is_published(compat)
            else _predict_by_softmax(x_train, train_pairs.factor, x_test)
        )
    right = of_test == test_pairs.factor
    by_factor = {name: right[test_pairs.factor == k] for k, name in enumerate(labels.names)}
    details = {
        "accuracy": {name: float(hits.mean()) if len(hits) else None for name, hits in by_factor.items()},
        "train_accuracy": float((of_train == train_pairs.factor).mean()),
        "latents": list(name_latents(values.shape[1], latents)),
    }
    value, interval = float(right.mean()), mean_share_interval(right)
    return Score("betavae", compat or protocol, value, len(values), interval, details=details, covers=ALL_DRAWS)


@one_thread()
def average_differences(codes: Tensor, pairs: FixedFactorPairs) -> np.ndarray:
    """Return the mean absolute difference of each latent over the pairs of each batch [batches, latents]."""
    both = zip(gather_codes(codes, pairs.first), gather_codes(codes, pairs.second), strict=True)
    return torch.cat([(first - second).abs().mean(1) for first, second in both]).cpu().numpy()


def _predict_by_softmax(train: np.ndarray, factor: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the factor that a regression of the training points predicts for them and for the test points."""
    x_train, x_test = standardise(*(torch.from_numpy(x).double() for x in (train, test)))
    classifier = fit_softmax(x_train, factor[:, None], precision=1e-10)
    return classifier.predict(x_train)[:, 0], classifier.predict(x_test)[:, 0]


def _predict_as_published(
    train: np.ndarray, factor: np.ndarray, test: np.ndarray, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the same by the classifier of disentanglement_lib."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.multiclass import OneVsRestClassifier

    classifier = OneVsRestClassifier(LogisticRegression(solver="liblinear", random_state=seed)).fit(train, factor)
    return classifier.predict(train), classifier.predict(test)
