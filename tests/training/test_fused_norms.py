"""Steps with fused normalisation train as those with torch's operations: MS-VAE (AdaIN) and conv-chen (BatchNorm)."""

import pytest
import torch

from tests.support.execution import no_fallback
from unbraid.config import Choice
from unbraid.data import load
from unbraid.networks.fused_norm import FusableNorm, fuse_normalisations
from unbraid.recorded_step import WARM_UP_CALLS, RecordedStep
from unbraid.training import configure
from unbraid.training.prepare import prepare

pytest.importorskip("triton")

CASES = [("ms-vae", {"decoder.channels": 4}), ("beta-tcvae", {"network": "conv-chen", "likelihood": "bernoulli"})]
CHOICE = Choice("sprites-small")


def configs_of(dataset, recipe, **settings):
    """Configs of two members; a second stage refines a first one with random weights."""
    common = {"z": 3, "batch": 64, "steps": 100, "lr": 1e-3, **settings}
    parent = None
    if recipe == "ms-vae":
        first = configure("beta-vae", CHOICE, dataset, {"steps": 100})
        parent = {"run": first.run_id, "content": "0" * 64, "config": first.as_dict()}
    return [configure(recipe, CHOICE, dataset, {**common, "seed": seed}, parent=parent) for seed in range(2)]


def train(configs, dataset, fused, steps, **execution):
    """Return the loss of every step [step, member], and the state."""
    state = prepare(configs, dataset, **execution)
    fuse_normalisations(state.group.skeleton, fused)
    losses = []
    for _ in range(steps):
        state.advance()
        losses.append([line["loss"] for line in state.take_means()])
    return torch.tensor(losses), state


def norms_of(state):
    return [layer for layer in state.group.skeleton.modules() if isinstance(layer, FusableNorm)]


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="runs in Triton's interpreter, which is decided at import")
@pytest.mark.parametrize(("recipe", "settings"), CASES)
def test_members_train_as_with_torchs_operations(recipe, settings):
    dataset = load("sprites-small")
    configs = configs_of(dataset, recipe, **settings, batch=4)
    made, state = train(configs, dataset, True, 2)
    expected, _ = train(configs, dataset, False, 2)
    assert norms_of(state) and all(layer.fused for layer in norms_of(state))
    torch.testing.assert_close(made, expected, rtol=1e-4, atol=0)


@pytest.mark.gpu
@pytest.mark.parametrize(("recipe", "settings"), CASES)
@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_recorded_steps_train_as_with_torchs_operations(recipe, settings, precision):
    dataset = load("sprites-small").to("cuda")
    configs = configs_of(dataset, recipe, **settings, precision=precision)
    assert all(layer.fused for layer in norms_of(prepare(configs, dataset)))
    with no_fallback():
        made, state = train(configs, dataset, True, 4 * WARM_UP_CALLS)
    (step,) = (part for part in vars(state).values() if isinstance(part, RecordedStep))
    assert step.graphs
    # rounding moves a weight without a gradient by the rate, as Adam divides each gradient by its size
    share = 1e-3 if precision == "f32" else 2e-2
    expected, _ = train(configs, dataset, False, 4 * WARM_UP_CALLS)
    torch.testing.assert_close(made, expected, rtol=share, atol=0)
    plainly, _ = train(configs, dataset, True, 4 * WARM_UP_CALLS, execution="plain")
    torch.testing.assert_close(made, plainly, rtol=share, atol=0)
