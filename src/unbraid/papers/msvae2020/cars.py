"""Settings of msvae2020's studies on Cars3D: the first stage, the stages that refine it, and their competitors.

The text gives |C| = 10, |Z| = 5 and beta from 1 to 10. For the first stage it refers to disentanglement_lib, whose
protocol is locatello2019's (convolutions, Adam 1e-4, batches of 64, 300,000 steps). The authors' code gives the second
stage's networks, Adam 1e-4 and batches of 32. Its number of steps is unknown; here it is the first stage's (ours).

The paper's FID uses Inception. Without its weights the features come from a classifier of the data's own labels, whose
values are not comparable with the paper's; the claims test their order. With weights (the variable UNBRAID_INCEPTION)
every run has both distances, and claims are about the FID.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from unbraid.experiments.base import AS_LARGE_AS, REFINES, Scale
from unbraid.experiments.evidence import Finding
from unbraid.experiments.results import Results
from unbraid.experiments.stand_in import StandIn
from unbraid.metrics import Score

BASE, LARGE, BIG, BIG_VAE = "beta-TCVAE", "beta-TCVAE-L", "Big-beta-TCVAE", "Big-VAE"
MS, STUDENT = "MS-VAE", "Jacobian student"

DISTANCE = "frechet/classifier"
"""Frechet distance between reconstructions and data."""

FID, INCEPTION = "frechet/inception/reconstructions", "frechet/inception"
"""The paper's distance, by Inception's features; measured if the variable UNBRAID_INCEPTION names the weights."""

MIG, RE_ENCODED, L1, L2 = "mig of C", "mig-of/re-encoded", "reconstruction/l1", "reconstruction/l2"
KL_OF_Z = "kl of z"
METRICS = ("mig-of/blocks", RE_ENCODED, L1, L2, INCEPTION)
PAIRED_BY = ("beta", "seed")
"""Settings that a stage shares with the run that it refines."""

SERIES: dict[str, dict[str, Any]] = {
    BASE: {"recipe": "beta-tcvae", "z": 10},
    MS: {"recipe": "ms-vae", REFINES: BASE, "z": 5},
    LARGE: {"recipe": "beta-tcvae", "z": 15},
    BIG: {"recipe": "beta-tcvae", "z": 15, AS_LARGE_AS: MS},
    BIG_VAE: {"recipe": "beta-vae", "beta": 1, "z": 15, AS_LARGE_AS: MS},
    STUDENT: {"recipe": "jacobian-student", REFINES: BASE, "z": 5, AS_LARGE_AS: MS},
}
NORB_LATENTS = {MS: 10, BIG: 20}
"""Numbers of latents that differ on SmallNORB, where |Z| = 10."""

CARS, NORB = StandIn("cars3d", "sprites"), StandIn("smallnorb", "sprites")
TITLES = {CARS: "Cars3D", NORB: "SmallNORB"}
BUDGET_STEPS, PAPER_STEPS = 12_000, 300_000
"""Steps of either stage."""

SPRITES: dict[str, Any] = {"data": "sprites", "data.size": 32}
FEW_SPRITES: dict[str, Any] = {**SPRITES, "data.scales": 2, "data.orientations": 2, "data.positions": 3}
MORE_SPRITES: dict[str, Any] = {**SPRITES, "data.orientations": 10, "data.positions": 8}
TINY_NETWORKS: dict[str, Any] = {
    "network": "conv-small",
    "encoder.width": 4,
    "encoder.hidden": 8,
    "decoder.width": 4,
    "decoder.hidden": 8,
}
BUDGET_RATE: dict[str, Any] = {"lr": 1e-3, "decay": "cosine", "precision": "bf16"}
PAPER_RATE: dict[str, Any] = {"lr": 1e-4, "decay": "none", "precision": "f32"}
SHARED: dict[str, dict[str, Any]] = {
    "smoke": {**FEW_SPRITES, **TINY_NETWORKS, "beta": [1], "batch": 8, "steps": 2, "seed": range(1)},
    "small": {**MORE_SPRITES, "beta": [1, 4], "batch": 32, "steps": 500, "lr": 1e-3, "seed": range(3)},
    "budget": {"data": CARS, "beta": [1, 4, 10], "batch": 64, "steps": BUDGET_STEPS, **BUDGET_RATE, "seed": range(5)},
    "paper": {"data": CARS, "beta": [*range(1, 11)], "batch": 64, "steps": PAPER_STEPS, **PAPER_RATE, "seed": range(5)},
}
STAGE_SETTINGS: dict[str, dict[str, Any]] = {
    "smoke": {"steps": 2, "batch": 8},
    "small": {"steps": 200, "batch": 32, "lr": 1e-3},
    "budget": {"steps": BUDGET_STEPS, "batch": 64, **BUDGET_RATE},
    "paper": {"steps": PAPER_STEPS, "batch": 32, "lr": 1e-4, "precision": "f32"},
}
"""Settings of every second stage."""

STUDENT_SETTINGS: dict[str, dict[str, Any]] = {"budget": {"lr": 3e-4}}
"""At a rate of 1e-3 the squared error drives the pixels of a third of the student's runs to white, for good."""

