"""The library from Python: arrays, own modules, what a run needs to be opened again."""

import numpy as np
import pytest
import torch
from torch import nn

import unbraid as ub
from unbraid.errors import DataError, RunError, UsageError

SMALL = {"z": 3, "batch": 16, "steps": 12, "device": "cpu"}


@pytest.fixture(scope="module")
def images():
    return np.random.default_rng(0).random((64, 12, 12)).astype(np.float32)


@pytest.fixture(scope="module")
def run(images, tmp_path_factory):
    return ub.train("vae", data=images, root=tmp_path_factory.mktemp("runs"), **SMALL)


def test_array_run_stores_the_content_hash_and_asks_for_the_data(run, images):
    assert run.config.data.name == "given"
    assert len(run.config.data.settings["content"]) == 64
    again = ub.load(run.path, device="cpu")
    assert torch.equal(again.encode(images), run.encode(images))  # the model alone needs no data
    with pytest.raises(
        RunError, match=r"was trained on data that were passed in .* pass them again: unbraid.load\(path, data"
    ):
        again.score("kl")
    assert ub.load(run.path, data=images, device="cpu").score("kl")[0].name == "kl/closed-form"
    with pytest.raises(RunError, match="trained on other data than these"):
        ub.load(run.path, data=images[::-1].copy(), device="cpu").score("kl")


def test_same_array_same_run_and_other_array_other_run(run, images, tmp_path):
    assert ub.train("vae", data=images.copy(), root=run.path.parent, **SMALL).path == run.path
    assert ub.train("vae", data=images[:32], root=tmp_path, **SMALL).path.name != run.path.name


def test_vectors_get_a_gaussian_mlp(tmp_path):
    vectors = np.random.default_rng(0).normal(size=(100, 5)).astype(np.float32)
    made = ub.train("beta-vae", data=vectors, root=tmp_path, **SMALL)
    assert (made.config.likelihood.name, made.config.encoder.name) == ("gaussian", "mlp")
    assert made.decode(made.encode(vectors)).shape == (100, 5)


def test_torch_dataset(tmp_path):
    source = torch.utils.data.TensorDataset(torch.rand(40, 1, 8, 8), torch.arange(40) % 4)
    made = ub.train("vae", data=source, root=tmp_path, **SMALL)
    assert [factor.name for factor in made.dataset.factors] == ["label"]
    assert {score.metric for score in made.score("mig")} == {"mig"}


def test_own_modules_are_trained_and_asked_for(tmp_path, images):
    own = nn.Sequential(nn.Flatten(), nn.Linear(144, 6))
    before = own[1].weight.detach().clone()
    made = ub.train("beta-tcvae", data=images, encoder=own, decoder="mlp", decoder_hidden=(8,), root=tmp_path, **SMALL)
    assert made.config.encoder.name == "custom"
    assert not torch.equal(before, own[1].weight)
    with pytest.raises(RunError, match=r"trained with your own encoder \(Sequential\); pass it"):
        _ = ub.load(made.path, data=images, device="cpu").model
    fresh = nn.Sequential(nn.Flatten(), nn.Linear(144, 6))
    again = ub.load(made.path, encoder=fresh, device="cpu")
    assert torch.equal(again.encode(images), made.encode(images))
    wrong = nn.Sequential(nn.Flatten(), nn.Linear(144, 7))
    with pytest.raises(RunError, match=r"model.safetensors does not fit the model of its config"):
        _ = ub.load(made.path, encoder=wrong, device="cpu").model


def test_codes_and_images_of_the_wrong_shape_are_refused(run):
    with pytest.raises(UsageError, match=r"Codes must have shape \[n, 3\], not \(2, 4\)"):
        run.decode(np.zeros((2, 4)))
    with pytest.raises(UsageError, match=r"takes observations of shape \(1, 12, 12\), not \(1, 9, 9\)"):
        run.encode(np.zeros((2, 9, 9), dtype=np.uint8))
    with pytest.raises(DataError, match="NaN"):
        run.encode(np.full((2, 12, 12), np.nan, dtype=np.float32))


def test_samples_are_images_and_repeatable(run):
    first = run.sample(5)
    assert first.shape == (5, 1, 12, 12)
    assert (first >= 0).all()
    assert (first <= 1).all()
    assert torch.equal(first, run.sample(5))
    assert not torch.equal(first, run.sample(5, seed=1))


def test_scores_are_appended_never_overwritten(run, images):
    opened = ub.load(run.path, data=images, device="cpu")
    count = len(opened.scores)
    opened.score("kl", "reconstruction")
    opened.score("kl")
    assert len(opened.scores) == count + 3


def test_unlabelled_data_have_no_mig(run, images):
    opened = ub.load(run.path, data=images, device="cpu")
    assert "mig" not in opened.default_scores()
    with pytest.raises(DataError, match="has no factor labels"):
        opened.score("mig")


def test_held_out_rows_are_scored(tmp_path):
    made = ub.train("vae", data="sprites-small", network="mlp", split="posX:0,1", root=tmp_path, **SMALL)
    assert made.evaluation.held_out
    assert len(made.evaluation) == 6 * 2 * 16
    facts = made.folder.read_json("data")
    assert (facts["trained_on"], facts["held_out"]) == (1536 - 192, 192)


@pytest.mark.parametrize("rule", ["posX", "posX:a", "posZ:1", 1.5, "posX:99"])
def test_impossible_splits_are_refused(tmp_path, rule):
    with pytest.raises(UsageError):
        ub.train("vae", data="sprites-small", network="mlp", split=rule, root=tmp_path, **SMALL)


def test_public_names_resolve():
    for name in dir(ub):
        assert getattr(ub, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = ub.nothing
