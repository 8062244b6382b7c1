"""What every registered objective, network, data set and metric promises.

Tests run these over the registries, so a new entry is covered by its decorator alone; test_documents.py runs them over
the examples of CONTRIBUTING.md.
"""

import functools
import inspect
import math
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.func import functional_call, stack_module_state, vmap

from unbraid import api
from unbraid.api import refine
from unbraid.config import Choice, Config
from unbraid.data import FactorDataset, dataset, load
from unbraid.errors import UsageError
from unbraid.metrics import Evaluation, Score, evaluate, metric
from unbraid.models import VAE
from unbraid.networks import decoder, encoder, refiner
from unbraid.objectives import objective
from unbraid.store import load_tensors
from unbraid.training import Cadence, Interrupted
from unbraid.training.prepare import prepare
from unbraid.training.state import State

SHAPES = [(1, 64, 64), (3, 64, 64), (1, 28, 28), (1, 32, 32), (3, 32, 32), (7,)]
OUTPUTS = {"z.mean": 4, "z.log_variance": 4}
SMALL_DATA = {
    "sprites": {"positions": 2, "orientations": 3},
    "sprites-pairs": {"positions": 2, "orientations": 3},
    "pendulum": {"lengths": 3, "dampings": 2, "masses": 4},
}
SMALL_RUN = {"network": "mlp", "encoder_hidden": (16,), "decoder_hidden": (16,), "z": 3, "batch": 16, "steps": 24}


FOLDERS: list[tempfile.TemporaryDirectory] = []
"""Folders of shared runs: removed with the process, since no single test owns them."""


def new_folder() -> Path:
    FOLDERS.append(tempfile.TemporaryDirectory(prefix="unbraid-contract-", ignore_cleanup_errors=True))
    return Path(FOLDERS[-1].name)


def small_run(recipe: str) -> dict[str, Any]:
    """Settings of a recipe's small run; its fact `trial` changes some, and takes away those that are None there."""
    given = {**SMALL_RUN, **objective[recipe].facts.trial}
    return {key: value for key, value in given.items() if value is not None}


@functools.cache
def trained(recipe: str) -> api.Run:
    """One small run per recipe, shared by all checks."""
    return train(recipe, root=new_folder(), cadence=Cadence(log_steps=4))


def train(recipe: str, **how: Any) -> api.Run:
    """A small run; a recipe that refines another run has a shared one to refine."""
    given = {**small_run(recipe), "device": "cpu", **how}
    if objective[recipe].facts.stage:
        return refine(trained("beta-vae"), objective[recipe].facts.stage, **given)
    return api.train(recipe, **{"data": "sprites-small", **given})


def check_objective(name: str) -> None:
    """Explains itself, trains to finite terms, moves every parameter, loads equal and resumes equal."""
    entry = objective[name]
    assert entry.summary.endswith(".")
    run = trained(name)
    numbers = [v for line in run.history for v in line.values()]
    assert len(run.history) >= 6
    assert all(math.isfinite(v) for v in numbers)
    _check_gradients(name, run)
    _check_reloads(run)
    _check_resumes(name, run)
    _check_members(name, run)


def _check_gradients(name: str, run: api.Run) -> None:
    state = prepare(run.config, run.dataset)
    before = {n: p.detach().clone() for n, p in state.group.parameters.items()}
    for _ in range(max(player.every for player in state.objective.players())):
        state.advance()
    unmoved = {n for n, p in state.group.parameters.items() if torch.equal(before[n], p)}
    frozen = {n for n, p in state.group.parameters.items() if not p.requires_grad}
    assert unmoved == frozen, f"{name} gives no gradient to {sorted(unmoved - frozen)}"


def _check_reloads(run: api.Run) -> None:
    again = api.load(run.path, device="cpu")
    images = run.dataset.inputs(torch.arange(5))
    assert torch.equal(again.encode(images), run.encode(images))
    assert again.config.run_id == run.config.run_id