REFINER_SETTINGS: dict[str, dict[str, Any]] = {
    "smoke": {"encoder.channels": 2, "decoder.channels": 2},
    "small": {"encoder.channels": 8, "decoder.channels": 8},
    "budget": {"encoder.channels": 32, "decoder.channels": 32},
    "paper": {"samples": 1},
}
"""Settings of MS-VAE only: its networks, and at `paper` a y that comes from a draw of c (appendix I)."""

DISTANCE_SETTINGS: dict[str, dict[str, Any]] = {"smoke": {"samples": 64, "steps": 2, "resamples": 0}}


def describe_stand_in(data: StandIn) -> str:
    """Return the note on a data set whose files users bring."""
    return (
        f"{data.wanted} needs its official files (`unbraid data`). At `smoke` and `small`, and without the files, "
        f"{data.instead} replace it; the claims say nothing about {data.instead}."
    )


NOTES = (
    describe_stand_in(CARS),
    f"{DISTANCE} is the Frechet distance of reconstructions in the features of a classifier of the data's labels, "
    f"trained here. The paper's FID uses Inception's features: {FID}, which is measured and judged instead if "
    "UNBRAID_INCEPTION names their weights. The two are not on one scale.",
    "`mig of C` is the gap of the first stage's latents for a model that refines it, and of all latents otherwise "
    "(means and 20 bins, as in disentanglement_lib).",
    f"`budget` has {BUDGET_STEPS / PAPER_STEPS:.0%} of the paper's steps, half of the second stage's channels, and a "
    "rate that falls from 1e-3 to 0 by a cosine instead of 1e-4. The paper does not say how long its second stage "
    "trains (ours: as long as the first). At `paper` MS-VAE learns from one draw of c for each x (appendix I), "
    "elsewhere from the mean of c.",
)
SIZES_NOTE = (
    "Big models have conv-wide networks with as many parameters as MS-VAE's two stages together, within .5%, and train "
    "for as many steps as both stages. The student is as large and trains for as many steps as the second stage "
    "(ours); at `budget` its rate falls from 3e-4."
)


def select_mig_of_c(scores: Mapping[str, Score]) -> Score:
    """Return the gap of the block that holds C: one of two blocks, the first stage's, or the only one."""
    names = [f"mig-of/blocks/{block}" for block in ("z_0", "c", "z")]
    return next(scores[name] for name in names if name in scores)


def choose_distance(results: Results) -> str:
    """Return the FID if every finished run has it, and else the distance by features of a classifier."""
    finished = [member for member in results.members if member.state == "finished"]
    return FID if finished and all(FID in member.scores for member in finished) else DISTANCE


def by_distance(build: Callable[[str], Finding]) -> Finding:
    """Return a finding about the distance that the results allow."""
    return lambda results: build(choose_distance(results))(results)


def sum_kl_of_z(scores: Mapping[str, Score]) -> Score:
    """Return the KL in nats of all latents whose names begin with z: those of the last stage."""
    score = scores["kl/closed-form"]
    latents = score.details["latents"].items()
    return replace(score, value=float(sum(kl for name, kl in latents if name.startswith("z"))), interval=None)


def make_scale(name: str, shared: Mapping[str, Any], of_series: Mapping[str, Mapping[str, Any]]) -> Scale:
    """Return a scale that measures the distance of reconstructions."""
    distance = (f"{DISTANCE}/reconstructions", DISTANCE_SETTINGS.get(name, {"resamples": 0}))
    return Scale(shared, per_series=of_series, measures={DISTANCE: distance})


def settings_of_series(scale: str) -> dict[str, dict[str, Any]]:
    """Return the settings of single series at a scale; Big models train for the steps of both stages."""
    stage = STAGE_SETTINGS[scale]
    big = {"steps": SHARED[scale]["steps"] + stage["steps"]}
    return {
        MS: {**stage, **REFINER_SETTINGS[scale]},
        STUDENT: {**stage, **STUDENT_SETTINGS.get(scale, {})},
        BIG: big,
        BIG_VAE: big,
    }


def shared_settings(scale: str, data: StandIn) -> dict[str, Any]:
    """Return the settings that all series share, with other data in place of Cars3D."""
    return {**SHARED[scale], "data": data} if SHARED[scale]["data"] is CARS else SHARED[scale]


def sweep_beta(
    *series: str, metrics: Sequence[str] = METRICS, notes: Sequence[str] = (), data: StandIn = CARS
) -> dict[str, Any]:
    """Return series, scales and scores of an experiment that sweeps beta."""
    latents = NORB_LATENTS if data is NORB else {}
    scales = {}
    for scale in SHARED:
        own = {name: settings for name, settings in settings_of_series(scale).items() if name in series}
        scales[scale] = make_scale(scale, shared_settings(scale, data), own)
    return {
        "series": {n: {**SERIES[n], **({"z": latents[n]} if n in latents else {})} for n in series},
        "only": {STUDENT: {"beta": [1, 10]}} if STUDENT in series else {},
        "scales": scales,
        "metrics": tuple(metrics),
        "derived": {MIG: select_mig_of_c},
        "ranges": {MIG: (0.0, 1.0)},
        "notes": (describe_stand_in(data), *NOTES[1:], *notes),
    }
