"""Previews of a data set: a picture of some rows, and a listing of its modalities and factors."""

import textwrap
from collections.abc import Sequence

import torch
from PIL import Image, ImageDraw
from torch import Tensor

from unbraid import noise
from unbraid.data import FactorDataset
from unbraid.report.pictures import MIN_TILE_WIDTH, WHITE, Picture, measure_gap, to_uint8

SIDE = 2 * MIN_TILE_WIDTH
INK, BLANK, LINE = (0, 0, 0, 255), (224, 224, 224, 255), (128, 128, 128, 255)
MAX_NUMBERS_PER_VECTOR = 6
MAX_VALUES_PER_FACTOR = 10


def draw_preview(data: FactorDataset, count: int = 8, seed: int = 0) -> Picture:
    """Return a picture of random rows: a column per row, a line per modality, grey tiles for missing observations."""
    order = noise.permutation(noise.seed_tensor(seed, device=data.device), 0, len(data))[0]
    rows = order[:count].sort().values
    observed = data.observed(rows)
    pitch = SIDE + measure_gap(1)
    canvas = Image.new("RGBA", (len(rows) * pitch - measure_gap(1), len(observed) * pitch - measure_gap(1)), LINE)
    for line, (name, values) in enumerate(observed.items()):
        classes = data.modalities[name].classes
        for column, (value, present) in enumerate(zip(values, data.has(name, rows).tolist(), strict=True)):
            tile = _draw_tile(value, classes) if present else Image.new("RGBA", (SIDE, SIDE), BLANK)
            canvas.paste(tile, (column * pitch, line * pitch))
    return Picture.of(canvas.convert("RGB"))


def _draw_tile(value: Tensor, classes: tuple[str, ...]) -> Image.Image:
    """Return an image, the name of a class or the first numbers of a vector as a tile."""
    tile = Image.new("RGBA", (SIDE, SIDE), WHITE)
    if value.ndim == 3:
        picture = Image.fromarray(to_uint8(value)).convert("RGBA")
        scale = SIDE / max(picture.size)
        width, height = (max(1, round(length * scale)) for length in picture.size)
        method = Image.Resampling.NEAREST if scale >= 1 else Image.Resampling.BOX
        tile.paste(picture.resize((width, height), method), ((SIDE - width) // 2, (SIDE - height) // 2))
        return tile
    if classes:
        text = textwrap.fill(classes[int(value.argmax())], 16)
    else:
        numbers = [f"{number:.4g}" for number in value[:MAX_NUMBERS_PER_VECTOR].tolist()]
        text = "\n".join([*numbers, "…"] if len(value) > MAX_NUMBERS_PER_VECTOR else numbers)
    ImageDraw.Draw(tile).multiline_text((SIDE / 2, SIDE / 2), text, INK, anchor="mm", align="center", font_size=14)
    return tile


def list_contents(data: FactorDataset) -> list[dict[str, object]]:
    """Return name, kind, shape, number of rows and values of every modality and factor."""
    every = torch.arange(len(data), device=data.device)
    entries: list[tuple[str, str, str, int, str]] = []
    for name, modality in data.modalities.items():
        shape = "x".join(map(str, modality.shape))
        entries.append((name, modality.kind, shape, int(data.has(name, every).sum()), _join(modality.classes)))
    for column, factor in enumerate(data.factors):
        rows = int(data.has_labels(every, [column]).sum())
        entries.append((factor.name, "factor", str(factor.size), rows, _join(factor.values or ())))
    return [dict(zip(("name", "kind", "shape", "rows", "values"), entry, strict=True)) for entry in entries]


def _join(values: Sequence[object]) -> str:
    shown = values[:MAX_VALUES_PER_FACTOR]
    text = ", ".join(f"{value:.4g}" if isinstance(value, float) else str(value) for value in shown)
    return text + ("…" if len(values) > MAX_VALUES_PER_FACTOR else "")
