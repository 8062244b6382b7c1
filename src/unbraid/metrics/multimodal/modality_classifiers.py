"""Classifiers that read the factors off the observations of one modality, real or made.

For each modality one small classifier of all factors (`features.classifier`) is trained on the modality's real rows:
those outside the evaluation where it looks at held-out rows, and four fifths of its rows where it looks at everything.
It is then asked about real rows that it has not seen, because what it says of made ones is worth no more than that.

Made observations are means. Where the data flip pixels, real rows are taken as means, too: a classifier of noisy images
is as good as blind to the smooth ones that a decoder says, and would call a perfect model incoherent.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from unbraid.data.factors import FactorDataset
from unbraid.data.modality import Kind
from unbraid.errors import DataError
from unbraid.metrics.base import Evaluation
from unbraid.metrics.generative.features.base import FeatureNetwork
from unbraid.metrics.generative.features.classifier import HELD_OUT, NAME, Classifier, predictions
from unbraid.metrics.generative.features.feature_sets import learned
from unbraid.types import Shape

SURE = 3.0
"""Standard errors by which a classifier's accuracy must exceed chance before it is said to read a factor."""

ROWS = 256


@dataclass(frozen=True)
class Alone(FactorDataset):
    """One modality of several as data by themselves, with all factors."""

    whole: FactorDataset | None = None
    modality: str = ""

    @property
    def shape(self) -> Shape:
        """Shape of one observation of the modality."""
        assert self.whole is not None
        return self.whole.modalities[self.modality].shape

    def images(self, index: Tensor) -> Tensor:
        """Observations of the modality, without noise that the data add."""
        assert self.whole is not None
        return self.whole.modalities[self.modality].expected(index)

    def content_hash(self) -> str:
        """That of all modalities, and which one this is."""
        assert self.whole is not None
        return f"{self.whole.content_hash()}/{self.modality}/expected"


class Reader(NamedTuple):
    """A classifier of one modality: its accuracy on `asked` real rows, what the best guess has, and what it reads.

    `readings` [asked, factors] are of those factors that vary, in the order of `accuracy`.
    """

    network: FeatureNetwork
    kind: Kind
    accuracy: dict[str, float]
    chance: dict[str, float]
    readings: Tensor

    def read(self, made: Tensor, factors: Sequence[str]) -> Tensor:
        """Values [n, factors] seen in expected observations [n, *shape]; of a label, in its likeliest class."""
        if self.kind == "label":
            made = torch.nn.functional.one_hot(made.argmax(-1), made.shape[-1]).to(made.dtype)
        return predictions(self.network, made, factors)

    @property
    def legible(self) -> list[str]:
        """Factors that it reads better than by chance."""
        asked = len(self.readings)
        error = {name: SURE * math.sqrt(p * (1 - p) / asked) for name, p in self.chance.items()}
        return [name for name, share in self.accuracy.items() if share > self.chance[name] + error[name]]

    @property
    def details(self) -> dict[str, Any]:
        """For the records of scores."""
        told = {"accuracy": self.accuracy, "chance": self.chance, "real_rows": len(self.readings)}
        return {**told, "steps": self.network.details["steps"], "training_rows": self.network.details["training_rows"]}


def reader(evaluation: Evaluation, name: str, steps: int | None) -> Reader:
    """The classifier of a modality, trained once."""
    return evaluation.compute_once(("reader", name, steps), lambda: _reader(evaluation, name, steps))


def _reader(evaluation: Evaluation, name: str, steps: int | None) -> Reader:
    data = evaluation.dataset
    trained, asked = (_having(data, name, rows) for rows in _parts(evaluation))
    asked = asked[:HELD_OUT]
    if len(trained) < 2 or len(asked) < 1:
        raise DataError(f"Too few rows of {data.name} have the modality {name} to train a classifier of it.")
    seen = Alone(data.name, data.pixels, data.factors, data.table, data.held_out, data.source, data, name)
    network = learned(NAME, seen, trained, evaluation.seed, {"steps": steps})
    assert isinstance(network.module, Classifier)
    factors = list(network.module.names)
    readings = torch.cat([predictions(network, seen.images(part), factors) for part in asked.split(ROWS)]).cpu()
    truth = data.values_of(asked)[:, [data.factor_position(factor) for factor in factors]].cpu()
    right = (readings == truth).double().mean(0).tolist()
    chance = [float(column.bincount().max() / len(asked)) for column in truth.T]
    accuracy, guessed = (dict(zip(factors, shares, strict=True)) for shares in (right, chance))
    return Reader(network, data.modalities[name].kind, accuracy, guessed, readings)


def _parts(evaluation: Evaluation) -> tuple[Tensor, Tensor]:
    """Rows to train on, and rows to ask about in random order."""
    mixed = evaluation.rows[evaluation.choose(len(evaluation))]
    if evaluation.held_out:
        others = torch.ones(len(evaluation.dataset), dtype=torch.bool, device=mixed.device)
        others[mixed] = False
        return others.nonzero().squeeze(-1), mixed
    asked, trained = mixed.tensor_split([len(mixed) // 5])
    return trained, asked


def _having(data: FactorDataset, name: str, rows: Tensor) -> Tensor:
    """Return those of the rows that have a modality and all their labels."""
    rows = rows[data.has(name, rows)]
    return rows[data.has_labels(rows)]


def shared_factor(evaluation: Evaluation, factor: str | None) -> tuple[str, Tensor]:
    """The factor that modalities share, the data's first unless named, and its value in every row."""
    data = evaluation.dataset
    name = factor or data.factor_names[0]
    return name, evaluation.factors[:, data.factor_position(name)]
