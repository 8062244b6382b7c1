"""What every registered objective, network, latent block, data set and metric promises.

Tests run these over the registries, so a new entry is covered by its decorator alone; test_documents.py runs them over
the examples of CONTRIBUTING.md.
"""

import ast
import functools
import inspect
import math
import re
import tempfile
import textwrap
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.func import functional_call, stack_module_state, vmap

from tests.support.messages import naming
from unbraid import api
from unbraid.api import refine
from unbraid.config import Choice, Config
from unbraid.data import FactorDataset, dataset, load
from unbraid.errors import UsageError
from unbraid.latents import Block, Space, block
from unbraid.methods import objective
from unbraid.methods.presets import Preset
from unbraid.metrics import Evaluation, Score, code_metrics, evaluate, metric
from unbraid.models import VAE
from unbraid.networks import decoder, encoder, refiner
from unbraid.registry import read_settings
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
SMALL_RUN = {"network": "mlp", "encoder_hidden": (16,), "decoder_hidden": (16,), "z": 3, "batch": 16, "steps": 8}
SMALL_SCORE = {"train": 100, "test": 50, "steps": 20, "size": 64}
"""Settings of metrics: finite, repeatable scores need neither many rows nor long training."""


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
    return train(recipe, root=new_folder(), cadence=Cadence(log_steps=2))


def train(recipe: str, **how: Any) -> api.Run:
    """A small run; a recipe that refines another run has a shared one to refine."""
    given = {**small_run(recipe), "device": "cpu", **how}
    if objective[recipe].facts.stage:
        return refine(trained("beta-vae"), objective[recipe].facts.stage, **given)
    if "data" not in given:
        given |= {"data": "sprites-small", "data_positions": 4}
    return api.train(recipe, **given)


def check_objective(name: str) -> None:
    """Explains itself, trains to finite terms, moves every parameter, loads equal and resumes equal."""
    entry = objective[name]
    assert entry.summary.endswith(".")
    run = trained(name)
    numbers = [v for line in run.history for v in line.values()]
    assert len(run.history) >= 4
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
    state.release()
    held = weakref.ref(state)
    del state
    assert held() is None, f"{name} keeps the memory of a finished training until the next garbage collection"


def _check_reloads(run: api.Run) -> None:
    again = api.load(run.path, device="cpu")
    seen = run.dataset.observed(torch.arange(5))
    images = seen if run.dataset.multimodal else seen["x"]
    assert torch.equal(again.encode(images), run.encode(images))
    assert again.config.run_id == run.config.run_id


def _check_resumes(name: str, run: api.Run) -> None:
    """Stop in the middle, as Ctrl-C does, and go on: the same weights."""
    advance = State.advance

    def stopping(self: State) -> None:
        advance(self)
        if self.step == 5:
            raise Interrupted("stop here")

    folder = new_folder()
    try:
        State.advance = stopping  # type: ignore[method-assign]
        train(name, root=folder, cadence=Cadence(checkpoint_steps=3))
    except Interrupted:
        pass
    finally:
        State.advance = advance  # type: ignore[method-assign]
    resumed = train(name, root=folder)
    expected, made = (load_tensors(r.folder.model_path)[0] for r in (run, resumed))
    assert all(torch.equal(expected[n], made[n]) for n in expected)


def _check_members(name: str, run: api.Run, steps: int = 4) -> None:
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
    logged = together.take_means()
    for m, single in enumerate(alone):
        assert logged[m] == pytest.approx(single.take_means()[0], rel=1e-8, abs=1e-8)


def _heavier(config: Config) -> Choice:
    """The same objective with every sweepable weight half as large again."""
    names = objective[config.objective.name].sweepable
    settings = {k: 1.5 * v if k in names else v for k, v in config.objective.settings.items()}
    return Choice(config.objective.name, settings)


