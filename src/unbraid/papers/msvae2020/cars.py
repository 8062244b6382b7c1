"""Settings of msvae2020's studies on Cars3D: a first stage, what refines it, and what it is compared with.

The text gives |C| = 10, |Z| = 5 and beta 1 to 10, and for the first stage disentanglement_lib, whose protocol is
locatello2019's (convolutions, Adam 1e-4, batches of 64, 300,000 steps). Of the second stage the authors' code says the
networks, Adam 1e-4 and batches of 32; how long it trains is said nowhere (here as long as the first, ours).

The paper's FID is that of Inception; here the features are those of a classifier of the data's own labels, which needs
no weights from elsewhere. Levels differ, so the order is tested.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from unbraid.experiments.base import AS_LARGE_AS, REFINES, Scale, StandIn
from unbraid.metrics import Score

BASE, LARGE, BIG, BIG_VAE = "beta-TCVAE", "beta-TCVAE-L", "Big-beta-TCVAE", "Big-VAE"
MS, STUDENT = "MS-VAE", "Jacobian student"

DISTANCE = "frechet/classifier"
"""Of reconstructions."""

MIG, RE_ENCODED, L1, L2 = "mig of C", "mig-of/re-encoded", "reconstruction/l1", "reconstruction/l2"
METRICS = ("mig-of/blocks", RE_ENCODED, L1, L2)
PAIR = ("beta", "seed")
"""Settings that a stage shares with the run that it refines."""

SERIES: dict[str, dict[str, Any]] = {
    BASE: {"recipe": "beta-tcvae", "z": 10},
    MS: {"recipe": "ms-vae", REFINES: BASE, "z": 5},
    LARGE: {"recipe": "beta-tcvae", "z": 15},
    BIG: {"recipe": "beta-tcvae", "z": 15, AS_LARGE_AS: MS},
    BIG_VAE: {"recipe": "beta-vae", "beta": 1, "z": 15, AS_LARGE_AS: MS},
    STUDENT: {"recipe": "jacobian-student", REFINES: BASE, "z": 5, AS_LARGE_AS: MS},
}

CARS, NORB = StandIn("cars3d", "sprites"), StandIn("smallnorb", "sprites")
STEPS, PAPER_STEPS = 12_000, 300_000
"""Of either stage, at `budget` and at `paper`."""

SPRITES: dict[str, Any] = {
    "data": "sprites",
    "data.size": 32,
    "data.scales": 2,
    "data.orientations": 2,
    "data.positions": 3,
}
SMOKE: dict[str, Any] = {
    **SPRITES,
    "network": "conv-small",
    "encoder.width": 4,
    "encoder.hidden": 8,
    "decoder.width": 4,
    "decoder.hidden": 8,
    "beta": [1],
    "batch": 8,
    "steps": 2,
    "seed": range(1),
}
SMALL: dict[str, Any] = {
    "data": "sprites",
    "data.size": 32,
    "data.orientations": 10,
    "data.positions": 8,
    "beta": [1, 4],
    "batch": 32,
    "steps": 500,
    "lr": 1e-3,
    "seed": range(3),
}
BUDGET: dict[str, Any] = {
    "data": CARS,
    "beta": [1, 4, 10],
    "batch": 64,
    "steps": STEPS,
    "lr": 1e-3,
    "decay": "cosine",
    "precision": "bf16",
    "seed": range(3),
}
PAPER: dict[str, Any] = {
    **BUDGET,
    "beta": list(range(1, 11)),
    "steps": PAPER_STEPS,
    "lr": 1e-4,
    "decay": "none",
    "precision": "f32",
    "seed": range(5),
}
SHARED = {"smoke": SMOKE, "small": SMALL, "budget": BUDGET, "paper": PAPER}

STAGES: dict[str, dict[str, Any]] = {
    "smoke": {"steps": 2, "batch": 8},
    "small": {"steps": 200, "batch": 32, "lr": 1e-3},
    "budget": {"steps": STEPS, "batch": 64, "lr": 1e-3, "decay": "cosine", "precision": "bf16"},
    "paper": {"steps": PAPER_STEPS, "batch": 32, "lr": 1e-4, "precision": "f32"},
}
"""What refines a run, at each scale."""

SLOWER: dict[str, dict[str, Any]] = {"budget": {"lr": 3e-4}}
"""Of the student: at a rate of 1e-3 the squared error drives the pixels of a third of its runs to white, for good."""

REFINERS: dict[str, dict[str, Any]] = {
    "smoke": {"encoder.channels": 2, "decoder.channels": 2},
    "small": {"encoder.channels": 8, "decoder.channels": 8},
    "budget": {"encoder.channels": 32, "decoder.channels": 32},
    "paper": {"samples": 1},
}
"""What is MS-VAE's own, at each scale: its networks, and at `paper` that y comes from a draw of c (appendix I)."""

