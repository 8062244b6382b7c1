"""`report.html` of a sweep: one self-contained file with the scores of all settings, trade-offs and runs."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from unbraid import atomic
from unbraid.report.run_page import HEADLINES, load_template
from unbraid.report.svg import render_svg
from unbraid.report.sweep_figures import choose_path_key, draw_boxes, draw_scatter, draw_trade_off, measure_boxes
from unbraid.report.tables import (
    Member,
    correlate,
    find_varying_settings,
    format_setting,
    group_by_setting,
    has_score,
    hide_incomplete,
    list_pairs,
    list_scores,
    list_values,
    select_finished,
)

ELBOS = ("elbo/closed-form", "elbo/sampled")
CORRELATION = "tc/exact"
MIGS = ("mig/exact", "mig/histogram-mean", "mig/histogram-sampled")
MAX_INCHES_OF_ONE_COLUMN = 4.5
MAX_SCORES_ON_PAGE = 8
"""The CSV tables in the sweep's folder have all scores."""


def write_sweep_report(folder: Path, statement: str, members: Sequence[Member], output: Path | None = None) -> Path:
    """Write the report of a sweep to `output`, or to report.html in its folder, and return its path.

    `statement` is the text of its sweep.yaml. Only a page in the folder has links to the reports of its runs.
    """
    path = output or folder / "report.html"
    reports = [m.run for m in members if output is None and (folder / "runs" / m.run / "report.html").exists()]
    page = render(folder.name, statement, members, reports)
    atomic.remove_partial_files(path.parent, path.name)
    atomic.write_text(path, page)
    return path


def render(name: str, statement: str, members: Sequence[Member], reports: Collection[str] = ()) -> str:
    """Return the page as HTML; `statement` is the text of sweep.yaml, and `reports` are runs that have one."""
    scores = choose_main_scores(members)
    mig, elbo = choose_mig(members), _choose_most_frequent(members, ELBOS) or ELBOS[0]
    bound, correlated = (_select_with_both(members, score, mig) for score in (elbo, CORRELATION))
    states = [member.state for member in members]
    return load_template("sweep.html.j2").render(
        name=name,
        recipes=list_values(members, "recipe"),
        data=list_values(members, "data"),
        counts={state: states.count(state) for state in dict.fromkeys(("finished", "diverged", *states))},
        members=members,
        reports=reports,
        best=find_best(members, mig or elbo),
        best_score=mig or elbo,
        keys=find_varying_settings(members),
        scores=scores,
        settings=_build_setting_rows(members, scores),
        charts=_draw_charts(members, scores),
        mig=mig,
        elbo=elbo,
        path=choose_path_key(members),
        trade_off=render_svg("trade-off", draw_trade_off, bound, elbo, mig) if bound else None,
        scatter=render_svg("tc-mig", draw_scatter, correlated, CORRELATION, mig) if correlated else None,
        correlations=_correlate_by_recipe(correlated, CORRELATION, mig) if mig and correlated else [],
        left_out={"trade_off": _count_without_scores(bound), "scatter": _count_without_scores(correlated)},
        finished=len(select_finished(members)),
        statement=statement,
        text=format_setting,
    )


def find_best(members: Sequence[Member], score: str) -> str | None:
    """Return the run with the largest value of a score; None if fewer than two have it."""
    known = [member for member in members if has_score(member, score)]
    return max(known, key=lambda member: member.scores[score].value).run if len(known) > 1 else None


def choose_main_scores(members: Sequence[Member]) -> list[str]:
    """Return the scores that the page shows, headline scores first."""
    names = list_scores(members)
    return [*(n for n in HEADLINES if n in names), *(n for n in names if n not in HEADLINES)][:MAX_SCORES_ON_PAGE]


def choose_mig(members: Sequence[Member]) -> str | None:
    """Return the protocol of MIG that most members have, since a figure shows only one; None if none has any."""
    return _choose_most_frequent(members, MIGS)


def _choose_most_frequent(members: Sequence[Member], protocols: Sequence[str]) -> str | None:
    counts = {score: sum(has_score(member, score) for member in members) for score in protocols}
    best = max(protocols, key=counts.__getitem__)  # the first, if there is a tie
    return best if counts[best] else None


def _select_with_both(members: Sequence[Member], across: str, mig: str | None) -> list[Member]:
    """Return the members for a figure of two scores, or none if no member has both."""
    paired = hide_incomplete(members, across, mig) if mig else []
    return paired if any(member.scores for member in paired) else []


def _count_without_scores(members: Sequence[Member]) -> int:
    return sum(not member.scores for member in select_finished(members))


def _build_setting_rows(members: Sequence[Member], scores: Sequence[str]) -> list[dict[str, Any]]:
    rows = []
    for setting in group_by_setting(members):
        cells = []
        for score in scores:
            values = setting.values(score)
            averages = {"median": float(np.median(values)), "mean": float(np.mean(values))} if values else {}
            cells.append({**averages, "interval": setting.mean_interval(score), "count": len(values)})
        counts = {"finished": setting.finished, "all": len(setting.members)}
        rows.append({"settings": setting.settings, **counts, "cells": cells})
    return rows


def _draw_charts(members: Sequence[Member], scores: Sequence[str]) -> list[dict[str, Any]]:
    """Return box plots of each shown score against each varying setting."""
    keys = [key for key in find_varying_settings(members) if key not in ("seed", "recipe")] or ["recipe"]
    return [
        {
            "title": f"{score} against {key}",
            "svg": render_svg(f"b{i}-{j}", draw_boxes, members, score, key),
            "broad": measure_boxes(members, key) > MAX_INCHES_OF_ONE_COLUMN,
        }
        for j, key in enumerate(keys)
        for i, score in enumerate(scores)
    ]


def _correlate_by_recipe(members: Sequence[Member], across: str, up: str) -> list[dict[str, Any]]:
    """Return Pearson's correlation of two scores over the runs of each recipe."""
    rows = []
    for recipe in list_values(members, "recipe"):
        pairs = list_pairs(members, recipe, across, up)
        found = correlate(*zip(*pairs, strict=True)) if pairs else None
        rows.append({"recipe": recipe, "runs": len(pairs), "found": found})
    return rows
