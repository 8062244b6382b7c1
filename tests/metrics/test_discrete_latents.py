"""Clusters against all matches, and pictures of decoders whose every class, latent and stroke is known."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from tests.support.messages import naming
from unbraid.data.factors import Factor, FactorDataset, Pixels
from unbraid.errors import DataError, SettingError, UsageError
from unbraid.latents import Space
from unbraid.methods.info_gan import InfoGANModel
from unbraid.methods.ms_gan import ConditionalGAN
from unbraid.metrics import Evaluation, clusters, evaluate
from unbraid.metrics.intervention.factor_preservation import choose_latents, choose_places
from unbraid.models import VAE
from unbraid.networks import make_likelihood

LATENTS = {"z": {"kind": "normal", "size": 2}, "c": {"kind": "concrete", "classes": 3}}


def test_clusters_agree_with_all_matches_tried():
    rng = np.random.default_rng(0)
    for classes, values in ((4, 4), (3, 5), (5, 3)):
        k, v = rng.integers(0, classes, 200), rng.integers(0, values, 200)
        k[:80] = v[:80] % classes
        matches = itertools.permutations(range(max(classes, values)), classes)
        best = max(np.mean(np.array(match)[k] == v) for match in matches)
        assert clusters(k, v).value == pytest.approx(best)
        counted = sum(np.bincount(v[k == one]).max() for one in set(k))
        assert clusters(k, v, match="majority").value == pytest.approx(counted / 200)


def test_names_of_classes_do_not_matter_and_one_class_has_the_share_of_the_largest_value():
    v = np.array([0, 0, 0, 1, 1, 2])
    assert clusters(np.array(["b", "b", "b", "x", "x", "a"]), v).value == 1
    alone = clusters(np.zeros(6), v)
    assert alone.value == alone.details["chance"] == 0.5
    with pytest.raises(DataError, match=naming("(5,)", "(6,)")):
        clusters(np.zeros(5), v)


class Encoder(nn.Module):
    """z0 is the brightness, z1 the class, the Concrete variable the class."""

    def forward(self, x):
        kind = x[:, :3].argmax(1)
        mean = torch.stack([6 * x[:, 3] - 3, kind - 1.0], 1)
        return torch.cat([mean, torch.full_like(mean, -8.0), 20 * nn.functional.one_hot(kind, 3)], 1)


class Decoder(nn.Module):
    """Draws the class that the Concrete variable says, or the one that z1 says."""

    def __init__(self, discrete):
        super().__init__()
        self.discrete = discrete

    def forward(self, code):
        kind = code[:, 2:] if self.discrete else nn.functional.one_hot((code[:, 1].round() + 1).clamp(0, 2).long(), 3)
        return torch.cat([20 * (kind - 0.5), code[:, :1]], 1)


def made(discrete, rows=300):
    kind, bright = torch.arange(rows) % 3, torch.arange(rows) % 5
    x = torch.cat([nn.functional.one_hot(kind, 3).float(), bright[:, None] / 4], 1)
    factors = (Factor("kind", 3), Factor("bright", 5))
    data = FactorDataset("made", Pixels(x, (4,)), factors, torch.stack([kind, bright], 1))
    model = VAE(Space.from_config(LATENTS), (4,), Encoder(), Decoder(discrete), make_likelihood("bernoulli", {}))
    return Evaluation(model, data)


def test_one_class_draws_one_kind_only_if_the_decoder_listens_to_it():
    settings = {"steps": 100, "samples": 400}
    (listens,) = evaluate(made(True), ["generated/purity"], **settings)
    assert listens.details["network"]["accuracy"]["kind"] == 1
    assert (listens.value, listens.details["values"]) == (1.0, 3)
    (ignores,) = evaluate(made(False), ["generated/purity"], **settings)
    assert ignores.value == pytest.approx(0.383, abs=0.06)  # P(-.5 < z1 < .5)
    assert [score.value for score in evaluate(made(False), ["clusters"])] == [1.0, 1.0]


def test_moving_brightness_keeps_the_kind_and_moving_the_kind_does_not():
    settings = {"steps": 100, "samples": 60}
    (kept,) = evaluate(made(False), ["kept/classifier"], along="bright", **settings)
    assert (kept.value, kept.details["latents"]) == (1.0, {"z0": 1.0})
    assert kept.details["correlation"] == pytest.approx(1)
    assert kept.details["moved"]["z0"] > 0.2
    (moved,) = evaluate(made(False), ["kept/classifier"], along="kind", **settings)
    assert moved.details["latents"] == {"z1": pytest.approx(1 / 3, abs=0.04)}  # 3, 1 and 3 of 7 places
    (both,) = evaluate(made(False), ["kept/classifier"], **settings)
    assert both.value == pytest.approx((1 + moved.value) / 2)


@pytest.mark.parametrize("visits", [1, 2, 7])
def test_every_place_is_visited_as_often(visits):
    visited = choose_places(70, 7, visits, shift=3)
    assert visited.shape == (70, visits)
    assert all(len(set(row.tolist())) == visits for row in visited)
    assert torch.equal(visited.flatten().bincount(), torch.full((7,), 10 * visits))
    with pytest.raises(SettingError, match=naming("visits", "8", "7")):
        evaluate(made(False), ["kept/classifier"], visits=8)


class Reader(nn.Module):
    """Both normal latents of `Encoder`, without the Concrete one."""

    def forward(self, x):
        return Encoder()(x)[:, :4]


class Generator(nn.Module):
    """Brightness by c0; the kind by c1, or by thirds of the last input, which is noise."""

    def __init__(self, noise):
        super().__init__()
        self.noise = noise

    def forward(self, code):
        kind = (code[:, -1] > -0.5).long() + (code[:, -1] > 0.5) if self.noise else (code[:, 1].round() + 1).clamp(0, 2)
        return torch.cat([20 * (nn.functional.one_hot(kind.long(), 3) - 0.5), code[:, :1]], 1)


def generating(noise, model="stage"):
    """A GAN behind a frozen first stage, or InfoGAN, whose codes are brightness and kind."""
    space, bernoulli = Space.from_config({"z": LATENTS["z"]}), make_likelihood("bernoulli", {})
    own = Space.from_config({"z": {"kind": "normal", "size": 1}})
    first = VAE(space, (4,), Reader(), nn.Identity(), bernoulli)
    made_by = ConditionalGAN(own, (4,), nn.Identity(), Generator(noise), bernoulli, first)
    if model == "info-gan":
        made_by = InfoGANModel(space, (4,), nn.Identity(), Generator(noise), bernoulli, noise=1, draws="normal")
        made_by.critic.forward = lambda x: (x[:, 0], {"z": Reader()(x)})
    return Evaluation(made_by, made(False).dataset)


@pytest.mark.parametrize("model", ["stage", "info-gan"])
def test_noise_that_draws_the_kind_keeps_it_while_codes_move_and_a_code_does_not(model):
    settings = {"steps": 100, "samples": 300, "places": 5}
    (noise,) = evaluate(generating(True, model), ["kept/drawn"], **settings)
    assert noise.value == 1.0
    assert noise.details["chance"] == pytest.approx(0.337, abs=0.03)  # squares of P(z < -.5), P(-.5 < z < .5), …
    (code,) = evaluate(generating(False, model), ["kept/drawn"], **settings)
    assert list(code.details["latents"].values()) == [1.0, pytest.approx(1 / 3, abs=0.01)]  # 2, 1 and 2 of 5 places
    assert code.details["chance"] == pytest.approx(1 / 3, abs=0.01)
    block = "c" if model == "stage" else "z"
    assert evaluate(generating(False, model), ["kept/drawn"], block=block, **settings)[0].value == code.value
    assert code.details["active"] == 2
    still = generating(False, model)
    still.means = torch.zeros_like(still.means)  # a first stage that has collapsed
    (score,) = evaluate(still, ["kept/drawn"], **settings)
    assert (list(score.details["latents"]), score.details["active"]) == ([f"{block}0", f"{block}1"], 0)
    with pytest.raises(UsageError, match=naming("d", block)):
        evaluate(generating(False, model), ["kept/drawn"], block="d")


@pytest.mark.parametrize(("model", "all_latents"), [("stage", [0, 1, 2]), ("info-gan", [0, 1])])
def test_the_first_stage_moves_alone_where_there_is_a_second(model, all_latents):
    evaluation = generating(False, model)
    evaluation.means = torch.eye(len(all_latents))  # every latent is active
    assert choose_latents(evaluation, None)[0] == all_latents
    assert choose_latents(evaluation, None, first_stage=True)[0] == [0, 1]


@pytest.mark.parametrize("name", ["clusters/hungarian", "generated/purity"])
def test_what_is_missing_is_named(name):
    with pytest.raises(UsageError, match=naming("d", "c")):
        evaluate(made(True), [name], latent="d")
    evaluation = made(True)
    evaluation.model.space = Space.from_config({"z": LATENTS["z"]})
    with pytest.raises(UsageError, match=naming(name, "discrete", "concrete")):
        evaluate(evaluation, [name])


class Row(nn.Module):
    """A row's number, read from its first pixel, as z0; z1 is 0."""

    def forward(self, x):
        mean = torch.stack([x[:, 0, 0, 0] * 255, torch.zeros(len(x))], 1)
        return torch.cat([mean, torch.zeros_like(mean)], 1)


