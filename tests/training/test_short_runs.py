"""Short single runs on CUDA do without kernels of this library, by a rule that looks at the config alone."""

import importlib
import sys

import pytest
import torch

from tests.support.execution import no_fallback
from unbraid import kernels
from unbraid.config import Choice, Training
from unbraid.data import load
from unbraid.errors import UsageError
from unbraid.kernels import allows_kernels
from unbraid.networks.conv_as_matmul import ProductLayer
from unbraid.training import configure
from unbraid.training.execution import MIN_STEPS_FOR_OWN_KERNELS as LONG, uses_own_kernels
from unbraid.training.group import Group, System
from unbraid.training.prepare import prepare


def of(steps: int, precision: str = "bf16", batch: int = 64) -> Training:
    return Training(steps=steps, batch=batch, precision=precision)


@pytest.mark.parametrize("precision", ["bf16", "tf32"])
def test_only_short_single_runs_do_without(precision):
    short = of(LONG - 1, precision)
    assert not uses_own_kernels(short, "recorded")
    assert uses_own_kernels(of(LONG, precision), "recorded")
    assert uses_own_kernels(short, "recorded", members=2)
    assert uses_own_kernels(short, "recorded", ranks=2)
    assert uses_own_kernels(short, "captured")


def test_few_steps_of_large_batches_are_not_short():
    assert uses_own_kernels(of(LONG - 1, batch=65), "recorded")
    assert uses_own_kernels(of(LONG, batch=1), "recorded")


@pytest.mark.parametrize("precision", ["f32", "f64"])
def test_single_runs_equal_members_where_rounding_allows_it(precision):
    assert uses_own_kernels(of(10, precision), "recorded")


def test_the_environment_overrides_the_rule(monkeypatch):
    monkeypatch.setenv("UNBRAID_KERNELS", "torch")
    assert not uses_own_kernels(of(10**6, "f32"), "recorded", members=3)
    with pytest.raises(UsageError, match="UNBRAID_EXECUTION=recorded"):
        uses_own_kernels(of(10**6), "captured")
    monkeypatch.setenv("UNBRAID_KERNELS", "own")
    assert uses_own_kernels(of(10), "recorded")
    monkeypatch.setenv("UNBRAID_KERNELS", "triton")
    with pytest.raises(UsageError, match="own or torch"):
        uses_own_kernels(of(10), "recorded")


def test_a_group_computes_with_and_without_kernels():
    def make(**settings) -> Group:
        network = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3))
        return Group([System(network, {})], torch.device("cpu"), **settings)

    for own_kernels in (True, False):
        with make(own_kernels=own_kernels).computing():
            assert allows_kernels() == own_kernels
    assert allows_kernels()
    # A group that is prepared again, with more members, gets its kernels back.
    group = make(own_kernels=False)
    again = Group([group.skeleton, make().skeleton], torch.device("cpu"))
    assert all(layer.kernels == "cpu" for layer in again.skeleton.modules() if isinstance(layer, ProductLayer))


@pytest.mark.gpu
@pytest.mark.parametrize("settings", [{"network": "conv-daunhawer", "data.size": 64}, {"network": "conv-chen"}])
@pytest.mark.parametrize("precision", ["bf16", "tf32"])
def test_a_short_run_is_recorded_and_trains_as_with_own_kernels(settings, precision, monkeypatch):
    dataset = load("sprites-small", {"size": settings.get("data.size", 32)}).to("cuda")
    chosen = {"network": settings["network"], "z": 3, "batch": 64, "steps": 100, "precision": precision}
    config = configure("beta-tcvae", Choice("sprites-small"), dataset, chosen)

    def train(kernels: str) -> list[float]:
        monkeypatch.setenv("UNBRAID_KERNELS", kernels)
        state = prepare(config, dataset)
        with no_fallback():
            for _ in range(20):
                state.advance()
        assert state._execute.graphs
        return [state.take_means()[0]["loss"]]

    assert train("torch") == pytest.approx(train("own"), rel=2e-3)


LAUNCHING = ("data.gather_kernel", "density.fused_estimator", "networks.bernoulli_kernel", "networks.conv_ops")
LAUNCHING += ("networks.norm_ops", "noise_kernel", "training.adam_kernel")


@pytest.mark.gpu
def test_a_short_run_launches_no_kernel_of_ours(monkeypatch):
    dataset = load("sprites-small").to("cuda")
    config = configure("beta-tcvae", Choice("sprites-small"), dataset, {"steps": 100, "batch": 64, "precision": "bf16"})
    for name in LAUNCHING:  # with all modules that they import
        importlib.import_module(f"unbraid.{name}")
    launching = [m for name, m in sys.modules.items() if name.startswith("unbraid.") and hasattr(m, "launch")]
    for module in [m for m in launching if m is not kernels and m.launch is kernels.launch]:
        monkeypatch.setattr(module, "launch", lambda *given, **more: pytest.fail("launched"))
    state = prepare(config, dataset)
    state.rehearse()
    state.advance()
