"""The parts of a model that go into the page, as graphs: encoder, from observations to codes, and decoder, back.

Both are traced whole, with the model's own code around the networks: the centre of each latent block, the fusion of
several modalities, the stages, the likelihood's mean. So the page needs no rule for any of them.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from unbraid.errors import UsageError
from unbraid.explore.graph import Graph
from unbraid.explore.rounding import InputMoments, Moments
from unbraid.explore.trace import trace
from unbraid.metrics import Evaluation
from unbraid.models import Model, as_multimodal
from unbraid.types import Inputs, Shape

EXAMPLES = 3
"""Rows that tracing runs on."""

ROWS_TO_MEASURE = 256
"""Rows that moments of the encoder's layers are taken from."""


class View(NamedTuple):
    """One picture of the page: a modality as one stage draws it."""

    modality: str
    title: str
    shape: Shape


class ModelGraphs(NamedTuple):
    """`encode` takes every modality and which of them are present [rows, modalities]; None if the model has no encoder.

    `decode` takes codes and returns what each of `views` shows.
    """

    encode: Graph | None
    decode: Graph
    views: list[View]


def trace_model(evaluation: Evaluation) -> ModelGraphs:
    """Trace a model's encoder and decoder on a few rows of its data."""
    with _on_cpu(evaluation.model) as model:
        rows = evaluation.rows[:1].expand(EXAMPLES)
        observed = {name: x.cpu() for name, x in evaluation.dataset.observed(rows).items()}
        codes = torch.randn(EXAMPLES, model.space.width, generator=torch.Generator().manual_seed(0))
        decode = trace(lambda code: _decode(model, code), codes)
        return ModelGraphs(_trace_encoder(model, observed), decode, views_of(model))


@contextmanager
def _on_cpu(model: Model) -> Iterator[Model]:
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    try:
        yield model.to("cpu")
    finally:
        model.to(device)


def _trace_encoder(model: Model, observed: dict[str, Tensor]) -> Graph | None:
    def encode(*given: Tensor) -> Tensor:
        *values, present = given
        return _encode(model, dict(zip(observed, values, strict=True)), present)

    examples = (*observed.values(), torch.ones(EXAMPLES, len(observed)))
    try:
        with torch.no_grad():
            encode(*examples)
    except UsageError:  # a model that only draws, as one whose codes are labels
        return None
    return trace(encode, *examples)


def _encode(model: Model, observed: dict[str, Tensor], present: Tensor) -> Tensor:
    return model.space.center(model.encode(Inputs(observed, present > 0 if model.multimodal else None)))


def measure_encoder(evaluation: Evaluation) -> Moments:
    """Return the second moments of each encoder layer's inputs on rows of the data."""
    dataset = evaluation.dataset
    rows = evaluation.rows[evaluation.choose(ROWS_TO_MEASURE)]
    present = torch.stack([dataset.has(name, rows) for name in dataset.modalities], -1).float().cpu()
    observed = {name: x.cpu() for name, x in dataset.observed(rows).items()}
    with _on_cpu(evaluation.model) as model, torch.no_grad(), InputMoments() as found:
        _encode(model, observed, present)
    return found.moments


def _decode(model: Model, code: Tensor) -> Sequence[Tensor]:
    if model.multimodal:
        return list(as_multimodal(model).expected(code).values())
    return model.decode_stages(code)


def views_of(model: Model) -> list[View]:
    """Return what the decoder's graph draws, in order."""
    if model.multimodal:
        return [View(name, name, shape) for name, shape in as_multimodal(model).shapes.items()]
    stages = 1
    earlier = model.first
    while earlier is not None:
        stages, earlier = stages + 1, earlier.first
    if stages == 1:
        return [View("x", "The model's picture", model.shape)]
    titles = ["First stage", *(f"Stage {number}" for number in range(2, stages)), "Refined"]
    return [View("x", title, model.shape) for title in titles]
