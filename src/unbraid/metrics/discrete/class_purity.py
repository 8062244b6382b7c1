r"""Purity of the images generated from one class of a discrete latent (esmaeili2018, section 6.3).

For each class k the latent is set to k, the other latents are drawn from the prior, and a classifier trained on the
data's labels (`features.classifier`) predicts a factor from the decoder's means. If c_kv of the M images of class k are
predicted to have value v,

    purity = 1/K sum_k max_v c_kv / M

A decoder that ignores the latent scores the share of its most frequent value. Classes may share a value; the details
hold the number of values that are the most frequent one of some class, and the classifier's accuracy.
"""

from dataclasses import replace

import numpy as np
import torch

from unbraid.metrics.arrays import check_at_least
from unbraid.metrics.base import Evaluation, Score, metric
from unbraid.metrics.discrete.discrete_latents import choose_discrete_latent
from unbraid.metrics.generative.features.classifier import NAME, predict_factors
from unbraid.metrics.generative.features.feature_sets import DECODE_BATCH, decode_means, draw_prior_codes, get_network
from unbraid.metrics.intervals import ALL_DRAWS, score_mean


@metric(
    "generated/purity",
    reference="esmaeili2018",
    needs=("factors", "discrete"),
    bounds=(0, 1),
    trial={"samples": 32, "steps": 20},
)
def purity(
    evaluation: Evaluation,
    *,
    factor: str | None = None,
    latent: str | None = None,
    samples: int = 200,
    steps: int | None = None,
) -> Score:
    """Share of images from one class of a discrete latent with the class's most frequent value, by a classifier."""
    check_at_least(2, samples=samples)
    variable = choose_discrete_latent(evaluation, latent)
    name = factor or evaluation.dataset.factor_names[0]
    size = evaluation.dataset.sizes[evaluation.dataset.factor_position(name)]
    network = get_network(evaluation, NAME, steps=steps)
    codes, predicted = draw_prior_codes(evaluation, samples), []
    for number in range(variable.size):
        parts = variable.with_class(codes, number).split(DECODE_BATCH)
        values = [predict_factors(network, decode_means(evaluation, part), [name])[:, 0] for part in parts]
        predicted.append(torch.cat(values).cpu().numpy())
    counts = np.stack([np.bincount(of_class, minlength=size) for of_class in predicted])
    pure = np.stack(predicted) == counts.argmax(1)[:, None]  # [classes, draws]
    details = {
        "factor": name,
        "latent": variable.name,
        "counts": counts.tolist(),
        "values": len(set(counts.argmax(1).tolist())),
        "network": dict(network.details),
    }
    score = score_mean("generated", "purity", pure.mean(0), bounds=(0.0, 1.0), details=details, covers=ALL_DRAWS)
    return replace(score, samples=samples * variable.size)
