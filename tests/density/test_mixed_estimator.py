"""The form for Normal blocks beside others against the chunked form in float64.

On a CPU its Normal groups are written out, computed in tiles, or by the fused kernels in Triton's interpreter.
"""

import importlib
import os

import pytest
import torch

from tests.support.cuda_graphs import replay_with
from unbraid.density import batch_aggregate, chunks, estimators, exact_aggregate
from unbraid.density.mixed_estimator import is_mixed, mixed_densities, multiply_normal_pairs
from unbraid.latents import Bernoulli, Concrete, CorrelatedNormal, Normal, Space
from unbraid.latents.parse import parse_latents
from unbraid.methods.presets import MNIST_LATENTS

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICES = ["tiles", "interpreter" if INTERPRETED else pytest.param("cuda", marks=pytest.mark.gpu)]
COUNT = 9
WEIGHTS = estimators.weighting("mss", COUNT, 50)

pytestmark = [
    pytest.mark.filterwarnings("ignore:divide by zero encountered:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning"),
]


def digits():
    """The latents of HFVAE on MNIST, grouped by blocks."""
    return Space.from_config(parse_latents(MNIST_LATENTS), "blocks")


def nested():
    """Groups at several levels that cut through blocks, and blocks of each kind on both sides of the others."""
    blocks = {"a": Normal(size=2), "c": Concrete(classes=3, size=2), "b": Normal(size=2), "s": Bernoulli(size=2)}
    return Space(blocks, (((0, 4), (1, 2)), ((3, 6), 5), (7,)))


CASES = {
    "digits": {"space": digits()},
    "digits of several members": {"space": digits(), "lead": (2, 3)},
    "no groups": {"space": Space({"z": Normal(size=3), "c": Concrete(classes=4)})},
    "one Normal leaf": {"space": Space({"c": Concrete(classes=4), "z": Normal(size=1)})},
    "two variables": {"space": Space({"c": Concrete(classes=4, size=2, temperature=0.3), "z": Normal(size=2)})},
    "binary": {"space": Space({"z": Normal(size=3), "b": Bernoulli(size=2)}, ((0, 1), (2, 3), (4,)))},
    "nested groups": {"space": nested(), "lead": (2,)},
    "narrow": {"space": digits(), "narrow": -13.8},
    "peaked": {"space": digits(), "peak": 30.0},
    "peaked and narrow": {"space": nested(), "narrow": -13.8, "peak": 30.0},
    "as peaked as it gets": {"space": digits(), "peak": 340.0},
    "annealed": {"space": Space({"z": Normal(size=2), "c": Concrete(classes=3, final=0.1, anneal=10)}), "step": 4.0},
}


def draw(space, lead=(), narrow=None, peak=None, step=None, seed=0):
    """Return an encoder's outputs and a value of each posterior, in float32, and the noise that holds the step."""
    generator = torch.Generator().manual_seed(seed)
    noise = {key: torch.tensor(step) for key, need in space.needs(COUNT).items() if need.kind == "step"}
    flat = torch.randn(*lead, COUNT, sum(space.outputs.values()), generator=generator)
    parts = list(flat.split(list(space.outputs.values()), -1))
    for at, name in enumerate(space.outputs):
        if name.endswith("log_variance"):
            parts[at] = parts[at] - 1 if narrow is None else torch.full_like(parts[at], narrow)
        if name.endswith("logits") and peak is not None:  # one class of each row above all others
            parts[at] = torch.where(parts[at] == parts[at].amax(-1, keepdim=True), peak, -peak)
    flat = torch.cat(parts, -1)
    uniform = {name: torch.rand(*lead, COUNT, b.width, generator=generator) for name, b in space.blocks.items()}
    uniform = {name: u.clamp(1e-3, 1 - 1e-3) for name, u in uniform.items()}
    logistic = {name: u.logit() / 2 for name, u in uniform.items() if type(space.blocks[name]) is Normal}
    sample = space.sample(space.split(flat, noise), uniform | logistic)
    return flat, torch.cat([sample[name] for name in space.blocks], -1), noise


def split_values(space, values):
    return dict(zip(space.blocks, values.split([b.width for b in space.blocks.values()], -1), strict=True))


def write_weights(columns):
    """Return the log weights of some components for all rows."""
    ahead = (columns[None] - torch.arange(COUNT)[:, None]) % COUNT
    own, after, other = (torch.tensor(weight, dtype=torch.float64) for weight in WEIGHTS)
    return torch.where(ahead == 0, own, torch.where(ahead == 1, after, other))


