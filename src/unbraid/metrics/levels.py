"""Chance and ceiling: the values of a score for codes that know nothing, and for a perfect code, on the same rows.

A number means little on its own: .66 is chance for one protocol of modularity, and .24 the ceiling of SAP. Both levels
depend on the rows and the factors, so cheap scores measure them:

    chance    the same codes with the factors of other rows
    ceiling   one latent for each factor, its standardised values; the other latents are constant

Other scores state them as facts (`noise`, `perfect`) or in their details.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from inspect import signature
from typing import Any

import numpy as np
import torch

from unbraid.errors import UnbraidError
from unbraid.metrics.arrays import to_numpy
from unbraid.metrics.base import CodeTable
from unbraid.metrics.score import RESAMPLES, Score


def build_perfect_codes(factors: Any, latents: int) -> np.ndarray:
    """Return codes [rows, latents]: the standardised numbers of each factor, then constant latents."""
    table = to_numpy(factors)
    columns = [np.unique(column, return_inverse=True)[1].reshape(-1).astype(np.float64) for column in table.T]
    standard = np.stack([(column - column.mean()) / max(float(column.std()), 1e-12) for column in columns], axis=1)
    return np.concatenate([standard, np.zeros((len(table), max(0, latents - standard.shape[1])))], axis=1)


def add_levels(
    result: Score | Sequence[Score], table: CodeTable, function: Callable[..., Any], settings: Mapping[str, Any]
) -> list[Score]:
    """Return scores with the chance and the ceiling of the function that measured them, part by part."""
    scores = [result] if isinstance(result, Score) else list(result)
    known, quick = signature(function).parameters, dict(settings)
    quick |= {key: value for key, value in ((RESAMPLES, 0), ("with_explicitness", False)) if key in known}
    order = np.random.default_rng(table.seed).permutation(len(table.codes))
    chance = table._replace(factors=table.factors[torch.as_tensor(order, device=table.factors.device)])
    levels = [_measure(chance, function, quick), _measure_ceiling(table, function, quick)]
    return [replace(score, chance=levels[0].get(score.part), ceiling=levels[1].get(score.part)) for score in scores]


def _measure_ceiling(
    table: CodeTable, function: Callable[..., Any], settings: Mapping[str, Any]
) -> dict[str | None, float]:
    """Return the value of each part for a perfect code, which models on the same rows share."""
    latents, factors = table.codes.shape[1], to_numpy(table.factors)
    rows = hashlib.sha256(np.ascontiguousarray(factors).tobytes()).digest()
    key = ("ceiling", function, rows, latents, table.seed, *map(str, sorted(settings.items())))
    if key not in table.shared:
        codes = torch.as_tensor(build_perfect_codes(factors, latents), device=table.codes.device)
        perfect = table._replace(codes=codes, latents=[f"z{j}" for j in range(latents)])
        table.shared[key] = _measure(perfect, function, settings)
    return table.shared[key]


def _measure(table: CodeTable, function: Callable[..., Any], settings: Mapping[str, Any]) -> dict[str | None, float]:
    """Return the value of each part, or nothing if the function refuses these codes."""
    try:
        result = table.score(function, **settings)
    except UnbraidError:
        return {}
    return {score.part: score.value for score in ([result] if isinstance(result, Score) else result)}


def share_of_most_frequent(factors: Any) -> float:
    """Return the accuracy of always predicting the most frequent value, mean over factors [rows, factors]."""
    counts = [np.unique(column, return_counts=True)[1] for column in to_numpy(factors).T]
    return float(np.mean([count.max() / count.sum() for count in counts]))
