"""The library from Python: arrays, own modules, what a run needs to be opened again."""

import json
import math
import os

import numpy as np
import pytest
import torch
from torch import nn

import unbraid as ub
from tests.support.messages import names, naming
from unbraid.errors import DataError, RunError, UsageError
from unbraid.metrics import Score

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
    with pytest.raises(RunError, match=naming(run.path, "unbraid.load(path, data")):
        again.score("kl")
    assert ub.load(run.path, data=images, device="cpu").score("kl")[0].name == "kl/closed-form"
    with pytest.raises(RunError, match="data"):
        ub.load(run.path, data=images[::-1].copy(), device="cpu").score("kl")


@pytest.mark.parametrize("keeps_its_time", [True, False])
def test_weights_that_change_behind_an_open_run_are_noticed(images, tmp_path, keeps_its_time):
    made = ub.train("vae", data=images, root=tmp_path, **SMALL)
    assert made.score("kl")
    weights = made.path / "model.safetensors"
    before, changed = weights.stat(), bytearray(weights.read_bytes())
    changed[-1] ^= 1
    with weights.open("r+b") as handle:
        handle.write(changed)
    if keeps_its_time:
        os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(RunError, match="changed after its training"):
        made.score("kl")
    with pytest.raises(RunError, match="changed after its training"):  # before it asks for the data
        ub.load(made.path, device="cpu").score("kl")


def test_a_run_that_is_trained_anew_behind_an_open_one_is_loaded_anew(images, tmp_path):
    first = ub.train("vae", data=images, root=tmp_path, name="run", **SMALL)
    assert first.score("kl")
    again = ub.train("vae", data=images, root=tmp_path, name="run", fresh=True, **SMALL | {"seed": 1})
    assert first.score("kl")[0].value == again.score("kl")[0].value


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
    assert torch.equal(before, own[1].weight)  # a copy is trained; the caller's module stays as it was
    assert not torch.equal(before, made.model.encoder[1].weight)
    other = nn.Sequential(nn.Flatten(), nn.Linear(144, 6))
    again = ub.train(
        "beta-tcvae", data=images, encoder=other, decoder="mlp", decoder_hidden=(8,), root=tmp_path, **SMALL
    )
    assert again.path != made.path
    with pytest.raises(RunError, match=naming(made.path, "encoder", "Sequential")):
        _ = ub.load(made.path, data=images, device="cpu").model
    fresh = nn.Sequential(nn.Flatten(), nn.Linear(144, 6))
    again = ub.load(made.path, encoder=fresh, device="cpu")
    assert torch.equal(again.encode(images), made.encode(images))
    wrong = nn.Sequential(nn.Flatten(), nn.Linear(144, 7))
    with pytest.raises(RunError, match=r"model\.safetensors"):
        _ = ub.load(made.path, encoder=wrong, device="cpu").model


def test_codes_and_images_of_the_wrong_shape_are_refused(run):
    with pytest.raises(UsageError, match=naming("[n, 3]", "(2, 4)")):
        run.decode(np.zeros((2, 4)))
    with pytest.raises(UsageError, match=naming("(1, 12, 12)", "(1, 9, 9)")):
        run.encode(np.zeros((2, 9, 9), dtype=np.uint8))
    with pytest.raises(DataError, match="NaN"):
        run.encode(np.full((2, 12, 12), np.nan, dtype=np.float32))


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf, 1e39])
def test_codes_that_are_not_finite_are_refused(run, number):
    codes = np.zeros((3, 3))
    codes[1, 2] = number
    with pytest.raises(DataError, match=naming("codes", "row 1", "NaN", "infinite")):
        run.decode(codes)


def test_sparse_codes_are_decoded(run):
    codes = torch.eye(run.model.space.width)
    torch.testing.assert_close(run.decode(codes.to_sparse()), run.decode(codes))


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
    opened.score("kl/closed-form", "reconstruction/nats")
    opened.score("kl/closed-form")
    assert len(opened.scores) == count + 3


def test_scores_that_are_not_finite_are_null_in_the_file_and_nan_again_when_read(run, images, monkeypatch):
    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    broken = Score("kl", "closed-form", math.nan, 8, (math.nan, math.inf), details={"each": [1.0, -math.inf]})
    monkeypatch.setattr("unbraid.metrics.background.evaluate", lambda *_, **__: [broken])
    opened = ub.load(run.path, data=images, device="cpu")
    opened.score("kl/closed-form")
    line = (run.path / "scores.jsonl").read_text().splitlines()[-1]
    stored = json.loads(line, parse_constant=refuse)
    assert (stored["value"], stored["interval"], stored["details"]["each"]) == (None, [None, None], [1.0, None])
    with (run.path / "scores.jsonl").open("a") as file:
        file.write(json.dumps({"format": 1, **broken.as_record()}) + "\n")  # as it once was
    for read in opened.scores[-2:]:
        assert math.isnan(read.value)
        assert math.isnan(read.interval[0])
    assert opened.report().exists()


def test_unlabelled_data_have_no_mig(run, images):
    opened = ub.load(run.path, data=images, device="cpu")
    assert "mig" not in {score.metric for score in opened.score()}
    (note,) = opened.notes
    assert names(note, "mig/exact", "mig/histogram-mean", "mig/histogram-sampled", "factor")
    with pytest.raises(DataError, match="factor"):
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
    with pytest.raises(AttributeError, match="nothing"):
        _ = ub.nothing


