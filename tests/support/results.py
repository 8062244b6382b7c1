"""Made-up results, whose truth is known."""

import numpy as np

from unbraid.experiments import Results
from unbraid.metrics import Score
from unbraid.papers.chen2018.setup import ELBO, MIG, TC
from unbraid.report.tables import Member

BETAS = (1, 2, 4, 8)


def member(series, seed, scores, state="finished", **settings):
    made = {name: Score(*name.split("/"), float(value), 100) for name, value in scores.items()}
    return Member(f"{series}-{settings}-{seed}", {"recipe": series, **settings, "seed": seed}, state, "", made)


def made_up(means, seeds=10, noise=0.02, scale="small", **facts):
    """Members of `{(series, setting): {score: mean}}`, each score with Normal noise over seeds."""
    rng = np.random.default_rng(0)
    members = [
        member(series, seed, {name: mean + noise * rng.standard_normal() for name, mean in scores.items()}, beta=at)
        for (series, at), scores in means.items()
        for seed in range(seeds)
    ]
    return Results(tuple(members), scale, **facts)


def trade_off(above, fall=0.0, correlated=True, **facts):
    """beta-TCVAE lies `above` beta-VAE at equal ELBO; beta-VAE's MIG falls by `fall` at the largest beta."""
    migs = {"beta-vae": dict.fromkeys(BETAS, 0.2), "beta-tcvae": dict.fromkeys(BETAS, 0.2 + above)}
    migs["beta-vae"][8] -= fall
    tcs = dict(zip(BETAS, (4.0, 3.0, 2.0, 1.0), strict=True))
    means = {}
    for series, by_beta in migs.items():
        for beta, mig in by_beta.items():
            tied = -0.1 * tcs[beta] if correlated and series == "beta-tcvae" else 0.0
            means[series, beta] = {MIG: mig + tied, ELBO: -40 - 5 * beta, TC: tcs[beta]}
    return made_up(means, **facts)
