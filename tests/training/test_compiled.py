"""The step's tensor functions compile without a graph break, and compiled they see the same numbers."""

import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from tests.contracts import trained
from tests.support.execution import no_fallback
from tests.support.two_players import registered
from unbraid import noise
from unbraid.config import Choice
from unbraid.data import load
from unbraid.methods import objective
from unbraid.models import build
from unbraid.objectives import Context, bind
from unbraid.operators import hash_code
from unbraid.training import configure
from unbraid.training.execution import MAX_REPEATED_OPERATIONS, CompiledFunction
from unbraid.training.prepare import prepare
from unbraid.types import Batch, Inputs

pytestmark, SLOW = pytest.mark.compiles, pytest.mark.slow
AS_STEPS = {"dynamic": False, "options": {"realize_opcount_threshold": MAX_REPEATED_OPERATIONS}}
"""How the functions of a step are compiled."""


# 3 x 1001 numbers fill vectors and leave some for the loop that follows; the other shapes have only one of both
@pytest.mark.parametrize("shape", [(3, 1001), *(pytest.param(each, marks=SLOW) for each in ((1,), (7,), (64, 10)))])
def test_noise_is_the_same_compiled(shape):
    """Vectorised integer arithmetic must wrap around as the plain one does."""
    seeds, step = noise.seed_tensor(0, 1), torch.tensor(5)
    plain = noise.bits(seeds, step, "z", shape)
    assert torch.equal(torch.compile(noise.bits, fullgraph=True, **AS_STEPS)(seeds, step, "z", shape), plain)


# the terms of vae are among those of beta-tcvae; a weight that depends on the step is also in the step below
@pytest.mark.parametrize(
    "recipe", ["beta-tcvae", *(pytest.param(name, marks=SLOW) for name in ("vae", "annealed-vae"))]
)
def test_forward_and_terms_compile_whole(recipe):
    data = load("sprites-small")
    settings = {"network": "mlp", "encoder.hidden": (16,), "z": 3, "batch": 8}
    config = configure(recipe, Choice("sprites-small"), data, settings)
    model, terms = build(config, data.shape), bind(recipe, config.objective.settings).terms
    seeds, index = noise.seed_tensor(0), torch.arange(8)
    noise.hash_names(model.needs(8))

    def loss(x, step):
        drawn = {name: tensor[0] for name, tensor in noise.draw(model.needs(8), seeds, step).items()}
        out = model(Inputs({"x": x}), drawn)
        context = Context(model.space, model.likelihoods, len(data), step, drawn, lambda *inputs: None)
        return terms(out, Batch({"x": x}, index), context).loss

    compiled = torch.compile(loss, fullgraph=True, **AS_STEPS)
    for step in (0, 5):
        x, at = data.images(index + step), torch.tensor(step)
        torch.testing.assert_close(compiled(x, at), loss(x, at), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("recipe", "members", "settings"),
    [
        pytest.param("beta-tcvae", 1, {"decay": "cosine", "warmup": 5, "clip": 10.0}, marks=SLOW),
        ("two-players", 1, {}),
        ("beta-tcvae", 3, {"decay": "cosine", "warmup": 5, "clip": 10.0}),
        pytest.param("two-players", 3, {}, marks=SLOW),
        pytest.param("vae", 1, {"network": "conv-small"}, marks=SLOW),
        pytest.param("vae", 3, {"network": "conv-small"}, marks=SLOW),
    ],
)
def test_a_compiled_step_trains_as_the_plain_one(recipe, settings, members):
    data = load("sprites-small")
    small = {} if "network" in settings else {"network": "mlp", "encoder.hidden": (16,), "decoder.hidden": (16,)}
    common = {**small, "z": 3, "batch": 16, "steps": 30, "precision": "f64", **settings}
    with registered():
        made = [configure(recipe, Choice("sprites-small"), data, {**common, "seed": s}) for s in range(members)]
        plain, compiled = prepare(made, data), prepare(made, data, execution="compiled")
        with no_fallback():
            for _ in range(10):
                plain.advance()
                compiled.advance()
    for name, tensor in plain.tensors().items():
        torch.testing.assert_close(compiled.tensors()[name], tensor, rtol=1e-7, atol=1e-7, msg=name)


@SLOW
@pytest.mark.parametrize("recipe", list(objective))
def test_the_step_of_every_recipe_is_traced_whole(recipe, monkeypatch):
    """A break would launch its parts one by one; `eager` stands for the compiler, which has nothing to do with it."""
    run, compile_ = trained(recipe), torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **how: compile_(f, backend="eager", fullgraph=True, **how))
    training = [replace(run.config.training, seed=seed) for seed in range(2)]
    state = prepare([replace(run.config, training=each) for each in training], run.dataset, execution="compiled")
    with no_fallback():
        for _ in range(max(player.every for player in state.objective.players())):
            state.advance()


@pytest.mark.parametrize(("recipe", "returned"), [("vae", 2), ("two-players", 3)])
def test_a_step_returns_only_what_is_differentiated(recipe, returned):
    """The compiler would add a gradient of zeros to that of each image in a forward pass that no other player needs."""
    data = load("sprites-small")
    small = {"network": "mlp", "encoder.hidden": (16,), "decoder.hidden": (16,), "z": 3, "batch": 16, "steps": 2}
    with registered():
        state = prepare([configure(recipe, Choice("sprites-small"), data, small)], data)
        state.advance()
        assert len(state._parts[0](1)) == returned


def test_what_does_not_compile_runs_plain_and_says_so():
    def refuses(x):
        return x + 1

    function = CompiledFunction(refuses)
    function.call = _raise_unsupported
    with pytest.warns(UserWarning, match="of its own accord"):
        assert float(function(torch.zeros(()))) == 1
    assert function.call is refuses


def test_programs_of_other_operators_are_stored_apart(monkeypatch):
    """The compiler knows operators by their names, and would run a stored program with the shapes of older ones."""
    from torch.compiler import config

    tags = []
    for code in ("one", "other"):
        monkeypatch.setattr("unbraid.training.execution.hash_code", lambda code=code: code)
        function = CompiledFunction(torch.neg)
        function.call = lambda x: tags.append(config.cache_key_tag)
        function(torch.zeros(()))
    assert len(set(tags)) == 2
    assert config.cache_key_tag not in tags


def test_the_hash_of_operators_does_not_depend_on_what_was_imported():
    alone = "from unbraid.operators import hash_code; print(hash_code())"
    more = f"import unbraid.density.estimators, unbraid.training.collectives; {alone}"
    found = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True) for code in (alone, more)]
    assert found[0].stdout == found[1].stdout
    assert found[0].stdout.strip() == hash_code()


def _raise_unsupported(x):
    raise torch._dynamo.exc.Unsupported("of its own accord")
