"""How the features of a vector move with each latent: the traversal of data that are not images."""

from typing import Any

import torch

from unbraid.metrics import Evaluation
from unbraid.metrics.generative.features.feature_sets import decode_means
from unbraid.report.traversals import compute_variable_kl, find_paths

MAX_FEATURES = 40
MAX_LATENTS = 12


def measure_movements(evaluation: Evaluation) -> dict[str, Any]:
    """Return a table: for each latent, the change of each feature's mean while the latent goes from its first value to
    its last and all others stay as in the code of one row.

    Changes are in standard deviations of the feature over the data, so that features of any scale compare. The features
    that move most come first.
    """
    kl, names = compute_variable_kl(evaluation), evaluation.space.leaf_names()
    order = kl.argsort(descending=True).tolist()[:MAX_LATENTS]
    codes = torch.stack([find_paths(evaluation)[leaf][[0, -1]] for leaf in order])  # [latents, 2, width]
    ends = decode_means(evaluation, codes.flatten(0, 1)).unflatten(0, codes.shape[:2])
    rows = evaluation.rows[evaluation.choose(10_000)]
    spread = evaluation.dataset.images(rows).float().std(0).clamp(min=1e-12).to(ends)
    moved = ((ends[:, 1] - ends[:, 0]) / spread).cpu()  # [latents, features]
    reach = moved.abs().amax(0)
    chosen = reach.argsort(descending=True)[:MAX_FEATURES].tolist()
    labels = getattr(evaluation.dataset, "feature_names", None) or [str(i) for i in range(moved.shape[1])]
    most = max(float(reach.max()), 1e-9)
    return {
        "features": [labels[feature] for feature in chosen],
        "left_out": moved.shape[1] - len(chosen),
        "rows": [
            {
                "name": names[leaf],
                "kl": float(kl[leaf]),
                "cells": [(float(moved[row, f]), abs(float(moved[row, f])) / most) for f in chosen],
            }
            for row, leaf in enumerate(order)
        ],
    }
