"""chen2018 over beta, and variants of beta-TCVAE: figures 2, 4, S1, S2, S3 and S15."""

from collections.abc import Mapping
from typing import Any

from unbraid.experiments import evidence
from unbraid.experiments.base import Claim, Evidence, Results, Scale, experiment
from unbraid.experiments.drawing import format_tick
from unbraid.experiments.evidence import Finding, bound_difference, correlate_scores, group_series, mean_curve
from unbraid.experiments.statistics import estimate
from unbraid.papers.chen2018 import setup
from unbraid.papers.chen2018.setup import BOTH, ELBO, MIG, SMALL, SMOKE, SPRITES, TC, TCVAE, VAE, VARIANTS, build_facts
from unbraid.report.sweep_figures import draw_boxes, draw_scatter, draw_trade_off

EQUAL_MIG, EQUAL_ELBO = 0.1, 0.05
"""Scores are equal if they differ by less: MIG, and the ELBO relative to its mean."""

STRONGLY_NEGATIVE = -0.5
"""A correlation below this one is strongly negative."""


@experiment(
    "chen2018/fig2",
    **build_facts(),
    series={"beta-vae": VAE, "beta-tcvae": TCVAE},
    scores=(MIG, ELBO, TC),
    contrast=BOTH,
    claims=(
        Claim(
            "beta-TCVAE has the better trade-off of ELBO and MIG", evidence.compare_trade_offs(*BOTH, "beta", ELBO, MIG)
        ),
        Claim("beta-VAE degrades at high beta", evidence.compare_with_largest("beta-vae", "beta", 4, MIG)),
    ),
    notes=(SPRITES,),
)
def fig2(results: Results, make: Any) -> Any:
    """ELBO against MIG over beta, for beta-VAE and beta-TCVAE."""
    return draw_trade_off(make, results.members, ELBO, MIG)


@experiment(
    "chen2018/fig4",
    **build_facts(),
    series={"beta-vae": VAE, "beta-tcvae": TCVAE},
    scores=(TC, MIG),
    claims=(
        Claim(
            "TC and MIG are strongly negatively correlated for beta-TCVAE",
            correlate_scores("beta-tcvae", "beta", TC, MIG, high=STRONGLY_NEGATIVE),
        ),
        Claim("the correlation is weaker for beta-VAE", evidence.compare_correlations(*BOTH, "beta", TC, MIG)),
    ),
    notes=(
        SPRITES,
        "The correlation is Pearson's, of the means per beta and of TC; the figure shows the logarithm of TC.",
    ),
)
def fig4(results: Results, make: Any) -> Any:
    """Total correlation against MIG, means per beta."""
    figure = draw_scatter(make, results.members, TC, MIG)
    figure.axes[0].set_xscale("symlog", linthresh=0.01)  # an estimate of a TC near 0 may lie below it
    figure.axes[0].xaxis.set_major_formatter(format_tick)
    return figure


def find_equal(first: str, second: str, elbo: str = ELBO) -> Finding:
    """Find whether MIG and ELBO of two series are equal, on average over beta."""
    return bound_difference(first, second, "beta", absolute={MIG: EQUAL_MIG}, relative={elbo: EQUAL_ELBO})


EQUAL = (
    SPRITES,
    f"Equal means that the 90% interval of the difference lies within {EQUAL_MIG} of MIG and {EQUAL_ELBO:.0%} of the "
    "ELBO (ours).",
)


@experiment(
    "chen2018/figS1",
    **build_facts(VARIANTS),
    series={"MWS": TCVAE, "MSS": {**TCVAE, "estimator": "mss"}},
    scores=(MIG, ELBO),
    contrast=("MWS", "MSS"),
    claims=(Claim("minibatch stratified sampling performs as minibatch weighted sampling", find_equal("MWS", "MSS")),),
    notes=EQUAL,
)
def fig_s1(results: Results, make: Any) -> Any:
    """ELBO against MIG of beta-TCVAE, trained with either estimator of q(z)."""
    return draw_trade_off(make, results.members, ELBO, MIG)


