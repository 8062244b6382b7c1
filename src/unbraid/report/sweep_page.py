"""`report.html` of a sweep: scores of every setting, what they trade off, and every run, in one file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from unbraid import atomic
from unbraid.report.run_page import HEADLINES, load_template
from unbraid.report.sweep_figures import boxes, choose_path_key, measure_boxes, scatter, trade_off
from unbraid.report.tables import (
    Member,
    correlate,
    find_varying_settings,
    format_setting,
    group_by_setting,
    has_score,
    hide_incomplete,
    list_scores,
    list_values,
    mean_interval,
    select_finished,
)

BOUNDS = ("elbo/closed-form", "elbo/sampled")
CORRELATION = "tc/exact"
MIGS = ("mig/exact", "mig/histogram-mean", "mig/histogram-sampled")
MAX_INCHES_OF_ONE_COLUMN = 4.5
"""Inches beyond which a chart takes the place of two."""

MAX_SCORES_ON_PAGE = 8
"""Scores that the page shows; the tables beside it have all of them."""


def write_sweep_report(folder: Path, statement: str, members: Sequence[Member]) -> Path:
    """Write report.html into a sweep's folder and return its path; `statement` is the text of its sweep.yaml."""
    path = folder / "report.html"
    atomic.write_text(path, render(folder.name, statement, members))
    return path


def render(name: str, statement: str, members: Sequence[Member]) -> str:
    """The page as text."""
    scores = choose_main_scores(members)
    mig, elbo = choose_mig(members), _of_most(members, BOUNDS) or BOUNDS[0]
    bound, correlated = (_figure_members(members, score, mig) for score in (elbo, CORRELATION))
    states = [member.state for member in members]
    return load_template("sweep.html.j2").render(
        name=name,
        recipes=list_values(members, "recipe"),
        data=list_values(members, "data"),
        counts={state: states.count(state) for state in dict.fromkeys(("finished", "diverged", *states))},
        members=members,
        keys=find_varying_settings(members),
        scores=scores,
        settings=_setting_rows(members, scores),
        charts=_charts(members, scores),
        mig=mig,
        elbo=elbo,
        path=choose_path_key(members),
        trade_off=trade_off(bound, elbo, mig, "trade-off") if mig and bound else None,
        scatter=scatter(correlated, CORRELATION, mig, "tc-mig") if mig and correlated else None,
        correlations=_correlations(correlated, CORRELATION, mig) if mig and correlated else [],
        left_out={"trade_off": _without_scores(bound), "scatter": _without_scores(correlated)},
        finished=len(select_finished(members)),
        statement=statement,
        text=format_setting,
    )


def choose_main_scores(members: Sequence[Member]) -> list[str]:
    """Scores that the page shows, the most telling first."""
    names = list_scores(members)
    return [*(n for n in HEADLINES if n in names), *(n for n in names if n not in HEADLINES)][:MAX_SCORES_ON_PAGE]


def choose_mig(members: Sequence[Member]) -> str | None:
    """The first protocol of MIG that every finished member has, as one figure shows one; else the most frequent."""
    return _of_most(members, MIGS)


def _of_most(members: Sequence[Member], protocols: Sequence[str]) -> str | None:
    counts = {score: sum(has_score(member, score) for member in members) for score in protocols}
    best = max(protocols, key=counts.__getitem__)  # of several, the first
    return best if counts[best] else None


def _figure_members(members: Sequence[Member], across: str, mig: str | None) -> list[Member]:
    """Members for a figure of two scores, or none where no member has both."""
    paired = hide_incomplete(members, across, mig) if mig else []
    return paired if any(member.scores for member in paired) else []


def _without_scores(members: Sequence[Member]) -> int:
    return sum(not member.scores for member in select_finished(members))


def _setting_rows(members: Sequence[Member], scores: Sequence[str]) -> list[dict[str, Any]]:
    rows = []
    for setting in group_by_setting(members):
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
    keys = [key for key in find_varying_settings(members) if key not in ("seed", "recipe")] or ["recipe"]
    return [
        {
            "title": f"{score} against {key}",
            "svg": boxes(members, score, key, f"b{i}-{j}"),
            "broad": measure_boxes(members, key) > MAX_INCHES_OF_ONE_COLUMN,
        }
        for j, key in enumerate(keys)
        for i, score in enumerate(scores)
    ]


def _correlations(members: Sequence[Member], across: str, up: str) -> list[dict[str, Any]]:
    """Pearson's correlation of two scores over the runs of each recipe."""
    rows = []
    for recipe in list_values(members, "recipe"):
        own = [m for m in members if m.settings.get("recipe") == recipe and has_score(m, across) and has_score(m, up)]
        pairs = [(m.scores[across].value, m.scores[up].value) for m in own]
        found = correlate(*zip(*pairs, strict=True)) if pairs else None
        rows.append({"recipe": recipe, "runs": len(pairs), "found": found})
    return rows
