"""MS-FLOW: densities by other means, the frozen mixture, and what a run of it can do."""

import math

import pytest
import torch

import unbraid
from tests.support.messages import naming
from unbraid.config import Choice
from unbraid.data import from_array
from unbraid.errors import UsageError
from unbraid.methods.ms_flow import CLASS, CONDITION
from unbraid.metrics import evaluate
from unbraid.models.dequantise import BASE, DEQUANTISE, dequantise
from unbraid.training.configure import configure
from unbraid.training.prepare import prepare
from unbraid.types import Inputs

SMALL = {"encoder_hidden": (8,), "decoder_hidden": (16,), "decoder_couplings": 4, "features": 4, "batch": 64}


def bent(rows: int = 400, levels: bool = False):
    """Two half moons: a mixture of two Gaussians does not fit them."""
    drawn = torch.Generator().manual_seed(0)
    angle = math.pi * torch.rand(rows, generator=drawn)
    side = (torch.arange(rows) % 2).float()
    x = torch.stack([angle.cos() + side, angle.sin() * (1 - 2 * side) + 0.3 * side], -1)
    x = x + 0.08 * torch.randn(rows, 2, generator=drawn)
    if levels:
        x = ((x + 3) * 255 / 6).clamp(0, 255).to(torch.uint8)
    return from_array(x.numpy(), name="moons")


def state(data=None, seed=0, **given):
    """The state in which a run starts."""
    data = data or bent()
    settings = {**{k.replace("_", ".", 1) if "coder" in k else k: v for k, v in SMALL.items()}, "latents": "concrete:2"}
    config = configure("ms-flow", Choice("given", {}), data, {**settings, "seed": seed, **given})
    return prepare(config, data)


def model_of(started):
    started.model.load_state_dict({n.removeprefix("model."): t for n, t in started.group.member_tensors(0).items()})
    return started.model.double()


@pytest.mark.parametrize("condition", ["mean", "sample"])
def test_densities_are_those_of_every_component_by_autograd(condition):
    model = model_of(state(condition=condition))
    x, drawn = bent().images(torch.arange(5)).double(), torch.Generator().manual_seed(0)
    noise = {DEQUANTISE: torch.rand(5, 2, generator=drawn).double()}
    e = torch.zeros(5, 2, 2, dtype=torch.float64)
    if condition == "sample":
        e = noise[CONDITION] = torch.randn(5, 2, 2, generator=drawn).double()
    found = model(Inputs({"x": x}), noise).extra
    weights = torch.distributions.Categorical(logits=model.log_weights)
    parts = torch.distributions.Independent(torch.distributions.Normal(model.means, model.variances.sqrt()), 1)
    expected = torch.distributions.MixtureSameFamily(weights, parts).log_prob(x)
    torch.testing.assert_close(found.mixture, expected)
    center, variance = model.standardisation()
    for n in range(5):
        logs = []
        for c in range(2):
            h = model.encoder(model.means[c] + model.variances[c].sqrt() * e[n, c][None])

            def base(value, h=h):
                return model.flow(((value - center) / variance.sqrt())[None], h)[0][0]

            log_det = torch.linalg.slogdet(torch.autograd.functional.jacobian(base, x[n])).logabsdet
            normal = -0.5 * base(x[n]).square().sum() - math.log(2 * math.pi)
            logs.append(model.log_weights[c] + normal + log_det)
        torch.testing.assert_close(found.flow[n], torch.stack(logs).logsumexp(0))


def test_density_of_bytes_is_a_bound_of_the_probability_of_their_levels():
    model = model_of(state(bent(levels=True), decoder="coupling"))
    levels = torch.cartesian_prod(torch.arange(256), torch.arange(256)) / 255
    drawn = torch.rand(len(levels), 2, generator=torch.Generator().manual_seed(0)).double()
    with torch.no_grad():
        found = model(Inputs({"x": levels.double()}), {DEQUANTISE: drawn}).extra
    for density in found:
        assert float(density.exp().sum()) == pytest.approx(1, abs=0.02)  # over all levels
    ends = 256 * dequantise(torch.tensor([0.0, 1.0]), torch.tensor([0.5, 0.5]), 1 / 256)
    torch.testing.assert_close(ends, torch.tensor([0.5, 255.5]))


