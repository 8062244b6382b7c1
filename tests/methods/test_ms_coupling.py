"""A flow behind a frozen run: its density and its inverse against autograd, what it learns, and what it refuses."""

import json
import math

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import unbraid as ub
from tests.support.messages import naming
from unbraid.cli import app
from unbraid.errors import UsageError
from unbraid.methods.ms_coupling import StagedFlow
from unbraid.models.dequantise import DEQUANTISE
from unbraid.networks import flow
from unbraid.noise import draw, seed_tensor
from unbraid.types import Inputs

TINY = {"encoder_hidden": (16,), "decoder_hidden": (16,), "batch": 64, "device": "cpu"}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


def bent(count=1500):
    """c moves a point along a line, and around it lies a curve that no Normal around y has."""
    rng = np.random.default_rng(0)
    c, e = rng.standard_normal((2, count))
    return torch.from_numpy(np.stack([c, c + e, e**2 + 0.1 * rng.standard_normal(count)], 1).astype(np.float32))


def dots():
    return np.random.default_rng(0).integers(0, 256, (70, 6, 6), dtype=np.uint8)


@pytest.fixture(scope="module")
def first(root):
    given = {**TINY, "network": "mlp"}
    return ub.train("vae", data=bent(), z=1, steps=60, lr=1e-2, root=root, name="first", split=0.2, **given)


@pytest.fixture(scope="module")
def second(root, first):
    how = {**TINY, "decoder_hidden": (32,), "batch": 256, "lr": 5e-3, "decay": "cosine", "features": 4}
    return ub.refine(first, "flow", steps=150, root=root, name="second", **how)


@pytest.fixture(scope="module")
def pictures(root):
    tiny = {**TINY, "network": "mlp", "steps": 2}
    run = ub.train("beta-vae", data=dots(), z=2, root=root, name="pictures", **tiny)
    return ub.refine(run, "flow", root=root, name="pictures-flow", **{**TINY, "steps": 2})


@pytest.mark.parametrize("which", ["second", "pictures"])
def test_x_to_u_to_x_is_exact_and_the_density_that_of_the_change_of_variables(which, request):
    run = request.getfixturevalue(which)
    model, count = run.model, 3
    assert isinstance(model, StagedFlow)
    model = model.double()
    try:
        x = run.dataset.images(torch.arange(count)).double()
        noise = {name: drawn[0].double() for name, drawn in draw(model.needs(count), seed_tensor(0), 0).items()}
        y = model.decode_first(model.first.space.center(model.encode_first(x)))
        step = float(model.step)
        values = x.flatten(1) * (1 - step) + step * noise[DEQUANTISE]
        base, log_det = model.to_base(values, y)
        torch.testing.assert_close(model.from_base(base, y), values, atol=1e-10, rtol=0)
        size = values.shape[1]
        found = model(Inputs({"x": x}), noise).extra
        for row in range(count if size < 10 else 1):
            at = y[row : row + 1]
            jacobian = torch.autograd.functional.jacobian(
                lambda v, at=at: model.to_base(v[None], at)[0][0], values[row]
            )
            expected = torch.linalg.slogdet(jacobian).logabsdet
            torch.testing.assert_close(log_det[row], expected, atol=1e-8, rtol=1e-8)
            normal = torch.distributions.Normal(0.0, 1.0).log_prob(base[row]).sum()
            level = size * math.log(step) if step else 0.0
            torch.testing.assert_close(found.flow[row], normal + expected + level, atol=1e-8, rtol=1e-8)
    finally:
        model.float()