def check_settings_are_read(make: Any) -> None:
    """Every keyword-only argument of a function, or of the constructors of a class, is used in the body."""
    settings = set(read_settings(make))
    if isinstance(make, type):
        functions = [vars(base)["__init__"] for base in make.__mro__ if "__init__" in vars(base)]
    else:
        functions = [make.weights_of, make.shared_terms] if isinstance(make, Preset) else [make]
    for function in map(inspect.unwrap, functions):
        declared = set(read_settings(function))
        if settings & declared:
            (node,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
            assert isinstance(node, ast.FunctionDef)
            used = {part.id for line in node.body for part in ast.walk(line) if isinstance(part, ast.Name)}
            assert declared <= used, f"{function.__qualname__} declares {declared - used} and never reads it"
            settings -= declared
    if hasattr(make, "__wrapped__") and "codes" in inspect.signature(make.__wrapped__).parameters:
        settings -= {"factors", *re.findall(r'"(\w+)"', inspect.getsource(code_metrics._tabulate))}  # they choose rows
    assert not settings, f"nothing reads {settings}"


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
    shape, module = min(made.items(), key=lambda item: math.prod(item[0]))
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


def check_block(name: str) -> None:
    """Explains itself; parameters and codes survive a round trip; densities, draws and KLs agree; members stack."""
    entry = block[name]
    assert entry.summary.endswith(".")
    made = entry.make(**entry.resolve({key: 2 for key in ("size", "classes") if key in entry.settings}))
    outputs = torch.randn(2, 5, made.parameter_count, dtype=torch.float64).requires_grad_()  # [member, rows, outputs]
    posterior = Space({"block": made}).split(outputs)["block"]
    if not made.has_density:  # a point: the encoder's output, and the values that a model rounds it to
        posterior = torch.cat([posterior, posterior.detach().round()], -1)
    value = made.sample(posterior, _block_noise(made, 2, 5))
    assert value.shape == made.center(posterior).shape == (2, 5, made.width)
    assert made.traversal_codes(7, 2.0).shape[1] == made.width // made.leaves
    torch.testing.assert_close(made.from_code(made.to_code(value)), value, rtol=1e-6, atol=1e-6)
    (gradient,) = torch.autograd.grad(made.to_code(value).square().sum(), outputs, retain_graph=True)
    assert bool(gradient.isfinite().all()) and bool((gradient != 0).any((0, 1)).all())
    if made.has_density:
        _check_block_densities(made, outputs, posterior, value)
        return
    for refused in (lambda: made.log_density(posterior, value), lambda: made.kl(posterior, posterior, value)):
        with pytest.raises(UsageError, match="density"):
            refused()


def _block_noise(made: Block, *leading: int) -> torch.Tensor:
    need = made.need(leading[-1])
    draw = torch.randn if need.kind == "normal" else torch.rand
    return draw(*leading[:-1], *need.shape, dtype=torch.float64)


def _check_block_densities(made: Block, outputs: Any, posterior: torch.Tensor, value: torch.Tensor) -> None:
    """Members stack, every output has a gradient, and one posterior's density and KL are those of its draws."""
    prior = made.prior_of(posterior)
    for found in (made.log_density(posterior, value.detach()), made.kl(posterior, prior, value)):
        assert found.shape == (2, 5, made.leaves)
        (gradient,) = torch.autograd.grad(found.sum(), outputs, retain_graph=True)
        assert bool(gradient.isfinite().all()) and bool((gradient != 0).any((0, 1)).all())
    for member in range(2):
        own = posterior[member], value[member]
        torch.testing.assert_close(made.log_density(posterior, value)[member], made.log_density(*own))
        torch.testing.assert_close(made.pairwise(posterior, value)[member], made.pairwise(*own))
        every = torch.stack([made.log_density(own[0], one) for one in own[1]])  # [i, j, leaves]
        torch.testing.assert_close(made.pairwise(*own), every.transpose(-1, -2))
    torch.testing.assert_close(made.kl(posterior, posterior, value), torch.zeros(2, 5, made.leaves).double())
    one, count = posterior[0, :1].detach(), 100_000
    draws = made.sample(one, _block_noise(made, count))
    standard, leaves = made.prior_of(one), range(made.leaves)
    ratio = made.log_density(one, draws) - made.log_density(standard, draws)
    joint = ratio.sum(-1) + made.coupling(one, draws, leaves)  # the leaves of a prior are independent
    closed = made.kl(one, standard, draws)
    assert bool((closed.mean(0) > 0).all())
    for sampled, expected in ((ratio, closed), (joint, closed.sum(-1) + made.extra_kl)):
        error = sampled.std(0) / count**0.5
        assert bool(((sampled.mean(0) - expected.mean(0)).abs() < 5 * error).all())
    _check_block_is_normalised(made, one, draws)


def _check_block_is_normalised(made: Block, one: torch.Tensor, draws: torch.Tensor) -> None:
    """The density of each leaf integrates to 1, and to the share of draws that lie below a number.

    A variable of two classes is measured along the difference of its two logarithms.
    """
    line = torch.linspace(-60, 60, 120_001, dtype=torch.float64).unsqueeze(-1)
    parts = draws.unflatten(-1, (made.leaves, -1))
    if parts.shape[-1] == 2:
        places, along = torch.cat([line, -line], -1), parts[..., 0] - parts[..., 1]
        places = torch.nn.functional.logsigmoid(places)
    else:
        places, along = line, parts[..., 0]
    density = made.log_density(one, places.repeat(1, made.leaves)).exp()  # [places, leaves]
    below = torch.cumulative_trapezoid(density, line, dim=0)
    torch.testing.assert_close(below[-1], torch.ones(made.leaves).double(), rtol=1e-4, atol=1e-4)
    for number in (-1.0, 0.0, 1.0):
        share = below[int((line[:, 0] < number).sum()) - 1]
        error = (share * (1 - share) / len(along)).sqrt()
        assert bool(((along < number).double().mean(0) - share).abs().le(5 * error + 1e-3).all())


def check_dataset(name: str) -> None:
    """Explains itself, gives floats of its shape, images in [0, 1], and maps rows to factor values and back."""
    entry = dataset[name]
    assert entry.summary.endswith(".")
    assert all(p.kind is p.KEYWORD_ONLY for p in inspect.signature(entry.make).parameters.values())
    data = load(name, SMALL_DATA.get(name, {}))
    index = torch.arange(len(data))
    assert data.multimodal == isinstance(data.layout, dict)
    layout = {part: modality.shape for part, modality in data.modalities.items()}
    for part, images in data.observed(index[:7]).items():
        assert images.dtype == torch.float32
        assert images.shape == (len(index[:7]), *layout[part])
        assert bool(images.isfinite().all())
        assert len(layout[part]) < 3 or 0 <= float(images.min()) <= float(images.max()) <= 1
    assert data.has_labels(index).dtype == torch.bool
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
        with pytest.raises(UsageError, match=naming(name.partition("/")[0], "stage")):
            evaluate(first, [name])
        return
    if "peers" in entry.facts.needs:
        with pytest.raises(UsageError, match="unbraid evaluate RUN RUN"):
            evaluate(first, [name])
        first.peers = second.peers = (Evaluation(trained("vae").model, trained("vae").dataset),)
    trial = {key: value for key, value in SMALL_SCORE.items() if key in entry.settings} | dict(entry.facts.trial)
    if entry.facts.costly and "factors" in entry.settings:
        trial["factors"] = run.dataset.factor_names[:1]
    scores, again = evaluate(first, [name], **trial), evaluate(second, [name], **trial)
    assert [s.value for s in scores] == [s.value for s in again]
    assert name in {f"{s.metric}/{s.protocol}" for s in scores}
    for score in scores:
        assert math.isfinite(score.value)
        assert score.samples > 0
        assert score.interval is None or score.interval[0] <= score.value <= score.interval[1]
        assert Score.from_record(score.as_record()) == score
