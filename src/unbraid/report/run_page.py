"""`report.html` of a run: one self-contained file with its scores, curves and pictures; and a card for notebooks."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unbraid import atomic
from unbraid.config import Config
from unbraid.metrics import Evaluation, Score, metric
from unbraid.metrics.generative.features.feature_sets import decode_means, draw_prior_codes
from unbraid.report.feature_traversal import draw_features
from unbraid.report.latent_factor import draw_latent_factor
from unbraid.report.multimodal_page import build_multimodal_section
from unbraid.report.pictures import Picture, tile_images, to_data_uri
from unbraid.report.svg import draw_curve, import_report_extra, render_svg
from unbraid.report.tables import format_setting, is_number
from unbraid.report.traversals import decode_by_stage, traverse
from unbraid.store import RunFolder

IMAGES_PER_ROW = 12
HEADLINES = (
    "mig/exact",
    "mig/histogram-mean",
    "tc/exact",
    "mi/exact",
    "elbo/closed-form",
    "elbo/sampled",
    "reconstruction/nats",
)
LEADING_OF_MODALITIES = ("coherence", "completion")
"""Metrics that lead the page of a run with several modalities."""

NOT_CURVES = ("format", "step", "epoch", "seconds", "images_per_second")
EXPLORER = "explore.html"
"""Name of a run's explorer in its folder."""

PAGES = {"Report": "report.html", "Explorer": EXPLORER}
MAX_SCORES_ON_CARD = 12


def write_report(
    folder: RunFolder, evaluation: Evaluation, scores: Sequence[Score], output: Path | None = None
) -> Path:
    """Write the report of a run to `output`, or to report.html in its folder, and return its path."""
    path = output or folder.path / "report.html"
    page = render(folder, evaluation, scores)
    atomic.remove_partial_files(path.parent, path.name)
    atomic.write_text(path, page)
    return path


def render(folder: RunFolder, evaluation: Evaluation, scores: Sequence[Score]) -> str:
    """Return the page as HTML."""
    config, history = folder.config, folder.read_lines("history")
    drawable = _is_drawable(evaluation)
    return load_template("run.html.j2").render(
        config=config,
        name=folder.path.name if folder.path.name not in ("", config.run_id) else None,
        training=describe_training(config, history, folder.read_json("data").get("trained_on")),
        objective=_list_settings(config),
        settings=config.to_yaml(),
        evaluation=evaluation,
        data=evaluation.dataset,
        notes=" ".join([describe_scored_rows(evaluation), *_list_notes(evaluation, scores)]),
        headlines=_choose_headlines(scores, evaluation.dataset.multimodal),
        scores=[_build_score_row(score) for score in scores],
        curves=_draw_curves(history),
        traversal=_draw_traversal(evaluation) if drawable else None,
        features=None if drawable or evaluation.dataset.multimodal else _draw_features(evaluation),
        reconstructions=to_data_uri(draw_reconstructions(evaluation)) if drawable else None,
        stages=_draw_stages(evaluation) if drawable and evaluation.model.first is not None else None,
        samples=_draw_samples(evaluation) if drawable else None,
        modalities=build_multimodal_section(evaluation) if evaluation.dataset.multimodal else None,
        explorer=EXPLORER if (folder.path / EXPLORER).exists() else None,
        latent_factor=draw_latent_factor(evaluation) if evaluation.dataset.factors else None,
        information=_build_information(scores),
        facts={key: value for key, value in folder.read_json("environment").items() if key != "format" and value != ""},
    )


def _list_settings(config: Config) -> list[str]:
    """Return the objective's settings that have a value, as `beta 6.0`, and the seed."""
    settings = {**config.objective.settings, "seed": config.training.seed}
    shown = {key: format_setting(value) for key, value in settings.items() if value not in (None, (), [])}
    return [f"{key} {str(value).lower() if isinstance(value, bool) else value}" for key, value in shown.items()]


