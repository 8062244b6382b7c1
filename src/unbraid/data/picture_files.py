"""Picture files of any mode as bytes [channels, height, width], always by the same rules.

Transparency is laid over white, 16-bit values keep their upper 8 bits' meaning (v / 257, rounded), palettes and CMYK
become RGB, and the orientation that a camera noted is applied. Shrinking averages areas.
"""

import io
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from unbraid.errors import DataError, UsageError
from unbraid.progress import progress

SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})
GREY = frozenset({"1", "L", "LA", "La", "I", "F", "I;16", "I;16L", "I;16B", "I;16N"})

Mode = Literal["L", "RGB"]
Source = Path | bytes
Item = TypeVar("Item")


def is_grey(mode: str) -> bool:
    """Whether a Pillow mode has no colour."""
    return mode in GREY


def read_picture(source: Source, name: str, mode: Mode, size: int | None = None, crop: int | None = None) -> np.ndarray:
    """One picture as bytes [channels, height, width].

    With `size` its central square (of `crop` pixels, where given) is resized to size x size.
    """
    try:
        with Image.open(_stream(source)) as picture:
            plain = flatten(ImageOps.exif_transpose(picture), mode)
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"{name} is not a readable picture ({str(error).splitlines()[0]}).") from error
    if size is not None or crop is not None:
        plain = _square(plain, size, crop)
    array = np.asarray(plain)
    return array[None] if mode == "L" else np.ascontiguousarray(array.transpose(2, 0, 1))


def read_alike(paths: Sequence[Path], names: Sequence[str], size: int | None, what: str) -> Tensor:
    """Pictures as one tensor [n, channels, height, width]: grey if all of them are, and RGB otherwise.

    With `size` the central square of each is resized to size x size; without, all must have the same size. An error
    calls them by their `names`.
    """
    headers = [_header(path, name) for path, name in zip(paths, names, strict=True)]
    for name, (_, shape) in zip(names, headers, strict=True):
        if size is None and shape != headers[0][1]:
            raise DataError(
                f"{names[0]} is {_by(headers[0][1])} pixels and {name} is {_by(shape)}; give size=… to resize them."
            )
    mode: Mode = "L" if all(is_grey(mode) for mode, _ in headers) else "RGB"
    named = list(zip(paths, names, strict=True))
    return read_all(named, lambda each: read_picture(*each, mode, size), what)


def flatten(picture: Image.Image, mode: Mode) -> Image.Image:
    """A picture of any mode as 8-bit grey or RGB."""
    if picture.mode == "F":
        values = np.asarray(picture)
        if not (np.isfinite(values).all() and values.min() >= 0 and values.max() <= 1):
            raise ValueError("its float pixels lie outside [0, 1]")
        picture = Image.fromarray((values * 255).round().astype(np.uint8))
    elif picture.mode.startswith("I"):
        values = np.asarray(picture).astype(np.int64)
        if values.min() < 0 or values.max() > 65535:
            raise ValueError("its integer pixels do not fit 16 bits")
        picture = Image.fromarray(((values + 128) // 257).astype(np.uint8))
    if picture.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in picture.info:
        picture = picture.convert("RGBA")
        white = Image.new("RGBA", picture.size, (255, 255, 255, 255))
        picture = Image.alpha_composite(white, picture).convert("RGB")
    return picture if picture.mode == mode else picture.convert(mode)


def resize(picture: Image.Image, size: int) -> Image.Image:
    """A square picture at another size: areas averaged when it shrinks, bilinear when it grows."""
    if size < 1:
        raise UsageError(f"size must be at least 1, not {size}.")
    shrinks = size <= picture.width
    return picture.resize((size, size), Image.Resampling.BOX if shrinks else Image.Resampling.BILINEAR)


def read_all(sources: Sequence[Item], read: Callable[[Item], np.ndarray], what: str) -> Tensor:
    """`read` of every source, in order and on all cores, as one tensor [n, channels, height, width]."""
    with ThreadPoolExecutor() as pool:
        return stack(pool.map(read, sources), len(sources), what)


def stack(arrays: Iterable[np.ndarray], count: int, what: str) -> Tensor:
    """`count` pictures of one shape as a tensor, filled as they come."""
    images = None
    with progress(f"Reading {what}", count) as bar:
        for row, array in enumerate(arrays):
            if images is None:
                images = torch.empty((count, *array.shape), dtype=torch.uint8, device="cpu")
            if array.shape != images.shape[1:]:
                first, other = tuple(images.shape[1:]), array.shape
                raise DataError(f"{what}: picture {row} is {other}, the first one {first}; give size=….")
            images[row] = torch.from_numpy(np.array(array))
            bar.advance()
    if images is None:
        raise DataError(f"{what} holds no pictures.")
    return images


def _header(path: Path, name: str) -> tuple[str, tuple[int, int]]:
    """Mode and size as shown (width, height), without decoding the pixels."""
    try:
        with Image.open(path) as picture:
            width, height = picture.size
            turned = picture.getexif().get(0x0112, 1) in (5, 6, 7, 8)
            return picture.mode, (height, width) if turned else (width, height)
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"{name} is not a readable picture ({str(error).splitlines()[0]}).") from error


def _by(shape: tuple[int, int]) -> str:
    return f"{shape[0]} x {shape[1]}"


def _stream(source: Source) -> Path | io.BytesIO:
    return io.BytesIO(source) if isinstance(source, bytes) else source


def _square(picture: Image.Image, size: int | None, crop: int | None) -> Image.Image:
    side = min(*picture.size, *([crop] if crop else []))
    left, top = (picture.width - side) // 2, (picture.height - side) // 2
    picture = picture.crop((left, top, left + side, top + side))
    return picture if size is None or size == side else resize(picture, size)
