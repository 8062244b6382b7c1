"""Jacobian supervision against autograd's Jacobians of linear models, and the ablations' terms and codes."""

import pytest
import torch
from torch import nn
from torch.autograd.functional import jacobian

import unbraid as ub
from tests.methods.helpers import bound, made_context, made_output, normal_space
from tests.support.messages import naming
from unbraid.data import load
from unbraid.errors import UsageError
from unbraid.latents import Concrete, Normal, Space
from unbraid.methods.jacobian_student import OTHER, Student, cross_covariance
from unbraid.methods.ms_code import CodedStage
from unbraid.models import VAE
from unbraid.networks import decoder, make_likelihood
from unbraid.objectives import Context, bind
from unbraid.types import Batch, Inputs

SHAPE, ROWS = (6,), 5
TINY = {"steps": 4, "batch": 8, "encoder_hidden": (8,), "decoder_hidden": (8,), "network": "mlp"}


def linear(inputs, outputs, seed):
    torch.manual_seed(seed)
    return nn.Linear(inputs, outputs).double()


def student():
    """Linear teacher (3 latents) and student (3 + 2), Gaussian means: nothing is approximated."""
    likelihood = make_likelihood("gaussian", {}).double()
    teacher = VAE(normal_space(3), SHAPE, linear(6, 6, 0), linear(3, 6, 1), likelihood)
    return Student(normal_space(2), SHAPE, linear(6, 5, 2), linear(5, 6, 3), likelihood, teacher)


def terms(model, x, **settings):
    """Terms of one member."""
    out = model(Inputs({"x": x}, given={OTHER: x.roll(1, 0)}), {})
    stacked = torch.utils._pytree.tree_map(lambda t: t[None], out)
    context = Context(model.space, model.likelihoods, ROWS, 0, {}, lambda *_: None)
    batch = Batch({"x": x[None]}, torch.arange(ROWS)[None])
    return bind("jacobian-student", settings).terms(stacked, batch, context), out


def test_terms_are_those_of_autograds_jacobians_and_of_numpy():
    model, x = student(), torch.randn(ROWS, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    made, out = terms(model, x)
    c, code = model.first.encoder(x)[:, :3], model.encoder(x)
    z = code[:, 3:]
    of_student = jacobian(lambda own: model.decoder(torch.cat([own, z[0]])), c[0])  # [pixels, latents]
    of_teacher = jacobian(model.first.decoder, c[0])
    step = c.roll(1, 0) - c
    by_hand = (step @ (of_student - of_teacher).T).square().mean()
    assert made["jacobian"].value.item() == pytest.approx(by_hand.item(), rel=1e-12)
    assert made["codes"].value.item() == pytest.approx((code[:, :3] - c).square().mean().item(), rel=1e-12)
    assert made["reconstruction"].value.item() == pytest.approx((model.decoder(code) - x).square().mean().item())
    joint = torch.cov(code.T, correction=0)[:3, 3:]
    assert made["cross_covariance"].value.item() == pytest.approx(0.5 * joint.square().sum().item(), rel=1e-12)
    assert [term.weight for term in made.values()] == [1.0, 0.25, 0.1, 1e-3]
    torch.testing.assert_close(model.space.center(out.posterior), code)
    assert list(out.posterior) == ["c", "z"]


def test_a_student_with_the_teachers_jacobian_has_none_to_learn():
    model, x = student(), torch.randn(ROWS, 6, dtype=torch.float64)
    with torch.no_grad():
        model.decoder.weight[:, :3] = model.first.decoder.weight
    assert terms(model, x)[0]["jacobian"].value.item() == pytest.approx(0, abs=1e-20)
    made = terms(model, x)[0].loss
    made.backward()
    assert all(parameter.grad is None for parameter in model.first.parameters())
    assert cross_covariance(torch.ones(4, 2), torch.randn(4, 3)).item() == 0


def test_students_need_normal_latents():
    likelihood = make_likelihood("gaussian", {})
    space = Space({"c": Concrete(classes=3)})
    teacher = VAE(space, SHAPE, nn.Linear(6, 3), nn.Linear(3, 6), likelihood)
    with pytest.raises(UsageError, match="normal"):
        Student(normal_space(2), SHAPE, nn.Linear(6, 5), nn.Linear(5, 6), likelihood, teacher)


def test_a_student_and_a_stage_on_codes_are_ordinary_runs(tmp_path):
    first = ub.train("beta-vae", data="sprites-small", data_positions=8, z=3, device="cpu", root=tmp_path, **TINY)
    taught = ub.refine(first, "student", z=2, root=tmp_path, **TINY)
    assert taught.encode(taught.dataset.images(torch.arange(4))).shape == (4, 5)
    assert taught.unchanged["max_change"] > 0  # it learns c anew
    coded = ub.refine(first, "code", z=2, root=tmp_path, residual=False, **TINY)
    assert coded.unchanged["max_change"] == 0
    assert {"z", "c"} == set(coded.model.space.blocks)
    assert coded.sample(3).shape == (3, 1, 32, 32)


@pytest.mark.parametrize("residual", [True, False])
def test_a_stage_on_codes_shows_its_encoder_what_it_is_told_to(residual):
    likelihood = make_likelihood("gaussian", {})
    first = VAE(normal_space(2), SHAPE, nn.Linear(6, 4), nn.Linear(2, 6), likelihood)
    seen = []
    encoder = nn.Linear(6, 4)
    encoder.register_forward_hook(lambda _, given, __: seen.append(given[0]))
    model = CodedStage(normal_space(2), SHAPE, encoder, nn.Linear(4, 6), likelihood, first, residual=residual)
    x = torch.randn(3, 6)
    with torch.no_grad():
        model.encode(x)
        y = first.decoder(first.encoder(x)[:, :2])
    torch.testing.assert_close(seen[0], x - y if residual else x)


def test_beta_is_on_the_first_latents_alone():
    space = Space({"z_0": Normal(size=2), "z_1": Normal(size=3)})
    out, batch = made_output(space)
    made = bind("partial-beta-vae", {"beta": 7.0, "penalised": 2}).terms(out, batch, made_context(space))
    for name, block, weight in (("kl_penalised", "z_0", 7.0), ("kl_others", "z_1", 1.0)):
        alone = out._replace(posterior={"z": out.posterior[block]})
        torch.testing.assert_close(made[name].value, bound(alone, batch)[1])
        assert made[name].weight == weight
    with pytest.raises(UsageError, match=naming(1, 4, 5)):
        bind("partial-beta-vae", {"penalised": 5}).check(load("sprites-small", {}), space)


@pytest.mark.parametrize("side", [28, 32, 64])
def test_modulating_coordinates_never_draw_alone(side):
    """z has no way into an image but by gamma and beta."""
    made = decoder["conv-modulated"].make(7, (1, side, side), modulating=3)
    c, z = torch.randn(2, 4), torch.randn(2, 3)
    image = made(torch.cat([c, z], 1))
    assert image.shape == (2, 1, side, side)
    for level in (made.norm, *(step.modulation for step in made.up)):
        nn.init.zeros_(level.affine.weight)
    assert torch.allclose(made(torch.cat([c, z], 1)), made(torch.cat([c, z.flip(0)], 1)), atol=1e-6)
    with pytest.raises(UsageError, match=naming("modulating", 1, 6, 7)):
        decoder["conv-modulated"].make(7, (1, side, side), modulating=7)
