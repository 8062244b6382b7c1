"""Made-up results, whose truth is known."""

import numpy as np

from unbraid.experiments import Results
from unbraid.metrics import Score
from unbraid.report.tables import Member


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
