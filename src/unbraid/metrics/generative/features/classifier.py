"""A small classifier trained on the data's own labels, as a feature network.

One body, one head per factor; the loss is the mean cross-entropy of the heads, each divided by the logarithm of its
factor's number of values. Features are the last hidden layer, scaled to a mean square of 1. Images pass a convolution
of stride 4 and further ones of stride 2 down to at most 4 x 4, vectors a dense layer. The seed fixes all randomness.
`details` holds each head's accuracy on held-out rows, since features of a classifier that learned nothing mean nothing,
and a digest of the weights, since scores by other classifiers are not comparable.

Classifiers depend on the data and on no model, so trained ones are kept in the cache, `UNBRAID_DATA/classifiers`. A
file is named by a hash of whatever decides the weights: data, rows, seed, steps, kind of device and version of torch.
Its header holds a SHA-256 of its tensors. A file that is damaged is trained anew, with a warning.
"""

import hashlib
import json
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from unbraid import noise
from unbraid.data.base import data_home
from unbraid.data.factors import FactorDataset
from unbraid.density.small_fit import descend
from unbraid.errors import DataError, SettingError, UnbraidError
from unbraid.metrics.generative.features.base import (
    FeatureNetwork,
    choose_batch_size,
    exact_convolutions,
    feature_network,
)
from unbraid.metrics.score import WEIGHTS
from unbraid.seeding import seeded
from unbraid.tensor_files import checksum, load_tensors, save_tensors
from unbraid.types import Shape

NAME = "classifier"
WIDTH = 64
HIDDEN = 128
BATCH = 64
MIN_STEPS, MAX_STEPS = 200, 500
"""Bounds on ten passes over the data, which take seconds on a CPU."""

LEARNING_RATE, FINAL_RATE_SHARE = 5e-3, 0.02
"""Adam's first learning rate, and the share of it at the end of a linear decay."""

MAX_HELD_OUT_ROWS = 2_000
"""Rows that measure the accuracy; at most a fifth of all."""

VERSION = 1
"""Raise it whenever `classifier` would train other weights."""

ROWS_PER_PASS = (256, 4096)
"""Observations per forward pass on a CPU and on a GPU."""

DIGEST_LENGTH = 12
"""Characters of the digest of the weights that each score records."""

MIN_STEPS_TO_STORE = 200
"""Shorter trainings take less time than the search for a file is worth."""