def test_it_learns_what_no_normal_around_y_has_and_leaves_the_codes_alone(first, second):
    assert second.unchanged["max_change"] == 0.0
    assert list(second.model.space.blocks) == ["c"]
    rows = bent()[:50]
    assert torch.equal(second.encode(rows), first.encode(rows))
    last = second.history[-1]
    assert last["flow"] > last["normal"] + 0.3
    assert 0 < second.score("cond/X", samples=200, resamples=2)[0].value <= 1
    with pytest.raises(UsageError, match=naming("cond/Z-noise", "z")):
        second.score("cond/Z-noise")
    with pytest.raises(UsageError, match=naming("y")):
        second.score("cond/Y-noise")
    (score,) = second.score("density/flow")
    assert score.value > last["normal"]
    with pytest.raises(UsageError, match=naming("density/gain", "density/flow")):
        second.score("density/gain")


def test_given_y_draws_of_u_are_spread_as_the_rows_are(second):
    rows, u = bent(), torch.randn(1500, 3, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        made = second.model.from_base(u, second.model.decode_first(second.encode(rows)))
    torch.testing.assert_close(made.mean(0), rows.mean(0), atol=0.15, rtol=0)
    torch.testing.assert_close(made.std(0), rows.std(0), atol=0.35, rtol=0)
    assert float((made[:, 2] < -0.7).float().mean()) < 0.03  # as the rows; a Normal of that mean and spread has .12


def test_samples_codes_alone_reports_other_first_stages_and_chains(root, second, pictures):
    assert second.sample(5).shape == (5, 3)
    assert second.decode(torch.zeros(2, 1)).shape == (2, 3)
    again = ub.load(second.path, data=second.dataset, device="cpu")
    assert torch.equal(again.sample(3), second.sample(3))
    assert pictures.report().exists()
    assert len(pictures.model.decode_stages(torch.zeros(1, 2))) == 2
    tiny, nets = {**TINY, "steps": 1}, {"encoder": "mlp", "decoder": "mlp"}
    parent = ub.train("info-gan", data=dots(), root=root, network="mlp-infogan", **tiny)
    assert ub.refine(parent, "flow", data=dots(), root=root, **tiny).sample(2).shape == (2, 1, 6, 6)
    chain = ub.refine(ub.refine(pictures, data=dots(), z=1, root=root, **tiny, **nets), "flow", root=root, **tiny)
    assert chain.sample(2).shape == (2, 1, 6, 6)
    assert len(chain.model.decode_stages(chain.encode(dots()[:2]))) == 4


@pytest.mark.parametrize(
    ("given", "facts"),
    [
        ({"z": 3}, ["latents"]),
        ({"latents": "normal:3"}, ["z="]),
        ({"likelihood": "laplace"}, ["likelihood=gaussian"]),
        ({"features": 0}, ["features", 1]),
        ({"given": ("length",)}, ["length"]),
    ],
)
def test_what_does_not_fit_is_refused(root, first, given, facts):
    with pytest.raises(UsageError, match=naming(*facts)):
        ub.refine(first, "flow", root=root, **{**TINY, "steps": 1, **given})
    with pytest.raises(UsageError, match="latent"):
        ub.train("vae", data=bent(), latents=None, root=root, device="cpu")


def test_the_command_refines_and_flows_are_listed(tmp_path):
    runner = CliRunner()
    ub.train("vae", data="pendulum", data_rows=20, z=1, root=tmp_path, name="first", **{**TINY, "steps": 1, "batch": 8})
    words = ["decoder.hidden=[8]", "encoder.hidden=[8]", "steps=2", "batch=8", "features=4"]
    how = ["--with", "flow", "--root", str(tmp_path), "--name", "typed", "--device", "cpu"]
    told = runner.invoke(app, ["refine", str(tmp_path / "first"), *words, *how], catch_exceptions=False)
    assert told.exit_code == 0
    assert ub.load(tmp_path / "typed", device="cpu").unchanged["max_change"] == 0
    listed = {row["name"]: row for row in json.loads(runner.invoke(app, ["list", "networks", "--json"]).stdout)}
    assert all(listed[name]["sides"] == "flow" for name in flow)
    assert "decoder.couplings=6" in listed["coupling"]["settings"]