def write_normals(values, parameters, groups):
    """Return what the fused kernels do, written out."""
    pairs = Normal(size=values.shape[-1]).pairwise(parameters, values)
    every = [*groups, *([leaf] for leaf in range(values.shape[-1]))]
    weights = write_weights(torch.arange(COUNT)).to(values)
    return torch.stack([(pairs[..., list(g), :].sum(-2) + weights).logsumexp(-1) for g in every], -1)


def compute_mixed(space, posterior, sample):
    weigh = lambda columns: write_weights(columns).to(next(iter(sample.values())))  # noqa: E731
    return mixed_densities(space, posterior, sample, weigh, write_normals)


def compute_batch(space, posterior, sample):
    return batch_aggregate(space, posterior, sample, "mss", 50).levels


def evaluate(compute, space, drawn, dtype, device="cpu"):
    """Return all levels side by side, and gradients of a weighted sum of them."""
    inputs = [tensor.to(device, dtype).requires_grad_() for tensor in drawn[:2]]
    posterior = space.split(inputs[0], {name: tensor.to(device) for name, tensor in drawn[2].items()})
    levels = compute(space, posterior, split_values(space, inputs[1]))
    assert [level.shape[-1] for level in levels] == [len(level) for level in space.levels]
    flat = torch.cat(levels, -1)
    weights = torch.randn(flat.shape, generator=torch.Generator().manual_seed(9)).to(flat)
    gradients = torch.autograd.grad((flat * weights).sum(), inputs)
    return [tensor.detach().cpu().double() for tensor in (flat, *gradients)]


def assert_close(made, reference, tolerance):
    """Densities to `tolerance`, gradients to ten times that of the largest one."""
    torch.testing.assert_close(made[0], reference[0], rtol=tolerance, atol=tolerance)
    for one, other in zip(made[1:], reference[1:], strict=True):
        assert one.isfinite().all()
        assert float((one - other).abs().max()) <= 10 * tolerance * float(other.abs().max())


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 2e-5)])
@pytest.mark.parametrize("case", CASES)
def test_agrees_with_the_chunked_form(case, dtype, tolerance):
    space, drawn = CASES[case]["space"], draw(**CASES[case])
    reference = evaluate(compute_batch, space, drawn, torch.float64)
    assert_close(evaluate(compute_mixed, space, drawn, dtype), reference, tolerance)


@pytest.mark.parametrize("per_chunk", [1, 4])
def test_chunks_change_nothing(monkeypatch, per_chunk):
    space = nested()
    drawn = draw(space, lead=(2,))
    reference = evaluate(compute_batch, space, drawn, torch.float64)
    width = sum(block.width for block in space.blocks.values() if type(block) is not Normal)
    monkeypatch.setitem(chunks.CHUNK_ELEMENTS, "cpu", per_chunk * 2 * COUNT * (2 + width))
    assert_close(evaluate(compute_mixed, space, drawn, torch.float64), reference, 1e-9)


def test_each_component_keeps_its_own_temperature_where_it_moves():
    block = Concrete(classes=3, final=0.1, anneal=10)
    value = torch.randn(5, 3, dtype=torch.float64).log_softmax(-1)
    parameters = torch.randn(7, 4, dtype=torch.float64)
    torch.testing.assert_close(block.multiply_pairs(parameters, value), block.pairwise(parameters, value))


def test_any_temperature_that_all_components_share():
    block = Concrete(classes=3, size=2)
    value = torch.randn(2, 5, 6, dtype=torch.float64).unflatten(-1, (2, 3)).log_softmax(-1).flatten(-2)
    parameters = torch.randn(2, 7, 7, dtype=torch.float64)
    parameters[..., -1] = torch.tensor([[0.2], [-0.7]], dtype=torch.float64)  # one for each member
    torch.testing.assert_close(block.multiply_pairs(parameters, value), block.pairwise(parameters, value))


@pytest.mark.parametrize("peak", [500.0, 5_000.0])
def test_beyond_float64_everything_stays_finite(peak):
    drawn = draw(digits(), peak=peak, narrow=-200.0)
    assert all(tensor.isfinite().all() for tensor in evaluate(compute_mixed, digits(), drawn, torch.float32))


def test_posteriors_narrower_than_float32_resolves():
    """Each value is its own mean, and all other components have a density of 0."""
    drawn = draw(digits(), narrow=-100.0)
    made = evaluate(compute_mixed, digits(), drawn, torch.float32)
    reference = evaluate(compute_batch, digits(), drawn, torch.float64)
    torch.testing.assert_close(made[0], reference[0], rtol=1e-3, atol=1e-2)


