"""Identity while C moves: msvae2020's figures 21 to 31, as a number, on Cars3D.

The paper shows traversals of C at a fixed Z, of MS-GAN and CGAN (with labels: figures 21, 25 and 26) and of MS-GAN and
InfoGAN (without: figures 22, 23 and 28 to 31), on renders of faces, chairs and cars that are not public. Here a
classifier of the data's own labels decides how often a car stays the same car (`kept/drawn`).

The text gives DCGANs, Adam 1e-4 with betas .5 and .999, and a bottleneck of 2 dimensions for cars without labels. The
width of z, the steps and the weight of the first stage's KL are ours. All three generators have networks of DCGAN's
widths, and as many inputs for noise.
"""

from collections.abc import Mapping
from typing import Any

import torch

from unbraid.experiments.base import REFINES, Scale, experiment
from unbraid.experiments.drawing import draw_pictures
from unbraid.experiments.evidence import Finding, combine, compare_means, find_mean
from unbraid.experiments.results import Results, derive
from unbraid.experiments.stand_in import StandIn
from unbraid.metrics import Evaluation, Score
from unbraid.metrics.generative.features.feature_sets import draw_prior_codes
from unbraid.metrics.intervention.factor_preservation import choose_latents, decode_pictures, set_latent
from unbraid.papers.msvae2020.cars import CARS, FEW_SPRITES, MORE_SPRITES
from unbraid.report import Picture
from unbraid.report.pictures import WHITE, tile_images

MS, CGAN, INFO = "MS-GAN", "CGAN", "InfoGAN"
FIRST, LABELS = "beta-VAE", "labels"
KEPT, ABOVE_CHANCE = "identity kept", "identity kept above chance"
CHANGE, ACCURACY = "change per pixel", "accuracy of the classifier"
SCORES = (ABOVE_CHANCE, KEPT, CHANGE, ACCURACY)
SPAN = 1.5
"""Largest value of a dimension of C in a traversal; labels and most codes lie within 1.7 of 0."""

MIN_CHANGE = 0.01
"""Change per pixel, of 1 at most, between the ends of a traversal above which C moves something (ours)."""

VIEW, PLACE = ("azimuth", "elevation"), ("posX", "posY")
"""Labels of a car or chair, and of a sprite in its place."""

NOISE = 10
GAN_SERIES: dict[str, dict[str, Any]] = {
    MS: {"recipe": "ms-gan", REFINES: FIRST, "z": NOISE},
    CGAN: {"recipe": "cgan", REFINES: FIRST, "z": NOISE},
}
UNSUPERVISED: dict[str, dict[str, Any]] = {
    FIRST: {"recipe": "beta-vae", "z": 2},
    **GAN_SERIES,
    INFO: {"recipe": "info-gan", "z": 2, "noise": NOISE, "network": "dcgan", "lr": 1e-4},
}
SUPERVISED: dict[str, dict[str, Any]] = {
    LABELS: {"recipe": "label-decoder", "z": 2},
    **{name: {**settings, REFINES: LABELS} for name, settings in GAN_SERIES.items()},
}
SHARED: dict[str, dict[str, Any]] = {
    "smoke": {**FEW_SPRITES, "seed": range(1)},
    "small": {**MORE_SPRITES, "seed": range(3)},
    "budget": {"data": CARS, "precision": "bf16", "seed": range(3)},
    "paper": {"data": CARS, "seed": range(5)},
}
FIRST_STAGES: dict[str, dict[str, Any]] = {
    "smoke": {"network": "mlp", "encoder.hidden": (8,), "decoder.hidden": (8,), "batch": 8, "steps": 2},
    "small": {"batch": 64, "steps": 1_500},
    "budget": {"batch": 64, "steps": 10_000, "lr": 5e-4},
    "paper": {"batch": 64, "steps": 300_000, "lr": 1e-4},
}
GANS: dict[str, dict[str, Any]] = {
    "smoke": {"batch": 8, "steps": 2, "encoder.channels": 2, "decoder.channels": 2},
    "small": {"steps": 1_000, "batch": 32, "instance_noise_steps": 500, "encoder.channels": 16, "decoder.channels": 16},
    "budget": {"steps": 10_000, "batch": 64, "instance_noise_steps": 5_000},
    "paper": {"steps": 100_000, "batch": 64, "instance_noise_steps": 50_000},
}
CLASSIFIERS: dict[str, dict[str, Any]] = {"smoke": {"samples": 8, "steps": 2, "places": 3}, "small": {}}
NOTES = (
    "The paper's renders are not public; Cars3D replaces them and needs its files (`unbraid data`).",
    "Identity is the first factor of the data: the car, or at `smoke` and `small` the shape of a sprite, about which "
    f"the claims say nothing. Each active dimension of C moves from -{SPAN:g} to {SPAN:g} while the draw of z stays. "
    "Identity is kept if a classifier of the data's labels sees the same one as before; the table has its accuracy on "
    "rows that it was not trained on.",
    "A generator that always draws one identity keeps it. Above chance is therefore (kept - p) / (1 - p), with p the "
    "share of pairs of different rows whose pictures look alike. A generator that ignores C keeps everything and "
    "changes nothing.",
    f"Claims therefore also ask that C of MS-GAN moves something: more than {MIN_CHANGE:g} per pixel (ours).",
    "The figure shows the run of each series that keeps identity best.",
    "`budget` has 10% of the generators' steps at `paper`, which are ours; the paper does not give them. A GAN whose "
    "generator's loss has settled plays a steady game; the loss does not tell how good its images are.",
)


