"""`report.html`: everything about a run in one file that needs nothing beside it."""

import math
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unbraid import atomic, noise
from unbraid.metrics import Evaluation, Score, metric
from unbraid.report.latent_factor import latent_factor
from unbraid.report.multimodal_page import of_modalities
from unbraid.report.pictures import Picture, data_uri, tiled
from unbraid.report.run_card import EXPLORER
from unbraid.report.stage_pictures import by_stage
from unbraid.report.svg import curve, optional
from unbraid.report.traversals import decode, traverse
from unbraid.store import RunFolder

COLUMNS = 12
HEADLINES = (
    "mig/exact",
    "mig/histogram-mean",
    "tc/exact",
    "mi/exact",
    "elbo/closed-form",
    "elbo/sampled",
    "reconstruction/nats",
)
NOT_CURVES = ("format", "step", "epoch", "seconds", "images_per_second")


def write_report(folder: RunFolder, evaluation: Evaluation, scores: Sequence[Score]) -> Path:
    """Write report.html into a run's folder and return its path."""
    path = folder.path / "report.html"
    atomic.write_text(path, render(folder, evaluation, scores))
    return path


def render(folder: RunFolder, evaluation: Evaluation, scores: Sequence[Score]) -> str:
    """The page as text."""
    config = folder.config
    drawable = _drawable(evaluation)
    return template("page.html.j2").render(
        config=config,
        settings=config.to_yaml(),
        evaluation=evaluation,
        data=evaluation.dataset,
        where=" ".join([where_scored(evaluation), *_otherwise(scores), *_absent(evaluation)]),
        headlines=_headlines(scores),
        scores=[_score_row(score) for score in scores],
        curves=_curves(folder.read_lines("history")),
        traversal=_traversal(evaluation) if drawable else None,
        reconstructions=data_uri(reconstructions(evaluation)) if drawable else None,
        stages=_stages(evaluation) if drawable and evaluation.model.first is not None else None,
        samples=_samples(evaluation) if drawable else None,
        several=of_modalities(evaluation) if evaluation.dataset.multimodal else None,
        explorer=EXPLORER if (folder.path / EXPLORER).exists() else None,
        latent_factor=latent_factor(evaluation) if evaluation.dataset.factors else None,
        information=_information(scores),
        facts={key: value for key, value in folder.read_json("environment").items() if key != "format" and value != ""},
    )


