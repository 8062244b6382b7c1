r"""A damped pendulum (msvae2020, appendix C): the angle over time, from length, damping and mass.

    theta'' = -(b / m) theta' - (g / l) sin theta,    theta(0) = 0, theta'(0) = 3, g = 9.8

observed at t = 0, .1, …, 10. The paper solves it adaptively; here a fourth-order Runge-Kutta method takes ten steps
between two observations, which is exact to 1e-6. The paper's first two stages learn two simpler pendulums: without
damping, and with a mass of 1. Mass and damping only matter as b / m, so angles cannot tell one from the other.
"""

import math
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from unbraid import noise
from unbraid.data.base import dataset
from unbraid.data.factors import Factor, FactorDataset, Pixels
from unbraid.errors import UsageError

Observed = Literal["damped", "unit-mass", "undamped"]

GRAVITY = 9.8
INTERVAL, LAST = 0.1, 100
"""Seconds between two observations, and the number of the last one, from 0."""

SUBSTEPS = 10
RANGES = {"length": (1.0, 3.0), "damping": (0.1, 2.0), "mass": (0.1, 2.0)}


class Pendulum(NamedTuple):
    """Length, damping and mass [n], as numbers."""

    length: np.ndarray
    damping: np.ndarray
    mass: np.ndarray

    def simplify(self, observed: Observed) -> "Pendulum":
        """Return the pendulum that a stage observes: this one, one with a mass of 1, or one without damping."""
        if observed == "damped":
            return self
        damping = self.damping if observed == "unit-mass" else np.zeros_like(self.damping)
        return Pendulum(self.length, damping, np.ones_like(self.mass))


@dataset("pendulum", images=8_400, shape=(LAST + 1,), factors=tuple(RANGES), stages=("observed",))
def pendulum(
    *,
    observed: Observed = "damped",
    lengths: int = 21,
    dampings: int = 20,
    masses: int = 20,
    rows: int | None = None,
    seed: int = 0,
) -> FactorDataset:
    """Angles of a damped pendulum at 101 times, for every length (1 to 3), damping and mass (.1 to 2).

    `observed` chooses the simpler pendulum of a first stage: `undamped`, or `unit-mass` (msvae2020). `rows` draws that
    many combinations by `seed`, with repetition, and holds out the last tenth.
    """
    sizes = (lengths, dampings, masses)
    factors = tuple(_make_factor(name, size) for name, size in zip(RANGES, sizes, strict=True))
    table = None if rows is None else _draw_combinations(sizes, rows, seed)
    grid = np.stack(np.unravel_index(np.arange(math.prod(sizes)), sizes), 1)
    places = grid if table is None else table.numpy()
    values = [np.array(factor.values)[place] for factor, place in zip(factors, places.T, strict=True)]
    angles = torch.from_numpy(swing(Pendulum(*values).simplify(observed)).astype(np.float32))
    held_out = None if rows is None else torch.arange(rows - rows // 10, rows, device="cpu")
    source = f"simulated, {observed}"
    return FactorDataset("pendulum", Pixels(angles, (LAST + 1,)), factors, table, held_out, source)


def swing(
    pendulum: Pendulum, *, speed: float = 3.0, interval: float = INTERVAL, last: int = LAST, substeps: int = SUBSTEPS
) -> np.ndarray:
    """Return angles [n, last + 1] at the times 0, interval, 2 interval, …; `speed` is the first angular velocity."""
    length, damping, mass = (np.asarray(part, dtype=np.float64) for part in pendulum)
    if (length <= 0).any() or (mass <= 0).any() or (damping < 0).any():
        raise UsageError("A pendulum's length and mass must be above 0, and its damping at least 0.")

    def differentiate(angle: np.ndarray, velocity: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return velocity, -damping / mass * velocity - GRAVITY / length * np.sin(angle)

    step = interval / substeps
    angle, velocity = np.zeros_like(length), np.full_like(length, speed)
    angles = [angle]
    for _ in range(last):
        for _ in range(substeps):
            a1, v1 = differentiate(angle, velocity)
            a2, v2 = differentiate(angle + step / 2 * a1, velocity + step / 2 * v1)
            a3, v3 = differentiate(angle + step / 2 * a2, velocity + step / 2 * v2)
            a4, v4 = differentiate(angle + step * a3, velocity + step * v3)
            angle = angle + step / 6 * (a1 + 2 * a2 + 2 * a3 + a4)
            velocity = velocity + step / 6 * (v1 + 2 * v2 + 2 * v3 + v4)
        angles.append(angle)
    return np.stack(angles, axis=1)


def _make_factor(name: str, size: int) -> Factor:
    if size < 2:
        raise UsageError(f"A pendulum needs at least 2 values of each factor, not {size} of {name}.")
    return Factor(name, size, tuple(round(float(value), 6) for value in np.linspace(*RANGES[name], size)))


def _draw_combinations(sizes: tuple[int, ...], rows: int, seed: int) -> Tensor:
    """Return random factor values [rows, factors]."""
    if rows < 10:
        raise UsageError(f"A pendulum's rows must be at least 10, not {rows}; the last tenth is held out.")
    drawn = noise.uniform(noise.seed_tensor(seed), 0, "pendulum", (rows, len(sizes)))[0].double().cpu()
    limits = torch.tensor(sizes, device="cpu")
    return torch.minimum((drawn * limits).long(), limits - 1)
