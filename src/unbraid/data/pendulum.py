r"""A damped pendulum (msvae2020, appendix C): the angle over time, from length, damping and mass.

    theta'' = -(b / m) theta' - (g / l) sin theta,    theta(0) = 0, theta'(0) = 3, g = 9.8

seen at t = 0, .1, …, 10. The paper solves it adaptively; here a fourth-order Runge-Kutta method takes ten steps between
two observations, which is exact to 1e-6. Two simpler pendulums are what the paper's first two stages learn: without
damping, and with a mass of 1. Mass and damping only matter as b / m, so angles alone cannot tell one from the other.
"""

import math
from typing import Any, Literal, NamedTuple

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
SUBSTEPS = 10
RANGES = {"length": (1.0, 3.0), "damping": (0.1, 2.0), "mass": (0.1, 2.0)}


class Pendulum(NamedTuple):
    """Length, damping and mass [n], as numbers."""

    length: np.ndarray
    damping: np.ndarray
    mass: np.ndarray

    def seen(self, observed: Observed) -> "Pendulum":
        """What a stage looks at: the pendulum itself, with a mass of 1, or without damping."""
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

    `observed` is what its first stages model: `undamped`, or `unit-mass` (msvae2020). With `rows`, that many
    combinations are drawn by `seed`, with repetition; their last tenth is held out.
    """
    sizes = dict(zip(RANGES, (lengths, dampings, masses), strict=True))
    factors = tuple(_factor(name, size) for name, size in sizes.items())
    table = _drawn(tuple(sizes.values()), rows, seed)
    grid = np.stack(np.unravel_index(np.arange(math.prod(sizes.values())), tuple(sizes.values())), 1)
    values = _numbers(factors, grid if table is None else table.numpy())
    angles = torch.from_numpy(swing(Pendulum(*values.T).seen(observed)).astype(np.float32))
    held_out = None if rows is None else torch.arange(rows - rows // 10, rows, device="cpu")
    source = f"simulated, {observed}"
    return FactorDataset("pendulum", Pixels(angles, (LAST + 1,)), factors, table, held_out, source)


def swing(
    pendulum: Pendulum,
    *,
    speed: float = 3.0,
    interval: float = INTERVAL,
    last: int = LAST,
    substeps: int = SUBSTEPS,
) -> np.ndarray:
    """Angles [n, last + 1] at the times 0, interval, 2 interval, …, from rest position with the given angular speed."""
    length, damping, mass = (np.asarray(part, dtype=np.float64) for part in pendulum)
    if (length <= 0).any() or (mass <= 0).any() or (damping < 0).any():
        raise UsageError("A pendulum's length and mass must be above 0, and its damping at least 0.")

    def change(angle: np.ndarray, velocity: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return velocity, -damping / mass * velocity - GRAVITY / length * np.sin(angle)

    step = interval / substeps
    angle, velocity = np.zeros_like(length), np.full_like(length, speed)
    angles = [angle]
    for _ in range(last):
        for _ in range(substeps):
            a1, v1 = change(angle, velocity)
            a2, v2 = change(angle + step / 2 * a1, velocity + step / 2 * v1)
            a3, v3 = change(angle + step / 2 * a2, velocity + step / 2 * v2)
            a4, v4 = change(angle + step * a3, velocity + step * v3)
            angle = angle + step / 6 * (a1 + 2 * a2 + 2 * a3 + a4)
            velocity = velocity + step / 6 * (v1 + 2 * v2 + 2 * v3 + v4)
        angles.append(angle)
    return np.stack(angles, axis=1)


def _factor(name: str, size: int) -> Factor:
    if size < 2:
        raise UsageError(f"A pendulum needs at least 2 values of each factor, not {size} of {name}.")
    return Factor(name, size, tuple(round(float(value), 6) for value in np.linspace(*RANGES[name], size)))


def _numbers(factors: tuple[Factor, ...], places: np.ndarray) -> np.ndarray:
    columns: list[Any] = [np.array(factor.values)[own] for factor, own in zip(factors, places.T, strict=True)]
    return np.stack(columns, axis=1)


def _drawn(sizes: tuple[int, ...], rows: int | None, seed: int) -> Tensor | None:
    """Random combinations [rows, factors]; None means all of them, once each."""
    if rows is None:
        return None
    if rows < 10:
        raise UsageError(f"A pendulum's rows must be at least 10, not {rows}; the last tenth is held out.")
    drawn = noise.uniform(noise.seed_tensor(seed), 0, "pendulum", (rows, len(sizes)))[0].double().cpu()
    limits = torch.tensor(sizes, device="cpu")
    return torch.minimum((drawn * limits).long(), limits - 1)
