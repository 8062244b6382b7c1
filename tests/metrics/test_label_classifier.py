"""Features of a classifier that learns the data's own labels: what it learns, refuses and keeps."""

import numpy as np
import pytest
import torch

from tests.support.messages import naming
from tests.support.pictures import blurred, picture_model, speckled
from unbraid.data import from_array, load
from unbraid.errors import DataError, UsageError
from unbraid.metrics import Evaluation
from unbraid.metrics.generative.features import classifier, feature_sets
from unbraid.metrics.generative.features.base import build_network, feature_network, image_features
from unbraid.metrics.generative.features.feature_sets import get_network
from unbraid.metrics.generative.frechet import frechet


def labelled_vectors(rows=400):
    rng = np.random.default_rng(0)
    labels = np.stack([rng.integers(0, 3, rows), rng.integers(0, 2, rows), np.zeros(rows, int)], axis=1)
    x = labels[:, :1] * [1.0, 2, 0, 0] + labels[:, 1:2] * [0, 0, 3.0, 0] + 0.1 * rng.standard_normal((rows, 4))
    return from_array(100 * x, factors=labels, factor_names=["a", "b", "same"])


def test_the_classifier_learns_labels_of_vectors_and_leaves_out_constant_ones():
    data = labelled_vectors()
    state = torch.random.get_rng_state()
    made = [build_network("classifier", data, torch.arange(400), seed, {"steps": 60}) for seed in (0, 0, 1)]
    assert torch.equal(torch.random.get_rng_state(), state)
    features = [network(data.images(torch.arange(400))) for network in made]
    assert torch.equal(features[0], features[1])
    assert not torch.equal(features[0], features[2])
    assert features[0].shape == (400, classifier.WIDTH)
    assert float(features[0].square().mean()) == pytest.approx(1, rel=0.1)
    details = made[0].details
    assert details["accuracy"].keys() == {"a", "b"}
    assert min(details["accuracy"].values()) > 0.9
    assert (details["training_rows"], details["held_out_rows"]) == (320, 80)
    digests = [network.details["weights"] for network in made]
    assert digests[0] == digests[1] != digests[2]


def test_the_classifier_learns_labels_of_pictures_and_sees_blur_and_noise():
    data = load("sprites-small")
    network = build_network("classifier", data, torch.arange(len(data)), 0, {"steps": 80})
    assert network.details["accuracy"]["posX"] > 0.5  # by chance 1/16
    images = data.images(torch.arange(0, len(data), 10))
    reference = network(images)
    for changed in ([blurred(images, w) for w in (3, 5, 9)], [speckled(images, s) for s in (0.05, 0.2, 0.6)]):
        values = [frechet(reference, network(x), paired=True).value for x in (images, *changed)]
        assert values == sorted(values)
        assert values[0] == pytest.approx(0, abs=1e-8)


@pytest.mark.parametrize("shape", [(3, 5, 41), (1, 3, 3), (2, 16, 16)])
def test_the_classifier_takes_any_shape_and_few_rows(shape):
    images = torch.rand(6, *shape, generator=torch.Generator().manual_seed(0))
    data = from_array(images, factors=[0, 1, 0, 1, 1, 0], channels="first")
    network = build_network("classifier", data, torch.arange(6), 0, {"steps": 2})
    assert network(images).shape == (6, classifier.WIDTH)


def test_the_classifier_needs_labels_that_differ():
    data = labelled_vectors()
    with pytest.raises(DataError, match=naming("images", "factor", "classifier")):
        image_features(torch.rand(3, 8, 8), "classifier")
    with pytest.raises(DataError, match=naming("array", "factor")):
        build_network("classifier", data, torch.tensor([0, 0, 0]), 0, {})
    with pytest.raises(UsageError, match=naming("steps", 1, 0)):
        build_network("classifier", data, torch.arange(9), 0, {"steps": 0})
    with pytest.raises(UsageError, match=naming("inceptoin", "inception")):
        image_features(torch.rand(3, 8, 8), "inceptoin")
    assert {"classifier", "efficientnet-lite0", "inception"} <= set(feature_network)


def test_features_that_are_not_finite_are_refused():
    data = labelled_vectors()
    network = build_network("classifier", data, torch.arange(400), 0, {"steps": 1})
    with pytest.raises(DataError, match=naming("classifier", "NaN")):
        network(torch.full((2, 4), torch.nan))


def test_a_classifier_learns_once_for_all_models_on_the_same_rows():
    data = load("sprites-small", {})
    rows = torch.arange(0, len(data), 4)

    def network(chosen=rows, seed=0, dataset=data, **settings):
        seen = Evaluation(picture_model().model, dataset, chosen, seed=seed)
        return get_network(seen, "classifier", **{"steps": 1, **settings})

    first = network()
    assert network() is first
    assert network(dataset=load("sprites-small", {})) is first
    for others in ({"chosen": rows[1:]}, {"seed": 1}, {"steps": 2}):
        assert network(**others) is not first
        assert network(**others) is network(**others)


def test_a_stored_classifier_is_read_and_a_damaged_one_is_trained_again(monkeypatch, tmp_path):
    monkeypatch.setenv("UNBRAID_DATA", str(tmp_path))
    data, rows, trained = labelled_vectors(), torch.arange(400), []

    def build(*request):
        trained.append(request)
        return build_network(*request)

    def get():
        monkeypatch.setattr(feature_sets, "_TRAINED_NETWORKS", {})
        return feature_sets.get_trained_network("classifier", data, rows, 0, {"steps": 200})

    monkeypatch.setattr(feature_sets, "build_network", build)
    first, again = get(), get()
    observations = torch.randn(5, 4)
    assert len(trained) == 1
    assert torch.equal(first(observations), again(observations))
    assert (first.details, first.module.names) == (again.details, again.module.names)
    (file,) = (tmp_path / "classifiers").iterdir()
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.warns(UserWarning, match=naming(file.name, "damaged")):
        mended = get()
    assert len(trained) == 2
    assert torch.equal(first(observations), mended(observations))
