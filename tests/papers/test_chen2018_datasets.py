"""chen2018's table 2: numbers of values of the factors, against those that the paper prints."""

import pytest
import torch

from unbraid.data.factors import Factor, FactorDataset, Pixels
from unbraid.experiments import Results, judge
from unbraid.experiments.base import experiment
from unbraid.papers.chen2018 import datasets

SPRITES = {"shape": 3, "scale": 6, "orientation": 40, "posX": 32, "posY": 32}
FACES = {"identity": 50, "azimuth": 21, "elevation": 11, "lighting": 11}
"""The paper: scale (6), rotation (40), posX (32), posY (32); azimuth (21), elevation (11), lighting (11). The 3 shapes
and 50 identities are noise."""


def make_data(sizes, pixel=0):
    """Five black images, with one pixel that may differ, of a data set whose factors have these numbers of values."""
    factors = tuple(Factor(name, size) for name, size in sizes.items())
    images = torch.zeros(5, 4, dtype=torch.uint8)
    images[2, 3] = pixel
    return FactorDataset("made", Pixels(images, (1, 2, 2)), factors, torch.zeros(5, len(factors), dtype=torch.int64))


def measure(monkeypatch, sprites, faces, grey=0):
    found = {"sprites": make_data(sprites, grey), "faces3d": make_data(faces)}
    monkeypatch.setattr(datasets, "load_present", lambda options: found)
    return datasets.measure_datasets({"seed": range(3)})


def judge_table(members):
    return judge(experiment["chen2018/table2"].facts.claims[0], Results(tuple(members))).verdict


def test_table_2_holds_for_the_papers_numbers(monkeypatch):
    members = measure(monkeypatch, SPRITES, FACES)
    assert {member.scores[datasets.DEVIATION].value for member in members} == {0.0}
    assert judge_table(members) == "holds"


@pytest.mark.parametrize("factor", ["scale", "orientation", "posX", "posY"])
def test_one_value_more_of_a_sprite_refutes_table_2(monkeypatch, factor):
    members = measure(monkeypatch, {**SPRITES, factor: SPRITES[factor] + 1}, FACES)
    assert judge_table(members) == "does not hold"


@pytest.mark.parametrize("factor", ["azimuth", "elevation", "lighting"])
def test_one_value_fewer_of_a_face_is_a_deviation(monkeypatch, factor):
    members = measure(monkeypatch, SPRITES, {**FACES, factor: FACES[factor] - 1})
    assert [m.scores[datasets.DEVIATION].value for m in members] == [0.0] * 3 + [1.0] * 3
    assert judge_table(members) == "holds"  # about dSprites alone


@pytest.mark.parametrize(("pixel", "verdict"), [(0, "holds"), (255, "holds"), (128, "does not hold")])
def test_one_grey_pixel_refutes_figure_s16(monkeypatch, pixel, verdict):
    members = measure(monkeypatch, SPRITES, FACES, pixel)
    assert judge(experiment["chen2018/figS16"].facts.claims[0], Results(tuple(members))).verdict == verdict
