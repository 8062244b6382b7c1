"""Encoder and decoder as files that other programs run: ONNX, or `torch.export`.

Both hold the model's own code around the networks: the centre of each latent block, the fusion of several modalities,
the stages, the likelihood's mean. So they return what `Run.encode` and `Run.decode` return, for any number of rows.
"""

import copy
import io
import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from unbraid import atomic
from unbraid._version import __version__
from unbraid.errors import RunError, UsageError, unknown
from unbraid.extras import import_extra
from unbraid.models import Model, as_multimodal
from unbraid.types import Inputs

SUFFIXES = {"onnx": ".onnx", "torch": ".pt2"}
"""File names of each format."""

EXAMPLE_ROWS = 3
"""Rows of the example that a part is exported with; the files take any number."""

PRESENT = "present"
"""Name of the encoder's mask [rows, modalities] of a run on several modalities."""


class Encoder(nn.Module):
    """Codes [rows, width] of observations; of several modalities, in order, followed by the mask `present`."""

    def __init__(self, model: Model, names: list[str]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *given: Tensor) -> Tensor:
        present = given[-1] if self.model.multimodal else None
        inputs = Inputs(dict(zip(self.names, given, strict=False)), present)
        return self.model.space.center(self.model.encode(inputs))


class Decoder(nn.Module):
    """Expected observations of codes [rows, width], one result per modality."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, *given: Tensor) -> tuple[Tensor, ...]:
        (code,) = given
        if self.model.multimodal:
            return tuple(as_multimodal(self.model).expected(code).values())
        return (self.model.likelihood.mean(self.model.decode(code)),)


class Part(NamedTuple):
    """A module to export, examples of its inputs by name, and the names of its outputs."""

    module: nn.Module
    examples: dict[str, Tensor]
    outputs: list[str]


def export_model(model: Model, folder: Path, format: str = "onnx", codes: list[str] | None = None) -> dict[str, Path]:
    """Write encoder and decoder into a folder, and return the files by part.

    A model whose codes are labels has no encoder. `codes` are the names of a code's coordinates, stored in the files.
    """
    if format not in SUFFIXES:
        raise unknown("format", format, SUFFIXES)
    if format == "onnx":
        import_extra("onnxscript", "onnx", "Export to ONNX")
        import_extra("onnx", "onnx", "Export to ONNX")
    files = {}
    facts = {"unbraid": __version__, "codes": json.dumps(codes or [])}
    for name, part in list_parts(model).items():
        files[name] = folder / f"{name}{SUFFIXES[format]}"
        try:
            with _silence():
                content = _to_onnx(part, facts) if format == "onnx" else _to_torch(part, facts)
        except Exception as error:
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise RunError(f"The {name} cannot be exported as {format}: {reason}") from error
        atomic.write_bytes(files[name], content)
    return files


def list_parts(model: Model) -> dict[str, Part]:
    """Return what of a model can be exported: `encoder`, unless its codes are labels, and `decoder`."""
    model = copy.deepcopy(model).cpu().eval()
    shapes = as_multimodal(model).shapes if model.multimodal else {"x": model.shape}
    generator = torch.Generator().manual_seed(0)
    examples = {name: torch.rand(EXAMPLE_ROWS, *shape, generator=generator) for name, shape in shapes.items()}
    if model.multimodal:
        examples[PRESENT] = torch.ones(EXAMPLE_ROWS, len(shapes), dtype=torch.bool)
    code = torch.randn(EXAMPLE_ROWS, model.space.width, generator=generator)
    encoder = Part(Encoder(model, list(shapes)), examples, ["code"])
    decoder = Part(Decoder(model), {"code": code}, list(shapes))
    try:
        with torch.no_grad():
            encoder.module(*examples.values())
    except UsageError:
        return {"decoder": decoder}
    return {"encoder": encoder, "decoder": decoder}


def _trace(part: Part) -> Any:
    rows = torch.export.Dim("rows")
    shapes = {"given": tuple({0: rows} for _ in part.examples)}
    with torch.no_grad():
        return torch.export.export(part.module, tuple(part.examples.values()), dynamic_shapes=shapes)


def _to_torch(part: Part, facts: dict[str, str]) -> bytes:
    stream = io.BytesIO()
    torch.export.save(_trace(part), stream, extra_files=facts)
    return stream.getvalue()


def _to_onnx(part: Part, facts: dict[str, str]) -> bytes:
    names = {"input_names": list(part.examples), "output_names": part.outputs}
    program: Any = torch.onnx.export(_trace(part), (), **names, dynamo=True, verbose=False)
    program.model.metadata_props.update(facts)
    graph = (model := program.model_proto).graph
    del graph.value_info[:]  # they hold the tracer's name of the number of rows
    for value in (*graph.input, *graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "rows"
    return model.SerializeToString()


@contextmanager
def _silence() -> Iterator[None]:
    """Keep the exporter's notes about packages that nobody needs here off the screen."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