def test_a_single_product_keeps_narrow_posteriors():
    mean = 3 * torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    parameters = torch.cat([mean, torch.full_like(mean, -20.0)], -1)
    value = mean + 2e-5
    exact = Normal(size=4).pairwise(parameters.double(), value.double())[:, [0, 2]].sum(1)
    torch.testing.assert_close(multiply_normal_pairs(value, parameters, [0, 2]).double(), exact, rtol=1e-6, atol=1e-4)


def test_spaces_with_coupled_leaves_or_one_family_keep_their_form():
    assert is_mixed(digits())
    assert not is_mixed(Space({"z": Normal(size=2)}))
    assert not is_mixed(Space({"c": Concrete(classes=3), "b": Bernoulli()}))
    assert not is_mixed(Space({"z": Normal(size=2), "c": Concrete(classes=3), "w": CorrelatedNormal(size=2)}))
    tensors = [torch.zeros(2, 2)]
    assert not estimators.can_mix(digits(), tensors)  # few pairs stay with the chunked form


@pytest.fixture(params=DEVICES)
def device(request, monkeypatch):
    """A device on which the estimators take the mixed form for float32; float64 stays chunked."""
    if request.param == "interpreter":
        single = lambda space, tensors: all(t.dtype == torch.float32 for t in tensors)  # noqa: E731
        monkeypatch.setattr(estimators, "can_mix", single)
        fused = importlib.import_module("unbraid.density.fused_estimator")
        monkeypatch.setattr(estimators, "find_fused_densities", lambda tensor: fused.log_densities)
    monkeypatch.setattr(estimators, "MIN_TILED_PAIRS", 0)
    return "cuda" if request.param == "cuda" else "cpu"


@pytest.mark.parametrize("case", ["digits of several members", "no groups", "one Normal leaf", "nested groups"])
def test_batches_with_the_fused_forms(device, case):
    space, drawn = CASES[case]["space"], draw(**CASES[case])
    reference = evaluate(compute_batch, space, drawn, torch.float64)
    assert_close(evaluate(compute_batch, space, drawn, torch.float32, device), reference, 2e-5)


@pytest.mark.parametrize("uniform", [True, False])
def test_exact_densities_with_the_fused_forms(device, uniform):
    space = nested()
    drawn = draw(space)
    log_p = torch.randn(COUNT, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).log_softmax(0)

    def compute(space, posterior, sample):
        few = {name: value[:4] for name, value in sample.items()}
        return exact_aggregate(space, posterior, few, None if uniform else log_p.to(few["a"])).levels

    reference = evaluate(compute, space, drawn, torch.float64)
    assert_close(evaluate(compute, space, drawn, torch.float32, device), reference, 2e-5)


def compute_loss(space, flat, values):
    """Return something like an objective."""
    made = batch_aggregate(space, space.split(flat), split_values(space, values), "mss", 10**6)
    return (made.joint - 2 * made.leaves.sum(-1)).sum()


def step(space, flat, values):
    return torch.autograd.grad(compute_loss(space, flat, values), (flat, values))


@pytest.mark.compiles
def test_compiled_in_one_graph(device):
    space = digits()
    inputs = [tensor.to(device).requires_grad_() for tensor in draw(space, lead=(2,))[:2]]
    compiled = torch.compile(compute_loss, fullgraph=True, backend="inductor" if device == "cuda" else "aot_eager")
    plain = torch.autograd.grad(compute_loss(space, *inputs), inputs)
    for one, other in zip(plain, torch.autograd.grad(compiled(space, *inputs), inputs), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.gpu
@pytest.mark.parametrize("chunked", [False, True])
def test_captured_in_a_cuda_graph(monkeypatch, chunked):
    space = digits()
    if chunked:
        monkeypatch.setitem(chunks.CHUNK_ELEMENTS, "cuda", 4 * 3 * COUNT * 12)
    flat, values = (tensor.cuda().requires_grad_() for tensor in draw(space, lead=(3,))[:2])
    assert estimators.can_mix(space, [flat, values])
    fresh = draw(space, lead=(3,), seed=5)[:2]
    captured = replay_with(lambda: step(space, flat, values), (flat, values), fresh)
    for one, other in zip(captured, step(space, flat, values), strict=True):
        torch.testing.assert_close(one, other)
