"""Digits that stay while their thickness changes: esmaeili2018's figure 7."""

from typing import Any

from unbraid.experiments.base import Results, Scale, derive, experiment
from unbraid.experiments.drawing import draw_pictures
from unbraid.experiments.evidence import compare_means
from unbraid.papers.esmaeili2018 import setup
from unbraid.papers.esmaeili2018.pictures import traverse_factor
from unbraid.papers.esmaeili2018.setup import HFVAE, LEARNED, MNIST, OURS, QUICK, SMOKE, assign

PRESERVED, TIE = "digit kept along thickness", "thickness and its latent"
MODELS = {"beta-VAE": setup.BETA_VAE, "beta-SVAE": setup.BETA_SVAE, "HFVAE": HFVAE}
MIXED = ("beta-SVAE", "HFVAE")


def preserve_along(factor: str, **settings: Any) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return the measure of how often the class stays while the latent of another factor moves."""
    return {PRESERVED: ("kept/classifier", {"along": factor, **settings})}


@experiment(
    "esmaeili2018/fig7",
    series=MODELS,
    scales=setup.build_digit_scales(
        Scale(SMOKE, assign({"latents": "normal+concrete:3"}, *MIXED), preserve_along("scale", **QUICK)),
        assign(MNIST, *MODELS),
        preserve_along("thickness", **LEARNED),
    ),
    derived={TIE: derive(PRESERVED, "tie", lambda s: abs(s.details["correlation"]))},
    scores=(PRESERVED, TIE),
    claims={
        "beta-SVAE keeps the digit more often than beta-VAE": compare_means(
            "beta-VAE", "beta-SVAE", PRESERVED, low=0.0
        ),
        "HFVAE keeps the digit more often than beta-VAE": compare_means("beta-VAE", "HFVAE", PRESERVED, low=0.0),
    },
    notes=(
        OURS,
        setup.CLASSIFIER,
        "In each run the latent moves whose means have the largest rank correlation with the measured thickness; the "
        "table shows that correlation. A digit is kept if it is classified as in the row's reconstruction.",
    ),
)
def fig7(results: Results, make: Any) -> Any:
    """One image of each digit as the latent of its thickness moves from -3 to 3."""
    factor, keep = ("scale", "shape") if results.scale == "smoke" else ("thickness", "digit")
    return draw_pictures(make, [[(name, traverse_factor(results, name, factor, keep))] for name in results.series])
