"""chen2018 over beta, and variants of beta-TCVAE: figures 2, 4, S1, S2 and S3."""

from typing import Any

import numpy as np

from unbraid.experiments import evidence
from unbraid.experiments.base import Scale, experiment
from unbraid.experiments.claims import Evidence
from unbraid.experiments.drawing import format_tick, plot_trade_off
from unbraid.experiments.evidence import Finding, bound_difference, correlate_scores, group_series, mean_curve
from unbraid.experiments.results import Results
from unbraid.experiments.statistics import Cells, estimate
from unbraid.papers.chen2018 import setup
from unbraid.papers.chen2018.setup import BOTH, ELBO, MIG, SPRITES, TC, TCVAE, VAE, VARIANTS, build_facts
from unbraid.report.sweep_figures import draw_scatter

EQUAL_MIG, EQUAL_ELBO = 0.1, 0.05
"""Scores are equal if they differ by less: MIG, and the ELBO relative to its mean."""

STRONGLY_NEGATIVE = -0.5
"""A correlation below this one is strongly negative."""

MODE = 4
"""The paper's best beta of beta-VAE on dSprites."""

STOPPED_SHARE = 0.05


def at_high_beta(score: str, **bounds: float) -> Finding:
    """Find a score of beta-TCVAE minus that of beta-VAE, on average over the betas above the mode of beta-VAE."""

    def read_cells(results: Results) -> Cells:
        cells = group_series(results, BOTH, "beta", score)
        return {(name, beta): rows for (name, beta), rows in cells.items() if beta > MODE}

    return evidence.find_one(
        f"{score}, beta-tcvae minus beta-vae, mean over beta > {MODE}",
        read_cells,
        lambda c: (mean_curve(c, "beta-tcvae") - mean_curve(c, "beta-vae"))[..., 0].mean(-1),
        **bounds,
    )


TRADE_OFF = {
    "beta-TCVAE has the better trade-off of ELBO and MIG": evidence.compare_trade_offs(*BOTH, "beta", ELBO, MIG),
    "beta-VAE degrades at high beta": evidence.compare_with_largest("beta-vae", "beta", MODE, MIG),
    "at high beta, beta-TCVAE is more disentangled than beta-VAE": at_high_beta(MIG, low=0.0),
}
SWEPT: dict[str, Any] = {"series": {"beta-vae": VAE, "beta-tcvae": TCVAE}}
TRADE_OFF_SUMMARY = "ELBO against MIG over beta, for beta-VAE and beta-TCVAE"
MODE_NOTE = f"High beta means above {MODE}, the mode of beta-VAE in the paper's figure 2."


experiment.add(
    "chen2018/fig2",
    f"{TRADE_OFF_SUMMARY}.",
    plot_trade_off(ELBO, MIG),
    **build_facts(),
    **SWEPT,
    scores=(MIG, ELBO, TC),
    contrast=BOTH,
    claims=TRADE_OFF,
    notes=(SPRITES, MODE_NOTE),
)
experiment.add(
    "chen2018/fig2-faces",
    f"{TRADE_OFF_SUMMARY}, on 3D faces.",
    plot_trade_off(ELBO, MIG),
    **build_facts(setup.FACES_OVER_BETA, own_steps=()),
    **SWEPT,
    scores=(MIG, ELBO, TC),
    contrast=BOTH,
    claims=setup.on_faces(TRADE_OFF),
    notes=(setup.FACES_NOTE, MODE_NOTE),
)
CORRELATIONS = {
    "TC and MIG are strongly negatively correlated for beta-TCVAE": correlate_scores(
        "beta-tcvae", "beta", TC, MIG, high=STRONGLY_NEGATIVE
    ),
    "the correlation is weaker for beta-VAE": evidence.compare_correlations(*BOTH, "beta", TC, MIG),
    "at equal TC, beta-TCVAE has the higher MIG": evidence.compare_trade_offs(*BOTH, "beta", TC, MIG),
}