def load_template(name: str) -> Any:
    """Return a template of this package; it may include others."""
    jinja = import_report_extra("jinja2")
    folder = resources.files("unbraid.report")
    environment = jinja.Environment(
        loader=jinja.FunctionLoader(lambda name: folder.joinpath(name).read_text(encoding="utf-8")),
        autoescape=True,
        undefined=jinja.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = format_number
    return environment.get_template(name)


def describe_scored_rows(evaluation: Evaluation) -> str:
    """Return a sentence about the rows that are scored, and whether training used them."""
    data, count = evaluation.dataset, f"{len(evaluation):,}"
    things = "images" if _is_drawable(evaluation) else "observations"
    if evaluation.held_out:
        return f"Scores use {count} held-out {things} that training did not use."
    if evaluation.trained_on is not None and evaluation.trained_on < len(evaluation):
        return f"Scores use all {count} {things}; training used {evaluation.trained_on:,} of them."
    if data.is_grid:
        return f"Scores use the complete grid of all {count} factor combinations, the same {things} as training."
    return f"Scores use all {count} {things}, the same as training: nothing was held out."


def describe_training(config: Config, history: Sequence[Mapping[str, Any]], rows: int | None) -> str:
    """Return e.g. 'Trained on 1,536 rows for 2,000 steps of 256 (333 epochs) in about 3 minutes.'"""
    planned, batch = config.training.steps, config.training.batch
    steps = history[-1]["step"] if history else planned
    counted = f"{steps:,} steps of {batch}" if steps == planned else f"{steps:,} of {planned:,} steps of {batch}"
    words = [f"Trained{'' if rows is None else f' on {rows:,} rows'} for {counted}"]
    if rows:
        words.append(f"({steps * batch / rows:,.0f} epochs)")
    seconds, before = 0.0, 0
    for line in history:
        if is_number(line.get("images_per_second")) and line["images_per_second"] > 0:
            seconds += (line["step"] - before) * batch / line["images_per_second"]
        before = line["step"]
    if seconds:
        words.append(f"in about {format_duration(seconds)}")
    return " ".join(words) + "."


def format_duration(seconds: float) -> str:
    """Return a duration in its largest unit: seconds, minutes or hours."""
    for unit, length in (("hour", 3600), ("minute", 60)):
        if seconds >= 1.5 * length:
            return f"{seconds / length:.1f} {unit}s" if seconds < 10 * length else f"{seconds / length:.0f} {unit}s"
    count = max(1, round(seconds))
    return f"{count} second{'' if count == 1 else 's'}"


def _is_drawable(evaluation: Evaluation) -> bool:
    return not evaluation.dataset.multimodal and len(evaluation.dataset.shape) == 3


def _list_notes(evaluation: Evaluation, scores: Sequence[Score]) -> list[str]:
    """Return sentences about unusual scores and missing sections."""
    unusual = ", ".join(score.name for score in scores if not score.has_default_settings)
    notes = {
        f"Some scores use other rows or settings, listed in scores.jsonl: {unusual}.": bool(unusual),
        "The observations are not images, so there are no pictures; the traversal shows features.": not (
            evaluation.dataset.multimodal or _is_drawable(evaluation)
        ),
        "The data have no factor labels, so no section compares latents with factors.": not evaluation.dataset.factors,
    }
    return [note for note, applies in notes.items() if applies]


def format_number(value: float | None) -> str:
    """Return a number with at most four significant digits, thousands separators and a true minus sign."""
    if value is None or not math.isfinite(value):
        return "–" if value is None else str(value)
    if value != 0 and not 1e-4 <= abs(value) < 1e9:
        return f"{value:.2e}".replace("-", "−")
    digits = 3 if abs(value) < 10 else max(0, 3 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f}".replace("-", "−")


def _choose_headlines(scores: Sequence[Score], multimodal: bool = False) -> list[Score]:
    by_name = {score.name: score for score in scores}
    leading = [score for score in by_name.values() if multimodal and score.metric in LEADING_OF_MODALITIES]
    others = [by_name[name] for name in HEADLINES if name in by_name]
    return ([*leading, *others] or list(scores))[:4]


def _build_score_row(score: Score) -> dict[str, Any]:
    registered = f"{score.metric}/{score.protocol}"
    return {
        "score": score,
        "protocol": "/".join(part for part in (score.protocol, score.predictor) if part),
        "summary": metric[registered].summary if registered in metric else "",
        "left_out": ", ".join(score.details.get("left_out") or []),
    }


def _draw_curves(history: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Return one chart per logged number; steps at which it is missing or not finite are skipped."""
    names = dict.fromkeys(key for line in history for key in line)
    charts = []
    for name in (n for n in names if n not in NOT_CURVES):
        points = [(float(line["step"]), float(line[name])) for line in history if is_number(line.get(name))]
        if points:
            steps, values = zip(*points, strict=True)
            title, first, last = _curve_title(name), format_number(values[0]), format_number(values[-1])
            alt = f"{title} over training: from {first} to {last}"
            charts.append(
                {"name": title, "last": last, "alt": alt, "svg": draw_curve(steps, values, f"c{len(charts)}")}
            )
    return charts


def _curve_title(name: str) -> str:
    """Return the name of a logged term, marked if minibatch weighted sampling (mws) biases it."""
    term, _, estimator = name.partition("/")
    return f"{term} term by mws (biased, not an estimate)" if estimator == "mws" else name


def _draw_traversal(evaluation: Evaluation) -> list[dict[str, Any]]:
    shown = traverse(evaluation)
    coordinates, max_kl = evaluation.space.leaf_columns(), max(*shown.kl, 1e-9)
    return [
        {
            "name": name,
            "kl": kl,
            "share": round(100 * max(kl, 0) / max_kl, 1),
            "uri": to_data_uri(tile_images(shown.images[row : row + 1])),
            "alt": f"Decoded images while {name} {_describe_path(shown.values[row], len(coordinates[leaf]) > 1)}",
        }
        for row, (leaf, name, kl) in enumerate(zip(shown.latents, shown.names, shown.kl, strict=True))
    ]


def _draw_features(evaluation: Evaluation) -> dict[str, str]:
    """Return the traversal of rows of numbers: a chart, and what it shows in words."""
    shown = traverse(evaluation)
    most = ", ".join(f"{name} ({kl:.2f} nats)" for name, kl in list(zip(shown.names, shown.kl, strict=True))[:3])
    svg = render_svg("features", draw_features, shown, evaluation.dataset)
    return {"svg": svg, "alt": f"Features of a row while one latent moves; the most informative are {most}"}


def _describe_path(values: Tensor, classes: bool) -> str:
    known = values[~values.isnan()].tolist()
    if classes:
        return f"takes each of its {len(known)} classes"
    first, last = (f"{value:+.1f}".replace("-", "−") for value in (known[0], known[-1]))
    return f"moves from {first} to {last}"


def draw_reconstructions(evaluation: Evaluation) -> Picture:
    """Return a picture of originals above the decoder means at their posterior means."""
    rows = evaluation.choose(IMAGES_PER_ROW)
    originals = evaluation.dataset.images(evaluation.rows[rows])
    decoded = decode_means(evaluation, evaluation.means[rows])
    return tile_images(torch.stack([originals, decoded]))


def _draw_stages(evaluation: Evaluation) -> dict[str, str]:
    names, images = decode_by_stage(evaluation, IMAGES_PER_ROW)
    return {"rows": ", ".join(names), "uri": to_data_uri(tile_images(images))}


def _draw_samples(evaluation: Evaluation, rows: int = 3) -> str:
    codes = draw_prior_codes(evaluation, rows * IMAGES_PER_ROW, step=0)
    return to_data_uri(tile_images(decode_means(evaluation, codes).unflatten(0, (rows, IMAGES_PER_ROW))))


def _build_information(scores: Sequence[Score]) -> dict[str, Any] | None:
    """Return the table of I(z; v) / H(v), from the exact score if there is one."""
    known = [score for score in scores if "information" in score.details and math.isfinite(score.value)]
    if not known:
        return None
    best = min(known, key=lambda score: score.protocol != "exact")
    details = best.details
    rows = [
        {
            "factor": factor,
            "shares": [value / details["entropy"][factor] for value in values],
            "winner": details["latents"].index(details["winner"][factor]),
            "gap": details["gaps"][factor],
        }
        for factor, values in details["information"].items()
    ]
    return {"protocol": best.name, "latents": details["latents"], "rows": rows}


def run_card(folder: RunFolder) -> str:
    """Return a table of the run's newest scores, with links to the pages that were written."""
    config = folder.config
    newest = {score.name: score for score in map(Score.from_record, folder.read_lines("scores"))}
    newest = dict(sorted(newest.items()))  # processes measure the same metrics in different orders
    rows = "".join(
        f"<tr><td style='text-align:left'>{escape(name)}</td><td>{score.value:.3f}</td></tr>"
        for name, score in list(newest.items())[:MAX_SCORES_ON_CARD]
    )
    pages = [
        f"<a href='{escape(str(folder.path / file))}'>{title}</a>"
        for title, file in PAGES.items()
        if (folder.path / file).exists()
    ]
    title = f"<b>{escape(config.objective.name)}</b> on {escape(config.data.name)}"
    steps = f"{config.training.steps:,} steps, seed {config.training.seed}"
    table = f"<table>{rows}</table>" if rows else "<p>Not scored yet: <code>run.score()</code></p>"
    return f"<div>{title}, {steps} · <code>{escape(str(folder.path))}</code>{table}{' · '.join(pages)}</div>"
