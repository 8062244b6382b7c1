"""What the page of a run on several modalities shows: each of them reconstructed, made from others, and drawn."""

from dataclasses import dataclass
from typing import Any

import torch

from unbraid.metrics import Evaluation
from unbraid.models import MultimodalModel, as_multimodal
from unbraid.models.multimodal import SHARED, private_block
from unbraid.report.multimodal_pictures import drawable, from_others, reconstructed, sampled, seen, translation
from unbraid.report.pictures import data_uri
from unbraid.types import Inputs

MOST = 3
"""Modalities of images that are set against each other."""

TOLD = 1_000
"""Rows of which labels are told from other modalities."""


@dataclass(frozen=True)
class Several:
    """Pictures with titles and words, by section; how often labels are told from others; and what is not drawn.

    `across` translations stand side by side.
    """

    reconstructions: list[dict[str, str]]
    translations: list[dict[str, str]]
    across: int
    samples: list[dict[str, str]]
    labels: list[dict[str, Any]]
    left_out: str


def of_modalities(evaluation: Evaluation) -> Several:
    """Everything that the page shows of several modalities."""
    model = as_multimodal(evaluation.model)
    images = drawable(model)
    there = seen(evaluation, images)
    first = there[:MOST]
    reconstructions = [
        _shown(n, reconstructed(evaluation, n), f"Images of {n} above what is made of their codes") for n in there
    ]
    translations = [_translated(evaluation, model, source, target) for source in first for target in first]
    translations += [
        _of_classes(evaluation, label, target)
        for label in model.modalities
        for target in first
        if _classes(evaluation, label)
    ]
    drawn = sampled(evaluation) if images else {}
    samples = [
        _shown(name, picture, f"Images of {name} decoded from draws from the prior") for name, picture in drawn.items()
    ]
    labels = [
        _told(evaluation, model, source, label)
        for label in model.modalities
        for source in model.modalities
        if source != label and _classes(evaluation, label)
    ]
    known, across = [each for each in labels if each], max(2, len(first))
    absent = [name for name in images if name not in there]
    return Several(reconstructions, translations, across, samples, known, _left_out(model, images, absent))


def _shown(title: str, picture: Any, alt: str) -> dict[str, str]:
    return {"title": title, "uri": data_uri(picture), "alt": alt}


def _translated(evaluation: Evaluation, model: MultimodalModel, source: str, target: str) -> dict[str, str]:
    """A grid of c and s; without latents of the modality's own, one of draws of c."""
    title = f"{target} from {source}" if source != target else f"{target} with c and s swapped"
    alt = f"Images of {target}; those of a column have c of the image of {source} at its top"
    if private_block(target) in model.space.blocks:
        grid = translation(evaluation, source, target, columns=6, rows=3, prior_rows=3)
        return _shown(title, grid, f"{alt}, those of a row one s")
    title = f"{target} from {source}"
    return _shown(title, from_others(evaluation, source, target, columns=6, rows=6), f"{alt}, drawn anew in each row")


def _of_classes(evaluation: Evaluation, label: str, target: str) -> dict[str, str]:
    """Images made from each class."""
    names = _classes(evaluation, label)[:10]
    title = f"{target} from {label}: {', '.join(names)}"
    picture = from_others(evaluation, label, target, columns=len(names), rows=6)
    return _shown(
        title, picture, f"Images of {target} made from classes of {label}, a column for each of {', '.join(names)}"
    )


def _classes(evaluation: Evaluation, name: str) -> tuple[str, ...]:
    return evaluation.dataset.modalities[name].classes


def _told(evaluation: Evaluation, model: MultimodalModel, source: str, label: str) -> dict[str, Any] | None:
    """How often the likeliest class given another modality alone is a row's own; None where no row has both."""
    data = evaluation.dataset
    rows = evaluation.rows[evaluation.choose(TOLD)]
    rows = rows[data.has(source, rows) & data.has(label, rows)]
    if len(rows) == 0:
        return None
    seen, block = data.observed(rows), model.space.blocks.get(private_block(label))
    with torch.no_grad():
        codes = model.space.unjoin(model.space.center(model.encode(Inputs({source: seen[source]}))))
        made = model.expected_modality(label, codes[SHARED], None if block is None else codes[private_block(label)])
    truth = seen[label].argmax(-1)
    right, most = (made.argmax(-1) == truth).double().mean(), truth.bincount().max() / len(rows)
    return {"label": label, "source": source, "right": float(right), "chance": float(most), "rows": len(rows)}


def _left_out(model: MultimodalModel, images: list[str], absent: list[str]) -> str:
    """Which modalities are not drawn, and which not set against each other."""
    others = [name for name in model.modalities if name not in images]
    told = [f"{', '.join(others)} {'is' if len(others) == 1 else 'are'} not drawn, being no images."] if others else []
    if absent:
        told.append(
            f"No scored row has {' or '.join(absent)}: nothing is set against {'it' if len(absent) == 1 else 'them'}."
        )
    if len(images) > MOST:
        told.append(f"Translations are between the first {MOST} modalities; run.translate draws others.")
    return " ".join(told)
