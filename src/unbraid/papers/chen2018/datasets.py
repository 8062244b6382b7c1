"""The data sets themselves: chen2018's table 2 (factors) and figure S16 (real samples)."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from unbraid.data import describe, load
from unbraid.data.factors import FactorDataset
from unbraid.experiments.base import Scale, experiment
from unbraid.experiments.claims import Claim
from unbraid.experiments.drawing import draw_pictures
from unbraid.experiments.evidence import find_largest
from unbraid.experiments.results import Results, make_member
from unbraid.experiments.sprites import TINY_GRID
from unbraid.report.pictures import WHITE, tile_images
from unbraid.report.tables import Member

PUBLISHED = {
    "sprites": {"scale": 6, "orientation": 40, "posX": 32, "posY": 32},
    "faces3d": {"azimuth": 21, "elevation": 11, "lighting": 11},
}
"""Values of each factor; the shape (3) and the identity (50) are noise."""

DEVIATION, BINARY = "factors/deviation", "pixels/not-binary"
DRAWN, IMAGES = 2_000, 30
SCALES = {
    "smoke": Scale({**{key.removeprefix("data."): value for key, value in TINY_GRID.items()}, "seed": range(2)}),
    **{name: Scale({"seed": range(3)}) for name in ("small", "budget", "paper")},
}
NOTES = (
    "Rendered sprites stand for dSprites and have the same factors; 3D faces are left out without your renderings. A "
    "seed draws the images that are looked at.",
)


def load_present(options: Mapping[str, Any]) -> dict[str, FactorDataset]:
    """Return the data sets of table 2 whose files are here; sprites need none."""
    present = {item.name for item in describe() if item.state != "missing"}
    found = {"sprites": load("sprites", options)}
    return found | ({"faces3d": load("faces3d", {})} if "faces3d" in present else {})


def measure_datasets(settings: Mapping[str, Any]) -> list[Member]:
    """Return the largest deviation from the published sizes, and the share of pixels between 0 and 1."""
    options = {key: value for key, value in settings.items() if key != "seed"}
    members = []
    for name, data in load_present(options).items():
        sizes = dict(zip(data.factor_names, data.sizes, strict=True))
        deviation = max(abs(sizes[factor] - size) for factor, size in PUBLISHED[name].items())
        for seed in settings["seed"]:
            images = draw_images(data, seed, min(DRAWN, len(data)))
            between = float(((images > 0) & (images < 1)).float().mean())
            values = {DEVIATION: float(deviation), BINARY: between}
            members.append(make_member(name, seed, values, len(images)))
    return members


def draw_images(data: FactorDataset, seed: int, count: int) -> torch.Tensor:
    """Return random images [count, *shape]."""
    rows = np.random.default_rng(seed).permutation(len(data))[:count]
    return data.images(torch.from_numpy(rows))


def draw_samples(results: Results, make: Any) -> Any:
    options = (
        {} if results.scale != "smoke" else {key: v for key, v in SCALES["smoke"].settings.items() if key != "seed"}
    )
    pictures = [
        (name, tile_images(draw_images(data, 0, IMAGES).unflatten(0, (3, -1)), WHITE))
        for name, data in load_present(options).items()
    ]
    return draw_pictures(make, [[picture] for picture in pictures])


def add_check(name: str, summary: str, score: str, claim: str, what: str, high: float) -> None:
    """Register an experiment whose claim bounds the largest value of a score of dSprites."""
    claims = (Claim(claim, find_largest(["sprites"], score, what, high=high), trained=False),)
    facts: dict[str, Any] = {"measure": measure_datasets, "scales": SCALES, "notes": NOTES}
    experiment.add(name, summary, draw_samples, **facts, scores=(score,), claims=claims)


add_check(
    "chen2018/table2",
    "Numbers of values of the factors of both data sets.",
    DEVIATION,
    "dSprites has 6 scales, 40 rotations and 32 x 32 positions",
    "largest difference of a number of values",
    high=0.5,
)
add_check(
    "chen2018/figS16",
    "Random images of the data sets.",
    BINARY,
    "pixels of dSprites are 0 or 1",
    "largest share of other pixels",
    high=1e-9,
)
