"""Experiments at scale smoke."""

from unbraid.papers import reproduce


def smoke(name, place, **others):
    (outcome,) = reproduce(name, scale="smoke", root=place / "runs", out=place / "results", device="cpu", **others)
    return outcome
