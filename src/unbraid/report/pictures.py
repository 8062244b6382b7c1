"""Pictures of image tiles with thin separators, enlarged so that pixels stay sharp, and animations of rows of tiles."""

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from unbraid import atomic
from unbraid.errors import UsageError
from unbraid.types import Shape

FORMATS = ("png", "jpg", "jpeg", "webp", "gif", "apng", "tif", "tiff", "bmp", "pdf")
OPAQUE_FORMATS = ("jpg", "jpeg", "pdf")
MIN_TILE_WIDTH = 64
CLEAR = (0, 0, 0, 0)
WHITE = (255, 255, 255, 255)
ANIMATED = {"gif": "GIF", "apng": "PNG"}
"""Formats of Pillow for files that hold an animation, by their ending."""

FRAME_MILLISECONDS = 110
PAUSE_MILLISECONDS = 450
"""How long the two ends of the range are shown."""

TEXT_PIXELS = 13


class Picture(Image.Image):
    """A Pillow image whose `save` creates missing folders and refuses unknown formats in one sentence.

    A picture with `frames` is saved as an animation where the format holds one (.gif, .apng).
    """

    frames: Sequence[Image.Image] = ()

    @classmethod
    def of(cls, image: Image.Image) -> "Picture":
        """Return a picture with the pixels of an image."""
        picture = cls()
        picture.__dict__.update(image.__dict__)
        return picture

    def save(self, fp: Any, format: str | None = None, **params: Any) -> None:
        """Write the picture to a file, in the format of its ending, or to anything else that Pillow supports."""
        if not isinstance(fp, (str, Path)) or format is not None:
            super().save(fp, format, **params)
            return
        path, ending = Path(fp), Path(fp).suffix.lower().removeprefix(".")
        if ending not in FORMATS:
            raise UsageError(f"A picture file must end in .{', .'.join(FORMATS)}, not as {path} does.")
        path.parent.mkdir(parents=True, exist_ok=True)
        if self.frames and ending in ANIMATED:
            save_frames(path, self.frames, ending)
            return
        with atomic.replacing(path) as part:
            plain = Image.Image.copy(self)
            if plain.mode == "RGBA" and ending in OPAQUE_FORMATS:
                plain = Image.alpha_composite(Image.new("RGBA", plain.size, WHITE), plain).convert("RGB")
            plain.save(part, Image.registered_extensions()[f".{ending}"], **params)


def check_images(shape: Shape) -> None:
    """Raise unless observations have the shape [channels, height, width]."""
    if len(shape) != 3:
        raise UsageError(f"Only images can be drawn, not observations of shape {tuple(shape)}.")


def to_uint8(images: Tensor) -> np.ndarray:
    """Return images [..., channels, height, width] in 0..1 as uint8 [..., height, width, 3], grey unless in RGB."""
    rgb = images if images.shape[-3] == 3 else images.mean(-3, keepdim=True).expand(*images.shape[:-3], 3, -1, -1)
    return (rgb.detach().clamp(0, 1) * 255).round().byte().movedim(-3, -1).cpu().numpy()


def tile_images(images: Tensor, background: tuple[int, ...] = CLEAR, scale: int | None = None) -> Picture:
    """Return a picture of images [rows, columns, channels, height, width]."""
    check_images(tuple(images.shape[2:]))
    tiles = to_uint8(images)
    rows, columns, height, width, _ = tiles.shape
    scale = scale or choose_scale(width)
    (down, right), gap = measure_pitch(height, width, scale), measure_gap(scale)
    canvas = np.empty((rows * down - gap, columns * right - gap, 4), dtype=np.uint8)
    canvas[:] = background
    for i in range(rows):
        for j in range(columns):
            y, x = i * down, j * right
            tile = tiles[i, j].repeat(scale, 0).repeat(scale, 1)
            canvas[y : y + height * scale, x : x + width * scale, :3] = tile
            canvas[y : y + height * scale, x : x + width * scale, 3] = 255
    return Picture.of(Image.fromarray(canvas, "RGBA"))


def measure_pitch(height: int, width: int, scale: int) -> tuple[int, int]:
    """Return the distance from one tile to the next, down and to the right, in pixels."""
    return height * scale + measure_gap(scale), width * scale + measure_gap(scale)


def choose_scale(width: int) -> int:
    """Return the whole factor that enlarges a tile to at least `MIN_TILE_WIDTH` pixels."""
    return max(1, -(-MIN_TILE_WIDTH // width))


def measure_gap(scale: int) -> int:
    """Return the pixels between two tiles."""
    return max(2, scale)


def to_data_uri(picture: Picture) -> str:
    """Return a picture as the `src` of an HTML image."""
    buffer = io.BytesIO()
    picture.save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


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
