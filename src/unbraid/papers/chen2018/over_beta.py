"""chen2018 over beta, and variants of beta-TCVAE: figures 2, 4, S1, S2, S3 and S15."""

from collections.abc import Mapping
from typing import Any

from unbraid.experiments.base import Claim, Evidence, Results, Scale, experiment
from unbraid.experiments.drawing import format_tick
from unbraid.experiments.evidence import (
    Finding,
    bound_difference,
    compare_correlations,
    compare_trade_offs,
    compare_with_largest,
    correlate_scores,
    group_series,
    mean_curve,
)
from unbraid.experiments.statistics import estimate
from unbraid.papers.chen2018.setup import (
    BOTH,
    BUDGET,
    ELBO,
    METRICS,
    MIG,
    OVER_BETA,
    PAPER,
    SMALL,
    SMOKE,
    SPRITES,
    TC,
    TCVAE,
    VAE,
    VARIANTS,
    without_shape,
)
from unbraid.report.sweep_figures import draw_boxes, draw_scatter, draw_trade_off

EQUAL_MIG, EQUAL_ELBO = 0.1, 0.05
"""Differences that count as none: of MIG, and of the ELBO relative to its mean."""

STRONG = -0.5
"""A correlation below this one is strongly negative."""

# figure 2


@experiment(
    "chen2018/fig2",
    year=2018,
    reference="chen2018, figure 2",
    series={"beta-vae": VAE, "beta-tcvae": TCVAE},
    scales=OVER_BETA,
    metrics=METRICS,
    derived={MIG: without_shape},
    scores=(MIG, ELBO, TC),
    contrast=BOTH,
    claims=(
        Claim("beta-TCVAE has the better trade-off of ELBO and MIG", compare_trade_offs(*BOTH, "beta", ELBO, MIG)),
        Claim("beta-VAE degrades at high beta", compare_with_largest("beta-vae", "beta", 4, MIG)),
    ),
    notes=(SPRITES,),
)
def fig2(results: Results, make: Any) -> Any:
    """ELBO against MIG over beta, for beta-VAE and beta-TCVAE."""
    return draw_trade_off(make, results.members, ELBO, MIG)


# figure 4


@experiment(
    "chen2018/fig4",
    year=2018,
    reference="chen2018, figure 4",
    series={"beta-vae": VAE, "beta-tcvae": TCVAE},
    scales=OVER_BETA,
    metrics=METRICS,
    derived={MIG: without_shape},
    scores=(TC, MIG),
    claims=(
        Claim(
            "TC and MIG are strongly negatively correlated for beta-TCVAE",
            correlate_scores("beta-tcvae", "beta", TC, MIG, high=STRONG),
        ),
        Claim("the correlation is weaker for beta-VAE", compare_correlations(*BOTH, "beta", TC, MIG)),
    ),
    notes=(SPRITES, "Pearson's correlation is of the means per beta, of TC itself; the figure has its logarithm."),
)
def fig4(results: Results, make: Any) -> Any:
    """Total correlation against MIG, means per beta."""
    figure = draw_scatter(make, results.members, TC, MIG)
    figure.axes[0].set_xscale("symlog", linthresh=0.01)  # an estimate of a TC near 0 may lie below it
    figure.axes[0].xaxis.set_major_formatter(format_tick)
    return figure


# figures S1, S2 and S3: variants of beta-TCVAE


def equal(first: str, second: str, elbo: str = ELBO) -> Finding:
    """MIG and ELBO of two series differ by no more than what counts as none, on average over beta."""
    return bound_difference(first, second, "beta", absolute={MIG: EQUAL_MIG}, relative={elbo: EQUAL_ELBO})


EQUAL = (
    SPRITES,
    f"Equal means: the 90% interval of the difference lies within {EQUAL_MIG} of MIG and {EQUAL_ELBO:.0%} of the ELBO "
    "(ours).",
)


@experiment(
    "chen2018/figS1",
    year=2018,
    reference="chen2018, figure S1",
    series={"MWS": TCVAE, "MSS": {**TCVAE, "estimator": "mss"}},
    scales=VARIANTS,
    metrics=METRICS,
    derived={MIG: without_shape},
    scores=(MIG, ELBO),
    contrast=("MWS", "MSS"),
    claims=(Claim("minibatch stratified sampling performs as minibatch weighted sampling", equal("MWS", "MSS")),),
    notes=EQUAL,
)
def fig_s1(results: Results, make: Any) -> Any:
    """ELBO against MIG of beta-TCVAE, trained with either estimator of q(z)."""
    return draw_trade_off(make, results.members, ELBO, MIG)


