"""Features of Inception v3 against a plain forward pass, and the files of its weights."""

import pytest
import torch
from safetensors.torch import save_file
from torch.nn import functional

from tests.support.messages import naming
from tests.support.pictures import picture_model
from unbraid.errors import DataError, UsageError
from unbraid.metrics import evaluate
from unbraid.metrics.generative.features import inception
from unbraid.metrics.generative.features.base import image_features


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


@pytest.mark.slow  # its features, and the scores of a model by another network, are tested above
def test_inception_scores_a_model_with_the_weights_it_is_given(weights):
    scores = evaluate(picture_model(), ["frechet/inception"], samples=2, weights=str(weights))
    assert [score.name for score in scores] == ["frechet/inception/reconstructions", "frechet/inception/samples"]
    for score in scores:
        assert score.value > 0
        assert score.details["rank_deficient"]
        assert score.details["features"] == 2048
        assert score.details["network"] == {"weights": "weights.pth"}
