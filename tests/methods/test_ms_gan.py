"""MS-GAN and CGAN: losses by hand, what each side is told, conditional means that they learn, and runs of them."""

import numpy as np
import pytest
import torch
from torch import nn

import unbraid as ub
from tests.methods.helpers import normal_space
from tests.support.messages import naming
from unbraid.data.factors import Factor, FactorDataset, Pixels
from unbraid.errors import UsageError
from unbraid.latents import StackedSpace
from unbraid.methods.info_gan import InfoGANModel
from unbraid.methods.ms_gan import ConditionalCritic, ConditionalGAN, GeneratedGiven, StagedGAN
from unbraid.metrics import conditioning
from unbraid.models import VAE
from unbraid.models.adversarial import GENERATED_NOISE, REAL_NOISE
from unbraid.models.staged import FIRST_CODE
from unbraid.networks import decoder, encoder, make_likelihood
from unbraid.noise import draw, seed_tensor
from unbraid.objectives import Context, bind
from unbraid.store import load_tensors
from unbraid.types import Batch, Inputs, Output

TINY = {"network": "mlp", "encoder_hidden": (8,), "decoder_hidden": (8,), "batch": 8, "steps": 6}
KINDS = {"gan": StagedGAN, "cgan": ConditionalGAN}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


def test_losses_against_their_definitions():
    """In numpy, one member at a time; the generator has moved since the forward, the condition is not blurred."""
    rng = torch.Generator().manual_seed(3)
    weights = torch.randn(2, 5, generator=rng, dtype=torch.float64)
    x, old, real_blur, blur = torch.randn(4, 2, 7, 3, generator=rng, dtype=torch.float64)
    condition, z = torch.randn(2, 2, 7, 2, generator=rng, dtype=torch.float64)
    new = torch.cat([condition, z[..., :1]], -1).exp()

    def apply(name, *inputs):
        both = torch.cat(inputs, -1)
        return both[..., :3].exp() if name == "model.generator" else (both @ weights[:, :, None])[..., 0]

    settings = {"instance_noise": torch.tensor([0.5, 0.0]), "instance_noise_steps": 10}
    generator, critic = bind("ms-gan", settings).players()
    context = Context(
        StackedSpace(normal_space(2), normal_space(2)), {}, 50, 4, {REAL_NOISE: real_blur, GENERATED_NOISE: blur}, apply
    )
    out = Output({}, {}, {"z": z}, {}, GeneratedGiven(old, condition))
    given = out, Batch({"x": x}, torch.arange(7)), context
    left, right = generator.loss(*given), critic.loss(*given)
    for m, level in enumerate((0.25, 0.0)):

        def logits(seen, noise, m=m, level=level):
            return np.concatenate([seen[m] + level * noise[m], condition[m]], 1) @ weights[m].numpy()

        real, fake, now = logits(x, real_blur), logits(old, blur), logits(new, blur)
        assert float(left.loss[m]) == pytest.approx(np.log1p(np.exp(-fake)).mean())
        told = np.log1p(np.exp(-real)).mean() + np.log1p(np.exp(now)).mean()
        assert float(right.loss[m]) == pytest.approx(told)
        assert float(right["accuracy"].value[m]) == pytest.approx(((real > 0).mean() + (now < 0).mean()) / 2)


class Doubled(nn.Module):
    """2 x as mean; a log variance of 0."""

    def forward(self, x):
        return torch.cat([2 * x, torch.zeros_like(x)], -1)


class Sum(nn.Module):
    def forward(self, y, z):
        return y + z.sum(-1, keepdim=True)


def test_what_generator_and_critic_see():
    """c = 2 x, y = 3 c: one is told c, the other y; z is drawn from N(0, 1) and says nothing of a row."""
    normal = make_likelihood("gaussian", {})
    decode = nn.Linear(2, 2, bias=False)
    decode.weight.data = 3 * torch.eye(2)
    first, x = VAE(normal_space(2), (2,), Doubled(), decode, normal), torch.randn(5, 2)
    own = normal_space(1)
    told = ConditionalGAN(own, (2,), nn.Linear(4, 1), nn.Linear(3, 2), normal, first)
    shown = StagedGAN(own, (2,), nn.Linear(4, 1), Sum(), normal, first)
    noise = {name: drawn[0] for name, drawn in draw(shown.needs(5), seed_tensor(0), 0).items()}
    out = shown(Inputs({"x": x}), noise)
    torch.testing.assert_close(out.extra.condition, 6 * x)
    torch.testing.assert_close(out.extra.images, 6 * x + noise["z"])
    torch.testing.assert_close(told(Inputs({"x": x}), noise).extra.condition, 2 * x)
    labels = Inputs({"x": x}, given={FIRST_CODE: x + 1})
    torch.testing.assert_close(shown(labels, noise).extra.condition, 3 * (x + 1))
    torch.testing.assert_close(told(labels, noise).extra.condition, x + 1)
    for model in (told, shown):
        posterior = model.encode(x)
        torch.testing.assert_close(posterior["c"], torch.cat([2 * x, 0 * x], 1))
        assert torch.equal(posterior["z"], torch.zeros(5, 2))
        assert model.prior_codes({name: torch.randn(n.shape) for name, n in model.prior_needs(4).items()}).shape == (
            4,
            3,
        )
    code = torch.randn(4, 3)
    torch.testing.assert_close(shown.decode(code)[""], 3 * code[:, :2] + code[:, 2:])
    torch.testing.assert_close(told.decode(code)[""], told.generator.decoder(code))


