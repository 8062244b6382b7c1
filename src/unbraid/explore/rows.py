"""Rows of the data that the page shows: pictures, codes, factors, and how well the model redraws data."""

import base64
import io
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from unbraid.data.tables import number_rows
from unbraid.explore.model import View
from unbraid.metrics import Evaluation
from unbraid.models import as_multimodal

ROWS = 240
"""Rows on the map; they are a random choice."""

SHEET_COLUMNS = 20
MAX_SIDE = 64
"""Pixels of a picture's longer side in the sheet; larger ones are shrunk."""

MAX_ROWS_TO_REDRAW = 1_000


class Numbers:
    """Arrays of the page, side by side as float32; the page finds each by its place and length."""

    def __init__(self) -> None:
        self.parts: list[np.ndarray] = []
        self.length = 0

    def add(self, tensor: Tensor) -> list[int]:
        """Append numbers and return [place, count]."""
        array = tensor.detach().cpu().numpy().astype("<f4").ravel()
        self.parts.append(array)
        self.length += array.size
        return [self.length - array.size, array.size]

    def bytes(self) -> bytes:
        return b"".join(part.tobytes() for part in self.parts)


def describe_rows(evaluation: Evaluation, numbers: Numbers) -> dict[str, Any]:
    """Return a sheet of pictures, codes and factor values of some rows, and their places in the data."""
    positions = evaluation.choose(ROWS)
    rows, dataset = evaluation.rows[positions], evaluation.dataset
    observed = dataset.observed(rows)
    known = dataset.varying_factors if dataset.factors else []
    values = dataset.values_of(rows)[:, known] if known else torch.zeros(len(rows), 0)
    present = torch.stack([dataset.has(name, rows) for name in observed], -1)
    numbered = number_rows(dataset)
    return {
        "count": len(rows),
        "places": [numbered[row] for row in rows.tolist()],
        "codes": numbers.add(evaluation.means[positions]),
        "factors": numbers.add(values),
        "present": numbers.add(present),
        "observed": [_observed(name, x, numbers) for name, x in observed.items()],
    }


def _observed(name: str, x: Tensor, numbers: Numbers) -> dict[str, Any]:
    if x.ndim != 4:
        return {"modality": name, "numbers": numbers.add(x)}
    return {"modality": name, **sheet_of(x)}


def sheet_of(images: Tensor) -> dict[str, Any]:
    """Return images [n, channels, height, width] as one PNG of tiles, with the tiles' size."""
    height, width = images.shape[-2:]
    scale = min(1.0, MAX_SIDE / max(height, width))
    small = (max(1, round(height * scale)), max(1, round(width * scale)))
    if small != (height, width):
        images = torch.nn.functional.interpolate(images, small, mode="area")
    colour = images.shape[1] == 3
    grey = images if colour else images.mean(1, keepdim=True)
    tiles = (grey.clamp(0, 1) * 255).round().byte().permute(0, 2, 3, 1).cpu().numpy()
    lines = -(-len(tiles) // SHEET_COLUMNS)
    page = np.zeros((lines, SHEET_COLUMNS, *tiles.shape[1:]), np.uint8)
    page.reshape(-1, *tiles.shape[1:])[: len(tiles)] = tiles
    page = page.transpose(0, 2, 1, 3, 4).reshape(lines * small[0], SHEET_COLUMNS * small[1], -1)
    buffer = io.BytesIO()
    Image.fromarray(page if colour else page[..., 0]).save(buffer, "PNG", optimize=True)
    return {"sheet": base64.b64encode(buffer.getvalue()).decode(), "size": list(small), "columns": SHEET_COLUMNS}


def distances(evaluation: Evaluation, views: list[View]) -> dict[str, list[float]]:
    """Return quantiles (50%, 90%, 99%) of the root mean square by which the last stage misses rows, by modality."""
    positions = evaluation.choose(MAX_ROWS_TO_REDRAW)
    rows, dataset, model = evaluation.rows[positions], evaluation.dataset, evaluation.model
    codes, found = evaluation.means[positions], {}
    with torch.no_grad():
        made = as_multimodal(model).expected(codes) if model.multimodal else {"x": model.decode_stages(codes)[-1]}
    for view in views:
        error = (made[view.modality] - dataset.observed(rows)[view.modality]).flatten(1).square().mean(1).sqrt()
        there = error[dataset.has(view.modality, rows)].double()
        if len(there):
            quantiles = there.quantile(torch.tensor([0.5, 0.9, 0.99], dtype=there.dtype, device=there.device))
            found[view.modality] = [round(value, 5) for value in quantiles.tolist()]
    return found
