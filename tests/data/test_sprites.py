"""The renderer against hand counts, a brute-force frame and a polygon; the cache on disk."""

import hashlib
import math

import numpy as np
import pytest
import torch

from tests.support.messages import naming
from unbraid.data import base, load, sprites, storage as stored
from unbraid.errors import UsageError

UPRIGHT = ((1.0,), (0.0,))


@pytest.fixture
def own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("UNBRAID_DATA", str(tmp_path))
    return tmp_path


def images(size, shapes, scales, orientations, xs, ys):
    packed = sprites.render(size, shapes, scales, orientations, xs, ys)
    bits = np.unpackbits(packed.numpy(), axis=1, count=size * size)
    return bits.reshape(-1, size, size)


def brute_force(size, shape, scale, angle, x, y):
    """The same definition, written without windows, batches or torch."""
    unit = 64 / size
    column, row = np.meshgrid(np.arange(size), np.arange(size))
    dx, dy = (column + 0.5) * unit - (16 + 32 * x), (row + 0.5) * unit - (16 + 32 * y)
    u = (math.cos(angle) * dx - math.sin(angle) * dy) / scale
    v = (math.sin(angle) * dx + math.cos(angle) * dy) / scale
    if shape == "square":
        return np.maximum(abs(u), abs(v)) < 9.6
    if shape == "ellipse":
        return (u / 12.766) ** 2 + (v / 7.214) ** 2 < 1
    return in_polygon(u.ravel(), v.ravel(), *heart_outline(2001)).reshape(size, size)


def heart_outline(count):
    t = np.linspace(0, 2 * np.pi, count)
    wave = 13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t)
    return 9.5938 * np.sin(t) ** 3, -(0.66204 * wave + 1.43494)


def in_polygon(x, y, corner_x, corner_y):
    """Even-odd rule: how often a ray to the right crosses the outline."""
    inside = np.zeros(len(x), dtype=bool)
    for x0, y0, x1, y1 in zip(corner_x[:-1], corner_y[:-1], corner_x[1:], corner_y[1:], strict=True):
        if y0 != y1:
            inside ^= ((y0 > y) != (y1 > y)) & (x < x0 + (y - y0) * (x1 - x0) / (y1 - y0))
    return inside


@pytest.mark.parametrize(
    ("size", "scale", "side"),
    [(64, 1.0, 20), (64, 0.5, 10), (32, 1.0, 10), (32, 0.5, 4)],
)
def test_square_has_the_pixels_counted_by_hand(size, scale, side):
    # centre 16: half-integers within 9.6 (or 4.8) of it, and odd numbers at half resolution
    (image,) = images(size, ("square",), (scale,), (0.0,), (0.0,), (0.0,))
    assert image.sum() == side * side
    assert sorted(set(image.sum(0))) == [0, side]


def test_ellipse_has_the_rows_counted_by_hand():
    (image,) = images(64, ("ellipse",), *UPRIGHT, (0.0,), (0.0,))
    rows = image.sum(1)
    assert rows[16] == rows[15] == 26  # v = ±.5: |u| < 12.735
    assert rows[22] == rows[9] == 12  # v = ±6.5: |u| < 5.54
    assert rows[23] == rows[8] == 0  # v = ±7.5 lies outside


def test_heart_is_symmetric_and_points_down():
    (image,) = images(64, ("heart",), *UPRIGHT, (0.0,), (0.0,))
    assert (image[:, :32] == image[:, 31::-1]).all()
    rows = np.flatnonzero(image.any(1))
    assert image[rows[-1]].sum() < 4 < image[rows[0] + 3].sum()
    assert not image[rows[0], 15:17].any()  # the notch between the lobes


def test_centres_at_once_have_the_bits_of_one_after_the_other():
    places = tuple(np.linspace(0, 1, 5))
    values = (21, ("ellipse", "heart"), (0.5, 1.0), (0.0, 0.7), places[:2], places)
    one, several = (sprites.render(*values, at_once=count) for count in (1, 3))
    assert torch.equal(one, several)


def test_quarter_turns_leave_a_square_alone():
    turned = images(64, ("square",), (0.9,), tuple(k * math.pi / 2 for k in range(4)), (0.3,), (0.7,))
    assert (turned == turned[0]).all()


def test_half_turn_leaves_an_ellipse_alone_and_turns_a_heart_over():
    for shape, flips in (("ellipse", False), ("heart", True)):
        plain, turned = images(64, (shape,), (0.8,), (0.0, math.pi), (0.5,), (0.5,))
        assert (turned == plain[::-1, ::-1]).all()
        assert (turned == plain).all() != flips


def test_last_argument_varies_fastest_and_y_points_down():
    made = images(64, ("square",), *UPRIGHT, (0.0, 1.0), (0.0, 0.5, 1.0))
    centres = [(np.argwhere(image).mean(0) + 0.5).tolist() for image in made]  # (row, column)
    assert centres == [[16, 16], [32, 16], [48, 16], [16, 48], [32, 48], [48, 48]]


@pytest.mark.parametrize("size", [24, 32, 64])
def test_windows_equal_whole_frames(size):
    random = np.random.default_rng(size)
    for shape in sprites.OUTLINES:
        scale, angle, x, y = random.uniform((0.5, 0, 0, 0), (1, 2 * np.pi, 1, 1))
        # scales smaller than the largest share its window, and a sprite may leave the frame
        for place in (x, 1.4, -0.3, 9.0, -9.0):
            made = images(size, (shape,), (scale, 1.0), (angle,), (place,), (y,))
            assert (made[0] == brute_force(size, shape, scale, angle, place, y)).all()