@feature_network(NAME, width=WIDTH)
def classifier(dataset: FactorDataset, rows: Tensor, seed: int, *, steps: int | None = None) -> FeatureNetwork:
    """Classifier of all factors, trained on the data's labels for `steps` batches of 64 (default: 200 to 500)."""
    if steps is not None and steps < 1:
        raise SettingError(f"steps must be at least 1, not {steps}.")
    rows = _labelled_rows(dataset, rows)
    mixed = rows[noise.permutation(noise.seed_tensor(seed, device=rows.device), 0, len(rows))[0]]
    held_out, training = mixed.tensor_split([min(MAX_HELD_OUT_ROWS, len(rows) // 5)])
    steps = steps or min(max(MIN_STEPS, 10 * len(training) // BATCH), MAX_STEPS)
    factors = _varying_factors(dataset, training)
    with seeded(seed):
        network = Classifier(dataset.shape, [dataset.sizes[k] for k in factors]).to(dataset.device)
    with exact_convolutions():
        _standardise(network, dataset, training)
        _train(network, dataset, training, factors, seed, steps)
        accuracy = _measure_accuracy(network.eval(), dataset, held_out, factors)
        _scale_features(network, dataset, training)
    network.names = names = [dataset.factor_names[k] for k in factors]
    details = {
        "steps": steps,
        "training_rows": len(training),
        "held_out_rows": len(held_out),
        "accuracy": dict(zip(names, accuracy, strict=True)) if len(held_out) else None,
    }
    return _as_features(network, details)


class Classifier(nn.Module):
    """Maps observations to features [n, width]; `heads` map features to one logit per value of each factor."""

    mean: Tensor
    scale: Tensor
    unit: Tensor

    def __init__(self, shape: Shape, sizes: list[int]) -> None:
        super().__init__()
        statistics = (shape[0], 1, 1) if len(shape) == 3 else shape
        self.register_buffer("mean", torch.zeros(statistics))
        self.register_buffer("scale", torch.ones(statistics))
        self.register_buffer("unit", torch.ones(()))
        body = _convolutions(shape) if len(shape) == 3 else [nn.Flatten(), *_dense(math.prod(shape), HIDDEN)]
        self.body = nn.Sequential(*body, *_dense(HIDDEN, WIDTH))
        self.heads = nn.ModuleList(nn.Linear(WIDTH, size) for size in sizes)
        self.names: list[str] = []

    def forward(self, x: Tensor) -> Tensor:
        return self.body((x - self.mean) / self.scale) / self.unit


def predict_factors(network: FeatureNetwork, observations: Tensor, factors: Sequence[str]) -> Tensor:
    """Return the values [n, factors] that a trained classifier predicts for observations."""
    classifier = network.module
    assert isinstance(classifier, Classifier)
    for factor in factors:
        if factor not in classifier.names:
            raise DataError(f"The classifier has not learned {factor}, which has one value only in its training rows.")
    with torch.no_grad():
        features = network(observations) * classifier.unit
        heads = [classifier.heads[classifier.names.index(factor)] for factor in factors]
        return torch.stack([head(features).argmax(1) for head in heads], dim=1)


def _convolutions(shape: Shape) -> list[nn.Module]:
    """Return layers that turn 4 x 4 pixels into 32 channels and then halve the image down to 4 x 4."""
    channels, height, width = shape
    layers: list[nn.Module] = []
    outputs, kernel, stride = 32, 4, 4
    while max(height, width) > 4:
        layers += [
            nn.ZeroPad2d((0, -width % stride, 0, -height % stride)),
            nn.Conv2d(channels, outputs, kernel, stride, padding=(kernel - stride + 1) // 2, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
        ]
        channels, height, width = outputs, math.ceil(height / stride), math.ceil(width / stride)
        outputs, kernel, stride = 64, 3, 2
    return [*layers, nn.Flatten(), *_dense(channels * height * width, HIDDEN)]


def _dense(width: int, channels: int) -> list[nn.Module]:
    return [nn.Linear(width, channels), nn.ReLU()]


def _labelled_rows(dataset: FactorDataset, rows: Tensor) -> Tensor:
    if not dataset.factors:
        raise DataError(f"{dataset.name} has no factor labels, so no classifier can be trained on it.")
    labelled = rows[dataset.has_labels(rows)]
    if len(labelled) == 0:
        raise DataError(f"No row of {dataset.name} has all its labels, so no classifier can be trained on it.")
    return labelled


def _varying_factors(dataset: FactorDataset, rows: Tensor) -> list[int]:
    """Return the columns of the factors that have more than one value in these rows."""
    values = dataset.values_of(rows)
    columns = [k for k in range(values.shape[1]) if bool((values[:, k] != values[0, k]).any())]
    if not columns:
        raise DataError(f"No factor of {dataset.name} has two values in these rows, so there is nothing to classify.")
    return columns


def _standardise(network: Classifier, dataset: FactorDataset, rows: Tensor) -> None:
    """Set the shift and scale that give each channel of images, or each coordinate, mean 0 and deviation 1."""
    x = dataset.images(rows[:2000])
    across = (0, 2, 3) if x.ndim == 4 else (0,)
    network.mean.copy_(x.mean(across).view_as(network.mean))
    deviation = x.std(across, correction=0).view_as(network.scale)
    network.scale.copy_(torch.where(deviation > 1e-6, deviation, torch.ones_like(deviation)))


def _scale_features(network: Classifier, dataset: FactorDataset, rows: Tensor) -> None:
    """Give features a mean square of 1; the scale of a trained layer, and so of distances, is arbitrary."""
    with torch.no_grad():
        square = torch.cat([network(dataset.images(part)) for part in rows[:2000].split(256)]).square().mean()
    network.unit.copy_(square.sqrt() if float(square) > 0 else torch.ones_like(square))


def _train(
    network: Classifier, dataset: FactorDataset, rows: Tensor, factors: list[int], seed: int, steps: int
) -> None:
    seeds, size = noise.seed_tensor(seed, device=rows.device), min(BATCH, len(rows))
    per_epoch = len(rows) // size
    epochs = range(1, 2 + steps // per_epoch)
    order = torch.cat([rows[noise.permutation(seeds, e, len(rows))[0][: per_epoch * size]] for e in epochs])
    order = order.view(-1, size)  # [step, batch]

    def loss(step: Tensor) -> Tensor:
        part = order.index_select(0, step)[0]
        features, values = network(dataset.images(part)), dataset.values_of(part)
        losses = [
            functional.cross_entropy(head(features), values[:, k]) / math.log(dataset.sizes[k])
            for head, k in zip(network.heads, factors, strict=True)
        ]
        return torch.stack(losses).mean()

    network.train()
    decay = 1 - (1 - FINAL_RATE_SHARE) * torch.arange(steps) / steps
    descend("training the classifier", network.parameters(), loss, LEARNING_RATE * decay)


def _measure_accuracy(network: Classifier, dataset: FactorDataset, rows: Tensor, factors: list[int]) -> list[float]:
    right = torch.zeros(len(factors), dtype=torch.float64)
    with torch.no_grad():
        for part in rows.split(256):
            features, values = network(dataset.images(part)), dataset.values_of(part)
            for position, (head, k) in enumerate(zip(network.heads, factors, strict=True)):
                right[position] += float((head(features).argmax(1) == values[:, k]).sum())
    return (right / max(1, len(rows))).tolist()


def get_stored(
    key: tuple[Any, ...], steps: int | None, dataset: FactorDataset, train: Callable[[], FeatureNetwork]
) -> FeatureNetwork:
    """Return the classifier that is stored under a key, or train and store it; `steps` of None are many."""
    if steps is not None and steps < MIN_STEPS_TO_STORE:
        return train()
    words = json.dumps([VERSION, torch.__version__, *map(str, key)])
    path = data_home() / "classifiers" / f"{hashlib.sha256(words.encode()).hexdigest()[:32]}.safetensors"
    try:
        if path.exists():
            return _load(path, dataset)
    except (UnbraidError, KeyError, ValueError, RuntimeError) as error:
        warnings.warn(f"The stored classifier cannot be used, so it is trained again: {error}", stacklevel=2)
    network = train()
    try:
        _save(path, network)
    except (UnbraidError, OSError) as error:
        warnings.warn(f"The classifier is not stored for other runs: {error}", stacklevel=2)
    return network


def _save(path: Path, network: FeatureNetwork) -> None:
    module = network.module
    assert isinstance(module, Classifier)
    tensors = _read_tensors(module)
    facts = {"names": module.names, "sizes": [head.out_features for head in module.heads], "details": network.details}
    save_tensors(path, tensors, {"facts": json.dumps(facts), "digest": _digest(json.dumps(facts), tensors)})


def read_stored(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Return tensors and header of a stored classifier, or raise a `DataError` if they do not fit its digest."""
    tensors, header = load_tensors(path)
    if header.get("digest") != _digest(header.get("facts", ""), tensors):
        raise DataError(f"{path} is damaged (its digest differs); without it, the classifier is trained again.")
    return tensors, header


def _load(path: Path, dataset: FactorDataset) -> FeatureNetwork:
    tensors, header = read_stored(path)
    facts = json.loads(header["facts"])
    module = Classifier(dataset.shape, facts["sizes"])
    module.load_state_dict(tensors)
    module.names = facts["names"]
    return _as_features(module.to(dataset.device).eval(), facts["details"])


def _as_features(module: Classifier, details: Mapping[str, Any]) -> FeatureNetwork:
    rows = choose_batch_size(module.mean.device, *ROWS_PER_PASS)
    known = {**details, WEIGHTS: checksum(_read_tensors(module))[:DIGEST_LENGTH]}
    return FeatureNetwork(NAME, module.requires_grad_(False), WIDTH, rows, known)


def _read_tensors(module: Classifier) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu() for name, tensor in module.state_dict().items()}


def _digest(facts: str, tensors: dict[str, Any]) -> str:
    return hashlib.sha256(f"{facts} {checksum(tensors)}".encode()).hexdigest()
