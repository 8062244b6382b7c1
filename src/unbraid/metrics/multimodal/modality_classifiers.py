"""Classifiers that predict the factors from observations of one modality, real or generated.

Each modality gets one small classifier of all factors (`features.classifier`), trained on real rows: those outside the
evaluation if that is held out, else four fifths of its rows. Its accuracy on the other real rows bounds what its
predictions for generated observations are worth.

Generated observations are means. If the data set flips pixels, the classifiers see means of real rows, too: a
classifier of noisy images fails on the smooth ones of a decoder, and would call a perfect model incoherent.
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
from unbraid.metrics.generative.features.classifier import MAX_HELD_OUT_ROWS, NAME, Classifier, predict_factors
from unbraid.metrics.generative.features.feature_sets import get_trained_network
from unbraid.types import Shape

MIN_STANDARD_ERRORS = 3.0
"""Margin by which a classifier's accuracy must exceed chance for a factor to count as predictable."""


@dataclass(frozen=True)
class SingleModality(FactorDataset):
    """One modality of a multimodal data set as a data set, with all factors and without the noise that the data add."""

    whole: FactorDataset | None = None
    modality: str = ""

    @property
    def shape(self) -> Shape:
        assert self.whole is not None
        return self.whole.modalities[self.modality].shape

    def images(self, index: Tensor) -> Tensor:
        assert self.whole is not None
        return self.whole.modalities[self.modality].expected(index)

    def content_hash(self) -> str:
        assert self.whole is not None
        return f"{self.whole.content_hash()}/{self.modality}/expected"


class ModalityClassifier(NamedTuple):
    """A classifier of one modality, with its accuracy on held-out real rows and that of the best constant guess.

    `held_out_predictions` [rows, factors] are its predictions for these rows, in the order of `accuracy`.
    """

    network: FeatureNetwork
    kind: Kind
    accuracy: dict[str, float]
    chance: dict[str, float]
    held_out_predictions: Tensor

    def predict(self, expected: Tensor, factors: Sequence[str]) -> Tensor:
        """Return values [n, factors] predicted from expected observations [n, *shape]; a label counts as its mode."""
        if self.kind == "label":
            expected = torch.nn.functional.one_hot(expected.argmax(-1), expected.shape[-1]).to(expected.dtype)
        return predict_factors(self.network, expected, factors)

    @property
    def predictable_factors(self) -> list[str]:
        """Factors that the classifier predicts better than chance."""
        rows = len(self.held_out_predictions)
        error = {name: MIN_STANDARD_ERRORS * math.sqrt(p * (1 - p) / rows) for name, p in self.chance.items()}
        return [name for name, share in self.accuracy.items() if share > self.chance[name] + error[name]]

    @property
    def details(self) -> dict[str, Any]:
        """Facts for the records of scores."""
        own = {"accuracy": self.accuracy, "chance": self.chance, "real_rows": len(self.held_out_predictions)}
        return {**own, "steps": self.network.details["steps"], "training_rows": self.network.details["training_rows"]}


class FactorClassifiers(NamedTuple):
    """The factor that modalities share, its value in every row [rows], and the classifier of each modality."""

    factor: str
    values: Tensor
    of: dict[str, ModalityClassifier]


def get_factor_classifiers(evaluation: Evaluation, factor: str | None, steps: int | None) -> FactorClassifiers:
    """Return the classifiers of all modalities, and the factor that these share: by default the data set's first."""
    data = evaluation.dataset
    name = factor or data.factor_names[0]
    values = evaluation.factors[:, data.factor_position(name)]
    return FactorClassifiers(name, values, {m: get_modality_classifier(evaluation, m, steps) for m in data.modalities})


def get_modality_classifier(evaluation: Evaluation, name: str, steps: int | None) -> ModalityClassifier:
    """Return the classifier of a modality, trained at the first call."""
    return evaluation.compute_once(("modality classifier", name, steps), lambda: _train(evaluation, name, steps))


def _train(evaluation: Evaluation, name: str, steps: int | None) -> ModalityClassifier:
    data = evaluation.dataset
    train, test = (rows[data.has(name, rows) & data.has_labels(rows)] for rows in _split_rows(evaluation))
    test = test[:MAX_HELD_OUT_ROWS]
    if len(train) < 2 or len(test) < 1:
        raise DataError(f"Too few rows of {data.name} have the modality {name} to train a classifier of it.")
    single = SingleModality(data.name, data.pixels, data.factors, data.table, data.held_out, data.source, data, name)
    network = get_trained_network(NAME, single, train, evaluation.seed, {"steps": steps})
    assert isinstance(network.module, Classifier)
    factors = list(network.module.names)
    predicted = torch.cat(
        [predict_factors(network, single.images(part), factors) for part in test.split(network.batch)]
    ).cpu()
    truth = data.values_of(test)[:, [data.factor_position(factor) for factor in factors]].cpu()
    accuracy = dict(zip(factors, (predicted == truth).double().mean(0).tolist(), strict=True))
    chance = {
        factor: float(column.bincount().max() / len(test)) for factor, column in zip(factors, truth.T, strict=True)
    }
    return ModalityClassifier(network, data.modalities[name].kind, accuracy, chance, predicted)


def _split_rows(evaluation: Evaluation) -> tuple[Tensor, Tensor]:
    """Return training rows, and test rows in random order."""
    shuffled = evaluation.rows[evaluation.choose(len(evaluation))]
    if evaluation.held_out:
        others = torch.ones(len(evaluation.dataset), dtype=torch.bool, device=shuffled.device)
        others[shuffled] = False
        return others.nonzero().squeeze(-1), shuffled
    test, train = shuffled.tensor_split([len(shuffled) // 5])
    return train, test
