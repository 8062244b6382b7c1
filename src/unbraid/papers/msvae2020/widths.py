"""How many latents C and Z should have: msvae2020's figures 7 and 8, on Cars3D at beta = 4."""

from typing import Any

from unbraid.experiments.base import Claim, Results, Scale, experiment
from unbraid.experiments.curves import draw_curves
from unbraid.experiments.evidence import combine, compare_settings
from unbraid.papers.msvae2020 import cars
from unbraid.papers.msvae2020.cars import BASE, DISTANCE, MIG, MS, RE_ENCODED, SERIES

ELBO, RULES, RANDOM = "elbo/closed-form", "cond/X", "frechet/classifier/samples"
BETA = 4
WIDTHS_OF_C: dict[str, list[int]] = {
    "smoke": [2, 3],
    "small": [2, 5, 10],
    "budget": [2, 5, 10, 20, 50],
    "paper": [*range(1, 11), 20, 50],
}
WIDTHS_OF_Z: dict[str, list[int]] = {
    "smoke": [2, 3],
    "small": [5, 10],
    "budget": [5, 10, 50, 90],
    "paper": [5, 10, 50, 90],
}


def at_beta(**own: Any) -> dict[str, dict[str, Any]]:
    """Shared settings of each scale at one beta."""
    return {name: {**settings, "beta": BETA, **own} for name, settings in cars.SHARED.items()}


@experiment(
    "msvae2020/fig7",
    year=2020,
    reference="msvae2020, figure 7",
    series={BASE: {"recipe": "beta-tcvae"}},
    scales={name: Scale({**settings, "z": WIDTHS_OF_C[name]}) for name, settings in at_beta().items()},
    metrics=("mig-of/blocks", ELBO),
    derived={MIG: cars.mig_of_c},
    scores=(MIG, ELBO),
    claims=(
        Claim(
            "|C| = 10 combines both well: a higher MIG than |C| = 50, and a higher ELBO than |C| = 2 (ours)",
            combine(
                compare_settings(BASE, "z", 50, 10, MIG, low=0.0), compare_settings(BASE, "z", 2, 10, ELBO, low=0.0)
            ),
        ),
    ),
    notes=(*cars.NOTES[:1], "One latent has no MIG, which wants a second one."),
)
def fig7(results: Results, make: Any) -> Any:
    """MIG and ELBO by the number of latents of the first stage, on Cars3D."""
    return draw_curves(make, results, "z", (MIG, ELBO))


def of_stage(name: str, settings: dict[str, Any]) -> Scale:
    """A scale of figure 8, with the distance of images at a random z besides."""
    own = {MS: {**cars.stages(name, [MS])[MS], "z": WIDTHS_OF_Z[name]}}
    made = cars.scale(name, settings, own)
    what, how = made.measures[DISTANCE]
    return Scale(settings, per_series=own, measures={DISTANCE: (what, how), RANDOM: (RANDOM, how)})


@experiment(
    "msvae2020/fig8",
    year=2020,
    reference="msvae2020, figure 8",
    series={BASE: SERIES[BASE], MS: SERIES[MS]},
    scales={name: of_stage(name, settings) for name, settings in at_beta().items()},
    metrics=("mig-of/blocks", RE_ENCODED, RULES),
    derived={MIG: cars.mig_of_c},
    scores=(DISTANCE, RANDOM, RE_ENCODED, RULES, MIG),
    claims=(
        Claim(
            "a small Z is enough: images at a random code are nearer to the data with |Z| = 5 than with |Z| = 90",
            compare_settings(MS, "z", 90, 5, RANDOM, high=0.0),
        ),
    ),
    notes=(
        *cars.NOTES,
        f"{RANDOM} are decoded from draws of the prior of C and Z; the paper's random Z has C of the data.",
    ),
)
def fig8(results: Results, make: Any) -> Any:
    """Distances, MIG of refined images and conditioning by the number of latents of the second stage, on Cars3D."""
    shown = Results(tuple(m for m in results.members if m.settings["recipe"] == MS), results.scale)
    return draw_curves(make, shown, "z", (DISTANCE, RANDOM, RE_ENCODED, RULES))
