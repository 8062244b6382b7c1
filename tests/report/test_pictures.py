"""Traversals move one coordinate and nothing else; tiles lie where they should."""

import numpy as np
import pytest
import torch

from tests.support.messages import naming
from unbraid.api import train
from unbraid.errors import UsageError
from unbraid.metrics import Evaluation
from unbraid.metrics.generative.features.feature_sets import decode_means
from unbraid.report import traversal, traverse
from unbraid.report.latent_factor import active_latents, codes_by_label, draw_latent_factor
from unbraid.report.pictures import choose_scale, measure_pitch, tile_images, to_uint8
from unbraid.report.traversals import compute_coordinate_kl


def recorded(evaluation, monkeypatch):
    """Codes that the decoder was asked for."""
    asked, original = [], evaluation.model.decode
    monkeypatch.setattr(evaluation.model, "decode", lambda code: (asked.append(code), original(code))[1])
    return asked


@pytest.mark.parametrize("by", ["range", "quantiles"])
@pytest.mark.parametrize("base", [None, -1, 5])
def test_a_traversal_varies_one_coordinate(evaluation, monkeypatch, by, base):
    asked = recorded(evaluation, monkeypatch)
    made = traverse(evaluation, by=by, base=base, columns=5)
    codes = torch.cat(asked).unflatten(0, (3, 5))
    start = {None: evaluation.means[evaluation.choose(1)[0]], -1: torch.zeros(3), 5: evaluation.means[5]}[base]
    for row, latent in enumerate(made.latents):
        others = [j for j in range(3) if j != latent]
        assert torch.equal(codes[row, :, latent], made.values[row])
        assert torch.equal(codes[row][:, others], start[others].expand(5, -1))
        assert (made.values[row].diff() > 0).all()
    if by == "range":
        assert made.values[0].tolist() == [-2, -1, 0, 1, 2]


def test_rows_are_ordered_by_kl_and_show_the_decoder(evaluation):
    made = traverse(evaluation, columns=3)
    kl = compute_coordinate_kl(evaluation)
    assert list(made.kl) == sorted(kl.tolist(), reverse=True)
    assert made.names == tuple(f"z{j}" for j in made.latents)
    code = evaluation.means[evaluation.choose(1)[0]].clone()
    code[made.latents[1]] = 2.0
    assert torch.allclose(made.images[1, 2], decode_means(evaluation, code[None])[0], atol=1e-6)


def mixed(tmp_path):
    """A run with four Normal latents, a Concrete one and two binary ones."""
    run = train(
        "beta-svae",
        data="sprites-small",
        root=tmp_path,
        device="cpu",
        network="mlp",
        encoder_hidden=(8,),
        decoder_hidden=(8,),
        latents="normal:4+concrete:6+bernoulli:2",
        steps=2,
        batch=8,
    )
    return Evaluation(run.model, run.dataset)


@pytest.mark.parametrize("by", ["range", "quantiles"])
def test_a_variable_with_classes_is_led_through_them_and_a_binary_one_from_0_to_1(tmp_path, monkeypatch, by):
    several = mixed(tmp_path)
    asked = recorded(several, monkeypatch)
    made = traverse(several, by=by, columns=5)
    assert sorted(made.names) == sorted(several.space.leaf_names())
    codes = torch.cat(asked).unflatten(0, (7, 6))
    classes = made.names.index("c")
    assert torch.equal(codes[classes, :, 4:10], torch.eye(6))
    assert made.values[classes].tolist() == list(range(6))
    for row in set(range(7)) - {classes}:
        torch.testing.assert_close(codes[row, :, 4:10].sum(-1), torch.ones(6))  # still on the simplex
        assert made.values[row, :5].isfinite().all()
        assert made.values[row, 5:].isnan().all()
        assert bool((made.images[row, 5:] == 1).all())
    if by == "range":
        binary = [row for row, name in enumerate(made.names) if name.startswith("b")]
        assert len(binary) == 2
        assert all(made.values[row, :5].tolist() == [0.0, 0.25, 0.5, 0.75, 1.0] for row in binary)
    assert traversal(several, latents=["c", "z0"]).mode == "RGB"