OF_NORB: dict[str, int] = {MS: 10, BIG: 20}
"""Latents on SmallNORB, where |Z| = 10."""

FEATURES: dict[str, dict[str, Any]] = {"smoke": {"samples": 64, "steps": 2, "resamples": 0}}

NOTES = (
    "Cars3D wants its files (`unbraid data`); at `smoke` and `small`, and without them, sprites stand in, about which "
    "the claims say nothing.",
    f"{DISTANCE} is the Frechet distance of reconstructions in the features of a classifier of the data's labels, "
    "trained here; the paper's FID has Inception's.",
    "`mig of C` is the gap of the first stage's latents alone for what refines it, and of all latents elsewhere (means "
    "and 20 bins, as disentanglement_lib's).",
    f"`budget` has {STEPS / PAPER_STEPS:.0%} of the paper's steps, half of the channels in the second stage, and a "
    "rate that falls from 1e-3 to 0 by a cosine instead of 1e-4; how long the paper's second stage trains is not known "
    "(as long as the first, ours). At `paper` MS-VAE learns from one draw of c for each x (appendix I), elsewhere from "
    "its mean.",
)
SIZES = (
    "Big models have conv-wide networks whose parameters are as many as those of MS-VAE's two stages together, within "
    ".5%, and train for as many steps as both together; as large is the student, which trains for as many steps as the "
    "second stage alone (ours)."
)


def absent(data: StandIn) -> str:
    """A note about data that users bring."""
    return (
        f"{data.wanted} wants its official files (`unbraid data`); at `smoke` and `small`, and without them, "
        f"{data.instead} stand in, about which the claims say nothing."
    )


def mig_of_c(scores: Mapping[str, Score]) -> Score:
    """The gap of the first stage's block, or of the only one."""
    return scores["mig-of/blocks/c"] if "mig-of/blocks/c" in scores else scores["mig-of/blocks/z"]


def scale(name: str, shared: Mapping[str, Any], own: Mapping[str, Mapping[str, Any]]) -> Scale:
    """A scale at which reconstructions are compared."""
    distance = (f"{DISTANCE}/reconstructions", FEATURES.get(name, {"resamples": 0}))
    return Scale(shared, per_series=own, measures={DISTANCE: distance})


def stages(name: str, series: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What MS-VAE and the student have at a scale, and Big models, which get the steps of both stages."""
    big = {"steps": SHARED[name]["steps"] + STAGES[name]["steps"]}
    student = {**STAGES[name], **SLOWER.get(name, {})}
    own = {MS: {**STAGES[name], **REFINERS[name]}, STUDENT: student, BIG: big, BIG_VAE: big}
    return {each: settings for each, settings in own.items() if each in series}


def on_data(name: str, data: StandIn) -> dict[str, Any]:
    """Shared settings of a scale on other data than Cars3D, where it has them at all."""
    return {**SHARED[name], "data": data} if SHARED[name]["data"] is CARS else SHARED[name]


def sizes(series: str, data: StandIn) -> dict[str, int]:
    """Numbers of latents that are not those on Cars3D."""
    return {"z": OF_NORB[series]} if data is NORB and series in OF_NORB else {}


def on_cars(
    *series: str, metrics: Sequence[str] = METRICS, more: Sequence[str] = (), data: StandIn = CARS
) -> dict[str, Any]:
    """Series, scales and scores of an experiment over beta, on Cars3D unless it says otherwise."""
    return {
        "series": {name: {**SERIES[name], **sizes(name, data)} for name in series},
        "only": {STUDENT: {"beta": [1, 10]}} if STUDENT in series else {},
        "scales": {name: scale(name, on_data(name, data), stages(name, series)) for name in SHARED},
        "metrics": tuple(metrics),
        "derived": {MIG: mig_of_c},
        "notes": (*(NOTES if data is CARS else (absent(data), *NOTES[1:])), *more),
    }
