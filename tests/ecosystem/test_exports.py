"""Exported files return what the run returns, to 1e-5."""

import sys

import numpy as np
import pytest
import torch

import unbraid as ub
from tests import contracts
from tests.support.messages import naming
from unbraid.config import Choice, Config, Training
from unbraid.errors import MissingExtraError, UsageError
from unbraid.exports import export_model, list_parts
from unbraid.models import build
from unbraid.networks import decoder, encoder

ROWS = 5
registries = {"encoder": encoder, "decoder": decoder}
NETWORKS = [(side, name) for side, registry in registries.items() for name in registry]


def examples_of(part):
    """Other rows, and another number of them, than the part was exported with."""
    generator = torch.Generator().manual_seed(1)
    shapes = {name: (ROWS, *x.shape[1:]) for name, x in part.examples.items()}
    given = {name: torch.rand(shape, generator=generator) for name, shape in shapes.items()}
    return {name: x > 0.3 if part.examples[name].dtype == torch.bool else x for name, x in given.items()}


def check_file(path, part, given):
    with torch.no_grad():
        expected = part.module(*given.values())
    expected = (expected,) if isinstance(expected, torch.Tensor) else expected
    if path.suffix == ".onnx":
        session = pytest.importorskip("onnxruntime").InferenceSession(str(path))
        assert [value.name for value in session.get_inputs()] == list(part.examples)
        assert [value.name for value in session.get_outputs()] == part.outputs
        made = session.run(None, {name: x.numpy() for name, x in given.items()})
    else:
        made = torch.export.load(str(path)).module()(*given.values())
        made = [each.detach().numpy() for each in ((made,) if isinstance(made, torch.Tensor) else made)]
    for each, wanted in zip(made, expected, strict=True):
        np.testing.assert_allclose(each, wanted.numpy(), atol=1e-5, rtol=1e-5)


def check_model(model, folder, *formats):
    parts = list_parts(model)
    for format in formats:
        files = export_model(model, folder, format)
        assert files.keys() == parts.keys()
        for name, path in files.items():
            check_file(path, parts[name], examples_of(parts[name]))


def model_with(**names):
    """A VAE with registered networks; a side that is not named is a small perceptron."""
    chosen = {side: Choice(name, registries[side][name].resolve({})) for side, name in names.items()}
    shape = next(s for s in contracts.SHAPES if all(_takes(side, name, s) for side, name in names.items()))
    small = Choice("mlp", {"hidden": (8,)})
    likelihood = Choice("bernoulli" if len(shape) == 3 else "gaussian")
    parts = {"encoder": small, "decoder": small, "likelihood": likelihood, **chosen}
    latents = {"z": {"kind": "normal", "size": 6}}
    return build(Config(Choice("vae"), "vae", Choice("any"), **parts, latents=latents, training=Training()), shape)


def _takes(side, name, shape):
    try:
        contracts.build(side, name, shape)
    except UsageError:
        return False
    return True


def test_a_run_exports_to_torch(run, tmp_path):
    files = ub.export(run.path, tmp_path, format="torch")
    assert [path.name for path in files.values()] == ["encoder.pt2", "decoder.pt2"]
    parts = list_parts(run.model)
    for name, path in files.items():
        check_file(path, parts[name], examples_of(parts[name]))


def test_convolutions_export_to_onnx(tmp_path):
    check_model(model_with(encoder="conv-burgess"), tmp_path, "onnx")


@pytest.mark.slow
@pytest.mark.parametrize(("side", "name"), NETWORKS)
def test_every_network_exports(side, name, tmp_path):
    check_model(model_with(**{side: name}), tmp_path, "onnx", "torch")


@pytest.mark.slow
@pytest.mark.parametrize("recipe", list(ub.methods.objective))
def test_every_recipe_exports(recipe, tmp_path):
    check_model(contracts.trained(recipe).model, tmp_path, "onnx", "torch")


def test_errors_name_the_extra_and_the_formats(run, tmp_path, monkeypatch):
    with pytest.raises(UsageError, match=naming("format", "tflite")):
        run.export(tmp_path, format="tflite")
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(MissingExtraError, match=naming("unbraid[onnx]")):
        run.export(tmp_path)
