"""Settings from the data: what is chosen for which data, that the user's own settings win, and that a run repeats."""

import numpy as np
import pytest
import torch
from PIL import Image

import unbraid as ub
from tests.support.messages import names
from unbraid.config import Choice
from unbraid.data import from_array, from_arrays, load
from unbraid.data.find import GIVEN, choose_size, find_data
from unbraid.errors import UsageError
from unbraid.networks import decoder, encoder
from unbraid.training import choose as rules, configure
from unbraid.training.choose import choose_settings, is_own
from unbraid.training.cost import SECONDS_ALLOWED, estimate_seconds
from unbraid.training.prepare import prepare

RANDOM = np.random.default_rng(0)
YOURS = Choice(GIVEN, {})


def photos(count, *shape):
    return from_array(RANDOM.integers(0, 256, (count, *shape), dtype=np.uint8))


def choose(data, recipe="beta-tcvae", single=True, **given):
    return {each.name: each.value for each in choose_settings(recipe, YOURS, data, given, single)}


def test_named_data_keep_their_defaults():
    data = load("sprites-small", {})
    assert choose_settings("beta-tcvae", Choice("sprites-small", {}), data, {}) == []
    assert not is_own(Choice("mnist", {}))
    assert is_own(Choice("images", {"folder": "x"}))


@pytest.mark.parametrize(
    ("shape", "network"),
    [((28, 28), "conv-small"), ((96, 96), "conv-locatello"), ((128, 128, 3), "conv-locatello"), ((6, 9), "mlp")],
)
def test_photographs_have_convolutions_whatever_their_size(shape, network):
    chosen = choose(photos(300, *shape))
    assert (chosen["encoder"], chosen["decoder"], chosen["likelihood"]) == (network, network, "bernoulli")


def test_silhouettes_are_drawn_from_positions():
    shapes = from_array(RANDOM.integers(0, 2, (300, 32, 32)).astype(bool))
    assert (choose(shapes)["decoder"], choose(shapes)["beta"]) == ("broadcast-pixel", 25.0)
    larger = from_array(RANDOM.integers(0, 2, (300, 64, 64)).astype(bool))
    assert (choose(larger)["decoder.patch"], choose(larger)["beta"]) == (2, 50.0)
    assert "beta" not in choose(larger, "beta-vae")
    assert choose(shapes, decoder="mlp")["encoder"] == "conv-small"  # of a user's own decoder nothing is known


def test_settings_of_a_network_keep_the_choice_of_one_that_has_them():
    shapes = from_array(RANDOM.integers(0, 2, (300, 32, 32)).astype(bool))
    chosen = choose(shapes)
    assert choose(shapes, **{"decoder.channels": 8}) | {"decoder.channels": 16} == chosen
    assert choose(shapes, **{"encoder.hidden": (64,)}) == chosen
    other = choose(shapes, **{"decoder.hidden": 64})  # a network per pixel has none
    assert (other["encoder"], other["decoder"], "beta" in other) == ("conv-small", "conv-small", False)
    assert "decoder" not in choose(shapes, **{"decoder.unknown": 64})


def test_batch_and_steps_follow_the_rows():
    few, many = choose(photos(300, 8, 8)), choose(photos(20_000, 8, 8))
    assert (few["batch"], many["batch"]) == (16, 256)
    assert few["steps"] == 3_400  # 200 epochs of 270 rows
    assert 50 <= many["steps"] * 256 / 18_000 <= 200


def test_rows_are_held_out_to_stop_early_but_not_from_scores():
    assert choose(photos(300, 8, 8))["split"] == 0.1
    labelled = from_array(RANDOM.random((300, 4)), factors=RANDOM.integers(0, 3, (300, 1)))
    for data, given in ((labelled, {}), (photos(50, 8, 8), {}), (photos(300, 8, 8), {"steps": 100})):
        assert not {"split", "patience"} & choose(data, **given).keys()
    assert choose(labelled, split=0.2)["patience"] == 10
    assert "patience" not in choose(photos(300, 8, 8), "factor-vae")  # a game's loss has no best step
    assert "patience" not in choose(photos(300, 8, 8), single=False)


def test_vectors_have_a_learned_noise_and_no_more_latents_than_values():
    chosen = choose(from_array(RANDOM.random((300, 4))))
    assert (chosen["encoder"], chosen["likelihood"], chosen["likelihood.learned"], chosen["z"]) == (
        "mlp",
        "gaussian",
        True,
        4,
    )
    assert choose(from_array(RANDOM.integers(0, 2, (300, 12)).astype(np.float32)))["likelihood"] == "bernoulli"