@experiment(
    "chen2018/figS2",
    **build_facts(VARIANTS),
    series={"alpha 1": TCVAE, "alpha 0": {**TCVAE, "alpha": 0}},
    scores=(MIG, ELBO),
    contrast=("alpha 1", "alpha 0"),
    claims=(Claim("without the mutual information term nothing changes", find_equal("alpha 1", "alpha 0")),),
    notes=EQUAL,
)
def fig_s2(results: Results, make: Any) -> Any:
    """ELBO against MIG of beta-TCVAE, with and without its mutual information term."""
    return draw_trade_off(make, results.members, ELBO, MIG)


SAMPLED = "elbo/sampled"
"""ELBO with a prior that has no closed-form KL."""


@experiment(
    "chen2018/figS3",
    **build_facts(VARIANTS | {"smoke": Scale(setup.OVER_BETA["smoke"].settings, {"flow prior": {"prior.depth": 2}})}),
    series={"Gaussian prior": TCVAE, "flow prior": {**TCVAE, "prior": "flow"}},
    scores=(MIG, SAMPLED),
    contrast=("Gaussian prior", "flow prior"),
    claims=(
        Claim(
            "a factorial normalising flow as prior is no significant improvement",
            find_equal("Gaussian prior", "flow prior", SAMPLED),
        ),
    ),
    notes=(*EQUAL, "Each latent has a flow of depth 32, or 2 at `smoke`. The ELBO of both is sampled."),
)
def fig_s3(results: Results, make: Any) -> Any:
    """ELBO against MIG of beta-TCVAE, with a factorial normalising flow as prior."""
    return draw_trade_off(make, results.members, SAMPLED, MIG)


KEPT_SHARE = 2 / 3
"""A smaller batch is effective if it keeps this share of the MIG at the full batch."""

BATCHES = {"full batch": 1, "batch / 4": 4, "batch / 16": 16}


def build_batch_scale(settings: Mapping[str, Any], seeds: int, batch: int, steps: int) -> Scale:
    """Return a scale with a full batch and two smaller ones, over the same number of images."""
    shared = {key: value for key, value in settings.items() if key not in ("batch", "steps")}
    per_series = {name: {"batch": batch // part, "steps": steps * part} for name, part in BATCHES.items()}
    return Scale({**shared, "seed": range(seeds)}, per_series=per_series)


def compare_batches(results: Results) -> list[Evidence]:
    """Return MIG of each smaller batch minus two thirds of that of the full one, as evidence."""
    cells, pieces = group_series(results, list(BATCHES), None, MIG), []
    for name in list(BATCHES)[1:]:
        found = estimate(
            cells, lambda c, n=name: (mean_curve(c, n) - KEPT_SHARE * mean_curve(c, "full batch"))[..., 0, 0]
        )
        pieces.append(Evidence(f"MIG with {name} minus two thirds of that with the full batch", found, low=0.0))
    return pieces


@experiment(
    "chen2018/figS15",
    **build_facts(
        {
            "smoke": build_batch_scale(SMOKE, seeds=2, batch=64, steps=2),
            "small": build_batch_scale(SMALL, seeds=3, batch=256, steps=1000),
            "budget": build_batch_scale(setup.BUDGET, seeds=10, batch=2048, steps=18_000),
            "paper": build_batch_scale(setup.PAPER, seeds=40, batch=2048, steps=18_000),
        },
    ),
    series={name: {**TCVAE, "beta": 6} for name in BATCHES},
    scores=(MIG, ELBO),
    claims=(Claim("small batches are still effective", compare_batches),),
    notes=(
        SPRITES,
        "The paper has 3D faces here. Batch sizes and the bound are ours. All series see the same number of images.",
    ),
)
def fig_s15(results: Results, make: Any) -> Any:
    """MIG of beta-TCVAE (beta = 6) with smaller batches."""
    return draw_boxes(make, results.members, MIG, "recipe")
