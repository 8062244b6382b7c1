r"""The identities of esmaeili2018's figures 2 and 4, on models so small that every integral can be computed.

A model has a few points x_n with Normal posteriors over three latents in two groups, a decoder of binary pixels, and a
prior with or without a covariance. The left side of each identity is an integral on a grid of densities that this file
writes out. The terms on the right come from the library's densities at Gauss-Hermite nodes of each posterior. Signs are
as in the paper: terms 2, 3, 4, B and ii are at most 0.
"""

import math
from collections.abc import Mapping
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.special import log_expit, logsumexp
from torch import Tensor

from unbraid.config import Choice
from unbraid.density import exact_aggregate
from unbraid.experiments.results import make_member
from unbraid.latents import LEARNED_PRIOR, Space
from unbraid.report.tables import Member

PRIORS = ("standard prior", "prior with covariance")
IDENTITIES = ("identity/elbo", "identity/blocks", "identity/variables")
"""ELBO = 1 + 2 + 3 + 4 (figure 2); 4 = A + B; B = i + ii (figure 4)."""

GROUPS = ((0, 1), (2,))
PIXELS, REACH = 4, 8.0


class SmallModel(NamedTuple):
    """Posteriors and prior in the form of the library and as arrays, and the weights of a decoder."""

    space: Space
    posterior: dict[str, Tensor]
    prior: dict[str, Tensor]
    means: np.ndarray
    deviations: np.ndarray
    covariance: np.ndarray
    images: np.ndarray
    weights: tuple[np.ndarray, np.ndarray]

    def log_likelihood(self, codes: np.ndarray) -> np.ndarray:
        """Return log p(x_n | z) [codes, n] of independent binary pixels."""
        logits = np.tanh(codes @ self.weights[0]) @ self.weights[1]
        signs = 2 * self.images - 1
        return log_expit(logits[:, None, :] * signs).sum(-1)


def score_identities(settings: Mapping[str, Any]) -> list[Member]:
    """Return the error of each identity by prior and `seed`, with `points` rows and `nodes` per latent."""
    members, step = [], settings["step"]
    for series, seed in product(PRIORS, settings["seed"]):
        model = draw_model(series, seed, settings["points"])
        left, right = integrate_grid(model, step), sum_nodes(model, settings["nodes"], step)
        errors = {name: abs(left[name] - right[name]) for name in IDENTITIES}
        members.append(make_member(series, seed, errors, settings["points"]))
    return members


def draw_model(kind: str, seed: int, points: int) -> SmallModel:
    """Return a random model with this kind of prior."""
    rng = np.random.default_rng(seed)
    latents = {"z": {"kind": "normal", "size": 2}, "w": {"kind": "normal", "size": 1}}
    learned = None if kind == PRIORS[0] else Choice("covariance", {})
    space = Space.from_config(latents, "blocks", learned)
    means, log_variance = 0.8 * rng.standard_normal((points, 3)), rng.uniform(-0.8, 0.2, (points, 3))
    flat = [np.concatenate([means[:, g], log_variance[:, g]], 1) for g in map(list, GROUPS)]
    posterior = {name: torch.from_numpy(part) for name, part in zip(("z", "w"), flat, strict=True)}
    prior, covariance = space.prior(posterior["z"]), np.eye(3)
    if space.learned is not None:
        count = sum(math.prod(shape) for shape in space.learned.shapes.values())
        prior[LEARNED_PRIOR] = torch.from_numpy(0.4 * rng.standard_normal(count))
        covariance = space.learned.covariance(prior).numpy().reshape(3, 3)  # type: ignore[attr-defined]
    images = np.array([[n >> bit & 1 for bit in range(PIXELS)] for n in rng.permutation(2**PIXELS)[:points]])
    weights = 0.3 * rng.standard_normal((3, 8)), rng.standard_normal((8, PIXELS))
    return SmallModel(space, posterior, prior, means, np.exp(log_variance / 2), covariance, images, weights)