def test_heart_equals_its_polygon():
    points = np.random.default_rng(0).uniform(-12, 12, (4000, 2))
    corner_x, corner_y = heart_outline(4001)
    near = np.min(np.hypot(points[:, :1] - corner_x[::4], points[:, 1:] - corner_y[::4]), axis=1) < 0.05
    points = points[~near]
    expected = in_polygon(points[:, 0], points[:, 1], corner_x, corner_y)
    u, v = torch.from_numpy(points).T
    assert (sprites.in_heart(u, v).numpy() == expected).all()
    assert 0.2 < expected.mean() < 0.6


def test_no_outline_reaches_further_than_stated():
    x, y = heart_outline(2001)
    assert np.hypot(x, y).max() < sprites.REACH
    assert max(sprites.ELLIPSE) < sprites.REACH


def test_small_sprites_are_pinned():
    data = load("sprites-small")
    assert (len(data), data.shape, data.sizes, data.is_grid) == (1536, (1, 32, 32), (6, 16, 16), True)
    assert data.factor_names == ("scale", "posX", "posY")
    assert data.factors[0].values == pytest.approx((0.5, 0.6, 0.7, 0.8, 0.9, 1.0))
    digest = hashlib.sha256(data.pixels.stored.numpy().tobytes()).hexdigest()
    assert digest == "8823c890e44ce88f61aac23ea8414d30b8002e4eacc44e5f0794535a03d781f9"


@pytest.mark.slow
def test_full_sprites_are_pinned():
    data = load("sprites")
    assert (len(data), data.shape, data.sizes) == (737280, (1, 64, 64), (3, 6, 40, 32, 32))
    digest = hashlib.sha256(data.pixels.stored.numpy().tobytes()).hexdigest()
    assert digest == "d25572fdded820a6389020c56b71ffb19a2022f39d25405a6ddf2c239479c73c"


@pytest.mark.gpu
def test_a_gpu_renders_the_same_bits():
    settings = {"shapes": ("square", "ellipse", "heart"), "orientations": 7, "positions": 5}
    on_cpu = load("sprites-small", settings)
    with torch.device("cuda"):
        on_gpu = sprites.render(32, *_values(on_cpu))
    assert torch.equal(on_cpu.pixels.stored, on_gpu.cpu())


def _values(data):
    return tuple(factor.values for factor in data.factors)


def test_settings_add_factors(own_home):
    data = load("sprites-small", {"shapes": ["square", "heart"], "orientations": 3, "positions": 2})
    assert data.factor_names == ("shape", "scale", "orientation", "posX", "posY")
    assert data.sizes == (2, 6, 3, 2, 2)
    assert data.factors[0].values == ("square", "heart")
    one = load("sprites-small", {"scales": 1, "positions": 3})
    assert one.factor_names == ("posX", "posY")
    assert float(one.images(torch.tensor(4)).sum()) == 100  # alone: full size, in the middle


@pytest.mark.parametrize(
    "settings",
    [{"size": 0}, {"scales": 0}, {"positions": -1}, {"shapes": []}, {"shapes": ["heart", "heart"]}],
)
def test_settings_out_of_range_are_refused(settings):
    with pytest.raises(UsageError, match=naming("sprites", next(iter(settings)))):
        load("sprites-small", settings)


def test_unknown_shape_is_refused():
    with pytest.raises(UsageError, match=naming("shapes", "square", "ellipse", "heart", "star")):
        load("sprites-small", {"shapes": ["star"]})


def test_cache_is_used_and_keyed_by_settings(own_home, monkeypatch):
    first = load("sprites-small", {"positions": 3})
    (kept,) = own_home.glob("*.safetensors")
    with monkeypatch.context() as patch:
        patch.setattr(sprites, "render", lambda *_: pytest.fail("rendered again"))
        assert load("sprites-small", {"positions": 3}).content_hash() == first.content_hash()
    load("sprites-small", {"positions": 4})
    assert len(list(own_home.glob("*.safetensors"))) == 2
    monkeypatch.setattr(sprites, "SQUARE", 9.5)
    load("sprites-small", {"positions": 3})
    assert len(list(own_home.glob("*.safetensors"))) == 3
    assert kept.exists()


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "text"])
def test_damaged_cache_is_rendered_again(own_home, damage):
    first = load("sprites-small", {"positions": 3})
    (kept,) = own_home.glob("*.safetensors")
    whole = kept.read_bytes()
    broken = {
        "flip": whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:],
        "cut": whole[: len(whole) // 2],
        "empty": b"",
        "text": b"not a file of ours",
    }
    kept.write_bytes(broken[damage])
    with pytest.warns(UserWarning, match=naming(kept)):
        again = load("sprites-small", {"positions": 3})
    assert again.content_hash() == first.content_hash()
    assert stored.read(kept).content_hash() == first.content_hash()


def test_without_a_place_to_write_rendering_still_works(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    monkeypatch.setattr(base, "data_home", lambda: blocked / "below")
    monkeypatch.setattr(sprites, "data_home", lambda: blocked / "below")
    with pytest.warns(UserWarning, match=naming(blocked)):
        assert len(load("sprites-small", {"positions": 2})) == 24
