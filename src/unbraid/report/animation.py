"""A traversal as an animation: every latent moves through its range at once, each in a picture of its own."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from unbraid import atomic

ANIMATED = {"gif": "GIF", "apng": "PNG"}
"""Formats of Pillow for files that hold an animation, by their ending."""

FRAME_MILLISECONDS = 110
PAUSE_MILLISECONDS = 450
"""How long the two ends of the range are shown."""

TEXT_PIXELS = 13


def make_frames(rows: Sequence[Image.Image], names: Sequence[str]) -> list[Image.Image]:
    """Return frames of rows of tiles, there and back; each row has one tile per name."""
    forth = [_name_tiles(row, names) for row in rows]
    return [*forth, *reversed(forth[1:-1])]


def _name_tiles(row: Image.Image, names: Sequence[str]) -> Image.Image:
    """Return a row of tiles with a name below each."""
    page = Image.new("RGB", (row.width, row.height + 2 * TEXT_PIXELS), "white")
    page.paste(row.convert("RGB"), (0, 0))
    draw, font = ImageDraw.Draw(page), ImageFont.load_default(TEXT_PIXELS)
    for place, name in enumerate(names):
        middle = row.width / len(names) * (place + 0.5)
        draw.text((middle, row.height + TEXT_PIXELS), name, fill="black", font=font, anchor="mm")
    return page


def save_frames(path: Path, frames: Sequence[Image.Image], ending: str) -> None:
    """Write frames as an endless GIF or APNG."""
    ends = {0, len(frames) // 2}
    durations = [PAUSE_MILLISECONDS if place in ends else FRAME_MILLISECONDS for place in range(len(frames))]
    how: dict[str, Any] = {"save_all": True, "append_images": list(frames[1:]), "duration": durations, "loop": 0}
    with atomic.replacing(path) as part:
        frames[0].save(part, ANIMATED[ending], **how)
