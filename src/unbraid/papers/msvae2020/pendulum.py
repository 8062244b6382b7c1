"""A hierarchy of three stages with labels for two of them, on a simulated pendulum: msvae2020's figures 15 and 16.

    L -> Y0         a decoder of the length, fitted to swings without damping
    (B, Y0) -> Y1   a stage upon it whose code is the damping, fitted to swings with a mass of 1
    (Z, Y1) -> X    a VAE upon both, with one latent, of all swings; nothing tells it the mass

A row's length and damping are labels at every stage, and each stage sees the same rows. Mass and damping act as b / m
alone: without the label of b nothing could tell a heavy pendulum from one that is damped less.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from unbraid.data.pendulum import INTERVAL, RANGES, Pendulum, swing
from unbraid.experiments.base import Claim, Evidence, Results, Scale, experiment
from unbraid.experiments.drawing import label_axes
from unbraid.experiments.evidence import Finding, combine, pool_runs
from unbraid.experiments.statistics import estimate
from unbraid.metrics import Evaluation
from unbraid.metrics.stages.unlabelled_factors import encode_given_labels
from unbraid.models import LaterStage, as_stage
from unbraid.report.svg import PALETTE

LENGTH, DAMPING, MASS = tuple(RANGES)
SPEARMAN, PEARSON = f"unseen/spearman/{MASS}", f"unseen/pearson/{MASS}"
RANKED = 0.9
CLOSE = 0.2
"""Error of a traversal as a share of its spread, below which it matches: 96% of the variance along it."""

MIDDLE = Pendulum(np.array([2.0]), np.array([1.0]), np.array([1.0]))
MASSES = (0.5, 0.75, 1.0, 1.5)
"""Masses at which the length and the damping are moved."""

SERIES: dict[str, dict[str, Any]] = {
    LENGTH: {"recipe": "label-decoder", "data.observed": "undamped", "factors": (LENGTH,), "z": 1},
    DAMPING: {
        "recipe": "ms-labels",
        "refines": LENGTH,
        "data.observed": "unit-mass",
        "factors": (DAMPING,),
        "given": (LENGTH,),
        "z": 1,
    },
    MASS: {"recipe": "ms-vae", "refines": DAMPING, "data.observed": "damped", "given": (LENGTH, DAMPING), "z": 1},
}


def scale(steps: int, seeds: int, batch: int, hidden: tuple[int, ...], **data: int) -> Scale:
    """The same networks and steps at each stage."""
    how = {"steps": steps, "batch": batch, "lr": 1e-3, "decay": "cosine", "likelihood.scale": 0.1}
    how |= {"encoder.hidden": hidden, "decoder.hidden": hidden}
    rows = {f"data.{key}": value for key, value in data.items()}
    return Scale({"data": "pendulum", **rows, **how, "seed": range(seeds)}, {DAMPING: how, MASS: how})


FINE = {"lengths": 201, "dampings": 191, "masses": 191, "rows": 5_000}
WIDE = (256, 256)
SCALES = {
    "smoke": scale(3, 2, 8, (8,), lengths=5, dampings=5, masses=5, rows=60),
    "small": scale(2_000, 3, 128, WIDE, **FINE),
    "budget": scale(6_000, 3, 128, WIDE, **FINE),
    "paper": scale(20_000, 10, 128, WIDE, **FINE),
}
NOTES = (
    "5,000 pendulums with lengths, dampings and masses in steps of .01, of which the last 500 are held out; steps "
    "(those of the column `paper`, too), networks and a likelihood of deviation .1 are ours, the paper states none.",
    "The sign of z is a seed's own choice; correlations are told by their size.",
)
SHARED: dict[str, Any] = {
    "year": 2020,
    "series": SERIES,
    "scales": SCALES,
    "metrics": ("unseen/spearman", "unseen/pearson", "reconstruction/l2"),
    "scores": (SPEARMAN, PEARSON),
    "notes": NOTES,
}


class Path(NamedTuple):
    """Angles [places, times] along a traversal, of the simulator and of a model."""

    simulated: np.ndarray
    decoded: np.ndarray

    @property
    def error(self) -> float:
        """Root of the mean squared error over the deviation of the simulated angles from their mean over places."""
        spread = self.simulated - self.simulated.mean(0)
        return float(np.sqrt(((self.decoded - self.simulated) ** 2).mean() / (spread**2).mean()))


def traversed(model: Evaluation, factor: str, mass: float = 1.0, places: int = 9) -> Path:
    """One factor moved over its range, the others kept: length 2, damping 1 and a mass.

    z is what the model encodes a pendulum in the middle as, of the same mass. Where the mass itself is moved, each
    place has a z of its own.
    """
    values = np.linspace(*RANGES[factor], places)
    fixed = MIDDLE._replace(mass=np.array([mass]))
    moved = Pendulum(*(np.resize(part, places) for part in fixed))._replace(**{factor: values})
    z = _encoded(model, moved if factor == MASS else fixed)
    return Path(swing(moved), _decoded(model, moved, z))


def _codes(model: Evaluation, pendulum: Pendulum) -> torch.Tensor:
    """Coordinates [n, 2] of lengths and dampings, which may lie between those of the data."""
    sizes = model.dataset.sizes
    places = [
        (np.asarray(part) - low) / (high - low) * (sizes[column] - 1)
        for column, (part, (low, high)) in enumerate(zip(pendulum, RANGES.values(), strict=True))
    ]
    labels = _stage(model).label_codes(model.dataset)
    assert labels is not None
    return labels.codes(torch.from_numpy(np.stack(places, -1))).to(model.dataset.device)


def _encoded(model: Evaluation, pendulum: Pendulum) -> torch.Tensor:
    own = _stage(model)
    x = torch.from_numpy(swing(pendulum)).float().to(model.dataset.device)
    with torch.no_grad():
        return own.space.last_stage.center(own.encode_given(x, _codes(model, pendulum)))


def _decoded(model: Evaluation, pendulum: Pendulum, z: torch.Tensor) -> np.ndarray:
    own, c = _stage(model), _codes(model, pendulum)
    with torch.no_grad():
        return own.likelihood.mean(own.decode(torch.cat([c, z.expand(len(c), -1)], -1))).double().cpu().numpy()


def _stage(model: Evaluation) -> LaterStage:
    return as_stage(model.model)


# figure 15


def matches(factor: str) -> Finding:
    """The error of traversals of a factor, the mean over masses unless it is the mass that moves."""

    def evidence(results: Results) -> list[Evidence]:
        masses = (1.0,) if factor == MASS else MASSES
        models = [results.load_evaluation(member) for member in results.select_members(MASS, SPEARMAN)]
        errors = np.array([[np.mean([traversed(each, factor, mass).error for mass in masses])] for each in models])
        found = estimate({None: errors}, lambda c: c[None][..., 0].mean(-1))
        return [Evidence(f"error of traversals of the {factor}, as a share of their spread", found, high=CLOSE)]

    return evidence


@experiment(
    "msvae2020/fig15",
    reference="msvae2020, figure 15",
    claims=(
        Claim(
            f"moving the length or the damping alone, with z fixed, does what it does to the simulated pendulum (error "
            f"below {CLOSE:g} of the spread, ours)",
            combine(matches(LENGTH), matches(DAMPING)),
        ),
        Claim("moving z alone does what moving the mass does", matches(MASS)),
    ),
    **SHARED,
)
def fig15(results: Results, make: Any) -> Any:
    """Traversals of length, damping and z of a chain of three stages, and the simulated pendulum beside them."""
    model = results.load_evaluation(results.select_best(MASS, SPEARMAN))
    shown = 7
    figure = make(figsize=(1.25 * shown, 4.2), layout="constrained")
    panels = figure.subplots(3, shown, sharex=True, sharey=True)
    times = INTERVAL * np.arange(len(traversed(model, LENGTH, places=2).simulated[0]))
    for line, (factor, sign) in zip(panels, ((LENGTH, "l"), (DAMPING, "b"), (MASS, "m")), strict=True):
        path = traversed(model, factor, places=shown)
        for axes, value, *both in zip(line, np.linspace(*RANGES[factor], shown), *path, strict=True):
            for angles, color, style in zip(both, PALETTE, ("-", "--"), strict=False):
                axes.plot(times, angles, style, color=color, linewidth=1)
            axes.set_title(f"{sign} = {value:.2f}", fontsize=7)
            axes.tick_params(labelsize=6)
    panels[1, 0].set_ylabel("angle")
    panels[2, shown // 2].set_xlabel("seconds")
    figure.legend(["simulator", "model"], loc="outside lower right", ncols=2, fontsize=7, frameon=False)
    return figure


# figure 16


def of_seeds(score: str, middle: Callable[..., Any], what: str, **where: float) -> Finding:
    """A statistic of the sizes of a correlation over seeds."""
    return pool_runs([MASS], [score], lambda s: middle(s[..., 0], axis=-1), what, **where)


@experiment(
    "msvae2020/fig16",
    reference="msvae2020, figure 16",
    claims=(
        Claim(
            f"z ranks pendulums as their mass does, which was never given (|Spearman| above {RANKED:g} for every seed)",
            combine(
                of_seeds(SPEARMAN, np.mean, "|Spearman| of z and mass, mean over seeds", low=RANKED),
                of_seeds(SPEARMAN, np.min, "the same, least of the seeds", low=RANKED),
            ),
        ),
    ),
    **SHARED,
)
def fig16(results: Results, make: Any) -> Any:
    """Posterior means of z against the mass, of held-out pendulums."""
    members = results.select_members(MASS, SPEARMAN)[:3]
    figure = make(figsize=(2.6 * len(members), 2.6), layout="constrained")
    for axes, member in zip(np.atleast_1d(figure.subplots(1, len(members), sharex=True)), members, strict=True):
        model = results.load_evaluation(member)
        chosen = model.choose(500)
        masses = np.array(model.dataset.factors[2].values, float)[
            model.dataset.values_of(model.rows[chosen])[:, 2].cpu().numpy()
        ]
        axes.scatter(masses, encode_given_labels(model, chosen)[:, 0], s=3, color=PALETTE[0])
        axes.set_title(
            f"seed {member.settings['seed']}: |Spearman| {member.scores[SPEARMAN].value:.2f}, "
            f"|Pearson| {member.scores[PEARSON].value:.2f}",
            fontsize=7,
        )
        label_axes(axes, "mass", "z")
    return figure