class Counted(nn.Module):
    """The mean of each channel, summed by the weights 1, 2, …."""

    def forward(self, x):
        return (x.mean((-2, -1)) * (1 + torch.arange(x.shape[1]))).sum(1, keepdim=True)


def test_a_code_stands_beside_an_image_as_channels():
    x, code = torch.rand(2, 1, 4, 4), torch.rand(2, 2)
    expected = x.mean((1, 2, 3)) + 2 * code[:, 0] + 3 * code[:, 1]
    torch.testing.assert_close(ConditionalCritic(Counted())(x, code), expected)
    with pytest.raises(UsageError, match=r"\[batch, 1\]"):
        ConditionalCritic(nn.Flatten())(x, code)


def test_noise_of_a_first_stage_stands_behind_c():
    """Of an InfoGAN: the refined picture is made with it, and a conditional GAN is told the codes alone."""
    normal = make_likelihood("gaussian", {})
    first = InfoGANModel(normal_space(2), (3,), nn.Linear(3, 5), nn.Identity(), normal, noise=1, draws="normal")
    shown = StagedGAN(normal_space(1), (3,), nn.Linear(6, 1), Sum(), normal, first)
    told = ConditionalGAN(normal_space(1), (3,), nn.Linear(5, 1), nn.Linear(3, 3), normal, first)
    drawn, code = torch.randn(4, 4), torch.randn(4, 3)
    whole = shown.complete_code(code, drawn)
    torch.testing.assert_close(whole, torch.cat([code[:, :2], drawn[:, 2:3], code[:, 2:]], 1))
    torch.testing.assert_close(shown.decode(whole)[""], whole[:, :3] + whole[:, 3:])
    torch.testing.assert_close(told.decode(whole)[""], told.generator.decoder(code))


def kinds(rows=1200):
    """Rows of three kinds with means of their own, and of no kind in between."""
    rng = torch.Generator().manual_seed(0)
    kind, means = torch.arange(rows) % 3, torch.tensor([[2.0, 0.0], [-1.0, 2.0], [0.0, -2.0]])
    x = means[kind] + 0.5 * torch.randn(rows, 2, generator=rng)
    return FactorDataset("kinds", Pixels(x, (2,)), (Factor("kind", 3),), kind[:, None]), means


@pytest.fixture(scope="module")
def labelled(root):
    """A supervised first stage of the kinds: its y is near their means."""
    how = {"encoder_hidden": (32,), "decoder_hidden": (32,), "batch": 96, "lr": 1e-2, "steps": 100, "device": "cpu"}
    return ub.train("label-decoder", data=kinds()[0], z=1, network="mlp", root=root, name="labelled", **how)


@pytest.mark.parametrize(
    ("kind", "network", "steps"),
    [("gan", "mlp", 200), pytest.param("cgan", "mlp-infogan", 400, marks=pytest.mark.slow)],
)
def test_what_is_generated_under_a_label_has_the_mean_of_the_rows_with_it(root, labelled, kind, network, steps):
    """Of the rows' own labels, under blur that stays: the means lie 3.6 apart or more.

    After 200 steps the largest error of a CGAN is .3 to .9, by its seed.
    """
    how = {"encoder_hidden": (32,), "decoder_hidden": (32,), "batch": 96, "lr": 2e-2, "steps": steps, "decay": "linear"}
    how |= {"z": 2, "instance_noise": 1.0, "instance_noise_steps": 10**6, "given": ("kind",)}
    run = ub.refine(labelled, kind, root=root, name=f"{kind}-kinds", encoder="mlp-infogan", decoder=network, **how)
    codes = torch.tensor([-1.0, 0.0, 1.0]).mul(1.5**0.5).repeat_interleave(500)[:, None]
    made = run.decode(torch.cat([codes, torch.randn(1500, 2)], 1)).unflatten(0, (3, 500))
    assert float((made.mean(1) - kinds()[1]).norm(dim=-1).max()) < 0.7


