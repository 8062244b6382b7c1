"""Whole models in the page equal PyTorch's: latent blocks, stages, modalities; unknown operations are named."""

import pytest
import torch

from tests import contracts
from tests.support.node import case, run_cases
from unbraid.errors import UsageError
from unbraid.explore.model import trace_model, views_of
from unbraid.explore.trace import trace
from unbraid.latents import Space, block
from unbraid.methods import objective

RECIPE_OF_MODEL = {objective[name].facts.model: name for name in objective}
"""One recipe for each kind of model."""


@pytest.mark.parametrize("name", list(block))
def test_block(name, tmp_path):
    """The deterministic code of a posterior, from an encoder's output."""
    entry = block[name]
    made = entry.make(**entry.resolve({key: 3 for key in ("size", "classes") if key in entry.settings}))
    space = Space({"z": made})

    def center(flat):
        posterior = space.split(flat)
        if not made.has_density:  # a point: beside the encoder's output stand the values that a model rounds it to
            posterior = {"z": torch.cat([flat, flat.round()], -1)}
        return space.center(posterior)

    flat = torch.randn(5, sum(space.outputs.values()))
    (found,) = run_cases([case(trace(center, flat), flat)], tmp_path)
    assert torch.allclose(torch.from_numpy(found[0].copy()), center(flat).flatten(), atol=1e-5)


@pytest.mark.parametrize("name", list(RECIPE_OF_MODEL.values()), ids=list(RECIPE_OF_MODEL))
def test_model(name, tmp_path):
    """Codes of data rows and pictures of codes, of a model that has trained for a few steps."""
    run = contracts.train(name, root=tmp_path, steps=2)
    evaluation, rows = run.evaluation, torch.arange(4)
    graphs = trace_model(evaluation)
    assert len(graphs.decode.outputs) == len(graphs.views) == len(views_of(run.model))
    codes = evaluation.means[rows]
    observed = run.dataset.observed(evaluation.rows[rows])
    present = torch.stack([run.dataset.has(each, evaluation.rows[rows]) for each in observed], -1).float()
    cases = [case(graphs.decode, codes, precision=each) for each in ("float32", 16)]
    if graphs.encode is not None:
        cases += [case(graphs.encode, *observed.values(), present, precision=each) for each in ("float32", 16)]
    exact, stored, *encoded = run_cases(cases, tmp_path)
    with torch.no_grad():
        if run.model.multimodal:
            expected = list(run.model.expected(codes).values())
        else:
            expected = run.model.decode_stages(codes)
    for picture, found, rounded in zip(expected, exact, stored, strict=True):
        assert torch.allclose(torch.from_numpy(found.copy()), picture.flatten(), atol=1e-5, rtol=1e-5)
        assert float((torch.from_numpy(rounded.copy()) - picture.flatten()).abs().max()) <= 1e-2 / 255
    for (found,), error in zip(encoded, (1e-5, 1e-2 / 255), strict=False):
        assert torch.allclose(torch.from_numpy(found.copy()).view_as(codes), codes, atol=error, rtol=error)


def test_an_unknown_operation_is_named():
    with pytest.raises(UsageError, match="fft"):
        trace(lambda x: torch.fft.fft(x).real, torch.randn(3, 8))


def test_rows_must_be_treated_alike():
    with pytest.raises(UsageError, match="rows"):
        trace(lambda x: x + torch.arange(len(x))[:, None] * len(x), torch.randn(3, 8))


@pytest.mark.parametrize(
    "module",
    [
        torch.nn.GELU(), torch.nn.SiLU(), torch.nn.ELU(), torch.nn.Softplus(), torch.nn.Hardtanh(), torch.nn.Mish(),
        torch.nn.LayerNorm(8), torch.nn.GroupNorm(2, 8), torch.nn.Softmax(-1), torch.nn.ReLU(inplace=True),
        torch.nn.Dropout().eval(), torch.nn.Bilinear(8, 8, 4), torch.nn.Conv1d(8, 4, 3, padding=1),
        torch.nn.Conv2d(8, 4, 3, groups=2, dilation=2), torch.nn.ConvTranspose2d(8, 6, 3, stride=2, output_padding=1),
        torch.nn.Sequential(torch.nn.Conv2d(8, 4, 3), torch.nn.AdaptiveAvgPool2d(1)),
        torch.nn.Upsample(scale_factor=2), torch.nn.AvgPool2d(2),
        torch.nn.MultiheadAttention(8, 2, batch_first=True).eval(),
    ],
    ids=lambda module: type(module).__name__,
)  # fmt: skip
def test_modules_of_ones_own(module, tmp_path):
    """Common layers run in the page, or are refused by name."""
    shapes = {"Conv1d": (8, 5), "Conv2d": (8, 6, 6), "ConvTranspose2d": (8, 5, 5), "Sequential": (8, 6, 6),
              "Upsample": (8, 4, 4), "AvgPool2d": (8, 4, 4), "MultiheadAttention": (5, 8)}  # fmt: skip
    x = torch.randn(4, *shapes.get(type(module).__name__, (8,)))
    inputs = {"Bilinear": 2, "MultiheadAttention": 3}.get(type(module).__name__, 1)

    def run(x):
        made = module(*[x.clone()] * inputs)
        return made[0] if isinstance(made, tuple) else made

    try:
        graph = trace(run, x)
    except UsageError as error:
        assert "cannot run the operation" in str(error)
        assert type(module).__name__ in ("Bilinear", "MultiheadAttention", "AvgPool2d", "Upsample")
        return
    (found,) = run_cases([case(graph, x)], tmp_path)
    assert torch.allclose(torch.from_numpy(found[0].copy()), run(x).flatten(), atol=1e-5)


@pytest.mark.parametrize("modules", [(True,), (False,), ()], ids=["fused", "plain", "javascript"])
def test_all_ways_to_multiply_agree(modules, tmp_path):
    layers = torch.nn.Sequential(torch.nn.Linear(5, 33), torch.nn.ReLU(), torch.nn.Linear(33, 13))
    x = torch.randn(9, 5)
    (found,) = run_cases([case(trace(layers, x), x, modules=modules)], tmp_path)
    assert torch.allclose(torch.from_numpy(found[0].copy()), layers(x).flatten(), atol=1e-5)