def remove_chance(score: Score) -> float:
    """Return (kept - p) / (1 - p), with p the share of pairs of different rows whose pictures look alike."""
    chance = score.details["chance"]
    return (score.value - chance) / (1 - chance) if chance < 1 else 0.0


score_above_chance = derive(KEPT, "above-chance", remove_chance)
mean_change = derive(KEPT, "moved", lambda s: sum(s.details["moved"].values()) / len(s.details["moved"]))
"""Mean absolute change per pixel between the ends of a traversal, over dimensions of C."""


def classifier_accuracy(scores: Mapping[str, Score]) -> Score:
    details = scores[KEPT].details
    network = details["network"]
    return Score("kept", "drawn", network["accuracy"][details["factor"]], network["held_out_rows"], part="accuracy")


def define_study(series: Mapping[str, Mapping[str, Any]], data: StandIn = CARS) -> dict[str, Any]:
    """Return series, scales and scores of generators on a first stage."""
    scales = {}
    for scale, on_cars in SHARED.items():
        shared = {**on_cars, "data": data} if on_cars["data"] is CARS else on_cars
        own = {name: dict(FIRST_STAGES[scale] if name in (FIRST, LABELS) else GANS[scale]) for name in series}
        for name in series:
            if LABELS in series:
                own[name] |= label_settings(scale, name, data)
            if scale == "budget" and REFINES in series[name]:
                own[name]["precision"] = "bf16"
        measure = ("kept/drawn", {"span": SPAN, **CLASSIFIERS.get(scale, {"steps": 4_000})})
        scales[scale] = Scale(shared, per_series=own, measures={KEPT: measure})
    derived = {ABOVE_CHANCE: score_above_chance, CHANGE: mean_change, ACCURACY: classifier_accuracy}
    ranges = dict.fromkeys((CHANGE, ACCURACY), (0.0, 1.0))
    return {"series": series, "scales": scales, "derived": derived, "scores": SCORES, "ranges": ranges}


def label_settings(scale: str, series: str, data: StandIn = CARS) -> dict[str, Any]:
    """Return the labels of a series: the view of a car or chair, or the place of a sprite."""
    on_renders = SHARED[scale]["data"] is CARS
    labels = VIEW if on_renders else PLACE
    if series != LABELS:
        return {"given": labels}
    instead = StandIn(data.wanted, data.instead, {"factors": PLACE}, {"given": PLACE})
    return {"factors": labels, "data": instead} if on_renders else {"factors": labels}


def keeps_more_than(other: str) -> Finding:
    """Return the evidence that MS-GAN keeps identity more often than another model although its C moves something."""
    moves = find_mean(MS, CHANGE, f"mean {CHANGE} of {MS}", low=MIN_CHANGE)
    return combine(compare_means(other, MS, ABOVE_CHANCE, low=0.0), moves)