def test_the_mixture_is_fitted_by_the_seed_and_stays_as_it_is():
    first, again, other = state(), state(), state(seed=3)
    fitted = {n: t.clone() for n, t in first.group.buffers.items() if n.endswith(("means", "variances"))}
    assert all(torch.equal(again.group.buffers[n], t) for n, t in fitted.items())
    assert not all(torch.equal(other.group.buffers[n], t) for n, t in fitted.items())
    x = bent().images(torch.arange(400))
    assert float((model_of(again).mixture.moments()[0] - x.mean(0)).abs().max()) < 1e-3
    for _ in range(5):
        first.advance()
    assert all(torch.equal(first.group.buffers[n], t) for n, t in fitted.items())


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    given = {**SMALL, "decoder_hidden": (32, 32), "latents": "concrete:4", "steps": 250, "lr": 5e-3, "floor": 1e-3}
    return unbraid.train("ms-flow", data=bent(2000), root=tmp_path_factory.mktemp("runs"), device="cpu", **given)


def test_the_flow_raises_the_density_over_the_mixture_and_draws_from_it(run):
    scores = {s.protocol: s for s in evaluate(run.evaluation, ["density"])}
    assert scores["gain"].interval[0] > 0.1
    assert scores["gain"].value == pytest.approx(scores["flow"].value - scores["mixture"].value)
    drawn = run.sample(2000, seed=1)
    x = run.dataset.images(torch.arange(2000))
    nearest = torch.cdist(drawn, x).min(1).values
    assert float(nearest.median()) < 0.08  # the moons are drawn, not the ovals of the mixture
    oval = run.model.means[torch.randint(4, (2000,))] + run.model.variances.mean().sqrt() * torch.randn(2000, 2)
    assert float(torch.cdist(oval, x).min(1).values.median()) > float(nearest.median())


def test_a_run_encodes_decodes_and_reports(run):
    codes = run.encode(run.dataset)
    assert codes.shape == (2000, 4)
    torch.testing.assert_close(codes.sum(1), torch.ones(2000))
    assert run.decode(torch.eye(4)).shape == (4, 2)
    assert run.score()
    assert any("elbo" in note for note in run.notes)
    assert run.report().exists()
    again = unbraid.load(run.path, data=run.dataset, device="cpu")
    assert torch.equal(again.sample(3), run.sample(3))
    noise = {CLASS: torch.tensor([[0.0], [1.0]]), BASE: torch.zeros(2, 2)}
    assert run.model.prior_codes(noise)[:, :4].sum(1).tolist() == [1, 1]


@pytest.mark.parametrize(
    ("given", "facts"),
    [
        ({"latents": "normal:2"}, ["latents=concrete:10"]),
        ({"latents": "concrete:2+normal:2"}, ["latents=concrete:10"]),
        ({"floor": 0.0}, ["floor", 0]),
        ({"likelihood": "laplace"}, ["likelihood=gaussian"]),
        ({"decoder": "mlp"}, ["mlp", "decoder=NAME"]),
        ({"features": 0}, ["features", 1]),
        ({"latents": "concrete:500"}, [500]),
    ],
)
def test_what_does_not_fit_is_refused(given, facts):
    with pytest.raises(UsageError, match=naming(*facts)):
        state(**given)


def test_densities_of_other_models_are_refused(tmp_path):
    other = unbraid.train("vae", data=bent(50), z=1, steps=1, batch=8, root=tmp_path, device="cpu")
    with pytest.raises(UsageError, match=naming("density/flow", "ms-flow")):
        other.score("density/flow")
