"""The fused forms, which are tiles on a CPU and kernels on a GPU, against the chunked form in float64.

Without a GPU, Triton's interpreter runs the kernels. It has to be chosen before Triton is imported, and then holds for
the whole process; so one test runs this file again in a process of its own.
"""

import importlib
import os
import subprocess
import sys

import pytest
import torch

from tests.support.cuda_graphs import replay_with
from tests.support.messages import naming
from tests.support.posteriors import drawn
from unbraid.density import batch_aggregate, estimators, exact_aggregate, weighting
from unbraid.errors import UsageError
from unbraid.latents import Normal, Space

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
KERNELS = ["interpreter"] if INTERPRETED else [pytest.param("cuda", marks=pytest.mark.gpu)]
SHARED_KERNELS = ["interpreter, shared"] if INTERPRETED else [pytest.param("cuda, shared", marks=pytest.mark.gpu)]
TILES = ["tiles", "small tiles"]
NESTED = ((0, (3, 1)), ((2, 4),))
"""Two levels between everything and the leaves, with groups that are no ranges."""

pytestmark = [
    pytest.mark.filterwarnings("ignore:divide by zero encountered:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning"),
]


@pytest.mark.skipif(INTERPRETED, reason="is what runs it")
@pytest.mark.skipif(torch.cuda.is_available(), reason="the tests run on the GPU itself")
@pytest.mark.parametrize("which", ["not compiles", pytest.param("compiles", marks=pytest.mark.compiles)])
def test_all_of_this_in_the_interpreter(which):
    pytest.importorskip("triton")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    environment |= {"TRITON_INTERPRET": "1", "UNBRAID_TYPECHECK": "0"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", f"not gpu and {which}", __file__]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.skipif(INTERPRETED, reason="imports Triton itself")
def test_the_estimators_need_no_triton():
    blocked = (
        "import importlib.util as u; f = u.find_spec; u.find_spec = lambda n, *a: None if n == 'triton' else f(n, *a)"
    )
    hidden = "import sys; sys.modules['triton'] = None; import unbraid.density as d; assert not d.estimators.TRITON"
    lazy = "assert 'unbraid.density.fused_estimator' not in sys.modules"
    subprocess.run([sys.executable, "-c", f"{blocked}; {hidden}; {lazy}"], check=True, timeout=120)


def use(form, monkeypatch):
    """Let the estimators take a fused form for float32, however few pairs there are; return its device."""
    if form == "interpreter":
        single = lambda space, tensors: all(t.dtype == torch.float32 for t in tensors)  # noqa: E731
        monkeypatch.setattr(estimators, "can_fuse", single)
        fused = importlib.import_module("unbraid.density.fused_estimator")
        monkeypatch.setattr(estimators, "find_fused_densities", lambda tensor: fused.log_densities)
    if form in TILES:
        monkeypatch.setattr(estimators, "MIN_TILED_PAIRS", 0)
    if form == "small tiles":
        monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
        monkeypatch.setattr("unbraid.density.tiled_estimator.PAIRS_PER_THREAD", 24)
    return "cuda" if form == "cuda" else "cpu"


@pytest.fixture(params=[*KERNELS, *TILES])
def device(request, monkeypatch):
    """A device on which the estimators take a fused form for float32; float64 stays chunked."""
    return use(request.param, monkeypatch)


@pytest.fixture(params=KERNELS)
def device_of_kernels(request, monkeypatch):
    """A device on which the estimators take the kernels for float32."""
    return use(request.param, monkeypatch)


@pytest.fixture(params=[*KERNELS, *SHARED_KERNELS, *TILES])
def device_of_each_form(request, monkeypatch):
    """The same, also with the shared form of the kernels, which only a compiled step prefers."""
    form, _, shared = request.param.partition(", ")
    if form not in TILES:
        monkeypatch.setattr("unbraid.density.fused_estimator.prefers_shared", lambda: shared == "shared")
    return use(form, monkeypatch)


def evaluated(make, parameters, z, weights, device, dtype):
    """All levels side by side, and the gradients of a weighted sum of them."""
    inputs = [tensor.to(device, dtype).requires_grad_() for tensor in (parameters, z)]
    levels = torch.cat(make(*inputs).levels, dim=-1)
    gradients = torch.autograd.grad((levels * weights.to(levels)).sum(), inputs)
    return [tensor.detach().cpu().double() for tensor in (levels, *gradients)]


def assert_same(make, parameters, z, outputs, device):
    """Fused float32 equals chunked float64."""
    weights = torch.randn(*z.shape[:-1], outputs, generator=torch.Generator().manual_seed(9))
    made = evaluated(make, parameters, z, weights, device, torch.float32)
    reference = evaluated(make, parameters, z, weights, "cpu", torch.float64)
    torch.testing.assert_close(made[0], reference[0], rtol=1e-5, atol=1e-5)
    for one, other in zip(made[1:], reference[1:], strict=True):
        assert float((one - other).abs().max()) <= 1e-4 * float(other.abs().max())


def outputs_of(space):
    return sum(len(level) for level in space.levels)


CASES = {
    "one leaf": {"lead": (), "count": 5, "size": 1, "estimator": "mws"},
    "two rows": {"lead": (1,), "count": 2, "size": 2, "estimator": "mss"},
    "few rows, mws": {"lead": (), "count": 7, "size": 3, "estimator": "mws"},
    "few rows, stratified": {"lead": (), "count": 7, "size": 3, "estimator": "stratified"},
    "nested groups": {"lead": (), "count": 5, "size": 5, "estimator": "stratified", "tree": NESTED},
    "several tiles": {"lead": (), "count": 36, "size": 2, "estimator": "mss"},
    "two leading axes": {"lead": (2, 1), "count": 3, "size": 2, "estimator": "mss"},
    "narrow": {"lead": (1,), "count": 20, "size": 3, "estimator": "mss", "narrow": -12.0},
    "far apart": {"lead": (1,), "count": 20, "size": 3, "estimator": "mss", "narrow": -12.0, "apart": 100.0},
    "too narrow to square": {"lead": (), "count": 4, "size": 2, "estimator": "stratified", "narrow": -100.0},
}


@pytest.mark.parametrize("case", CASES)
def test_batches(device_of_each_form, case):
    options = dict(CASES[case])
    space = Space({"z": Normal(size=options["size"])}, options.pop("tree", None))
    estimator = options.pop("estimator")
    parameters, z = drawn(**options)

    def make(parameters, z):
        return batch_aggregate(space, {"z": parameters}, {"z": z}, estimator, 3 * options["count"])

    assert_same(make, parameters, z, outputs_of(space), device_of_each_form)


SHARED_CASES = {
    "several blocks and chunks": {"lead": (2,), "count": 70, "size": 4},
    "as many leaves as are shared": {"lead": (), "count": 20, "size": 16},
    "squares of precisions overflow": {"lead": (), "count": 20, "size": 2, "narrow": -90.0},
    "clamped": {"lead": (), "count": 20, "size": 2, "narrow": -170.0},
    "densities beyond the range of sums": {"lead": (), "count": 20, "size": 2, "narrow": 100.0},
}


@pytest.mark.parametrize("estimator", ["mws", "mss", "stratified"])
@pytest.mark.parametrize("case", SHARED_CASES)
def test_all_leaves_and_single_leaves(device_of_each_form, case, estimator):
    options = SHARED_CASES[case]
    space = Space({"z": Normal(size=options["size"])})
    parameters, z = drawn(**options)

    def make(parameters, z):
        return batch_aggregate(space, {"z": parameters}, {"z": z}, estimator, 3 * options["count"])

    assert_same(make, parameters, z, outputs_of(space), device_of_each_form)


def test_chunks_of_rows_that_are_computed_carefully_do_not_overlap(device_of_kernels, monkeypatch):
    """One row far from its posterior, in chunks of 24 rows and of 16."""
    fused = importlib.import_module("unbraid.density.fused_estimator")
    monkeypatch.setattr(fused, "prefers_shared", lambda: True)
    space = Space({"z": Normal(size=2)})
    parameters, z = drawn((), 40, 2)
    z[17] += 30.0
    for programs in (2, 4):
        monkeypatch.setattr(fused, "SHARED_BACKWARD", fused.SHARED_BACKWARD._replace(programs=programs))
        make = lambda p, z: batch_aggregate(space, {"z": p}, {"z": z}, "mss", 120)  # noqa: E731
        assert_same(make, parameters, z, outputs_of(space), device_of_kernels)


@pytest.mark.parametrize("narrow", [-2.0, -6.0, -12.0, -40.0])
def test_samples_of_no_posterior(device_of_each_form, narrow):
    space = Space({"z": Normal(size=3)})
    parameters, _ = drawn((), 40, 3, narrow=narrow)
    z = torch.randn(40, 3, generator=torch.Generator().manual_seed(1))
    assert_same(lambda p, z: exact_aggregate(space, {"z": p}, {"z": z}), parameters, z, 4, device_of_each_form)


@pytest.mark.parametrize("uniform", [True, False])
@pytest.mark.parametrize(("rows", "count"), [(3, 40), (40, 5)])
def test_few_rows_under_many_components(device, uniform, rows, count):
    space = Space({"z": Normal(size=2)})
    parameters, _ = drawn((), count, 2)
    z = torch.randn(rows, 2, generator=torch.Generator().manual_seed(1))
    log_p = torch.randn(count, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).log_softmax(0)

    def make(parameters, z):
        return exact_aggregate(space, {"z": parameters}, {"z": z}, None if uniform else log_p.to(z))

    assert_same(make, parameters, z, outputs_of(space), device)


@pytest.mark.slow
def test_as_many_leaves_as_there_are_bits(device):
    space = Space({"z": Normal(size=64)})
    parameters, z = drawn((), 2, 64)
    assert_same(lambda p, z: batch_aggregate(space, {"z": p}, {"z": z}, "mws", 9), parameters, z, 65, device)


def test_several_blocks_are_one(device):
    space = Space({"a": Normal(size=1), "b": Normal(size=2)})
    parameters, z = drawn((), 6, 3)

    def make(parameters, z):
        mean, log_variance = parameters.chunk(2, dim=-1)
        posterior = {"a": torch.cat([mean[:, :1], log_variance[:, :1]], -1)}
        posterior["b"] = torch.cat([mean[:, 1:], log_variance[:, 1:]], -1)
        return batch_aggregate(space, posterior, space.unjoin(z), "stratified", 50)

    assert_same(make, parameters, z, 4, device)


def test_samples_with_an_axis_of_their_own_share_the_posteriors(device):
    space = Space({"z": Normal(size=2)})
    parameters, _ = drawn((), 7, 2)
    z = torch.randn(3, 4, 2, generator=torch.Generator().manual_seed(1))
    assert_same(lambda p, z: exact_aggregate(space, {"z": p}, {"z": z}), parameters, z, 3, device)


def test_groups_that_leave_out_leaves_or_overlap(device):
    parameters, z = drawn((1,), 5, 4)
    groups, weights = [[3, 0, 1, 2], [0, 2], [2, 1]], weighting("mss", 5, 9)
    inputs = [tensor.to(device).requires_grad_() for tensor in (z, parameters)]
    made = estimators.find_fused_densities(inputs[0])(*inputs, groups, weights)
    double = [tensor.double().requires_grad_() for tensor in (z, parameters)]
    parts = [log_densities_of_group(*double, group) for group in [*groups, [0], [1], [2], [3]]]
    torch.testing.assert_close(made.cpu().double(), torch.stack(parts, -1), rtol=1e-5, atol=1e-5)
    for one, other in zip(torch.autograd.grad(made.square().sum(), inputs),
                          torch.autograd.grad(torch.stack(parts).square().sum(), double), strict=True):  # fmt: skip
        torch.testing.assert_close(one.cpu().double(), other, rtol=1e-4, atol=1e-4)


def test_kernels_need_a_first_group_of_all_leaves(device_of_kernels):
    parameters, z = (tensor.to(device_of_kernels) for tensor in drawn((1,), 5, 4))
    with pytest.raises(UsageError, match=naming("group", 4)):
        estimators.find_fused_densities(z)(z, parameters, [[0, 1]], weighting("mss", 5, 9))


def log_densities_of_group(z, parameters, group):
    """The group as a space of its own."""
    columns = torch.cat([parameters[..., group], parameters[..., [4 + leaf for leaf in group]]], -1)
    space = Space({"z": Normal(size=len(group))})
    return batch_aggregate(space, {"z": columns}, {"z": z[..., group]}, "mss", 9).joint


def test_values_are_the_same_without_gradients(device):
    space = Space({"z": Normal(size=3)})
    parameters, z = (tensor.to(device) for tensor in drawn((2,), 18, 3))
    with torch.no_grad():
        plain = batch_aggregate(space, {"z": parameters}, {"z": z}, "stratified", 99)
    recorded = batch_aggregate(space, {"z": parameters}, {"z": z}, "stratified", 99)
    assert all(torch.equal(one, other) for one, other in zip(plain.levels, recorded.levels, strict=True))


def test_what_is_no_number_stays_with_its_member(device):
    space = Space({"z": Normal(size=2)})
    parameters, z = (tensor.to(device) for tensor in drawn((3,), 5, 2))
    parameters[1, 2, 0] = float("nan")
    parameters.requires_grad_()
    made = batch_aggregate(space, {"z": parameters}, {"z": z}, "stratified", 9)
    (gradient,) = torch.autograd.grad(sum(level.sum() for level in made.levels), parameters)
    for tensor in (made.joint, gradient):
        assert tensor[1].isnan().any()
        assert tensor[[0, 2]].isfinite().all()


def test_a_density_of_zero_has_no_gradient(device):
    space = Space({"z": Normal(size=2)})
    parameters, z = (tensor.to(device).requires_grad_() for tensor in drawn((), 5, 2))
    far = z.detach().clone()
    far[3] = 1e30
    made = batch_aggregate(space, {"z": parameters}, {"z": z + (far - z.detach())}, "mss", 9)
    assert (made.joint == -torch.inf).tolist() == [False, False, False, True, False]
    gradients = torch.autograd.grad(made.joint.sum(), (parameters, z))
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert not gradients[1][3].any()


@pytest.mark.compiles
def test_the_operators_are_well_behaved(device_of_kernels):
    from unbraid.density import fused_estimator as fused

    parameters, z = (tensor.to(device_of_kernels).requires_grad_() for tensor in drawn((2,), 4, 2))
    masks, weights = [3], list(weighting("mss", 4, 9))
    for shared in (False, True):
        torch.library.opcheck(fused.aggregate_densities.call, (z, parameters, None, masks, weights, True, shared))
        with torch.no_grad():
            out, *rest = fused.aggregate_densities(z, parameters, None, masks, weights, True, shared)
            torch.library.opcheck(fused.aggregate_densities_backward.call, (out, *rest, 4, masks, weights, shared))


def step(space, parameters, z):
    """Gradient of something like an objective."""
    made = batch_aggregate(space, {"z": parameters}, {"z": z}, "mss", 10**6)
    return torch.autograd.grad((made.joint - 2 * made.leaves.sum(-1)).sum(), (parameters, z))


@pytest.mark.compiles
def test_compiled_in_one_graph(device_of_kernels):
    """It takes the shared form there, and the general one outside."""
    space = Space({"z": Normal(size=2)})
    parameters, z = (tensor.to(device_of_kernels).requires_grad_() for tensor in drawn((2,), 6, 2))

    def loss(parameters, z):
        made = batch_aggregate(space, {"z": parameters}, {"z": z}, "mss", 99)
        return (made.joint - 2 * made.leaves.sum(-1)).sum()

    compiled = torch.compile(loss, fullgraph=True, backend="inductor" if device_of_kernels == "cuda" else "aot_eager")
    plain = torch.autograd.grad(loss(parameters, z), (parameters, z))
    for one, other in zip(plain, torch.autograd.grad(compiled(parameters, z), (parameters, z)), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.gpu
def test_captured_in_a_cuda_graph():
    space = Space({"z": Normal(size=10)})
    parameters, z = (tensor.cuda().requires_grad_() for tensor in drawn((4,), 100, 10))
    fresh = drawn((4,), 100, 10, seed=5)
    captured = replay_with(lambda: step(space, parameters, z), (parameters, z), fresh)
    assert all(torch.equal(one, other) for one, other in zip(captured, step(space, parameters, z), strict=True))


@pytest.mark.gpu
def test_a_batch_whose_pairs_no_memory_holds():
    space, count = Space({"z": Normal(size=10)}), 65_536
    parameters, z = (tensor.cuda().requires_grad_() for tensor in drawn((), count, 10))
    gradients = step(space, parameters, z)
    made = batch_aggregate(space, {"z": parameters}, {"z": z}, "mws", count)
    assert all(gradient.isfinite().all() for gradient in gradients)
    rows = torch.arange(0, count, count // 8)
    double = [tensor.detach().cpu().double() for tensor in (parameters, z[rows])]
    exact = exact_aggregate(space, {"z": double[0]}, {"z": double[1]})
    # mws weighs each of the batch by 1 / (N B), which at N = B is 1 / B times the exact weight
    expected = exact.joint - torch.tensor(count, dtype=torch.float64).log()
    torch.testing.assert_close(made.joint[rows].cpu().double(), expected, rtol=1e-5, atol=1e-5)
