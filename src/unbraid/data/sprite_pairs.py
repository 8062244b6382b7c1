"""Pairs of sprites that share their shape and nothing else (daunhawer2019, section 4).

The first modality varies in shape, size and orientation at the middle of the frame, the second in shape and position at
full size and upright. Every pair of images with the same shape occurs once: as many as there are sprites, and a pair's
number spells the same five factors. Clean images are stored once (720 and 3,072). Pixels are flipped when a row is
read, by a hash of seed, pair, modality and pixel: a pair always looks the same, and nothing noisy is ever stored.
"""

import math
from dataclasses import dataclass, replace
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

FIRST, SECOND = ("shape", "scale", "orientation"), ("shape", "posX", "posY")
TEST = 0.2
"""Share of the pairs that is held out."""

LEVELS = 2**16
"""Flips are decided by 16 bits each, four pixels to one hash, so their probability is a multiple of 2^-16."""


@dataclass(frozen=True)
class Corrupted:
    """Rows of clean images, picked by some of a grid's factors, with pixels flipped.

    `factors` are a size and a stride of the grid for each factor that the clean images vary in. The `seed` is a tensor
    [1], because a compiler folds the products of a number that it knows, and they have to wrap around.
    """

    clean: Pixels
    rows: int
    factors: tuple[tuple[int, int], ...]
    flip: float
    seed: Tensor
    stream: str

    def __post_init__(self) -> None:
        noise.hash_name(self.stream)  # before a step that draws it is compiled

    @property
    def shape(self) -> Shape:
        """Shape of one image."""
        return self.clean.shape

    @property
    def content(self) -> tuple[Any, ...]:
        """The clean images, how they are picked, and what decides about the flips."""
        return (self.clean.stored, self.shape, self.rows, self.factors, self.flip, self.seed, self.stream)

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: Tensor) -> Tensor:
        """Images [*index.shape, *shape], each pixel 0 or 1."""
        clean = self.clean[self.picked(index)]
        if self.flip == 0:
            return clean
        flat = index.flatten()
        pixels = math.prod(self.shape)
        words = noise.bits(self.seed.expand(len(flat)), flat, self.stream, (-(-pixels // 4),))
        shifts = torch.arange(0, 64, 16, device=index.device)
        parts = (words.unsqueeze(-1) >> shifts) & (LEVELS - 1)
        flipped = parts.flatten(1)[:, :pixels] < round(self.flip * LEVELS)
        return (clean - flipped.view(clean.shape).to(clean.dtype)).abs()

    def expected(self, index: Tensor) -> Tensor:
        """Means [*index.shape, *shape] over the flips: what a perfect decoder says of these rows."""
        clean = self.clean[self.picked(index)]
        return clean + self.flip * (1.0 - 2.0 * clean)

    def picked(self, index: Tensor) -> Tensor:
        """Rows of the clean images."""
        place = torch.zeros_like(index)
        for size, stride in self.factors:
            place = place * size + index // stride % size
        return place

    def to(self, device: torch.device | str) -> "Corrupted":
        """The same images on a device."""
        return replace(self, clean=self.clean.to(device), seed=self.seed.to(device))


@dataset("sprites-pairs", images=737_280, shape=(1, 64, 64), factors=FACTORS, modalities=("m1", "m2"))
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

    A fifth of the pairs is held out by default: at random, so that all clean images are seen in training
    (`unseen=pairs`), or those with an image that no pair in training has (`unseen=images`).
    """
    if min(scales, orientations, positions) < 2 or len(shapes) < 2:
        raise UsageError("sprites-pairs: shapes, scales, orientations and positions must all be at least 2.")
    if not 0 <= flip < 1 or seed < 0:
        raise UsageError(f"sprites-pairs: flip must be from 0 up to 1 and seed 0 or above, not {flip:g} and {seed}.")
    first = sprites(size=size, shapes=shapes, scales=scales, orientations=orientations, positions=1)
    second = sprites(size=size, shapes=shapes, scales=1, orientations=1, positions=positions)
    factors = (*first.factors, *second.factors[1:])
    modalities = []
    for name, images, own in (("m1", first, FIRST), ("m2", second, SECOND)):
        known = noise.seed_tensor(seed, device=images.device)
        values = Corrupted(images.pixels, _count(factors), _strides(factors, own), flip, known, f"sprites-pairs/{name}")
        modalities.append(Modality(name, "image", values))
    made = multimodal("sprites-pairs", modalities, factors, source="rendered by unbraid")
    held_out = _some_pairs(len(made)) if unseen == "pairs" else _pairs_of_some_images(modalities)
    return replace(made, held_out=held_out)


def _count(factors: tuple[Factor, ...]) -> int:
    return math.prod(factor.size for factor in factors)


def _strides(factors: tuple[Factor, ...], own: tuple[str, ...]) -> tuple[tuple[int, int], ...]:
    """Size and stride in the grid of each factor that a modality varies in."""
    return tuple((f.size, _count(factors[k + 1 :])) for k, f in enumerate(factors) if f.name in own)


def _some_pairs(count: int) -> Tensor:
    return _order(count, "pairs")[: round(TEST * count)].sort().values


def _pairs_of_some_images(modalities: list[Modality]) -> Tensor:
    """Pairs with a held-out image in either modality, of which each holds out 1 - sqrt(.8)."""
    seen = None
    for modality in modalities:
        values = modality.values
        assert isinstance(values, Corrupted)
        count = len(values.clean)
        out = torch.zeros(count, dtype=torch.bool)
        out[_order(count, modality.name)[: round((1 - math.sqrt(1 - TEST)) * count)]] = True
        own = out[values.picked(torch.arange(values.rows))]
        seen = own if seen is None else seen | own
    assert seen is not None
    return seen.nonzero().squeeze(-1)


def _order(count: int, name: str) -> Tensor:
    """A random order that depends on nothing but its name: all runs and all noise levels hold out the same rows."""
    return noise.bits(noise.seed_tensor(0), 0, f"sprites-pairs/split/{name}", (count,))[0].argsort(stable=True)
