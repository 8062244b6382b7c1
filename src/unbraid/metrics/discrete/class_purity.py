r"""Whether one class of a discrete latent draws one kind of picture (esmaeili2018, section 6.3).

For each class k the other latents are drawn from the prior, the variable is set to k, and the decoder's means are given
to a classifier that was trained on the data's own labels (`features.classifier`). With c_kv of the M pictures of class
k seen as value v of a factor,

    purity = 1/K sum_k max_v c_kv / M

A decoder that ignores the variable has the share of the value that it draws most; classes may share a value, and the
details say how many values are some class's most frequent one, and how good the classifier was.
"""

import numpy as np
import torch

from unbraid.metrics.arrays import check_at_least
from unbraid.metrics.base import Evaluation, Score, metric
from unbraid.metrics.discrete.discrete_latents import chosen_variable
from unbraid.metrics.generative.features.classifier import NAME, predicted
from unbraid.metrics.generative.features.feature_sets import CHUNK, chosen_network, decoded, prior_codes
from unbraid.metrics.intervals import mean_interval


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
    """Share of pictures of one class of a discrete latent that a classifier gives the class's most frequent value."""
    check_at_least(2, samples=samples)
    variable = chosen_variable(evaluation, latent)
    name = factor or evaluation.dataset.factor_names[0]
    size = evaluation.dataset.sizes[evaluation.dataset.factor_position(name)]
    network = chosen_network(evaluation, NAME, steps=steps)
    codes, counts = prior_codes(evaluation, samples), np.zeros((variable.size, size), dtype=np.int64)
    for number in range(variable.size):
        for part in variable.with_class(codes, number).split(CHUNK):
            seen = predicted(network, decoded(evaluation, part), name)
            counts[number] += torch.bincount(seen, minlength=size).cpu().numpy()
    shares = counts.max(1) / samples
    details = {
        "factor": name,
        "latent": variable.name,
        "counts": counts.tolist(),
        "values": len(set(counts.argmax(1).tolist())),
        "network": dict(network.details),
    }
    interval = mean_interval(shares, (0.0, 1.0))
    return Score("generated", "purity", float(shares.mean()), samples * variable.size, interval, details=details)