def test_chosen_latents_keep_their_order(evaluation):
    assert traverse(evaluation, latents=["z2", "z0"]).latents == (2, 0)


def test_the_picture_has_the_right_size(evaluation):
    picture = traversal(evaluation, columns=4)
    down, right = measure_pitch(8, 8, choose_scale(8))
    assert picture.mode == "RGB"
    assert picture.height >= 3 * down
    assert picture.width > 4 * right
    assert choose_scale(8) == 8
    assert choose_scale(64) == choose_scale(100) == 1


def test_bad_requests_are_answered(evaluation):
    for request, facts in [
        ({"columns": 1}, ["columns", 2]),
        ({"span": 0.0}, ["span"]),
        ({"base": 99}, ["row", 0, 23]),
        ({"latents": ["z9"]}, ["z9"]),
    ]:
        with pytest.raises(UsageError, match=naming(*facts)):
            traversal(evaluation, **request)
    with pytest.raises(UsageError, match="images"):
        tile_images(torch.zeros(2, 2, 5))


def test_tiles_lie_where_they_should():
    images = torch.zeros(2, 3, 1, 4, 5)
    images[1, 2, 0, 0, 1] = 1
    picture = np.asarray(tile_images(images, scale=2))
    down, right = measure_pitch(4, 5, 2)
    assert picture.shape == (2 * down - 2, 3 * right - 2, 4)
    on = np.argwhere((picture[..., 0] == 255) & (picture[..., 3] == 255))
    assert on.min(0).tolist() == [down, 2 * right + 2]
    assert on.max(0).tolist() == [down + 1, 2 * right + 3]
    assert (picture[8, :, 3] == 0).all()  # the separator is clear


def test_colours_and_odd_channels():
    red = torch.zeros(3, 1, 1)
    red[0] = 2.0
    assert to_uint8(red).tolist() == [[[255, 0, 0]]]
    assert to_uint8(torch.tensor([0.0, 1.0])[:, None, None]).tolist() == [[[128, 128, 128]]]


def test_conditional_means_and_spreads():
    codes, labels = torch.randn(50, 2), torch.randint(0, 3, (50,))
    stats = codes_by_label(codes, labels, 4)
    for value in range(3):
        rows = codes[labels == value].double().numpy()
        np.testing.assert_allclose(stats.mean[value], rows.mean(0), atol=1e-9)
        np.testing.assert_allclose(stats.std[value], rows.std(0), atol=1e-6)
    assert np.isnan(stats.mean[3]).all()


def test_latent_factor_chart(evaluation):
    chart = draw_latent_factor(evaluation)
    assert chart.startswith("<svg") and chart.rstrip().endswith("</svg>")
    for latent in active_latents(evaluation):
        assert evaluation.code_names[latent] in chart
    assert "position" in chart and "disc" in chart
    assert "currentColor" in chart and "#010203" not in chart


@pytest.mark.parametrize("name", ["grid.png", "there/is/none/grid.png", "grid.JPG", "grid.pdf", "grid.gif"])
def test_a_picture_is_saved_with_its_folders(evaluation, tmp_path, name):
    for number, picture in enumerate((traversal(evaluation, columns=4), tile_images(torch.rand(2, 3, 1, 4, 4)))):
        picture.save(tmp_path / str(number) / name)
        assert (tmp_path / str(number) / name).stat().st_size


@pytest.mark.parametrize("name", ["grid.xyz", "grid", "grid.hdr"])
def test_a_format_that_pictures_do_not_have_is_told(tmp_path, name):
    with pytest.raises(UsageError, match=naming(".png", ".jpg", "grid")):
        tile_images(torch.rand(2, 3, 1, 4, 4)).save(str(tmp_path / "new" / name))
    assert not (tmp_path / "new").exists()