def draw_best(results: Results, make: Any) -> Any:
    """Draw the run of each generator that keeps identity best."""
    series = [name for name in (MS, CGAN, INFO) if name in results.series]
    best = {name: results.load_evaluation(results.select_best(name, ABOVE_CHANCE)) for name in series}
    return draw_pictures(make, [[(name, draw_traversals(model))] for name, model in best.items()])


def draw_traversals(evaluation: Evaluation, rows: int = 3, columns: int = 7) -> Picture:
    """Draw rows with one z each, in which C moves from left to right: first one of its dimensions, then another."""
    codes, drawn = evaluation.draw_codes(evaluation.choose(rows)), draw_prior_codes(evaluation, rows)
    values = torch.linspace(-SPAN, SPAN, columns)
    lines = []
    for latent in choose_latents(evaluation, None)[0][:2]:
        across = [decode_pictures(evaluation, set_latent(codes, latent, float(value)), drawn) for value in values]
        lines.append(torch.stack(across, 1))  # [rows, columns, *shape]
    return tile_images(torch.cat(lines), WHITE)


CHAIRS, FACES = StandIn("chairs3d", "sprites"), StandIn("celeba", "sprites")
LABELLED_CHAIRS = "Needs the official files of 3D chairs at `budget` and `paper`; C is a chair's azimuth and elevation."
SIX: dict[str, dict[str, Any]] = {
    name: {**settings, "z": 6} if name in (FIRST, INFO) else settings for name, settings in UNSUPERVISED.items()
}
WITH_LABELS, WITHOUT = "Pictures of MS-GAN and CGAN with labels", "Pictures of MS-GAN, CGAN and InfoGAN without labels"
MOVES = "one dimension of C moves, z is that of a row."
experiment.add(
    "msvae2020/fig21",
    f"{WITH_LABELS}: one dimension of C moves from left to right, z is that of a row.",
    draw_best,
    reference="figures 21, 25 and 26",
    **define_study(SUPERVISED),
    contrast=(CGAN, MS),
    claims={"with labels, MS-GAN keeps identity while C moves more often than CGAN": keeps_more_than(CGAN)},
    notes=(
        *NOTES,
        "C is the row's own labels, azimuth and elevation of a car or the place of a sprite, each on a line.",
    ),
)
experiment.add(
    "msvae2020/fig29",
    f"{WITHOUT}: {MOVES}",
    draw_best,
    reference="figures 22, 23 and 29 to 31",
    **define_study(UNSUPERVISED),
    claims={
        "without labels, MS-GAN keeps identity while C moves more often than InfoGAN": keeps_more_than(INFO),
        "and more often than CGAN, told the same codes (ours)": keeps_more_than(CGAN),
    },
    notes=(
        *NOTES,
        "The first stage is a beta-VAE with two latents and beta 4 (ours); InfoGAN has as many codes. The paper "
        "compares with InfoGAN on faces, by eye.",
        "A method whose C changes pictures less keeps identity more often, so see the change per pixel, too.",
    ),
)
experiment.add(
    "msvae2020/fig27",
    f"{WITH_LABELS} on chairs: {MOVES}",
    draw_best,
    **define_study(SUPERVISED, CHAIRS),
    contrast=(CGAN, MS),
    claims={"on chairs, with labels, MS-GAN keeps the shape more often than CGAN": keeps_more_than(CGAN)},
    notes=(*NOTES[1:], LABELLED_CHAIRS),
)
experiment.add(
    "msvae2020/fig28",
    f"{WITHOUT} on chairs: {MOVES}",
    draw_best,
    **define_study(UNSUPERVISED, CHAIRS),
    claims={"on chairs, without labels, MS-GAN keeps the shape more often than InfoGAN": keeps_more_than(INFO)},
    notes=(*NOTES[1:], "3D chairs need the official files; sprites replace them without."),
)
experiment.add(
    "msvae2020/fig24",
    f"{WITHOUT} on CelebA: {MOVES}",
    draw_best,
    **define_study(SIX, FACES),
    claims={
        "on CelebA, MS-GAN keeps an attribute that C does not hold more often than InfoGAN (ours)": keeps_more_than(
            INFO
        )
    },
    notes=(
        *NOTES[1:],
        "CelebA needs your own files; sprites replace it without them. It has no labels of identity: the first of its "
        "attributes replaces it. C has 6 dimensions, as the paper's faces.",
    ),
)
