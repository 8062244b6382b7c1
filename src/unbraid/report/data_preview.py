"""Data at a glance: some rows of every modality as one picture."""

import textwrap

import torch
from PIL import Image, ImageDraw
from torch import Tensor

from unbraid import noise
from unbraid.data import FactorDataset
from unbraid.report.pictures import CLEAR, TILE, WHITE, Picture, as_bytes, separator

SIDE = 2 * TILE
INK, BLANK = (0, 0, 0, 255), (224, 224, 224, 255)
NUMBERS = 6
"""So many numbers of a vector are written out."""


def glance(data: FactorDataset, count: int = 8, seed: int = 0) -> Picture:
    """Random rows, a column for each, and a line for each modality: images, names of classes, numbers.

    Grey is what is missing.
    """
    order = noise.permutation(noise.seed_tensor(seed, device=data.device), 0, len(data))[0]
    rows = order[:count].sort().values
    seen = data.observed(rows)
    pitch = SIDE + separator(1)
    canvas = Image.new("RGBA", (len(rows) * pitch - separator(1), len(seen) * pitch - separator(1)), CLEAR)
    for line, (name, observed) in enumerate(seen.items()):
        classes = data.modalities[name].classes
        for column, (one, known) in enumerate(zip(observed, data.has(name, rows).tolist(), strict=True)):
            canvas.paste(_tile(one, classes) if known else _plain(BLANK), (column * pitch, line * pitch))
    return Picture.of(canvas.convert("RGB"))


def _plain(colour: tuple[int, ...]) -> Image.Image:
    return Image.new("RGBA", (SIDE, SIDE), colour)


def _tile(one: Tensor, classes: tuple[str, ...]) -> Image.Image:
    tile = _plain(WHITE)
    if one.ndim == 3:
        picture = Image.fromarray(as_bytes(one)).convert("RGBA")
        scale = SIDE / max(picture.size)
        width, height = (max(1, round(length * scale)) for length in picture.size)
        way = Image.Resampling.NEAREST if scale >= 1 else Image.Resampling.BOX
        tile.paste(picture.resize((width, height), way), ((SIDE - width) // 2, (SIDE - height) // 2))
        return tile
    if classes:
        text = textwrap.fill(classes[int(one.argmax())], 16)
    else:
        text = "\n".join(f"{number:.4g}" for number in one[:NUMBERS].tolist()) + ("\n…" if len(one) > NUMBERS else "")
    ImageDraw.Draw(tile).multiline_text((SIDE / 2, SIDE / 2), text, INK, anchor="mm", align="center", font_size=14)
    return tile


def contents(data: FactorDataset) -> list[dict[str, object]]:
    """What the modalities and factors of a data set are: a mapping for each, for a listing."""
    every = torch.arange(len(data), device=data.device)
    lines = []
    for name, modality in data.modalities.items():
        rows = int(data.has(name, every).sum())
        lines.append(_line(name, modality.kind, "x".join(map(str, modality.shape)), rows, modality.classes))
    for column, factor in enumerate(data.factors):
        rows = int(data.has_labels(every, [column]).sum())
        lines.append(_line(factor.name, "factor", str(factor.size), rows, factor.values or ()))
    return lines


def _line(name: str, kind: str, shape: str, rows: int, values: tuple[object, ...]) -> dict[str, object]:
    shown = ", ".join(f"{value:.4g}" if isinstance(value, float) else str(value) for value in values[:10])
    return {
        "name": name,
        "kind": kind,
        "shape": shape,
        "rows": rows,
        "values": shown + ("…" if len(values) > 10 else ""),
    }