def test_modalities_have_their_own_networks():
    rows = {"photo": RANDOM.random((300, 96, 96)), "size": RANDOM.random((300, 2)), "pet": ["a", "b", "c"] * 100}
    data = from_arrays(rows)
    chosen = choose(data, "partitioned-mvae")
    assert [chosen[f"encoder.{name}"] for name in rows] == ["conv-daunhawer", "mlp", "mlp"]
    assert chosen["likelihood.size.learned"]
    assert chosen["weights"] == ("pet:92",)  # 96 * 96 / 100
    assert "weights" not in choose(from_arrays({"size": rows["size"], "pet": rows["pet"]}), "partitioned-mvae")
    config = configure("partitioned-mvae", YOURS, data, chosen)
    assert config.encoder.settings["photo"]["name"] == "conv-daunhawer"


def test_no_hours_of_work_begin_unasked(monkeypatch):
    data, allowed = photos(200, 64, 64), 5.0
    whole = choose(data, split="none")
    assert estimate_seconds(data, whole, whole["steps"]) < SECONDS_ALLOWED
    monkeypatch.setattr(rules, "SECONDS_ALLOWED", allowed)
    reduced = choose(data, split="none")
    assert reduced == {**whole, "steps": reduced["steps"]}
    assert estimate_seconds(data, reduced, reduced["steps"]) == pytest.approx(allowed, rel=0.01)


@pytest.mark.parametrize("batch", [0, -4, "many"])
def test_wrong_settings_are_refused_before_others_follow_from_them(batch, tmp_path, capsys):
    images = RANDOM.integers(0, 256, (40, 8, 8), dtype=np.uint8)
    with pytest.raises(UsageError, match=f"batch must be .*{batch}"):
        ub.train("vae", data=images, batch=batch, root=tmp_path, device="cpu")
    assert capsys.readouterr().err == "", "no choice is printed"
    with pytest.raises(UsageError, match=f"batch must be .*{batch}"):
        ub.sweep("vae", data=images, batch=batch, seed=[0, 1], root=tmp_path, device="cpu")


def test_what_a_user_gives_is_never_chosen():
    given = {"network": "mlp", "likelihood": "gaussian", "z": 3, "batch": 8, "lr": 0.1, "decay": "none", "steps": 5}
    assert choose(photos(300, 64, 64), **given) == {}


def test_a_run_states_its_choices_with_reasons_and_repeats_from_its_config(tmp_path, capsys):
    rows = RANDOM.random((300, 3)).astype(np.float32)
    run = ub.train("vae", data=rows, steps=3, root=tmp_path, device="cpu")
    said = capsys.readouterr().err
    assert names(said, "encoder=mlp", "batch=16", "likelihood.learned=true", "z=3")
    assert all(": " in line for line in said.splitlines())
    training = run.config.training
    assert (training.batch, training.decay, training.patience) == (16, "none", None)
    explicit = {"encoder": "mlp", "decoder": "mlp", "likelihood": "gaussian", "likelihood_learned": True, "z": 3}
    again = ub.train("vae", data=rows, steps=3, batch=16, lr=1e-3, root=tmp_path, device="cpu", **explicit)
    assert again.path == run.path
    assert again.reused


def test_large_or_unequal_pictures_are_resized(tmp_path, capsys):
    for name, sizes in {"alike": [(100, 80)] * 2, "large": [(300, 200)] * 2, "unequal": [(40, 90), (90, 90)]}.items():
        (tmp_path / name).mkdir()
        for number, (width, height) in enumerate(sizes):
            Image.new("L", (width, height)).save(tmp_path / name / f"{number}.png")
    assert choose_size(list((tmp_path / "alike").iterdir())) is None
    assert choose_size(list((tmp_path / "large").iterdir())).size == 64
    assert choose_size(list((tmp_path / "unequal").iterdir())).size == 32
    choice, data = find_data(str(tmp_path / "unequal"), {}, torch.device("cpu"))
    assert data.shape == (1, 32, 32)
    assert choice.settings["size"] == 32
    assert "data.size=32" in capsys.readouterr().err
    assert find_data(tmp_path / "unequal", {"data.size": 16}, torch.device("cpu"))[1].shape == (1, 16, 16)
    (tmp_path / "things.csv").write_text("photo,kind\nunequal/0.png,cup\nunequal/1.png,plate\nunequal/0.png,\n")
    choice, data = find_data(tmp_path / "things.csv", {}, torch.device("cpu"), several=True)
    assert data.modalities["photo"].shape == (1, 32, 32)
    assert choice.settings["size"] == 32


@pytest.mark.parametrize("data", ["table", "pictures"])
@pytest.mark.parametrize(
    ("side", "network"), [*(("encoder", each) for each in encoder), *(("decoder", each) for each in decoder)]
)
def test_a_network_takes_a_step_on_own_data_or_names_their_shape(side, network, data):
    """No network ends in an error that nobody has foreseen."""
    made = from_array(RANDOM.standard_normal((64, 9))) if data == "table" else photos(64, 28, 28)
    registry = encoder if side == "encoder" else decoder
    given = {side: network, **{f"{side}.{key}": value for key, value in registry[network].facts.trial.items()}}
    try:
        config = configure("beta-tcvae", YOURS, made, {**given, **choose(made, **given)})
        prepare(config, made).rehearse()
    except UsageError as error:
        assert names(str(error), network, made.shape)
