"""MNIST in several styles, and Fashion-MNIST with labels, on small files in the official format."""

import math

import numpy as np
import pytest
import torch

from tests.support.messages import naming
from unbraid.data import check, fetch, load, mnist_styles as styles
from unbraid.data.mnist import DIGIT, convert
from unbraid.errors import UsageError

TRAIN, TEST = 300, 60


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A data folder with both sets: every image is blank but for its own row number, in the first two pixels."""
    folder = tmp_path_factory.mktemp("mnist")
    labels = np.random.default_rng(0).integers(0, 10, TRAIN + TEST).astype(np.uint8)
    images = np.zeros((TRAIN + TEST, 28, 28), np.uint8)
    images[:, 6:22, 12:16] = 255
    images[:, 0, 0], images[:, 0, 1] = np.divmod(np.arange(TRAIN + TEST), 256)
    arrays = {"train_images": images[:TRAIN], "train_labels": labels[:TRAIN]}
    arrays |= {"test_images": images[TRAIN:], "test_labels": labels[TRAIN:]}
    np.savez(folder / "four.npz", **arrays)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNBRAID_DATA", str(folder / "home"))
        fetch("mnist-styles", folder / "four.npz")
        fetch("fashion-labels", folder / "four.npz")
        yield folder


@pytest.fixture
def digits(home):
    return convert(home / "four.npz", "mnist", DIGIT)


def test_styles_and_labels_share_the_stored_file_of_their_originals(home):
    assert sorted(path.name for path in (home / "home").iterdir()) == [
        "fashion-mnist-v1.safetensors",
        "mnist-v1.safetensors",
    ]
    assert len(load("mnist")) == len(load("mnist-styles", {"modalities": 2}))
    assert check("mnist-styles").state == "present"


def test_each_modality_shows_every_image_once_and_never_mixes_digits_or_parts(digits):
    shown = {name: styles.choose_shown_rows(digits, 3, name) for name in styles.STYLES}
    labels = digits.table[:, 0]
    for rows in shown.values():
        assert torch.equal(rows.sort().values, torch.arange(len(digits)))
        assert torch.equal(labels[rows], labels)
        assert torch.equal(rows >= TRAIN, torch.arange(len(digits)) >= TRAIN)
    same = (shown["paper"] == shown["tiles"]).float().mean()
    assert same < 0.15  # two random orders agree once in a digit and part, on average: 20 of 360 rows


def test_styles_are_bytes_that_depend_on_seed_and_row_alone(digits, monkeypatch):
    first = styles.draw_styles(digits)
    assert list(first.modalities) == ["stripes", "paper", "outline", "slanted", "tiles"]
    assert first.layout == dict.fromkeys(first.modalities, (3, 28, 28))
    assert first.present(torch.arange(3)) is None
    assert first.held_out.tolist() == list(range(TRAIN, TRAIN + TEST))
    monkeypatch.setattr(styles, "_ROWS_AT_A_TIME", 100)
    again, fewer, other = styles.draw_styles(digits), styles.draw_styles(digits, 2), styles.draw_styles(digits, seed=1)
    assert again.content_hash() == first.content_hash() != other.content_hash()
    for name, modality in first.modalities.items():
        assert modality.values.stored.dtype == torch.uint8
        assert len({row.numpy().tobytes() for row in modality.values.stored}) == len(digits)  # each row has its own
        if name in fewer.modalities:
            assert torch.equal(fewer.modalities[name].values.stored, modality.values.stored)


def whole(low, high, *shape, rows=5):
    return torch.randint(low, high + 1, (rows, *shape), dtype=torch.int32)


def test_colours_are_mixed_as_exact_arithmetic_does():
    ink, one, other = whole(0, 255, 8, 8), whole(0, 255, 3, 1, 1), whole(0, 255, 3, 8, 8)
    exact = (ink.unsqueeze(1).double() * one + (255 - ink).unsqueeze(1).double() * other) / 255
    mixed = styles._mix(ink, one, other)
    assert float((mixed - exact).abs().max()) <= 1.01
    ends = torch.tensor([[[0, 255]]], dtype=torch.int32)
    assert styles._mix(ends, one, other[..., :1, :2]).equal(torch.stack([other[..., :1, 0], one[..., 0]], -1))


def test_strokes_grow_by_the_eight_neighbours():
    ink = whole(0, 255, 9, 9)
    assert torch.equal(styles._dilate(ink), torch.nn.functional.max_pool2d(ink.float(), 3, 1, 1).int())


def test_turned_images_agree_with_torch():
    ink = whole(0, 255, 28, 28)
    degrees, percent = whole(-25, 25), whole(-35, 35)
    angle, shear = degrees.double() * math.pi / 180, percent.double() / 100
    one, nought = torch.ones_like(angle), torch.zeros_like(angle)
    turn = torch.stack([torch.stack([angle.cos(), angle.sin()], -1), torch.stack([-angle.sin(), angle.cos()], -1)], -2)
    slant = torch.stack([torch.stack([one, -shear], -1), torch.stack([nought, one], -1)], -2)
    theta = torch.cat([turn @ slant, torch.zeros(5, 2, 1, dtype=torch.float64)], -1)
    grid = torch.nn.functional.affine_grid(theta, [5, 1, 28, 28], align_corners=True)
    wanted = torch.nn.functional.grid_sample(ink[:, None].double(), grid, align_corners=True)[:, 0]
    found = styles._turn(ink, degrees, percent)
    assert float((found - wanted).abs().max()) < 5  # of 255, where neighbours are as different as they can be
    assert float((found - wanted).abs().mean()) < 1
    assert torch.equal(styles._turn(ink, 0 * degrees, 0 * percent), ink)


@pytest.mark.parametrize(
    ("settings", "facts"),
    [
        ({"modalities": 1}, ["modalities", 2, 5, 1]),
        ({"modalities": 6}, ["modalities", 2, 5, 6]),
        ({"seed": -1}, ["seed", 0]),
    ],
)
def test_wrong_settings_of_styles(home, settings, facts):
    with pytest.raises(UsageError, match=naming(*facts)):
        load("mnist-styles", settings)


def test_images_with_labels(home):
    data = load("fashion-labels")
    rows = torch.arange(len(data))
    seen = data.observed(rows)
    assert data.layout == {"image": (1, 28, 28), "label": (10,)}
    assert torch.equal(seen["label"].argmax(-1), data.table[:, 0])
    assert torch.equal(seen["image"], load("fashion-mnist").images(rows))
    assert data.modalities["label"].values.classes[9] == "ankle boot"
    assert data.present(rows) is None


def test_missing_labels_are_training_rows_by_seed(home):
    data, other = load("fashion-labels", {"missing": 0.5}), load("fashion-labels", {"missing": 0.5, "seed": 1})
    rows = torch.arange(len(data))
    image, label = data.present(rows).T
    assert bool(image.all())
    assert int(label.sum()) == TRAIN // 2 + TEST
    assert bool(label[TRAIN:].all())
    assert not torch.equal(label, other.has("label", rows))
    assert torch.equal(data.observed(rows)["label"].sum(-1), label.float())
    assert bool((data.table >= 0).all())
    assert len({data.content_hash(), other.content_hash(), load("fashion-labels").content_hash()}) == 3
    with pytest.raises(UsageError, match=naming("missing", 0, 1)):
        load("fashion-labels", {"missing": 1.0})
