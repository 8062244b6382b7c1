"""The facts that the page shows beside its pictures: latents, factors, and rows of the data with their codes."""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unbraid import noise
from unbraid.data.factors import Factor
from unbraid.errors import UnbraidError
from unbraid.latents import Block, Space
from unbraid.metrics import Evaluation
from unbraid.metrics.arrays import FactorLabels
from unbraid.metrics.information.histogram import JointHistograms, discretise
from unbraid.models import Model
from unbraid.report.traversals import compute_variable_kl

MAX_ROWS_TO_MEASURE = 10_000
"""Rows that information, ranges and distances are measured on."""

BINS = 20
"""Bins of a latent, as in mig/histogram-mean."""

EDGE = 0.005
"""Share of the aggregate posterior that lies beyond each end of a slider."""

MAX_BUTTONS = 24
"""Values that a latent may have and still be a row of buttons."""

PRIOR_DRAWS = 96


def describe_latents(evaluation: Evaluation) -> list[dict[str, Any]]:
    """Return each latent variable: name, block, coordinates, range, values, nats, and what it knows of each factor.

    `chance` is what it would seem to know if it knew nothing. The most informative one comes first.
    """
    space = evaluation.space
    means = evaluation.means[evaluation.choose(MAX_ROWS_TO_MEASURE)].cpu().double()
    nats, (shares, chance) = _nats(evaluation), _information(evaluation)
    blocks = [(name, block) for name, block in space.blocks.items() for _ in range(block.leaves)]
    latents = []
    for leaf, (name, columns) in enumerate(zip(space.leaf_names(), space.leaf_columns(), strict=True)):
        latent: dict[str, Any] = {"name": name, "block": blocks[leaf][0], "columns": columns, "nats": nats[leaf]}
        latent.update(_range(blocks[leaf][1], means[:, columns]))
        latent["information"] = shares[leaf] if shares else []
        latent["chance"] = chance[leaf] if chance else []
        latents.append(latent)
    return sorted(latents, key=lambda latent: -latent["nats"])


def _nats(evaluation: Evaluation) -> list[float]:
    """KL of each variable; where none is defined, log of the spread of its codes against one of 0.1."""
    try:
        found = compute_variable_kl(evaluation).tolist()
        return [round(value, 4) if math.isfinite(value) else 0.0 for value in found]
    except UnbraidError:
        spread = evaluation.means.cpu().double().std(0)
        return [float(torch.log1p(spread[own].square().sum() / 0.01) / 2) for own in evaluation.space.leaf_columns()]


def _range(block: Block, means: Tensor) -> dict[str, Any]:
    """Return where a slider goes, or the values that buttons have."""
    if means.shape[1] > 1:
        return {"kind": "classes", "values": torch.eye(means.shape[1]).tolist(), "low": 0, "high": 1}
    column = means[:, 0]
    values = column.unique()
    if len(values) <= MAX_BUTTONS and not block.has_density:
        return {
            "kind": "values",
            "values": [[v] for v in values.tolist()],
            "low": float(values[0]),
            "high": float(values[-1]),
        }
    if block.discrete:
        return {"kind": "number", "low": 0.0, "high": 1.0}
    low, high = column.quantile(torch.tensor([EDGE, 1 - EDGE], dtype=column.dtype)).tolist()
    middle, half = (low + high) / 2, max((high - low) / 2, 0.5)
    wide = 1.15 * half if block.has_density else half
    return {"kind": "number", "low": round(middle - wide, 3), "high": round(middle + wide, 3)}


def _information(evaluation: Evaluation) -> tuple[list[list[float]], list[list[float]]]:
    """Share I(z; v) / H(v) of each factor's entropy that each variable knows, by histograms of means, and by chance.

    Chance is the share with the factors of other rows, as that of scores (`unbraid.metrics.levels`).
    """
    known = evaluation.dataset.varying_factors if evaluation.dataset.factors else []
    if not known:
        return [], []
    positions = evaluation.choose(MAX_ROWS_TO_MEASURE)
    values = evaluation.factors[positions].cpu().numpy()[:, known]
    rows = (values >= 0).all(1)
    if rows.sum() < BINS:
        return [], []
    codes = evaluation.means[positions].cpu().double().numpy()[rows]
    columns = evaluation.space.leaf_columns()
    single = np.stack([codes[:, own].argmax(1) if len(own) > 1 else codes[:, own[0]] for own in columns], 1)
    recoded = [np.unique(column, return_inverse=True)[1] for column in values[rows].T]
    labels = FactorLabels(np.stack(recoded, 1), tuple(int(c.max()) + 1 for c in recoded), tuple(map(str, known)))
    binned = discretise(single.astype(np.float64), BINS)
    order = np.random.default_rng(evaluation.seed).permutation(len(binned))
    return _measure_shares(binned, labels), _measure_shares(binned, labels.select(order))


def _measure_shares(binned: np.ndarray, labels: FactorLabels) -> list[list[float]]:
    information, entropy = JointHistograms(binned, BINS, labels).information()
    shares = information / np.maximum(entropy, 1e-9)
    return [[round(max(0.0, float(share)), 4) for share in latent] for latent in shares]


def describe_factors(evaluation: Evaluation) -> list[dict[str, Any]]:
    """Return the factors that vary, with words for their values where they have some."""
    dataset = evaluation.dataset
    return [_factor(dataset.factors[k]) for k in (dataset.varying_factors if dataset.factors else [])]


def _factor(factor: Factor) -> dict[str, Any]:
    values = None if factor.values is None else [str(value) for value in factor.values]
    words = factor.values is not None and isinstance(factor.values[0], str)
    return {"name": factor.name, "size": factor.size, "values": values, "words": words}


def describe_blocks(space: Space) -> list[dict[str, Any]]:
    """Return each latent block with its coordinates."""
    start, blocks = 0, []
    for name, block in space.blocks.items():
        blocks.append({"name": name, "columns": list(range(start, start + block.width))})
        start += block.width
    return blocks


def draw_from_prior(model: Model) -> Tensor:
    """Draw codes [count, width] from the prior, a learned one included; the decoder's own noise is left out."""

    def draw(needs: Any) -> dict[str, Tensor]:
        device = next((p.device for p in model.parameters()), torch.device("cpu"))
        drawn = noise.draw(needs, noise.seed_tensor(0, device=device), step=0)
        return {name: tensor[0] for name, tensor in drawn.items()}

    with torch.no_grad():
        if not model.space.has_density:
            return model.prior_codes(draw(model.prior_needs(PRIOR_DRAWS))).cpu()
        return Model.prior_codes(model, draw(model.space.needs(PRIOR_DRAWS))).cpu()


def is_standard_prior(space: Space) -> bool:
    """Return True if the page can draw from the prior itself: standard Normals and nothing else."""
    return space.learned is None and space.has_density and not any(block.discrete for block in space.blocks.values())