@experiment(
    "chen2018/figS2",
    year=2018,
    reference="chen2018, figure S2",
    series={"alpha 1": TCVAE, "alpha 0": {**TCVAE, "alpha": 0}},
    scales=VARIANTS,
    metrics=METRICS,
    derived={MIG: without_shape},
    scores=(MIG, ELBO),
    contrast=("alpha 1", "alpha 0"),
    claims=(Claim("without the mutual information term nothing changes", equal("alpha 1", "alpha 0")),),
    notes=EQUAL,
)
def fig_s2(results: Results, make: Any) -> Any:
    """ELBO against MIG of beta-TCVAE, with and without its mutual information term."""
    return draw_trade_off(make, results.members, ELBO, MIG)


SAMPLED = "elbo/sampled"
"""The bound against a prior that has no closed-form KL."""


@experiment(
    "chen2018/figS3",
    year=2018,
    reference="chen2018, figure S3",
    series={"Gaussian prior": TCVAE, "flow prior": {**TCVAE, "prior": "flow"}},
    scales={**VARIANTS, "smoke": Scale(OVER_BETA["smoke"].settings, per_series={"flow prior": {"prior.depth": 2}})},
    metrics=METRICS,
    derived={MIG: without_shape},
    scores=(MIG, SAMPLED),
    contrast=("Gaussian prior", "flow prior"),
    claims=(
        Claim(
            "a factorial normalising flow as prior is no significant improvement",
            equal("Gaussian prior", "flow prior", SAMPLED),
        ),
    ),
    notes=(*EQUAL, "Each latent has a flow of depth 32, but of depth 2 at `smoke`. The ELBO of both is sampled."),
)
def fig_s3(results: Results, make: Any) -> Any:
    """ELBO against MIG of beta-TCVAE, with a factorial normalising flow as prior."""
    return draw_trade_off(make, results.members, SAMPLED, MIG)


# figure S15: small batches

SHARE = 2 / 3
"""Of the MIG at the full batch: what a smaller batch has to keep to be effective."""


BATCHES = {"full batch": 1, "batch / 4": 4, "batch / 16": 16}


def over_batches(settings: Mapping[str, Any], seeds: int, batch: int, steps: int) -> Scale:
    """A full batch and two smaller ones, over the same number of images."""
    shared = {key: value for key, value in settings.items() if key not in ("batch", "steps")}
    own = {name: {"batch": batch // part, "steps": steps * part} for name, part in BATCHES.items()}
    return Scale({**shared, "seed": range(seeds)}, per_series=own)


def still_effective(results: Results) -> list[Evidence]:
    """MIG of each smaller batch minus two thirds of that of the full one."""
    cells = group_series(results, list(BATCHES), None, MIG)
    made = []
    for name in list(BATCHES)[1:]:
        found = estimate(cells, lambda c, n=name: (mean_curve(c, n) - SHARE * mean_curve(c, "full batch"))[..., 0, 0])
        made.append(Evidence(f"MIG with {name} minus two thirds of that with the full batch", found, low=0.0))
    return made


@experiment(
    "chen2018/figS15",
    year=2018,
    reference="chen2018, figure S15",
    series={name: {**TCVAE, "beta": 6} for name in BATCHES},
    scales={
        "smoke": over_batches(SMOKE, seeds=2, batch=64, steps=2),
        "small": over_batches(SMALL, seeds=3, batch=256, steps=1000),
        "budget": over_batches(BUDGET, seeds=10, batch=2048, steps=18_000),
        "paper": over_batches(PAPER, seeds=40, batch=2048, steps=18_000),
    },
    metrics=METRICS,
    derived={MIG: without_shape},
    scores=(MIG, ELBO),
    claims=(Claim("small batches are still effective", still_effective),),
    notes=(
        SPRITES,
        "The paper has 3D faces here. The sizes of the batches and what counts as effective are ours; all see the same "
        "number of images.",
    ),
)
def fig_s15(results: Results, make: Any) -> Any:
    """MIG of beta-TCVAE (beta = 6) with smaller batches."""
    return draw_boxes(make, results.members, MIG, "recipe")
