"""`report.html` of a sweep: scores of every setting, what they trade off, and every run, in one file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from unbraid import atomic
from unbraid.report.run_page import HEADLINES, template
from unbraid.report.sweep_figures import boxes, boxes_width, path_key, scatter, trade_off
from unbraid.report.tables import (
    Member,
    correlation,
    finished,
    has,
    mean_interval,
    score_names,
    settings_of,
    text,
    values_of,
    varying,
    with_all,
)

BOUNDS = ("elbo/closed-form", "elbo/sampled")
CORRELATION = "tc/exact"
MIGS = ("mig/exact", "mig/histogram-mean", "mig/histogram-sampled")
BROAD = 4.5
"""Inches beyond which a chart takes the place of two."""

MOST_SCORES = 8
"""Scores that the page shows; the tables beside it have all of them."""


def write_sweep_report(folder: Path, statement: str, members: Sequence[Member]) -> Path:
    """Write report.html into a sweep's folder and return its path; `statement` is the text of its sweep.yaml."""
    path = folder / "report.html"
    atomic.write_text(path, render(folder.name, statement, members))
    return path


def render(name: str, statement: str, members: Sequence[Member]) -> str:
    """The page as text."""
    scores = main_scores(members)
    mig, elbo = mig_of_all(members), _of_most(members, BOUNDS) or BOUNDS[0]
    bound, correlated = (_figure_members(members, score, mig) for score in (elbo, CORRELATION))
    states = [member.state for member in members]
    return template("sweep.html.j2").render(
        name=name,
        recipes=values_of(members, "recipe"),
        data=values_of(members, "data"),
        counts={state: states.count(state) for state in dict.fromkeys(("finished", "diverged", *states))},
        members=members,
        keys=varying(members),
        scores=scores,
        settings=_setting_rows(members, scores),
        charts=_charts(members, scores),
        mig=mig,
        elbo=elbo,
        path=path_key(members),
        trade_off=trade_off(bound, elbo, mig, "trade-off") if mig and bound else None,
        scatter=scatter(correlated, CORRELATION, mig, "tc-mig") if mig and correlated else None,
        correlations=_correlations(correlated, CORRELATION, mig) if mig and correlated else [],
        left_out={"trade_off": _without_scores(bound), "scatter": _without_scores(correlated)},
        finished=len(finished(members)),
        statement=statement,
        text=text,
    )


def main_scores(members: Sequence[Member]) -> list[str]:
    """Scores that the page shows, the most telling first."""
    names = score_names(members)
    return [*(n for n in HEADLINES if n in names), *(n for n in names if n not in HEADLINES)][:MOST_SCORES]


def mig_of_all(members: Sequence[Member]) -> str | None:
    """The first protocol of MIG that every finished member has, as one figure shows one; else the most frequent."""
    return _of_most(members, MIGS)


def _of_most(members: Sequence[Member], protocols: Sequence[str]) -> str | None:
    counts = {score: sum(has(member, score) for member in members) for score in protocols}
    best = max(protocols, key=counts.__getitem__)  # of several, the first
    return best if counts[best] else None


def _figure_members(members: Sequence[Member], across: str, mig: str | None) -> list[Member]:
    """Members for a figure of two scores, or none where no member has both."""
    paired = with_all(members, across, mig) if mig else []
    return paired if any(member.scores for member in paired) else []


def _without_scores(members: Sequence[Member]) -> int:
    return sum(not member.scores for member in finished(members))


def _setting_rows(members: Sequence[Member], scores: Sequence[str]) -> list[dict[str, Any]]:
    rows = []
    for setting in settings_of(members):
        cells = []
        for score in scores:
            values = setting.values(score)
            interval = mean_interval(values) if values else None
            middle = {"median": float(np.median(values)), "mean": float(np.mean(values))} if values else {}
            cells.append({**middle, "interval": interval, "count": len(values)})
        facts = {"settings": setting.settings, "finished": setting.finished, "all": len(setting.members)}
        rows.append({**facts, "cells": cells})
    return rows


def _charts(members: Sequence[Member], scores: Sequence[str]) -> list[dict[str, Any]]:
    """Box plots of each shown score against each setting that varies."""
    keys = [key for key in varying(members) if key not in ("seed", "recipe")] or ["recipe"]
    return [
        {
            "title": f"{score} against {key}",
            "svg": boxes(members, score, key, f"b{i}-{j}"),
            "broad": boxes_width(members, key) > BROAD,
        }
        for j, key in enumerate(keys)
        for i, score in enumerate(scores)
    ]


def _correlations(members: Sequence[Member], across: str, up: str) -> list[dict[str, Any]]:
    """Pearson's correlation of two scores over the runs of each recipe."""
    rows = []
    for recipe in values_of(members, "recipe"):
        own = [m for m in members if m.settings.get("recipe") == recipe and has(m, across) and has(m, up)]
        pairs = [(m.scores[across].value, m.scores[up].value) for m in own]
        found = correlation(*zip(*pairs, strict=True)) if pairs else None
        rows.append({"recipe": recipe, "runs": len(pairs), "found": found})
    return rows
