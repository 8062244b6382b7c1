"""The page of one run: its networks, what is known of its latents, and rows of its data, in one HTML file."""

import base64
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from unbraid import atomic
from unbraid.config import Config
from unbraid.data.factors import FactorDataset
from unbraid.data.tables import columns_of
from unbraid.explore.bundle import pack, render, to_text
from unbraid.explore.facts import (
    MAX_ROWS_TO_MEASURE,
    describe_blocks,
    describe_factors,
    describe_latents,
    draw_from_prior,
    is_standard_prior,
)
from unbraid.explore.model import ModelGraphs, measure_encoder, trace_model
from unbraid.explore.rounding import Moments
from unbraid.explore.rows import Numbers, describe_rows, distances
from unbraid.explore.wasm import product
from unbraid.explore.weights import Precision, Weights
from unbraid.metrics import Evaluation, Score
from unbraid.progress import announce

MAX_KB = 1200
"""Size of a page in kB (1,000 bytes) up to which weights keep 16 bits."""

MOST_BITS = 16
FEWEST_BITS = 8
"""Fewest bits of the decoder's weights; the page of a large network exceeds its limit."""

FEWEST_BITS_ON_DATA = 4
"""Fewest bits of the encoder's weights, whose errors cancel on the data (see rounding.py)."""

AUTO = "auto"


class ExploredRun(NamedTuple):
    """A run as a page shows it; `settings` are those that differ from the other runs of the page."""

    name: str
    config: Config
    evaluation: Evaluation
    scores: Sequence[Score]
    settings: Mapping[str, Any]


def write_run_page(path: Path, run: ExploredRun, weights: Precision = AUTO, max_kb: int = MAX_KB) -> Path:
    """Write the explorer of a run and return its path.

    `weights` is `float32`, `float16`, a number of bits (fixed point, 4 to 16), or `auto`: 16 bits, or fewer if the page
    would exceed `max_kb`. The encoder's weights then lose bits first, since their errors can cancel; see `choices`.
    """
    atomic.write_text(path, render_run_page(run, weights, max_kb))
    return path


def render_run_page(run: ExploredRun, weights: Precision = AUTO, max_kb: int = MAX_KB) -> str:
    """Return the page as text."""
    run = choose_rows(run)
    graphs, numbers = trace_model(run.evaluation), Numbers()
    facts = {**describe_run(run, graphs, numbers), "name": run.name}
    title = f"{run.name}: {title_of(run.config)}"

    def build(decoder: Precision, encoder: Precision, moments: Moments | None = None) -> str:
        stored = Weights(decoder)
        described = {**facts, "networks": store_networks(graphs, stored, encoder, moments)}
        words = describe_precision(decoder, encoder if graphs.encode else decoder)
        data = {"kind": "run", "weights": stored.records, "run": described, "modules": modules(), "precision": words}
        blocks = {"numbers": pack(numbers.bytes()), "weights": to_text(stored.compressed())}
        return render(title, data, blocks)

    if weights != AUTO:
        return build(weights, weights)
    page = build(MOST_BITS, MOST_BITS)
    excess = len(page.encode()) - 1000 * max_kb
    if excess <= 0:
        return page
    moments = measure_encoder(run.evaluation) if graphs.encode else None
    for decoder, encoder in choices(graphs, excess):
        page = build(decoder, encoder, moments)
        if len(page.encode()) <= 1000 * max_kb:
            return page
    page = build(FEWEST_BITS, FEWEST_BITS, moments)
    announce(f"  The page has {len(page.encode()) // 1000:,} kB: it cannot get below the limit of {max_kb:,} kB.")
    return page


def choices(graphs: ModelGraphs, excess: int) -> Iterator[tuple[int, int]]:
    """Yield the bits of decoder and encoder that may make a page smaller by `excess`, the best first.

    The decoder keeps its 16 bits as long as the encoder has more than the fewest: every picture comes from the decoder,
    and the errors of rounding an encoder mostly cancel. One bit of each weight is 1/7 of a byte in the page, or less if
    it can be compressed.
    """
    encoder = 0 if graphs.encode is None else graphs.encode.weights
    fewest = [(bits, FEWEST_BITS_ON_DATA) for bits in range(MOST_BITS - 1, FEWEST_BITS - 1, -1)]
    for bits in [(MOST_BITS, own) for own in range(MOST_BITS - 1, FEWEST_BITS_ON_DATA - 1, -1)] + fewest:
        saved = ((MOST_BITS - bits[0]) * graphs.decode.weights + (MOST_BITS - bits[1]) * encoder) / 7
        if saved >= 0.8 * excess:
            yield bits


def describe_precision(decoder: Precision, encoder: Precision) -> str:
    """Return e.g. '16 bits', 'float16' or '16 bits in the decoder, 5 in the encoder'."""
    if decoder != encoder:
        return f"{decoder} bits in the decoder, {encoder} in the encoder"
    return f"{decoder} bits" if isinstance(decoder, int) else decoder


def choose_rows(run: ExploredRun) -> ExploredRun:
    """Return the run with as many random rows as the page's numbers are measured on."""
    if len(run.evaluation) <= MAX_ROWS_TO_MEASURE:
        return run
    return run._replace(evaluation=run.evaluation.subsample(MAX_ROWS_TO_MEASURE))


def title_of(config: Config) -> str:
    """Return e.g. 'beta-tcvae on sprites'."""
    return f"{config.objective.name} on {config.data.name}"


def modules() -> list[str]:
    """Return the matrix product for browsers that fuse multiplication and addition, and for others."""
    return [base64.b64encode(product(fused)).decode() for fused in (True, False)]


def store_networks(
    graphs: ModelGraphs, weights: Weights, encoder: Precision | None = None, moments: Moments | None = None
) -> dict[str, Any]:
    """Return both graphs for JSON, their constants among the weights; the encoder's may have another precision."""
    decode = graphs.decode.as_record(weights.add(graphs.decode.constants.values()))
    encode = graphs.encode
    if encode is not None:
        encode = encode.as_record(weights.add(encode.constants.values(), encoder, moments))
    return {"encode": encode, "decode": decode}


def describe_run(run: ExploredRun, graphs: ModelGraphs, numbers: Numbers) -> dict[str, Any]:
    """Return everything about a run that the page shows, but its networks."""
    config, evaluation = run.config, run.evaluation
    dataset, model = evaluation.dataset, evaluation.model
    standard = is_standard_prior(model.space)
    return {
        "title": title_of(config),
        "method": config.objective.name,
        "data": config.data.name,
        "id": config.run_id,
        "settings": config.to_yaml(),
        "scores": [_score(score) for score in run.scores],
        "modalities": [
            {
                "name": name,
                "kind": each.kind,
                "shape": list(each.shape),
                "classes": list(each.classes),
                "features": _describe_features(dataset),
            }
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


def _describe_features(dataset: FactorDataset) -> list[dict[str, Any]]:
    """Return the features of a table by name, those that are numbers with their mean and scale."""
    return [
        {"name": feature} | ({} if column.classes else {"mean": column.mean, "scale": column.scale})
        for column in columns_of(dataset)
        for feature in column.features
    ]


def _score(score: Score) -> dict[str, Any]:
    known = score.interval is not None and all(map(math.isfinite, score.interval))
    interval = None if not known or score.interval is None else [round(end, 4) for end in score.interval]
    numbers = {"value": score.value, "chance": score.chance, "ceiling": score.ceiling}
    rounded = {key: None if n is None or not math.isfinite(n) else round(n, 4) for key, n in numbers.items()}
    return {"name": score.name, **rounded, "interval": interval}
