"""Data of several modalities, and pairs of sprites."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.support.messages import naming
from tests.support.modalities import mixed
from unbraid.data import ClassLabels, Factor, Modality, Pixels, dataset, load, multimodal
from unbraid.data.splits import split
from unbraid.data.sprite_pairs import LEVELS
from unbraid.errors import DataError, UsageError
from unbraid.training.execution import MAX_REPEATED_OPERATIONS

SMALL = {"size": 16, "scales": 3, "orientations": 4, "positions": 5}


def test_modalities_of_different_kinds_and_shapes_are_read_by_row():
    parts = mixed(present=torch.tensor([True, False, True, True, False, True]))
    data = multimodal("mixed", parts)
    index = torch.tensor([[1, 0], [5, 4]])
    seen, there = data.observed(index), data.present(index)
    assert {name: tuple(x.shape) for name, x in seen.items()} == {
        "picture": (2, 2, 3, 2, 2),
        "sound": (2, 2, 4),
        "word": (2, 2, 3),
    }
    assert torch.equal(seen["word"][0, 1], torch.tensor([1.0, 0, 0]))
    assert there.shape == (2, 2, 3)
    assert there[..., 0].tolist() == data.has("picture", index).tolist() == [[False, True], [True, False]]
    assert bool(there[..., 1:].all()) and bool(data.has("sound", index).all())
    assert bool((seen["picture"][0, 0] == 0).all())
    assert torch.equal(seen["picture"][1, 0], parts[0].values.stored[5] / 255)
    assert data.layout == {"picture": (3, 2, 2), "sound": (4,), "word": (3,)}
    assert len(data) == 6
    assert multimodal("whole", mixed()).present(index) is None


def test_observations_decide_the_device_whatever_the_default_one_was():
    observed = Modality("x", "image", Pixels(torch.zeros(2, 1, 4, 4), (1, 4, 4)))
    with torch.device("meta"):  # as when data are loaded for a GPU, and a stored part comes from the disk
        data = multimodal("two", [observed])
    assert data.device.type == "cpu"
    assert {part.device.type for part in data.to("meta").modalities["x"].content if torch.is_tensor(part)} == {"meta"}


def test_labels_and_held_out_rows_follow_observations_that_were_drawn_on_a_gpu():
    drawn = Modality("x", "image", Pixels(torch.zeros(2, 1, 4, 4, device="meta"), (1, 4, 4)))
    read = {"table": torch.zeros(2, 1, dtype=torch.int64), "held_out": torch.tensor([1])}
    data = multimodal("two", [drawn], (Factor("digit", 2),), **read)
    assert {part.device.type for part in (data.table, data.held_out, data.pixels.stored)} == {"meta"}


def test_whoever_wants_one_modality_is_told_of_all():
    data = multimodal("mixed", mixed())
    for ask in (lambda: data.images(torch.arange(2)), lambda: data.shape):
        with pytest.raises(UsageError, match=naming("mixed", 3, "picture", "sound", "word")):
            ask()


def test_content_tells_data_apart_wherever_they_differ():
    torch.manual_seed(0)
    parts = mixed()
    first = multimodal("mixed", parts)
    assert multimodal("mixed", parts).content_hash() == first.content_hash() == first.content_hash()
    changed = [
        [*parts[:2], replace(parts[2], values=ClassLabels(torch.zeros(6, dtype=torch.int64), ("a", "b", "c")))],
        [*parts[:2], replace(parts[2], present=torch.ones(6, dtype=torch.bool))],
        [*parts[:2], replace(parts[2], name="other")],
        parts[:2],
    ]
    assert len({first.content_hash(), *(multimodal("mixed", each).content_hash() for each in changed)}) == 5
    parts[1].values.stored[0, 0] = 7.0
    assert multimodal("mixed", parts).content_hash() != multimodal("mixed", mixed()).content_hash()


@pytest.mark.parametrize(
    ("parts", "facts"),
    [
        (list, ["modality"]),
        (lambda: [mixed()[0], mixed(5)[1]], ["picture", 6, "sound", 5]),
        (lambda: [mixed()[0], mixed()[0]], ["modalities", "name"]),
        (lambda: mixed(present=torch.zeros(6, dtype=torch.bool)), ["picture"]),
        (lambda: mixed(present=torch.ones(4, dtype=torch.bool)), [4]),
        (lambda: [replace(mixed()[1], name="my sound")], ["my sound"]),
        (lambda: [replace(mixed()[1], name="values")], ["values"]),
        (lambda: [replace(mixed()[1], kind="image")], ["image", 3]),
        (lambda: [Modality("word", "label", ClassLabels(torch.tensor([3]), ("a", "b", "c")))], ["classes", 0, 2]),
    ],
)
def test_what_does_not_go_together_is_refused(parts, facts):
    with pytest.raises(DataError, match=naming(*facts)):
        multimodal("mixed", parts())


def test_pairs_share_their_shape_and_vary_as_the_paper_says():
    data, whole = load("sprites-pairs", {**SMALL, "flip": 0.0}), load("sprites", SMALL)
    assert len(data) == 3 * 3 * 4 * 25
    assert data.factor_names == ("shape", "scale", "orientation", "posX", "posY")
    index = torch.arange(len(data))
    values, seen = data.values_of(index), data.observed(index)
    middle, upright = values.clone(), values.clone()
    middle[:, 3:] = 2  # the middle of five positions
    upright[:, 1], upright[:, 2] = 2, 0  # the largest of three scales
    assert torch.equal(seen["m1"], whole.images(whole.index_of(middle)))
    assert torch.equal(seen["m2"], whole.images(whole.index_of(upright)))
    usual = dataset["sprites-pairs"].resolve({})
    count = len(usual["shapes"]) * usual["scales"] * usual["orientations"] * usual["positions"] ** 2
    assert count == dataset["sprites-pairs"].facts.images == 737_280


def test_expected_rows_are_the_mean_over_flips_and_of_what_has_no_noise_the_rows_themselves():
    data = load("sprites-pairs", {**SMALL, "flip": 0.2})
    index = torch.tensor([[0, 7], [11, 40]])
    seeds = [load("sprites-pairs", {**SMALL, "flip": 0.2, "seed": seed}) for seed in range(200)]
    for name, modality in data.modalities.items():
        drawn = torch.stack([each.modalities[name].rows(index) for each in seeds])
        error = (drawn.mean(0) - modality.expected(index)).abs()
        assert error.max() < 5 * (0.2 * 0.8 / len(seeds)) ** 0.5
        assert modality.expected(index).unique().tolist() == pytest.approx([0.2, 0.8])
    still = load("sprites-pairs", {**SMALL, "flip": 0.0}).modalities["m2"]
    assert torch.equal(still.expected(index), still.rows(index))
    there = torch.tensor([True, False, True, True, False, True])
    picture = mixed(present=there)[0]
    assert torch.equal(picture.expected(torch.arange(6)), picture.rows(torch.arange(6)))


def test_noise_is_a_function_of_the_pair():
    data = load("sprites-pairs", SMALL)
    clean, other = (load("sprites-pairs", {**SMALL, **how}) for how in ({"flip": 0.0}, {"seed": 1}))
    index = torch.randperm(len(data))
    seen, again, truth = data.observed(index), data.observed(index.flip(0)), clean.observed(index)
    flips = {name: (seen[name] - truth[name]).abs() for name in seen}
    for name, flipped in flips.items():
        assert torch.equal(again[name].flip(0), seen[name])
        assert set(seen[name].unique().tolist()) == {0.0, 1.0}
        count = flipped.numel()
        expected = round(0.1 * LEVELS) / LEVELS
        assert abs(float(flipped.mean()) - expected) < 5 * np.sqrt(0.09 / count)
        for axis in (0, 1):  # over pixels, and over pairs: no pixel and no pair is special
            means = flipped.flatten(1).mean(axis)
            spread = np.sqrt(0.09 / flipped.flatten(1).shape[axis])
            assert float((means - expected).abs().max()) < 5 * spread
    both = flips["m1"].flatten(1), flips["m2"].flatten(1)
    assert abs(np.corrcoef(both[0].flatten(), both[1].flatten())[0, 1]) < 5 / np.sqrt(both[0].numel())
    assert not torch.equal(other.observed(index)["m1"], seen["m1"])
    assert len({data.content_hash(), clean.content_hash(), other.content_hash()}) == 3


@pytest.mark.compiles
def test_noise_is_the_same_compiled():
    """A compiler must not fold the hash's products, which wrap around."""
    values = load("sprites-pairs", SMALL).modalities["m1"].values
    index = torch.arange(40)[None]
    compiled = torch.compile(
        lambda rows: values[rows],
        fullgraph=True,
        dynamic=False,
        options={"realize_opcount_threshold": MAX_REPEATED_OPERATIONS},
    )
    assert torch.equal(compiled(index), values[index])


def test_a_fifth_is_held_out_by_pairs_or_by_images():
    for unseen in ("pairs", "images"):
        data = load("sprites-pairs", {**SMALL, "unseen": unseen, "flip": 0.0})
        parts = split(data, "default")
        assert abs(len(parts.held_out) / len(data) - 0.2) < (1e-3 if unseen == "pairs" else 0.02)
        for modality in data.modalities.values():
            trained = modality.values.clean_rows(parts.train).unique()
            missing = len(modality.values.clean) - len(trained)
            assert missing == (0 if unseen == "pairs" else round((1 - 0.8**0.5) * len(modality.values.clean)))
    by_value = split(data, "posX:0,1")
    assert set(data.values_of(by_value.train)[:, 3].tolist()) == {2, 3, 4}
