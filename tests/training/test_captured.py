"""On a GPU: a step that is compiled and replayed trains as the plain one, and members train as single runs."""

import pytest
import torch

from tests.support.execution import METHODS, no_fallback
from tests.support.two_players import registered
from unbraid.config import Choice
from unbraid.data import load
from unbraid.recorded_step import WARM_UP_CALLS, RecordedStep
from unbraid.training import configure
from unbraid.training.prepare import prepare

pytestmark = pytest.mark.gpu

CASES = [
    ("vae", {"network": "mlp"}),
    ("beta-tcvae", {"network": "mlp", "decay": "cosine", "warmup": 5, "clip": 10.0}),
    ("beta-tcvae", {"network": "conv-small"}),
    ("two-players", {"network": "mlp"}),
]


@pytest.fixture(scope="module")
def sprites():
    return load("sprites-small").to("cuda")


@pytest.fixture(autouse=True)
def recipes():
    with registered():
        yield


def configs_of(sprites, recipe, seeds, **settings):
    sizes = {} if "latents" in settings else {"z": 3}
    common = {**sizes, "batch": 256, "steps": 100, "lr": 1e-3, **settings}
    return [configure(recipe, Choice("sprites-small"), sprites, {**common, "seed": seed}) for seed in seeds]


def losses(state, steps, every=10):
    """Mean of each term over each `every` steps, [lines][member][term]."""
    lines = []
    every = min(every, steps)
    for _ in range(steps // every):
        for _ in range(every):
            state.advance()
        lines.append([list(line.values()) for line in state.take_means()])
    return torch.tensor(lines)


def assert_same(made, expected, share=1e-4):
    """Compare to a share of the loss: a term that is nearly 0 has no digits to compare."""
    assert ((made - expected).abs() <= share * expected[..., :1].abs()).all()


def check_captured(sprites, recipe, settings, members, steps, share=1e-4):
    configs = configs_of(sprites, recipe, range(members), **settings)
    plain, captured = prepare(configs, sprites, execution="plain"), prepare(configs, sprites)
    with no_fallback():
        made = losses(captured, steps)
    assert_same(made, losses(plain, steps), share)
    (step,) = (part for part in vars(captured).values() if isinstance(part, RecordedStep))
    assert step.graphs


@pytest.mark.parametrize(("recipe", "settings"), METHODS)
def test_every_kind_of_step_can_be_captured(sprites, recipe, settings):
    if recipe == "info-gan":
        # Two players who answer each other drive a rounding error apart: by 1.6e-3 of the loss within 20 steps. Few
        # steps after the recording keep the drift below 2e-3, which is far below what stale noise or data would change.
        check_captured(sprites, recipe, settings, members=2, steps=4 * WARM_UP_CALLS, share=2e-3)
    else:
        check_captured(sprites, recipe, settings, members=2, steps=20)


@pytest.mark.parametrize(("recipe", "settings"), CASES)
@pytest.mark.parametrize("members", [1, 3])
def test_a_captured_step_trains_as_the_plain_one(sprites, recipe, settings, members):
    check_captured(sprites, recipe, settings, members, steps=50)


@pytest.mark.parametrize(("recipe", "settings"), CASES)
def test_members_train_as_single_runs(sprites, recipe, settings):
    configs = configs_of(sprites, recipe, range(3), **settings)
    together = losses(prepare(configs, sprites), 50)
    for member, config in enumerate(configs):
        alone = losses(prepare(config, sprites), 50)
        assert_same(together[:, member], alone[:, 0])


def test_the_host_waits_for_nothing_between_logging_points(sprites):
    state = prepare(configs_of(sprites, "beta-tcvae", range(2)), sprites)
    for _ in range(10):
        state.advance()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(30):
            state.advance()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert state.step == 40
    assert int(state.clock) == 40


@pytest.mark.parametrize(("recipe", "network"), [("vae", "conv-chen"), ("info-gan", "conv-infogan")])
def test_members_with_batch_norm_train_as_single_runs(recipe, network):
    chosen = Choice("sprites", {"scales": 2, "orientations": 2, "positions": 8})
    large = load("sprites", chosen.settings).to("cuda")
    common = {"network": network, "z": 3, "batch": 64, "steps": 10}
    configs = [configure(recipe, chosen, large, {**common, "seed": seed}) for seed in range(2)]
    together = losses(prepare(configs, large), 2)
    # Adam's first step divides each gradient by its size, so rounding moves a weight without a gradient by the rate,
    # which the player that answers sees. Statistics of other rows would change its terms by several hundredths.
    share = 1e-3 if recipe == "info-gan" else 1e-4
    for member, config in enumerate(configs):
        assert_same(together[:, member], losses(prepare(config, large), 2)[:, 0], share)
