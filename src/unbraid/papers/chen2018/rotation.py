"""Scores of a rotated perfect code, which knows every factor but is not aligned with its axes."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from unbraid.metrics import betavae, factorvae, mig
from unbraid.report.tables import Member

SPREADS = {"different spreads": 2.0, "equal spreads": 1.0}
"""Standard deviation of one of the two rotated latents; all others have 1.

With equal spreads, at exactly 45 degrees, both latents differ by the same amount whichever of their two factors is
fixed. Only then can their differences not distinguish these factors.
"""


def score_rotated_codes(settings: Mapping[str, Any]) -> list[Member]:
    """Return scores of codes of a complete grid of factors (`sizes`), by `angle` and `seed`, with `points` votes.

    Each factor has one latent, linear in its value. A seed draws the two latents that are rotated into each other.
    """
    factors = np.indices(settings["sizes"]).reshape(len(settings["sizes"]), -1).T
    members = []
    for series, spread in SPREADS.items():
        for seed in settings["seed"]:
            wide, other = np.random.default_rng(seed).permutation(factors.shape[1])[:2]
            code = (factors - factors.mean(0)) / factors.std(0)
            code[:, wide] *= spread
            for angle in settings["angle"]:
                scores = _score(rotate(code, [wide, other], angle), factors, settings["points"], seed)
                at = {"recipe": series, "angle": angle, "seed": seed}
                members.append(Member(f"{series}, {angle} degrees, {seed}", at, "finished", "", scores))
    return members


def rotate(code: np.ndarray, plane: list[Any], angle: int | float) -> np.ndarray:
    """Return codes [rows, latents] with the two latents of `plane` rotated into each other by `angle` degrees."""
    cos, sin = np.cos(np.deg2rad(angle)), np.sin(np.deg2rad(angle))
    rotated = code.copy()
    rotated[:, plane] = code[:, plane] @ np.array([[cos, sin], [-sin, cos]])
    return rotated


def _score(code: np.ndarray, factors: np.ndarray, points: int, seed: int) -> dict[str, Any]:
    votes = {"train": points, "test": points, "seed": seed}
    scores = (
        mig(code, factors, samples=None, resamples=2),
        factorvae(code, factors, resamples=2, **votes),
        betavae(code, factors, **votes),
    )
    return {score.name: score for score in scores}
