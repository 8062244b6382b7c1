"""A traversal as an animation: every latent moves through its range at once, each in a picture of its own."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from unbraid import atomic
from unbraid.report.pictures import WHITE, tiled

ANIMATED = ("gif", "apng")
"""Endings of files that hold an animation."""

FRAME_MILLISECONDS = 110
PAUSE_MILLISECONDS = 450
"""How long the two ends of the range are shown."""


def make_frames(images: Any, names: Sequence[str]) -> list[Image.Image]:
    """Return one frame per column of images [latents, columns, channels, height, width], there and back."""
    columns = images.shape[1]
    forth = [label_tiles(tiled(images[:, k][None], WHITE), names) for k in range(columns)]
    return [*forth, *reversed(forth[1:-1])]


def label_tiles(row: Image.Image, names: Sequence[str]) -> Image.Image:
    """Write a name below each tile of a row."""
    from PIL import ImageDraw, ImageFont

    size, step = 13, row.width / len(names)
    page = Image.new("RGB", (row.width, row.height + 2 * size), WHITE[:3])
    page.paste(row.convert("RGB"), (0, 0))
    draw = ImageDraw.Draw(page)
    for place, name in enumerate(names):
        at = (step * (place + 0.5), row.height + size)
        draw.text(at, name, fill="black", font=ImageFont.load_default(size), anchor="mm")
    return page


def save_frames(path: Path, frames: Sequence[Image.Image], ending: str) -> None:
    """Write frames as an endless GIF or APNG."""
    ends = {0, len(frames) // 2}
    durations = [PAUSE_MILLISECONDS if place in ends else FRAME_MILLISECONDS for place in range(len(frames))]
    how: dict[str, Any] = {"save_all": True, "append_images": list(frames[1:]), "duration": durations, "loop": 0}
    with atomic.replacing(path) as part:
        frames[0].save(part, "GIF" if ending == "gif" else "PNG", **how)
