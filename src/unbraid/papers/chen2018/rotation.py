"""Scores of a rotated perfect code, which knows every factor but is not aligned with its axes."""

from collections.abc import Mapping
from itertools import product, starmap
from typing import Any, NamedTuple

import numpy as np

from unbraid.metrics import betavae, factorvae, mig
from unbraid.report.tables import Member


class Design(NamedTuple):
    """The deviation of one of the two latents of a plane (the other one has 1), and the number of rotated planes.

    With equal deviations, at exactly 45 degrees, both latents differ by the same amount whichever of their two factors
    is fixed. Only then can their differences not distinguish these factors.
    """

    spread: float
    planes: int

    def __str__(self) -> str:
        return f"spread {self.spread:g}, {self.planes} plane{'s' if self.planes > 1 else ''}"


DESIGNS = {str(design): design for design in starmap(Design, product((1.0, 1.25, 1.5, 2.0, 3.0), (1, 2)))}


def score_rotated_codes(settings: Mapping[str, Any]) -> list[Member]:
    """Return scores of codes of a complete grid of factors (`sizes`), by `angle` and `seed`, with `points` votes.

    Each factor has one latent, linear in its value. A seed draws the pairs of latents that are rotated into each other.
    """
    factors = np.indices(settings["sizes"]).reshape(len(settings["sizes"]), -1).T
    members = []
    for series, design in DESIGNS.items():
        for seed in settings["seed"]:
            pairs = np.random.default_rng(seed).permutation(factors.shape[1])[: 2 * design.planes].reshape(-1, 2)
            code = (factors - factors.mean(0)) / factors.std(0)
            code[:, pairs[:, 0]] *= design.spread
            for angle in settings["angle"]:
                turned = code
                for pair in pairs:
                    turned = rotate(turned, list(pair), angle)
                scores = _score(turned, factors, settings["points"], seed)
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