def template(name: str) -> Any:
    """A template of this package, ready to be rendered; it may include its neighbours."""
    jinja = optional("jinja2")
    folder = resources.files("unbraid.report")
    environment = jinja.Environment(
        loader=jinja.FunctionLoader(lambda name: folder.joinpath(name).read_text(encoding="utf-8")),
        autoescape=True,
        undefined=jinja.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = number
    return environment.get_template(name)


def _otherwise(scores: Sequence[Score]) -> list[str]:
    """Which scores are not of all those rows, or not with their usual settings."""
    names = [score.name for score in scores if not score.has_default_settings]
    return [f"Of other rows or settings, which scores.jsonl names: {', '.join(names)}."] if names else []


def where_scored(evaluation: Evaluation) -> str:
    """Which rows the scores are about, and whether training saw them."""
    data, count = evaluation.dataset, f"{len(evaluation):,}"
    things = "images" if _drawable(evaluation) else "observations"
    if evaluation.held_out:
        return f"Scores are on {count} held-out {things} that training never saw."
    if evaluation.trained_on is not None and evaluation.trained_on < len(evaluation):
        return f"Scores are on all {count} {things}; training saw {evaluation.trained_on:,} of them."
    if data.is_grid:
        return f"Scores are on the complete grid of all {count} factor combinations, the same {things} as in training."
    return f"Scores are on all {count} {things}, the same as in training: nothing was held out."


def _drawable(evaluation: Evaluation) -> bool:
    """Return whether there is one modality, of images."""
    return not evaluation.dataset.multimodal and len(evaluation.dataset.shape) == 3


def _absent(evaluation: Evaluation) -> list[str]:
    """Why a section of the page is missing."""
    pictures = evaluation.dataset.multimodal or _drawable(evaluation)
    reasons = {
        "The observations are not images, so there are no pictures.": not pictures,
        "The data have no factor labels, so nothing is set against them.": not evaluation.dataset.factors,
    }
    return [reason for reason, holds in reasons.items() if holds]


def number(value: float | None) -> str:
    """Four significant digits at most, thousands separated, a true minus sign."""
    if value is None or not math.isfinite(value):
        return "–" if value is None else str(value)
    if value != 0 and not 1e-4 <= abs(value) < 1e9:
        return f"{value:.2e}".replace("-", "−")
    digits = 3 if abs(value) < 10 else max(0, 3 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f}".replace("-", "−")


def _headlines(scores: Sequence[Score]) -> list[Score]:
    by_name = {score.name: score for score in scores}
    return ([by_name[name] for name in HEADLINES if name in by_name] or list(scores))[:4]


def _score_row(score: Score) -> dict[str, Any]:
    registered = f"{score.metric}/{score.protocol}"
    left_out = score.details.get("left_out") or []
    return {
        "score": score,
        "protocol": "/".join(part for part in (score.protocol, score.predictor) if part),
        "summary": metric[registered].summary if registered in metric else "",
        "left_out": ", ".join(left_out),
    }


def _curves(history: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """One chart per logged number; steps where it is missing or not finite are skipped."""
    names = dict.fromkeys(key for line in history for key in line)
    charts = []
    for name in (n for n in names if n not in NOT_CURVES):
        points = [(float(line["step"]), float(line[name])) for line in history if _is_finite(line.get(name))]
        if points:
            steps, values = zip(*points, strict=True)
            title, first, last = _curve_title(name), number(values[0]), number(values[-1])
            alt = f"{title} over training: from {first} to {last}"
            charts.append({"name": title, "last": last, "alt": alt, "svg": curve(steps, values, f"c{len(charts)}")})
    return charts


def _is_finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _curve_title(name: str) -> str:
    """A logged term's name; minibatch weighted sampling does not estimate what its terms are named after."""
    term, _, estimator = name.partition("/")
    return f"{term} term by mws (no estimate)" if estimator == "mws" else name


def _traversal(evaluation: Evaluation) -> list[dict[str, Any]]:
    made = traverse(evaluation)
    coordinates, most = evaluation.space.leaf_columns(), max(*made.kl, 1e-9)
    return [
        {
            "name": name,
            "kl": kl,
            "share": round(100 * max(kl, 0) / most, 1),
            "uri": data_uri(tiled(made.images[row : row + 1])),
            "alt": f"Decoded images while {name} {_way(made.values[row], len(coordinates[leaf]) > 1)}",
        }
        for row, (leaf, name, kl) in enumerate(zip(made.latents, made.names, made.kl, strict=True))
    ]


def _way(values: Tensor, classes: bool) -> str:
    """Where a variable is led, in words."""
    known = values[~values.isnan()].tolist()
    if classes:
        return f"takes each of its {len(known)} classes"
    first, last = (f"{value:+.1f}".replace("-", "−") for value in (known[0], known[-1]))
    return f"moves from {first} to {last}"


def reconstructions(evaluation: Evaluation) -> Picture:
    """Originals above the decoder's expectation at their mean codes."""
    rows = evaluation.choose(COLUMNS)
    originals = evaluation.dataset.images(evaluation.rows[rows])
    decoded = decode(evaluation, evaluation.means[rows])
    return tiled(torch.stack([originals, decoded]))


def _stages(evaluation: Evaluation) -> dict[str, str]:
    """Originals and what each stage makes of them, one row each."""
    names, images = by_stage(evaluation, COLUMNS)
    return {"rows": ", ".join(names), "uri": data_uri(tiled(images))}


def _samples(evaluation: Evaluation, rows: int = 3) -> str:
    """Decoded draws from the prior."""
    seeds = noise.seed_tensor(evaluation.seed, device=evaluation.dataset.device)
    drawn = noise.draw(evaluation.model.prior_needs(rows * COLUMNS), seeds, step=0)
    codes = evaluation.model.prior_codes({name: draw[0] for name, draw in drawn.items()})
    return data_uri(tiled(decode(evaluation, codes).unflatten(0, (rows, COLUMNS))))


def _information(scores: Sequence[Score]) -> dict[str, Any] | None:
    """The table of I(z; v) / H(v), from the most exact score that has one."""
    known = [score for score in scores if "information" in score.details and math.isfinite(score.value)]
    having = sorted(known, key=lambda s: s.protocol != "exact")
    if not having:
        return None
    details = having[0].details
    rows = [
        {
            "factor": factor,
            "shares": [value / details["entropy"][factor] for value in values],
            "winner": details["latents"].index(details["winner"][factor]),
            "gap": details["gaps"][factor],
        }
        for factor, values in details["information"].items()
    ]
    return {"protocol": having[0].name, "latents": details["latents"], "rows": rows}