class TestOwnModules:
    """What a caller may hand in, and what happens to it."""

    def encoder(self, *layers):
        return nn.Sequential(nn.Flatten(), nn.Linear(144, 8), *layers, nn.Linear(8, 6))

    def test_frozen_parameters_stay(self, images, tmp_path):
        own = self.encoder(nn.ReLU())
        own[1].requires_grad_(False)
        made = ub.train("vae", data=images, encoder=own, decoder="mlp", root=tmp_path, **SMALL)
        assert torch.equal(made.model.encoder[1].weight, own[1].weight)
        assert not torch.equal(made.model.encoder[3].weight, own[3].weight)

    def test_batchnorm_trains_even_if_it_came_in_evaluation_mode(self, images, tmp_path):
        own = self.encoder(nn.BatchNorm1d(8)).eval()
        made = ub.train("vae", data=images, encoder=own, decoder="mlp", root=tmp_path, **SMALL)
        assert int(made.model.encoder[2].num_batches_tracked) == SMALL["steps"]
        assert int(own[2].num_batches_tracked) == 0

    def test_tied_weights_load_again(self, images, tmp_path):
        own = nn.Sequential(nn.Flatten(), nn.Linear(144, 144), nn.Tanh(), nn.Linear(144, 144), nn.Linear(144, 6))
        own[3].weight = own[1].weight
        made = ub.train("vae", data=images, encoder=own, decoder="mlp", root=tmp_path, **SMALL)
        assert torch.equal(made.model.encoder[1].weight, made.model.encoder[3].weight)

    def test_dropout_is_refused(self, images, tmp_path):
        with pytest.raises(UsageError, match="Dropout"):
            ub.train("vae", data=images, encoder=self.encoder(nn.Dropout()), decoder="mlp", root=tmp_path, **SMALL)

    @pytest.mark.parametrize("width", [5, 7])
    def test_wrong_outputs_are_named(self, images, tmp_path, width):
        own = nn.Sequential(nn.Flatten(), nn.Linear(144, width))
        with pytest.raises(UsageError, match=naming("encoder", "[batch, 6]")):
            ub.train("vae", data=images, encoder=own, decoder="mlp", root=tmp_path, **SMALL)
        flat = nn.Linear(3, 144)
        with pytest.raises(UsageError, match=naming("decoder", "(1, 12, 12)", "(144,)")):
            ub.train("vae", data=images, encoder="mlp", decoder=flat, likelihood="gaussian", root=tmp_path, **SMALL)


def test_other_data_than_the_runs_are_refused(tmp_path):
    made = ub.train("vae", data="sprites-small", network="mlp", root=tmp_path, **SMALL)
    with pytest.raises(RunError, match="data"):
        ub.load(made.path, data=np.zeros((50, 32, 32), dtype=np.float32), device="cpu").score("kl")


def test_replaced_pictures_are_noticed(tmp_path):
    from PIL import Image

    def draw(shade):
        for i in range(20):
            Image.new("L", (8, 8), shade + i).save(tmp_path / f"{i:02d}.png")

    draw(10)
    settings = {"data": tmp_path, "root": tmp_path / "runs", **SMALL}
    ub.train("vae", **settings)
    draw(90)
    with pytest.raises(RunError, match="data"):
        ub.train("vae", **settings)


def test_values_that_bernoulli_cannot_hold_are_refused(tmp_path):
    vectors = np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32)
    with pytest.raises(UsageError, match=naming("likelihood=bernoulli", "[0, 1]")):
        ub.train("vae", data=vectors, likelihood="bernoulli", root=tmp_path, **SMALL)


def test_numbers_of_numpy_are_numbers(tmp_path):
    made = ub.train("beta-vae", data="sprites-small", network="mlp", beta=np.float32(3), root=tmp_path, **SMALL)
    assert made.config.objective.settings["beta"] == 3.0
    with pytest.raises(UsageError, match=naming("beta", "nan")):
        ub.train("beta-vae", data="sprites-small", network="mlp", beta=float("nan"), root=tmp_path, **SMALL)


@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_settings_of_a_module_of_ones_own_are_refused(side, tmp_path):
    own = nn.Sequential(nn.Flatten(), nn.Linear(256, 6)) if side == "encoder" else nn.Linear(3, 256)
    with pytest.raises(UsageError, match=naming(side, f"{side}_hidden")):
        ub.train("vae", data="sprites-small", z=3, root=tmp_path, **{side: own, f"{side}_hidden": (7,)})


def test_batch_norm_wants_two_rows(tmp_path):
    small = {"data": "sprites", "data_size": 64, "data_positions": 2, "data_orientations": 1, "root": tmp_path}
    with pytest.raises(UsageError, match=naming("BatchNorm", "batch", 2)):
        ub.train("vae", network="conv-chen", batch=1, steps=1, device="cpu", **small)


@pytest.mark.parametrize("groups", [[["z0", None]], [[True, 0], [2]], 3])
def test_groups_have_names_or_numbers(groups, tmp_path):
    with pytest.raises(UsageError, match="roup"):
        ub.train("beta-tcvae", data="sprites-small", z=3, groups=groups, steps=1, root=tmp_path)