def last_fall(results: Results) -> list[Evidence]:
    """Return how much of its fall from the smallest to the largest beta beta-VAE's TC keeps for the last step."""
    cells = results.group_scores("beta-vae", "beta", TC)
    low, high, before = min(cells), max(cells), sorted(cells)[-2]

    def share(c: Cells) -> np.ndarray:
        means = {beta: c[beta][..., 0].mean(-1) for beta in (low, before, high)}
        return (means[before] - means[high]) / (means[low] - means[high])

    what = f"fall of {TC} from beta {before:g} to {high:g}, as a share of that from {low:g}"
    return [Evidence(what, estimate(cells, share), high=STOPPED_SHARE)]


def draw_correlation(results: Results, make: Any) -> Any:
    figure = draw_scatter(make, results.members, TC, MIG)
    figure.axes[0].set_xscale("symlog", linthresh=0.01)  # an estimate of a TC near 0 may lie below it
    figure.axes[0].xaxis.set_major_formatter(format_tick)
    return figure


STOPS = {"with higher beta, beta-VAE stops decreasing the TC": last_fall}
CORRELATION_NOTES = (
    "The correlation is Pearson's, of the means per beta and of TC; the figure shows the logarithm of TC.",
    f"A TC stops decreasing if its last step makes less than {STOPPED_SHARE:.0%} of its fall (ours).",
)


experiment.add(
    "chen2018/fig4",
    "Total correlation against MIG, means per beta.",
    draw_correlation,
    **build_facts(),
    **SWEPT,
    scores=(TC, MIG),
    claims={**CORRELATIONS, **STOPS},
    notes=(SPRITES, *CORRELATION_NOTES),
)
experiment.add(
    "chen2018/fig4-faces",
    "Total correlation against MIG, means per beta, on 3D faces.",
    draw_correlation,
    **build_facts(setup.FACES_OVER_BETA, own_steps=()),
    **SWEPT,
    scores=(TC, MIG),
    claims=setup.on_faces({**CORRELATIONS, "beta-VAE reaches a lower TC": at_high_beta(TC, low=0.0)}),
    notes=(setup.FACES_NOTE, *CORRELATION_NOTES),
)


EQUAL = (
    SPRITES,
    f"Equal means that the 90% interval of the difference lies within {EQUAL_MIG} of MIG and {EQUAL_ELBO:.0%} of the "
    "ELBO (ours).",
)


def add_variant(
    name: str, summary: str, claim: str, series: dict[str, Any], elbo: str = ELBO, note: str = "", **scales: Scale
) -> None:
    """Register an experiment whose claim is that MIG and ELBO of two series are equal, on average over beta."""
    first, second = series
    equal = bound_difference(first, second, "beta", absolute={MIG: EQUAL_MIG}, relative={elbo: EQUAL_ELBO})
    experiment.add(
        name,
        f"ELBO against MIG of beta-TCVAE, {summary}.",
        plot_trade_off(elbo, MIG),
        **build_facts(VARIANTS | scales),
        series=series,
        scores=(MIG, elbo),
        contrast=(first, second),
        claims={claim: equal},
        notes=(*EQUAL, note) if note else EQUAL,
    )


add_variant(
    "chen2018/figS1",
    "trained with either estimator of q(z)",
    "minibatch stratified sampling performs as minibatch weighted sampling",
    {"MWS": TCVAE, "MSS": {**TCVAE, "estimator": "mss"}},
)
add_variant(
    "chen2018/figS2",
    "with and without its mutual information term",
    "without the mutual information term nothing changes",
    {"alpha 1": TCVAE, "alpha 0": {**TCVAE, "alpha": 0}},
)
add_variant(
    "chen2018/figS3",
    "with a factorial normalising flow as prior",
    "a factorial normalising flow as prior is no significant improvement",
    {"Gaussian prior": TCVAE, "flow prior": {**TCVAE, "prior": "flow"}},
    elbo="elbo/sampled",  # this prior has no closed-form KL
    note="Each latent has a flow of depth 32, or 2 at `smoke`. The ELBO of both is sampled.",
    smoke=Scale(setup.OVER_BETA["smoke"].settings, {"flow prior": {"prior.depth": 2}}),
)