def _check_resumes(name: str, run: api.Run) -> None:
    """Stop in the middle, as Ctrl-C does, and go on: the same weights."""
    advance = State.advance

    def stopping(self: State) -> None:
        advance(self)
        if self.step == 11:
            raise Interrupted("stop here")

    folder = new_folder()
    try:
        State.advance = stopping  # type: ignore[method-assign]
        train(name, root=folder, cadence=Cadence(checkpoint_steps=5))
    except Interrupted:
        pass
    finally:
        State.advance = advance  # type: ignore[method-assign]
    resumed = train(name, root=folder)
    expected, made = (load_tensors(r.folder.model_path)[0] for r in (run, resumed))
    assert all(torch.equal(expected[n], made[n]) for n in expected)


def _check_members(name: str, run: api.Run, steps: int = 12) -> None:
    """Runs trained as one stacked program equal the same runs trained alone, in float64."""
    training = replace(run.config.training, precision="f64", lr=2e-3)
    configs = [
        replace(run.config, training=training),
        replace(run.config, training=replace(training, seed=5, lr=1e-3, clip=10.0), objective=_heavier(run.config)),
    ]
    together = prepare(configs, run.dataset)
    alone = [prepare(config, run.dataset) for config in configs]
    for state in (together, *alone):
        for _ in range(steps):
            state.advance()
    for m, single in enumerate(alone):
        for n, parameter in single.group.parameters.items():
            torch.testing.assert_close(together.group.parameters[n][m], parameter[0], rtol=1e-8, atol=1e-8)
    logged = together.line()
    for m, single in enumerate(alone):
        assert logged[m] == pytest.approx(single.line()[0], rel=1e-8, abs=1e-8)


def _heavier(config: Config) -> Choice:
    """The same objective with every sweepable weight half as large again."""
    names = objective[config.objective.name].sweepable
    settings = {k: 1.5 * v if k in names else v for k, v in config.objective.settings.items()}
    return Choice(config.objective.name, settings)


def build(side: str, name: str, shape: tuple[int, ...]) -> torch.nn.Module:
    entry = (encoder if side == "encoder" else decoder)[name]
    arguments = (shape, OUTPUTS) if side == "encoder" else (8, shape)
    return entry.make(*arguments, **entry.resolve({}))


def check_network(side: str, name: str) -> None:
    """Takes some common shape, names itself where it refuses one, trains everywhere, stacks."""
    assert (encoder if side == "encoder" else decoder)[name].summary.endswith(".")
    made = {}
    for shape in SHAPES:
        try:
            made[shape] = build(side, name, shape)
        except UsageError as error:
            assert name in str(error)
            assert str(shape) in str(error)
    assert made, f"{side} '{name}' takes none of {SHAPES}"
    for shape, module in made.items():
        given, wanted = (shape, (8,)) if side == "encoder" else ((8,), shape)
        assert module(torch.rand(3, *given)).shape == (3, *wanted)
    shape, module = next(iter(made.items()))
    x = torch.randn(2, 4, *(shape if side == "encoder" else (8,)), dtype=torch.float64)
    module(x[0].float()).square().mean().backward()
    assert all(p.grad is not None for p in module.parameters())
    _check_stacks([build(side, name, shape).double() for _ in range(2)], x)


def _check_stacks(modules: list[torch.nn.Module], *x: torch.Tensor) -> None:
    """Members in one vmapped call equal members alone."""
    parameters, buffers = stack_module_state(modules)
    buffers = {k: v.clone() for k, v in buffers.items()}
    together = vmap(lambda p, b, *x: functional_call(modules[0], (p, b), x))(parameters, buffers, *x)
    for m, module in enumerate(modules):
        torch.testing.assert_close(together[m], module(*(part[m] for part in x)), rtol=1e-9, atol=1e-9)


