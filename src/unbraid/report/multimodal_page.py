"""The part of a run's page about several modalities: reconstructions, translations, labels and samples."""

from dataclasses import dataclass
from typing import Any

import torch

from unbraid.metrics import Evaluation
from unbraid.models import MultimodalModel, as_multimodal
from unbraid.models.multimodal import SHARED, private_block
from unbraid.report.multimodal_pictures import (
    draw_from_others,
    draw_reconstructions,
    draw_samples,
    list_image_modalities,
    list_present_modalities,
    translation,
)
from unbraid.report.pictures import Picture, to_data_uri
from unbraid.types import Inputs

MAX_TRANSLATED_MODALITIES = 3
MAX_CLASSES = 10
"""Classes in one picture."""

MAX_ROWS_OF_LABELS = 1_000


@dataclass(frozen=True)
class MultimodalSection:
    """Pictures with titles and alternative texts, accuracies of predicted labels, and a note on what is left out.

    `across` is the number of translations side by side.
    """

    reconstructions: list[dict[str, str]]
    translations: list[dict[str, str]]
    across: int
    samples: list[dict[str, str]]
    labels: list[dict[str, Any]]
    left_out: str


def build_multimodal_section(evaluation: Evaluation) -> MultimodalSection:
    """Return everything that the page shows of several modalities."""
    model = as_multimodal(evaluation.model)
    images = list_image_modalities(model)
    present = list_present_modalities(evaluation, images)
    first = present[:MAX_TRANSLATED_MODALITIES]
    reconstructions = [
        _show(name, draw_reconstructions(evaluation, name), f"Images of {name} above their reconstructions")
        for name in present
    ]
    labels = [name for name in model.modalities if evaluation.dataset.modalities[name].classes]
    translations = [_translate(evaluation, model, source, target) for source in first for target in first]
    translations += [
        picture for label in labels for target in first for picture in _draw_from_classes(evaluation, label, target)
    ]
    samples = [
        _show(name, picture, f"Images of {name} decoded from draws from the prior")
        for name, picture in (draw_samples(evaluation) if images else {}).items()
    ]
    predicted = [
        _predict_label(evaluation, model, source, label)
        for label in labels
        for source in model.modalities
        if source != label
    ]
    accuracies = [each for each in predicted if each]
    left_out = _describe_left_out(model, images, [name for name in images if name not in present])
    return MultimodalSection(reconstructions, translations, max(2, len(first)), samples, accuracies, left_out)


def _show(title: str, picture: Picture, alt: str) -> dict[str, str]:
    return {"title": title, "uri": to_data_uri(picture), "alt": alt}


def _translate(evaluation: Evaluation, model: MultimodalModel, source: str, target: str) -> dict[str, str]:
    """Return a grid over c and s, or over draws of c if the target has no private latents."""
    title, alt = f"{target} from {source}", f"Images of {target}; each column has c of the image of {source} at its top"
    if private_block(target) not in model.space.blocks:
        grid = draw_from_others(evaluation, source, target, columns=6, rows=6)
        return _show(title, grid, f"{alt}, drawn again in each row")
    title = title if source != target else f"{target} with c and s swapped"
    grid = translation(evaluation, source, target, columns=6, rows=3, prior_rows=3)
    return _show(title, grid, f"{alt}, each row has one s")


def _draw_from_classes(evaluation: Evaluation, label: str, target: str) -> list[dict[str, str]]:
    """Return pictures with a column for each class of a label, at most `MAX_CLASSES` in each."""
    names, pictures = evaluation.dataset.modalities[label].classes, []
    count = -(-len(names) // MAX_CLASSES)
    columns = -(-len(names) // count)  # about as many in each
    for first in range(0, len(names), columns):
        own = names[first : first + columns]
        picture = draw_from_others(evaluation, label, target, columns=len(own), rows=6, first=first)
        alt = f"Images of {target} generated from classes of {label}, one column each for {', '.join(own)}"
        pictures.append(_show(f"{target} from {label}: {', '.join(own)}", picture, alt))
    return pictures


def _predict_label(evaluation: Evaluation, model: MultimodalModel, source: str, label: str) -> dict[str, Any] | None:
    """Return the accuracy of the likeliest class given one other modality, or None if no row has both."""
    data = evaluation.dataset
    rows = evaluation.rows[evaluation.choose(MAX_ROWS_OF_LABELS)]
    rows = rows[data.has(source, rows) & data.has(label, rows)]
    if len(rows) == 0:
        return None
    observed, block = data.observed(rows), model.space.blocks.get(private_block(label))
    with torch.no_grad():
        codes = model.space.unjoin(model.space.center(model.encode(Inputs({source: observed[source]}))))
        expected = model.expected_modality(label, codes[SHARED], None if block is None else codes[private_block(label)])
    truth = observed[label].argmax(-1)
    right, chance = (expected.argmax(-1) == truth).double().mean(), truth.bincount().max() / len(rows)
    return {"label": label, "source": source, "right": float(right), "chance": float(chance), "rows": len(rows)}


def _describe_left_out(model: MultimodalModel, images: list[str], absent: list[str]) -> str:
    notes, others = [], [name for name in model.modalities if name not in images]
    if others:
        notes.append(f"There are no pictures of {', '.join(others)}: only images are drawn.")
    if absent:
        notes.append(f"No scored row has {' or '.join(absent)}, so there are no pictures of {' or '.join(absent)}.")
    if len(images) > MAX_TRANSLATED_MODALITIES:
        notes.append(
            f"Translations are between the first {MAX_TRANSLATED_MODALITIES} modalities; run.translate draws others."
        )
    return " ".join(notes)
