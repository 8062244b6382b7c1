r"""Both sides of split2020's two lemmas, on small models whose integrals can be computed.

    lemma 1   I(z_j; x | z_S) = I(z_S, z_j; x) - I(z_S; x)
    lemma 2   I(z_S; x) - sum_i I(z_i; x) = E TC(z_S | x) - TC(z_S)

x is one of a few points, z has two latents, S = {1} and j = 2 in lemma 1, S = {1, 2} in lemma 2. The posterior is
Normal, with independent noise or with correlated noise as in section 5.1. Information comes from the library's
densities and estimators of q(z), with nodes of Gauss-Hermite quadrature for noise. The conditional information and both
total correlations come from sums over a grid of z, by separate formulas.
"""

import itertools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from unbraid.density import batch_aggregate
from unbraid.experiments.base import Scale, experiment
from unbraid.experiments.drawing import plot_sides
from unbraid.experiments.evidence import find_largest
from unbraid.experiments.results import make_member
from unbraid.latents import CorrelatedNormal, Normal, Space
from unbraid.objectives import divergences, leaf_information
from unbraid.report.tables import Member
from unbraid.types import Output

NOISE = {"independent noise": 0.0, "correlated noise": 0.9}
SPREAD = (1.0, 1.0, 0.4, 0.4)
"""Standard deviations over points of the two means and the two log variances."""

REACH = 9.0
TINY = 1e-300
SIDES = {"lemma1": ("conditional", "by-chain"), "lemma2": ("by-information", "by-correlation")}


class GridTerms(NamedTuple):
    """Terms from sums over a grid."""

    conditional: float
    """I(z_2; x | z_1)"""
    inner: float
    """E TC(z | x)"""
    outer: float
    """TC(z)"""


def score_lemmas(settings: Mapping[str, Any]) -> list[Member]:
    """Return both sides of both lemmas, and their distance, for random models with `points`, one per `seed`.

    The quadrature has `nodes` per latent, and the grid of the other side `grid` points.
    """
    members = []
    for (series, correlation), seed in itertools.product(NOISE.items(), settings["seed"]):
        drawn = np.random.default_rng(seed).standard_normal((settings["points"], 4)) * np.array(SPREAD)
        posterior = torch.from_numpy(drawn)
        whole, single = compute_information(posterior, correlation, settings["nodes"])
        terms = sum_over_grid(drawn, correlation, settings["grid"])
        values = _compare("lemma1", terms.conditional, whole - single[0])
        values |= _compare("lemma2", whole - sum(single), terms.inner - terms.outer)
        members.append(make_member(series, seed, values, settings["points"]))
    return members


def _compare(lemma: str, *sides: float) -> dict[str, float]:
    """Return both sides of a lemma and their distance, by the name of a score."""
    names = [f"{lemma}/{name}" for name in (*SIDES[lemma], "deviation")]
    return dict(zip(names, (*sides, abs(sides[0] - sides[1])), strict=True))


def compute_information(posterior: Tensor, correlation: float, nodes: int) -> tuple[float, list[float]]:
    """Return I(z; x) and I(z_i; x) of both latents, for posteriors [points, (means, log variances)]."""
    block = CorrelatedNormal(size=2, correlation=correlation) if correlation else Normal(size=2)
    space, count = Space({"z": block}), len(posterior)
    places, weights = np.polynomial.hermite_e.hermegauss(nodes)
    noise = torch.tensor(list(itertools.product(places, places)))[:, None].expand(-1, count, -1)
    weight = torch.from_numpy(np.outer(weights, weights).reshape(-1)) / (2 * math.pi)
    stacked = {"z": posterior.expand(len(noise), -1, -1)}
    out = Output(stacked, space.prior(posterior), space.sample(stacked, {"z": noise}), {})
    aggregate = batch_aggregate(space, out.posterior, out.sample, "stratified", count)
    whole = divergences(out, space, aggregate)["mi"] @ weight
    return float(whole), (weight @ leaf_information(out, space, "stratified", count)).tolist()


def sum_over_grid(posterior: np.ndarray, correlation: float, size: int) -> GridTerms:
    """Return the other terms, from densities q(z_1, z_2 | x) on a grid of `size` x `size` points."""
    places = np.linspace(-REACH, REACH, size)
    step, count = places[1] - places[0], len(posterior)
    means, deviations = posterior[:, :2], np.exp(posterior[:, 2:] / 2)
    a, b = ((places[None] - means[:, [k]]) / deviations[:, [k]] for k in (0, 1))  # [points, grid]
    left = 1 - correlation**2
    square = a[:, :, None] ** 2 - 2 * correlation * a[:, :, None] * b[:, None] + b[:, None] ** 2
    scale = 2 * math.pi * math.sqrt(left) * deviations.prod(1)[:, None, None]
    each = np.exp(-square / (2 * left)) / scale  # [points, grid, grid]
    first, second, whole = each.sum(2) * step, each.sum(1) * step, each.mean(0)

    def mean_log(density: np.ndarray, above: np.ndarray, below: np.ndarray) -> float:
        return float((density * (np.log(above + TINY) - np.log(below + TINY))).sum() * step**2)

    numerator = each * first.mean(0)[:, None]  # q(z | x) q(z_1), over q(z) q(z_1 | x)
    return GridTerms(
        conditional=mean_log(each, numerator, whole * first[:, :, None]) / count,
        inner=mean_log(each, each, first[:, :, None] * second[:, None]) / count,
        outer=mean_log(whole, whole, first.mean(0)[:, None] * second.mean(0)),
    )


TOLERANCE = 1e-5
FULL: dict[str, Any] = {"points": 8, "nodes": 80, "grid": 601, "seed": range(10)}
LEMMAS = {
    "smoke": Scale({"points": 3, "nodes": 60, "grid": 301, "seed": range(2)}),
    "small": Scale({**FULL, "seed": range(4)}),
    **dict.fromkeys(("budget", "paper"), Scale(FULL)),
}


def build_facts(name: str, equation: str) -> dict[str, Any]:
    largest = find_largest(list(NOISE), f"{name}/deviation", "largest deviation", high=TOLERANCE)
    return {
        "measure": score_lemmas,
        "scales": LEMMAS,
        "ranges": {f"{name}/deviation": (0.0, math.inf)},
        "claims": {f"{equation}, with independent and with correlated noise": largest},
        "notes": (
            f"Every model is random, with two latents and a few data points. Equal means within {TOLERANCE:g} nats.",
            "The two sides are computed separately: information by quadrature from the densities of training, and the "
            "other terms from sums over a grid.",
        ),
    }


experiment.add(
    "split2020/lemma1",
    "Conditional information against the difference of information, on models that can be computed.",
    plot_sides("lemma1/by-chain", "lemma1/conditional"),
    **build_facts("lemma1", "I(z_j; x | z_S) = I(z_S, z_j; x) - I(z_S; x)"),
    scores=("lemma1/conditional", "lemma1/by-chain", "lemma1/deviation"),
)
experiment.add(
    "split2020/lemma2",
    "Information that latents hold only together, against conditional minus plain total correlation.",
    plot_sides("lemma2/by-information", "lemma2/by-correlation"),
    **build_facts("lemma2", "I(z_S; x) - sum of I(z_i; x) = TC(z_S | x) - TC(z_S)"),
    scores=("lemma2/by-information", "lemma2/by-correlation", "lemma2/deviation"),
)