def log_normal(z: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """Return the log density of N(0, covariance) at z [..., d]."""
    factor = np.linalg.cholesky(covariance)
    standard = np.linalg.solve(factor, z[..., None])[..., 0]
    constant = z.shape[-1] * math.log(2 * math.pi) / 2 + np.log(np.diag(factor)).sum()
    return -0.5 * (standard**2).sum(-1) - constant


def log_posteriors(model: SmallModel, z: np.ndarray, group: tuple[int, ...]) -> np.ndarray:
    """Return log q(z_g | x_n) [..., n]."""
    columns = list(group)
    standard = (z[..., None, columns] - model.means[:, columns]) / model.deviations[:, columns]
    return (-0.5 * standard**2 - np.log(model.deviations[:, columns]) - 0.5 * math.log(2 * math.pi)).sum(-1)


def make_grid(step: float) -> tuple[np.ndarray, float]:
    """Return the points of a cube [points, 3] and the log volume of one cell."""
    axis = np.arange(-REACH, REACH + step / 2, step)
    return np.stack(np.meshgrid(axis, axis, axis, indexing="ij"), -1).reshape(-1, 3), 3 * math.log(step)


def integrate_grid(model: SmallModel, step: float) -> dict[str, float]:
    """Return the left sides: -KL(q(z, x) || p(x, z)), -KL(q(z) || p(z)), and -sum_g KL(q(z_g) || p(z_g))."""
    z, log_cell = make_grid(step)
    count = len(model.means)
    conditional = log_posteriors(model, z, (0, 1, 2))  # [points, n]
    prior = log_normal(z, model.covariance)
    joint = np.exp(conditional + log_cell) / count
    elbo = (joint * (model.log_likelihood(z) + prior[:, None] - conditional + math.log(count))).sum()
    mass = joint.sum(1)
    marginal = logsumexp(conditional, axis=1) - math.log(count)
    blocks = 0.0
    for group in GROUPS:
        aggregate = logsumexp(log_posteriors(model, z, group), axis=1) - math.log(count)
        covariance = model.covariance[np.ix_(group, group)]
        blocks -= (mass * (aggregate - log_normal(z[:, list(group)], covariance))).sum()
    whole = -(mass * (marginal - prior)).sum()
    return dict(zip(IDENTITIES, (float(elbo), float(whole), float(blocks)), strict=True))


def sum_nodes(model: SmallModel, nodes: int, step: float) -> dict[str, float]:
    """Return the right sides: 1 + 2 + 3 + 4, A + B and i + ii, each term from the library's densities."""
    places, chances = np.polynomial.hermite_e.hermegauss(nodes)
    standard = np.stack(np.meshgrid(places, places, places, indexing="ij"), -1).reshape(-1, 3)
    share = np.prod(np.stack(np.meshgrid(*[chances] * 3, indexing="ij"), -1).reshape(-1, 3), 1)
    share = torch.from_numpy(share / share.sum() / len(model.means))
    totals = dict.fromkeys(("gain", "mi", "kl", "between", "blocks", "within", "variables"), 0.0)
    for n, (mean, deviation) in enumerate(zip(model.means, model.deviations, strict=True)):
        code = mean + deviation * standard
        sample = {"z": torch.from_numpy(code[:, :2]), "w": torch.from_numpy(code[:, 2:])}
        posterior = model.space.joint_density({k: p[n : n + 1] for k, p in model.posterior.items()}, sample)
        levels = [level.sum(-1) for level in exact_aggregate(model.space, model.posterior, sample).levels]
        prior = model.space.prior_levels(model.prior, sample)
        parts = {
            "gain": torch.from_numpy(model.log_likelihood(code)[:, n]),
            "mi": levels[0] - posterior,
            "kl": prior[0] - levels[0],
            "between": (prior[0] - prior[1]) - (levels[0] - levels[1]),
            "blocks": prior[1] - levels[1],
            "within": (prior[1] - prior[2]) - (levels[1] - levels[2]),
            "variables": prior[2] - levels[2],
        }
        for name, values in parts.items():
            totals[name] += float((share * values).sum())
    evidence = _log_evidence(model, step)
    gain, marginal = totals["gain"] - evidence.mean(), evidence.mean() + math.log(len(evidence))
    right = (
        gain + totals["mi"] + marginal + totals["kl"],
        totals["between"] + totals["blocks"],
        totals["within"] + totals["variables"],
    )
    return dict(zip(IDENTITIES, map(float, right), strict=True))


def _log_evidence(model: SmallModel, step: float) -> np.ndarray:
    """Return log p(x_n) [n] by the grid."""
    z, log_cell = make_grid(step)
    return logsumexp(model.log_likelihood(z) + log_normal(z, model.covariance)[:, None] + log_cell, axis=0)