class Bars(nn.Module):
    """Bars of the thickness of a row's number, divided by something."""

    def __init__(self, share):
        super().__init__()
        self.share = share

    def forward(self, code):
        return 40 * (bars(3 + code[:, 0] / 10 * self.share) - 0.5)


def bars(thickness):
    across = (torch.arange(28) - 13.5).abs()
    images = (across[None, None, :] < thickness[:, None, None] / 2).float().expand(-1, 28, -1).clone()
    images[:, :4] = images[:, 24:] = 0
    return images[:, None]


@pytest.mark.parametrize(("share", "inside"), [(1.0, 1.0), (0.0, 0.0)])
def test_strokes_of_reconstructions(share, inside):
    number = torch.arange(20, 90)
    images = bars(3 + number / 10.0)
    images[:, 0, 0, 0] = number / 255.0
    factor = (Factor("half", 2),)
    data = FactorDataset("bars", Pixels(images, (1, 28, 28)), factor, (number >= 50).long()[:, None])
    space = Space.from_config({"z": LATENTS["z"]})
    evaluation = Evaluation(VAE(space, (1, 28, 28), Row(), Bars(share), make_likelihood("bernoulli", {})), data)
    drawn, latent = evaluate(evaluation, ["strokes/reconstruction", "strokes/latent"], where="half=1")
    assert drawn.value == pytest.approx(inside, abs=0.05)
    assert drawn.samples == 40
    assert sum(drawn.details["originals"]) == sum(drawn.details["reconstructions"]) == 40
    assert (latent.value, latent.details["latent"]) == (
        pytest.approx(0.9, abs=0.1),
        "z0",
    )  # bars of few whole pixels: many ties
    with pytest.raises(UsageError, match=naming("bars", "half=2")):
        evaluate(evaluation, ["strokes/latent"], where="half=2")


def test_unknown_labels_and_unknown_matches_are_refused():
    with pytest.raises(DataError, match="NaN"):
        clusters([0, 1, 0, 1], [0, 1, np.nan, np.nan])
    with pytest.raises(UsageError, match="foo"):
        clusters([0, 1, 0, 1], [0, 1, 0, 1], match="foo")
