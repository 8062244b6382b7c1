"""Numbers of latents of C and Z: msvae2020's figures 7 and 8, on Cars3D and SmallNORB at beta = 4."""

from collections.abc import Mapping
from typing import Any

from unbraid.experiments.base import Scale, experiment
from unbraid.experiments.claims import Evidence
from unbraid.experiments.drawing import draw_curves, plot_curves
from unbraid.experiments.evidence import combine, compare_settings
from unbraid.experiments.results import Results
from unbraid.experiments.stand_in import StandIn
from unbraid.papers.msvae2020 import cars
from unbraid.papers.msvae2020.cars import BASE, DISTANCE, MIG, MS, RE_ENCODED, SERIES

ELBO, CONDITIONING, RANDOM = "elbo/closed-form", "cond/X", "frechet/classifier/samples"
WIDTHS_OF_C = {"smoke": [2, 3], "small": [2, 5, 10], "budget": [2, 5, 10, 20, 50], "paper": [*range(1, 11), 20, 50]}
WIDTHS_OF_Z = {"smoke": [2, 3], "small": [5, 10], "budget": [5, 10, 50, 90], "paper": [5, 10, 50, 90]}


def share_settings(data: StandIn) -> dict[str, dict[str, Any]]:
    """Return the settings of all series at each scale."""
    return {scale: {**cars.shared_settings(scale, data), "beta": 4} for scale in cars.SHARED}


def add_widths_of_c(name: str, data: StandIn) -> None:
    """Register figure 7 on one of the data sets."""
    shared = share_settings(data)
    both = combine(compare_settings(BASE, "z", 50, 10, MIG, low=0.0), compare_settings(BASE, "z", 2, 10, ELBO, low=0.0))
    experiment.add(
        name,
        f"MIG and ELBO by the number of latents of the first stage, on {cars.TITLES[data]}.",
        plot_curves("z", MIG, ELBO),
        series={BASE: {"recipe": "beta-tcvae"}},
        scales={scale: Scale({**settings, "z": WIDTHS_OF_C[scale]}) for scale, settings in shared.items()},
        metrics=("mig-of/blocks", ELBO),
        derived={MIG: cars.select_mig_of_c},
        scores=(MIG, ELBO),
        claims={"|C| = 10 combines both well: a higher MIG than |C| = 50, and a higher ELBO than |C| = 2 (ours)": both},
        notes=(cars.describe_stand_in(data), "With one latent there is no MIG, which compares two."),
    )


def make_scale(scale: str, shared: Mapping[str, Any]) -> Scale:
    """Return a scale of figure 8, which also measures the distance of images at a random z."""
    own = {MS: {**cars.settings_of_series(scale)[MS], "z": WIDTHS_OF_Z[scale]}}
    measures = dict(cars.make_scale(scale, shared, own).measures)
    return Scale(shared, per_series=own, measures={**measures, RANDOM: (RANDOM, measures[DISTANCE][1])})


def compare_samples(results: Results) -> list[Evidence]:
    """Return the distance of images at a random code with |Z| = 5 minus that with |Z| = 90, as evidence."""
    score = f"{cars.INCEPTION}/samples" if cars.choose_distance(results) == cars.FID else RANDOM
    return compare_settings(MS, "z", 90, 5, score, high=0.0)(results)


def draw_widths_of_z(results: Results, make: Any) -> Any:
    stages = Results(tuple(m for m in results.members if m.settings["recipe"] == MS), results.scale)
    return draw_curves(make, stages, "z", (DISTANCE, RANDOM, RE_ENCODED, CONDITIONING))


def add_widths_of_z(name: str, data: StandIn) -> None:
    """Register figure 8 on one of the data sets."""
    what = "Distances, MIG of refined images and conditioning by the number of latents of the second stage"
    text = "a small Z is enough: images at a random code are nearer to the data with |Z| = 5 than with |Z| = 90"
    drawn = f"For {RANDOM}, C and Z are drawn from their priors; the paper takes C from the data."
    experiment.add(
        name,
        f"{what}, on {cars.TITLES[data]}.",
        draw_widths_of_z,
        series={BASE: SERIES[BASE], MS: SERIES[MS]},
        scales={scale: make_scale(scale, shared) for scale, shared in share_settings(data).items()},
        metrics=("mig-of/blocks", RE_ENCODED, CONDITIONING, cars.INCEPTION),
        derived={MIG: cars.select_mig_of_c},
        scores=(DISTANCE, RANDOM, RE_ENCODED, CONDITIONING, MIG),
        claims={text: compare_samples},
        notes=(cars.describe_stand_in(data), *cars.NOTES[1:], drawn),
    )


add_widths_of_c("msvae2020/fig7", cars.CARS)
add_widths_of_c("msvae2020/fig7-norb", cars.NORB)
add_widths_of_z("msvae2020/fig8", cars.CARS)
add_widths_of_z("msvae2020/fig8-norb", cars.NORB)
