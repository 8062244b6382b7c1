"""Pairs of sprites that share their shape and nothing else (daunhawer2019, section 4).

The first modality varies in shape, size and orientation at the middle of the frame, the second in shape and position at
full size and upright. Every pair of images with the same shape occurs once, so pairs and sprites are equally many, and
a pair's number spells the same five factors. Only the clean images are stored (720 and 3,072). Reading a row flips
pixels by a hash of seed, pair, modality and pixel, so a pair always looks the same.
"""

import math
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from unbraid import noise
from unbraid.data.base import dataset
from unbraid.data.factors import Factor, Pixels
from unbraid.data.modalities import MultimodalDataset, multimodal
from unbraid.data.modality import Modality
from unbraid.data.sprites import FACTORS, Sprite, sprites
from unbraid.errors import UsageError
from unbraid.types import Shape

NAME = "sprites-pairs"
FACTORS_OF = {"m1": ("shape", "scale", "orientation"), "m2": ("shape", "posX", "posY")}
TEST_SHARE = 0.2
LEVELS = 2**16
"""Flips are decided by 16 bits each, four pixels to one hash, so their probability is a multiple of 2^-16."""


@dataclass(frozen=True)
class FlippedImages:
    """Rows of clean images, chosen by some of a grid's factors, with pixels flipped.

    `factors` holds a size and a stride of the grid for each factor in which the clean images vary. `seed` is a tensor
    [1]: a compiler would fold the products of a known number, and they have to wrap around. `shown` is the row of the
    clean image of each row: a look-up, where divisions would take a step 26 operations.
    """

    clean: Pixels
    rows: int
    factors: tuple[tuple[int, int], ...]
    flip: float
    seed: Tensor
    stream: str
    shown: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        noise.hash_name(self.stream)  # before a step that draws it is compiled
        object.__setattr__(self, "shown", self._list_clean_rows())

    @property
    def shape(self) -> Shape:
        return self.clean.shape

    @property
    def content(self) -> tuple[Any, ...]:
        return (self.clean.stored, self.shape, self.rows, self.factors, self.flip, self.seed, self.stream)

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: Tensor) -> Tensor:
        clean = self.clean[self.clean_rows(index)]
        if self.flip == 0:
            return clean
        flat = index.flatten()
        pixels = math.prod(self.shape)
        words = noise.bits(self.seed.expand(len(flat)), flat, self.stream, (-(-pixels // 4),))
        parts = words.view(torch.int16)[:, :pixels].int() & (LEVELS - 1)  # four of a word, the lowest bits first
        flipped = parts < round(self.flip * LEVELS)
        return (clean - flipped.view(clean.shape).to(clean.dtype)).abs()

    def expected(self, index: Tensor) -> Tensor:
        clean = self.clean[self.clean_rows(index)]
        return clean + self.flip * (1.0 - 2.0 * clean)

    def clean_rows(self, index: Tensor) -> Tensor:
        """Return the rows of the clean images that rows of the grid show."""
        return self.shown[index].long()

    def _list_clean_rows(self) -> Tensor:
        index = torch.arange(self.rows, device=self.clean.stored.device)
        position = torch.zeros_like(index)
        for size, stride in self.factors:
            position = position * size + index // stride % size
        return position.int()

    def to(self, device: torch.device | str) -> "FlippedImages":
        return replace(self, clean=self.clean.to(device), seed=self.seed.to(device))


@dataset("sprites-pairs", images=737_280, shape=(1, 64, 64), factors=FACTORS, modalities=tuple(FACTORS_OF))
def sprites_pairs(
    *,
    size: int = 64,
    shapes: tuple[Sprite, ...] = ("square", "ellipse", "heart"),
    scales: int = 6,
    orientations: int = 40,
    positions: int = 32,
    flip: float = 0.1,
    seed: int = 0,
    unseen: Literal["pairs", "images"] = "pairs",
) -> MultimodalDataset:
    """Pairs of noisy sprites that share their shape: m1 varies in size and orientation, m2 in position.

    A fifth of the pairs is held out by default: at random, so that training sees all clean images (`unseen=pairs`), or
    those with an image that no training pair has (`unseen=images`).
    """
    if min(scales, orientations, positions) < 2 or len(shapes) < 2:
        raise UsageError(f"{NAME}: shapes, scales, orientations and positions must all be at least 2.")
    if not 0 <= flip < 1 or seed < 0:
        raise UsageError(f"{NAME}: flip must be from 0 up to 1 and seed 0 or above, not {flip:g} and {seed}.")
    first = sprites(size=size, shapes=shapes, scales=scales, orientations=orientations, positions=1)
    second = sprites(size=size, shapes=shapes, scales=1, orientations=1, positions=positions)
    factors = (*first.factors, *second.factors[1:])
    values: dict[str, FlippedImages] = {}
    for name, images in zip(FACTORS_OF, (first, second), strict=True):
        strides = _find_strides(factors, FACTORS_OF[name])
        seeds = noise.seed_tensor(seed, device=images.device)
        values[name] = FlippedImages(images.pixels, _count(factors), strides, flip, seeds, f"{NAME}/{name}")
    modalities = [Modality(name, "image", images) for name, images in values.items()]
    held_out = _choose_pairs(_count(factors)) if unseen == "pairs" else _choose_images(values)
    return multimodal(NAME, modalities, factors, held_out=held_out, source="rendered by unbraid")


def _count(factors: tuple[Factor, ...]) -> int:
    return math.prod(factor.size for factor in factors)


def _find_strides(factors: tuple[Factor, ...], varying: tuple[str, ...]) -> tuple[tuple[int, int], ...]:
    """Return size and stride in the grid of each factor that varies in a modality."""
    return tuple((f.size, _count(factors[k + 1 :])) for k, f in enumerate(factors) if f.name in varying)


def _choose_pairs(count: int) -> Tensor:
    return _shuffle(count, "pairs")[: round(TEST_SHARE * count)].sort().values


def _choose_images(values: dict[str, FlippedImages]) -> Tensor:
    """Return pairs with a held-out image in either modality; each modality holds out 1 - sqrt(.8) of its images."""
    masks = []
    for name, images in values.items():
        count = len(images.clean)
        held_out = torch.zeros(count, dtype=torch.bool)
        held_out[_shuffle(count, name)[: round((1 - math.sqrt(1 - TEST_SHARE)) * count)]] = True
        masks.append(held_out[images.clean_rows(torch.arange(images.rows))])
    return torch.stack(masks).any(0).nonzero().squeeze(-1)


def _shuffle(count: int, name: str) -> Tensor:
    """Return a random order that depends only on its name, so that all runs and noise levels hold out the same rows."""
    return noise.bits(noise.seed_tensor(0), 0, f"{NAME}/split/{name}", (count,))[0].argsort(stable=True)
