"""Thickness and width against drawn strokes of known size, and MNIST's two measured factors."""

import numpy as np
import pytest
import torch
from scipy import ndimage

from unbraid.data import FactorDataset, Pixels, dataset, fetch, load
from unbraid.data.mnist import DIGIT, add_stroke_factors, bin_values
from unbraid.data.splits import split
from unbraid.data.stroke_measures import digit_width, measure_strokes, stroke_thickness
from unbraid.errors import DataError

FINE = 8
X, Y = np.meshgrid(*[(np.arange(28 * FINE) + 0.5) / FINE - 0.5] * 2)


def grey(ink):
    """A region at 8 x 8 times the resolution as a grey image: each pixel the share of it that is covered."""
    return ink.reshape(28, FINE, 28, FINE).mean((1, 3))


def bar(angle, thick, length=16.0, x=13.3, y=13.6):
    """A straight stroke with round ends."""
    ahead = np.cos(angle) * (X - x) + np.sin(angle) * (Y - y)
    aside = -np.sin(angle) * (X - x) + np.cos(angle) * (Y - y)
    return grey(np.hypot(np.maximum(np.abs(ahead) - length / 2, 0), aside) <= thick / 2)


def oval(across, down, thick, shear=0.0):
    """A closed stroke along an ellipse with half axes `across` and `down`."""
    turn = np.linspace(0, 2 * np.pi, 2000, endpoint=False)
    y = down * np.sin(turn)
    line = np.stack([13.5 + across * np.cos(turn) + shear * y, 13.2 + y])
    cells = np.zeros((28 * FINE, 28 * FINE), bool)
    cells[tuple(np.round((line[::-1] + 0.5) * FINE - 0.5).astype(int))] = True
    return grey(ndimage.distance_transform_edt(~cells) <= thick * FINE / 2)


@pytest.mark.parametrize("thick", [2.0, 3.0, 4.0, 5.0])
def test_thickness_of_bars_and_ovals(thick):
    angles = np.radians([0, 15, 30, 45, 60, 75, 90])
    bars = stroke_thickness([bar(angle, thick) for angle in angles])
    ovals = stroke_thickness([oval(across, 9, thick) for across in (4.5, 6, 9)])
    assert np.abs(bars - thick).max() < 0.2
    assert np.abs(ovals - thick).max() < 0.2


def test_thickness_of_a_stroke_that_crosses_itself():
    eight = np.maximum(oval(4, 4.5, 2.0)[4:24], 0)
    both = np.maximum(np.pad(eight, ((0, 8), (0, 0))), np.pad(eight, ((8, 0), (0, 0))))
    assert stroke_thickness(both[None])[0] == pytest.approx(2, abs=0.2)  # two holes: chi = -1


@pytest.mark.parametrize("across", [3.0, 5.0, 8.5])
@pytest.mark.parametrize("shear", [-0.4, 0.0, 0.3])
def test_width_is_that_of_the_upright_digit(across, shear):
    pen = 2.0 * np.hypot(1, shear)  # what a round pen of 2 pixels covers of a slanted side's row
    assert digit_width(oval(across, 8, 2.0, shear)[None])[0] == pytest.approx(2 * across + pen, abs=0.3)


def test_measures_grow_with_the_pen_and_not_with_scale_of_grey_or_place():
    images = np.stack([bar(0.3, 2), bar(1.2, 3, 10), oval(5, 8, 2), oval(7, 7, 3)])
    found = measure_strokes(images)
    grown = images
    for _ in range(2):
        grown = ndimage.grey_dilation(grown, (1, 2, 2))
        again = measure_strokes(grown)
        assert (again > found + 0.5).all()
        found = again
    found = measure_strokes(images)
    assert np.allclose(measure_strokes(images * 0.4), found)
    assert np.allclose(measure_strokes(np.roll(images, (2, 1), (1, 2))), found)
    assert np.allclose(measure_strokes(images[:, ::-1, ::-1]), found)
    assert np.abs(measure_strokes((images * 255).round().astype(np.uint8)) - found).max() < 0.02


def test_degenerate_images():
    images = np.zeros((4, 28, 28))
    images[1, 5, 5] = 1
    images[2, 5] = 1
    images[3] = 1
    found = measure_strokes(images)
    assert found[0].tolist() == [0, 0]
    assert np.isfinite(found).all()
    assert (found[1:] > 0).all()
    assert found[3, 1] == pytest.approx(28)
    assert measure_strokes(np.zeros((0, 28, 28))).shape == (0, 2)
    with pytest.raises(DataError, match=r"\[n, h, w\]"):
        measure_strokes(np.zeros((28, 28)))
    with pytest.raises(DataError, match="NaN"):
        measure_strokes(np.full((1, 4, 4), np.nan))


def test_bins_hold_as_many_rows_each():
    values = np.random.default_rng(0).gamma(3.0, size=1000)
    factor, place = bin_values("thickness", values)
    assert torch.bincount(place).tolist() == [100] * 10
    assert list(factor.values) == sorted(factor.values)
    assert factor.values[3] == pytest.approx(np.median(values[place.numpy() == 3]), abs=1e-3)
    assert bin_values("flat", np.array([1.0] * 90 + [2.0] * 10))[0].size == 2


@pytest.fixture
def digits(tmp_path, monkeypatch):
    monkeypatch.setenv("UNBRAID_DATA", str(tmp_path))
    thick = np.linspace(1.5, 5, 20)
    images = np.stack([bar(1.2, t) for t in thick] + [oval(5, 8, t) for t in thick])
    images, labels = (images * 255).astype(np.uint8), np.repeat([1, 0], 20).astype(np.uint8)
    parts = {"train_images": images, "train_labels": labels, "test_images": images[:4], "test_labels": labels[:4]}
    np.savez(tmp_path / "mine.npz", **parts)
    fetch("mnist", tmp_path / "mine.npz")
    return tmp_path


def test_measured_mnist_has_two_more_factors(digits):
    plain, data = load("mnist"), load("mnist", {"measured": True})
    assert plain.factors == (DIGIT,)
    assert data.factor_names == ("digit", "thickness", "width")
    assert torch.equal(data.table[:, 0], plain.table[:, 0])
    assert (data.table[:20, 1].diff() >= 0).all()
    kept = list(digits.glob("mnist-strokes-*"))
    assert len(kept) == 1
    assert load("mnist", {"measured": True}).content_hash() == data.content_hash()
    kept[0].write_bytes(b"damaged")
    assert load("mnist", {"measured": True}).content_hash() == data.content_hash()
    held_out = split(data, "prune:digit=1 & thickness>4").held_out
    assert (data.table[held_out, 0] == 1).all()
    assert stroke_thickness(data.pixels.stored[held_out, 0].numpy()).min() > 3.5


def test_configs_of_plain_mnist_stay_as_they_were():
    assert dataset["mnist"].resolve({}) == {}
    assert dataset["mnist"].resolve({"measured": False}) == {}
    assert dataset["mnist"].resolve({"measured": True}) == {"measured": True}


def test_only_grey_images_have_strokes():
    colour = FactorDataset("colour", Pixels(torch.zeros(2, 3, 4, 4, dtype=torch.uint8), (3, 4, 4)))
    with pytest.raises(DataError, match="channel"):
        add_stroke_factors(colour)