def check_refiner(name: str) -> None:
    """Takes some common shape, names itself where it refuses one, draws from y under every z, trains, stacks."""
    entry, made = refiner[name], {}
    small = entry.resolve(entry.facts.trial)
    assert entry.summary.endswith(".")
    for shape in SHAPES:
        try:
            made[shape] = entry.make(shape, 5, **small)
        except UsageError as error:
            assert name in str(error)
            assert str(shape) in str(error)
    assert made, f"refiner '{name}' takes none of {SHAPES}"
    for shape, module in made.items():
        y, z = torch.rand(3, *shape), torch.randn(3, 5)
        out = module(y, z)
        assert out.shape == (3, *shape)
        assert not torch.allclose(out, module(y.flip(0), z), atol=1e-6), "y is not seen"
        assert not torch.allclose(out, module(y, z.flip(0)), atol=1e-6), "z is not seen"
    shape, module = next(reversed(made.items()))
    module(torch.rand(2, *shape), torch.randn(2, 5)).square().mean().backward()
    assert all(p.grad is not None for p in module.parameters())
    pair = [entry.make(shape, 5, **small).double() for _ in range(2)]
    _check_stacks(pair, torch.rand(2, 4, *shape).double(), torch.randn(2, 4, 5).double())


def check_dataset(name: str) -> None:
    """Explains itself, gives floats of its shape, images in [0, 1], and maps rows to factor values and back."""
    entry = dataset[name]
    assert entry.summary.endswith(".")
    assert all(p.kind is p.KEYWORD_ONLY for p in inspect.signature(entry.make).parameters.values())
    data = load(name, SMALL_DATA.get(name, {}))
    index = torch.arange(len(data))
    layout = data.layout if isinstance(data.layout, dict) else {"x": data.layout}
    assert all(images.shape[:2] == (2, 3) for images in data.observed(index[:6].view(2, 3)).values())
    for part, images in data.observed(index[:7]).items():
        assert images.dtype == torch.float32
        assert images.shape == (len(index[:7]), *layout[part])
        assert bool(images.isfinite().all())
        assert len(layout[part]) < 3 or 0 <= float(images.min()) <= float(images.max()) <= 1
    assert data.labelled(index).dtype == torch.bool
    values = data.values_of(index)
    assert values.dtype == torch.int64
    assert data.values_of(index[:6].view(2, 3)).shape == (2, 3, len(data.factors))
    assert torch.equal(data.values_of(data.index_of(values)), values)
    assert ((values >= 0) & (values < torch.tensor(data.sizes))).all()
    assert all(factor.values is None or len(factor.values) == factor.size for factor in data.factors)
    assert data.name == name


@functools.cache
def small_evaluation() -> Evaluation:
    run = trained("beta-tcvae")
    assert isinstance(run.model, VAE)
    assert isinstance(run.dataset, FactorDataset)
    return Evaluation(run.model, run.dataset)


def check_metric(name: str) -> None:
    """Explains itself; returns finite scores under its own name, the same ones twice, that survive a record."""
    entry = metric[name]
    assert entry.summary.endswith(".")
    suited = {"discrete": "hfvae", "density": "ms-flow", "modalities": "partitioned-mvae"}
    run = trained(next((suited[need] for need in entry.facts.needs if need in suited), "beta-tcvae"))
    first, second = small_evaluation(), Evaluation(run.model, run.dataset)
    first = first if first.model is run.model else Evaluation(run.model, run.dataset)
    first.peers = ()
    if "weights" in entry.facts.needs:
        with pytest.raises(UsageError, match="weights"):
            evaluate(first, [name])
        return
    if "staged" in entry.facts.needs:
        with pytest.raises(UsageError, match="has a single stage; refine it first"):
            evaluate(first, [name])
        return
    if "peers" in entry.facts.needs:
        with pytest.raises(UsageError, match="unbraid evaluate RUN RUN"):
            evaluate(first, [name])
        first.peers = second.peers = (Evaluation(trained("vae").model, trained("vae").dataset),)
    trial = entry.facts.trial
    scores, again = evaluate(first, [name], **trial), evaluate(second, [name], **trial)
    assert [s.value for s in scores] == [s.value for s in again]
    assert name in {f"{s.metric}/{s.protocol}" for s in scores}
    for score in scores:
        assert math.isfinite(score.value)
        assert score.samples > 0
        assert score.interval is None or score.interval[0] <= score.value <= score.interval[1]
        assert Score.from_record(score.as_record()) == score
