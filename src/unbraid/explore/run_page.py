"""The page of one run: its networks, what is known of its latents, and rows of its data, in one HTML file."""

import gzip
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unbraid import atomic
from unbraid.config import Config
from unbraid.explore.bundle import render
from unbraid.explore.facts import (
    MAX_ROWS_TO_MEASURE,
    describe_blocks,
    describe_factors,
    describe_latents,
    draw_from_prior,
    is_standard_prior,
)
from unbraid.explore.model import ModelGraphs, trace_model
from unbraid.explore.rows import Numbers, describe_rows, distances
from unbraid.explore.text import to_base64, to_text
from unbraid.explore.wasm import product
from unbraid.explore.weights import Precision, Weights
from unbraid.metrics import Evaluation, Score

MAX_BYTES = 1_200_000
"""Size of a page up to which weights keep 16 bits."""

FEWEST_BITS = 8
"""Fewest bits that a smaller page is paid for with; a page of a large network is larger than `MAX_BYTES`."""

AUTO = "auto"


def write_run_page(
    path: Path, config: Config, evaluation: Evaluation, scores: Sequence[Score], weights: Precision = AUTO
) -> Path:
    """Write the explorer of a run and return its path.

    `weights` is `float32`, `float16`, a number of bits (fixed point, 4 to 16), or `auto`: 16 bits, or as many as the
    page then stays below 1.2 MB with, but 8 at least.
    """
    atomic.write_text(path, render_run_page(config, evaluation, scores, weights))
    return path


def render_run_page(config: Config, evaluation: Evaluation, scores: Sequence[Score], weights: Precision = AUTO) -> str:
    """Return the page as text."""
    evaluation = choose_rows(evaluation)
    graphs, numbers = trace_model(evaluation), Numbers()
    facts = describe_run(config, evaluation, scores, graphs, numbers)
    for precision in range(16, FEWEST_BITS - 1, -1) if weights == AUTO else [weights]:
        stored = Weights(precision)
        networks = store_networks(graphs, stored)
        run = {**facts, "networks": networks}
        data = {"kind": "run", "weights": stored.records, "run": run, "modules": modules(), "precision": precision}
        blocks = {"numbers": pack(numbers.bytes()), "weights": to_text(stored.compressed())}
        page = render(title_of(config), data, blocks)
        if len(page.encode()) <= MAX_BYTES:
            break
    return page


def choose_rows(evaluation: Evaluation) -> Evaluation:
    """Return the model on as many random rows as the page's numbers are measured on."""
    return evaluation if len(evaluation) <= MAX_ROWS_TO_MEASURE else evaluation.subsample(MAX_ROWS_TO_MEASURE)


def title_of(config: Config) -> str:
    """Return e.g. 'beta-tcvae on sprites'."""
    return f"{config.objective.name} on {config.data.name}"


def modules() -> list[str]:
    """Return the matrix product for browsers that fuse multiplication and addition, and for others."""
    return [to_base64(product(fused)) for fused in (True, False)]


def store_networks(graphs: ModelGraphs, weights: Weights) -> dict[str, Any]:
    """Return both graphs for JSON, their constants among the weights."""
    named = {"encode": graphs.encode, "decode": graphs.decode}
    return {
        name: None if graph is None else graph.as_record(weights.add(graph.constants.values()))
        for name, graph in named.items()
    }


def describe_run(
    config: Config, evaluation: Evaluation, scores: Sequence[Score], graphs: ModelGraphs, numbers: Numbers
) -> dict[str, Any]:
    """Return everything about a run that the page shows, but its networks."""
    dataset, model = evaluation.dataset, evaluation.model
    standard = is_standard_prior(model.space)
    return {
        "title": title_of(config),
        "method": config.objective.name,
        "data": config.data.name,
        "id": config.run_id,
        "settings": config.to_yaml(),
        "scores": [_score(score) for score in scores],
        "modalities": [
            {"name": name, "kind": each.kind, "shape": list(each.shape), "classes": list(each.classes)}
            for name, each in dataset.modalities.items()
        ],
        "views": [{"modality": v.modality, "title": v.title, "shape": list(v.shape)} for v in graphs.views],
        "width": model.space.width,
        "latents": describe_latents(evaluation),
        "blocks": describe_blocks(model.space),
        "factors": describe_factors(evaluation),
        "rows": describe_rows(evaluation, numbers),
        "distances": distances(evaluation, graphs.views),
        "prior": None if standard else numbers.add(draw_from_prior(model)),
    }


def _score(score: Score) -> dict[str, Any]:
    known = score.interval is not None and all(map(math.isfinite, score.interval))
    interval = None if not known or score.interval is None else [round(end, 4) for end in score.interval]
    value = round(score.value, 4) if math.isfinite(score.value) else None
    return {"name": score.name, "value": value, "interval": interval}


def pack(data: bytes) -> str:
    """Return bytes compressed, as text."""
    return to_text(gzip.compress(data, 9, mtime=0))
