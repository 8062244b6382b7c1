"""A perfect code, rotated: what scores make of a code that knows every factor but is not aligned with its axes."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from unbraid.metrics import betavae, factorvae, mig
from unbraid.report.tables import Member

SPREADS = {"different spreads": 2.0, "equal spreads": 1.0}
"""Standard deviation of one of the two rotated latents; all others have 1.

With equal spreads, at exactly 45 degrees, both latents differ by as much whichever of their two factors is fixed: the
one case in which their differences cannot tell these factors apart.
"""


def rotated_codes(settings: Mapping[str, Any]) -> list[Member]:
    """Scores of codes of a complete grid of factors (`sizes`), by `angle` and `seed`, with `points` votes.

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
                scores = _scores(rotated(code, [wide, other], angle), factors, settings["points"], seed)
                told = {"recipe": series, "angle": angle, "seed": seed}
                members.append(Member(f"{series}, {angle} degrees, {seed}", told, "finished", "", scores))
    return members


def rotated(code: np.ndarray, plane: list[Any], angle: int | float) -> np.ndarray:
    """Codes [rows, latents] of which two latents are turned into each other by so many degrees."""
    cos, sin = np.cos(np.deg2rad(angle)), np.sin(np.deg2rad(angle))
    turned = code.copy()
    turned[:, plane] = code[:, plane] @ np.array([[cos, sin], [-sin, cos]])
    return turned


def _scores(code: np.ndarray, factors: np.ndarray, points: int, seed: int) -> dict[str, Any]:
    votes = {"train": points, "test": points, "seed": seed}
    made = (
        mig(code, factors, samples=None, resamples=2),
        factorvae(code, factors, resamples=2, **votes),
        betavae(code, factors, **votes),
    )
    return {score.name: score for score in made}