@pytest.fixture(scope="module")
def first(root):
    return ub.train(
        "beta-vae", data="sprites-small", data_positions=8, z=3, root=root, name="first", device="cpu", **TINY
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_is_refined_scored_and_shown_without_a_likelihood(root, first, kind):
    run = ub.refine(first, kind, z=2, root=root, name=kind, **TINY)
    assert type(run.model) is KINDS[kind]
    assert run.unchanged["max_change"] == 0.0
    images = first.dataset.images(torch.arange(6))
    codes = run.encode(images)
    assert torch.equal(codes[:, :3], first.encode(images))
    assert not codes[:, 3:].any()
    assert {"mig/exact", "mi/exact"} <= {score.name for score in run.score()}
    assert len(run.notes) == 2
    for name, note in zip(("elbo/closed-form", "reconstruction/nats"), run.notes, strict=True):
        assert name in note
    assert torch.equal(run.model.decode_stages(codes)[0], first.decode(first.encode(images)))
    assert run.sample(3).shape == (3, 1, 32, 32)
    assert run.triples(columns=3).width > 96
    assert run.traverse(columns=3, latents=["z0", "c1"]).width > 96
    (score,) = run.score("cond/X", samples=100, resamples=0)
    codes = run.evaluation.encode_means(run.evaluation.choose(100))
    by_hand = conditioning(codes[:, :3], first.encode(run.decode(codes)), resamples=0)
    assert score.value == pytest.approx(by_hand.value, abs=1e-9)
    third = ub.refine(run, "vae", z=1, root=root, name=f"{kind}-refined", **{**TINY, "steps": 1})
    assert list(third.model.space.blocks) == ["c_c", "c_z", "z"]


@pytest.fixture(scope="module")
def normalised(root):
    """A first stage with BatchNorm on both sides."""
    how = {"encoder_channels": 2, "decoder_channels": 2, "batch": 8, "steps": 3, "device": "cpu"}
    return ub.train("info-gan", data="sprites-small", data_positions=8, z=2, network="dcgan", root=root, **how)


@pytest.mark.parametrize("kind", KINDS)
def test_statistics_of_a_first_stage_stay_as_they_were(normalised, kind, tmp_path):
    run = ub.refine(normalised, kind, z=2, root=tmp_path, **TINY)
    before, after = (load_tensors(each.folder.model_path)[0] for each in (normalised, run))
    statistics = [name for name in before if "running_" in name or "num_batches" in name]
    assert len(statistics) > 6
    assert all(torch.equal(before[name], after[name.replace("model.", "model.first.", 1)]) for name in before)


def test_members_may_refine_different_parents_and_equal_runs_alone(root, first, tmp_path):
    other = ub.train(
        "beta-vae", data="sprites-small", data_positions=8, z=3, beta=1, seed=1, root=root, device="cpu", **TINY
    )
    given = {**TINY, "z": 2, "precision": "f64", "instance_noise_steps": 4}
    swept = ub.sweep("ms-gan", refines=[first, other], seed=5, root=tmp_path, metrics=(), device="cpu", **given)
    made = swept.runs[1]
    alone = ub.refine(other, "gan", seed=5, root=tmp_path, name="alone", **given)
    expected, member = (load_tensors(each.folder.model_path)[0] for each in (alone, made))
    assert all(torch.allclose(expected[name], member[name], rtol=1e-8, atol=1e-8) for name in expected)


def test_networks_are_dcgans():
    """Radford et al., figure 1: 4x4x512 and down to 64 channels; no BatchNorm at the image, on either side."""
    critic, generator = encoder["dcgan"].make((6, 64, 64), {"real": 1}), decoder["dcgan"].make(12, (3, 64, 64))
    assert [tuple(p.shape[:2]) for p in critic.parameters() if p.ndim == 4] == [
        (64, 6),
        (128, 64),
        (256, 128),
        (512, 256),
        (1, 512),
    ]
    assert [tuple(p.shape[:2]) for p in generator.parameters() if p.ndim == 4] == [
        (12, 512),
        (512, 256),
        (256, 128),
        (128, 64),
        (64, 3),
    ]
    assert [type(layer).__name__ for layer in critic][:4] == ["Conv2d", "LeakyReLU", "Conv2d", "BatchNorm2d"]
    assert [type(layer).__name__ for layer in generator][-2:] == ["ReLU", "ConvTranspose2d"]
    for recipe in ("ms-gan", "cgan"):
        assert [dict(player.optimizer) for player in bind(recipe, {}).players()] == [{"betas": (0.5, 0.999)}] * 2


@pytest.mark.parametrize(
    ("kind", "given", "facts"),
    [
        ("gan", {"latents": "normal:2+concrete:3"}, ["latent", "normal"]),
        ("gan", {"instance_noise": -1.0}, ["instance_noise", "ms-gan", 0, -1]),
        ("cgan", {"instance_noise_steps": -1}, ["instance_noise_steps", "cgan", 0]),
        ("cgan", {"given": ("scale",)}, ["label-decoder"]),
        ("cgan", {"circular": ("scale",)}, ["circular", "labels"]),
    ],
)
def test_bad_settings_are_refused_in_one_line(first, tmp_path, kind, given, facts):
    with pytest.raises(UsageError, match=naming(*facts)) as caught:
        ub.refine(first, kind, root=tmp_path, **{**TINY, **given})
    assert "\n" not in str(caught.value)
