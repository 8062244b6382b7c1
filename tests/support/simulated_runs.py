"""Runs whose scores are drawn from a distribution, to simulate how often a verdict is wrong."""

from unbraid.metrics import Score
from unbraid.report.tables import Member


def draw(rng, series, scores, settings=({},), seeds=10, centre=0.0):
    """Return runs of several series and settings whose scores are all drawn from one Normal distribution."""
    return [
        make_run(name, seed, {score: rng.normal(centre, 1.0) for score in scores}, **at)
        for name in series
        for at in settings
        for seed in range(seeds)
    ]


def make_run(series, seed, scores, **settings):
    """Return a finished run of a series with scores by name."""
    made = {name: Score("any", "protocol", float(value), 1) for name, value in scores.items()}
    return Member(f"{series}-{settings}-{seed}", {"recipe": series, **settings, "seed": seed}, "finished", "", made)


def betas(*values):
    """Return a setting for each value of beta."""
    return [{"beta": value} for value in values]
