"""Runs on several modalities, from training on what is there to generating what is missing."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.support.execution import no_fallback
from tests.support.messages import names, naming
from tests.support.modalities import mixed
from unbraid import api
from unbraid.api import refine
from unbraid.config import Choice
from unbraid.data import ClassLabels, Modality, Pixels, load, multimodal
from unbraid.errors import DataError, UsageError
from unbraid.models import generation
from unbraid.report.multimodal_page import build_multimodal_section
from unbraid.training import configure
from unbraid.training.prepare import prepare

SMALL = {"batch": 8, "steps": 6, "device": "cpu", "c": 3}
PAIRS = {"data_size": 16, "data_orientations": 3, "data_positions": 3, "network": "mlp"}


def torn(rows=40):
    """An 8x8 image, a vector and a label, of which rows lack some; the first eight have the label alone."""
    made = torch.Generator().manual_seed(0)
    there = [torch.rand(rows, generator=made) < 0.7 for _ in range(2)]
    for each in there:
        each[:8] = False
    images = Pixels(torch.randint(0, 256, (rows, 1, 8, 8), generator=made).to(torch.uint8), (1, 8, 8))
    vectors = Pixels(torch.randn(rows, 4, generator=made), (4,))
    labels = ClassLabels(torch.arange(rows) % 3, ("a", "b", "c"))
    parts = [Modality("picture", "image", images, there[0]), Modality("sound", "vector", vectors, there[1])]
    return multimodal("torn", [*parts, Modality("word", "label", labels)])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return api.train("partitioned-mvae", data=torn(), root=tmp_path_factory.mktemp("runs"), s=2, **SMALL)


def test_kinds_choose_networks_and_likelihoods_and_anybody_may_choose_others(run, tmp_path):
    config = run.config
    assert {n: c["name"] for n, c in config.likelihood.settings.items()} == {
        "picture": "bernoulli",
        "sound": "gaussian",
        "word": "categorical",
    }
    assert list(config.latents) == ["c", "s_picture", "s_sound"]  # a label has none of its own
    own = {
        "encoder.hidden": (8,),
        "decoder.sound.hidden": (4,),
        "likelihood.sound": "laplace",
        "latents.s_word.size": 2,
    }
    other = api.train("mopoe", data=torn(), root=tmp_path, s=1, **SMALL, **own)
    assert {n: c["hidden"] for n, c in other.config.encoder.settings.items()} == dict.fromkeys(torn().modalities, (8,))
    assert other.config.decoder.settings["sound"]["hidden"] == (4,)
    assert other.config.likelihood.settings["sound"]["name"] == "laplace"
    assert {name: block.width for name, block in other.model.space.blocks.items()} == {
        "c": 3,
        "s_picture": 1,
        "s_sound": 1,
        "s_word": 2,
    }
    assert other.config.run_id == api.load(other.path, data=torn(), device="cpu").config.run_id


def test_any_subset_is_encoded_and_completed(run):
    seen = run.dataset.observed(torch.arange(10, 15))
    part = {"picture": seen["picture"], "word": torch.tensor([0, 1, 2, 0, 1])}
    code = run.encode(part)
    assert code.shape == (5, 3 + 2 * 2)
    assert bool((code[:, 5:7] == 0).all())  # s_sound, of which nothing is known
    made = run.generate(part, count=7)
    shapes = {"picture": (5, 7, 1, 8, 8), "sound": (5, 7, 4), "word": (5, 7, 3)}
    assert {name: tuple(x.shape) for name, x in made.items()} == shapes
    torch.testing.assert_close(made["word"].sum(-1), torch.ones(5, 7))
    assert torch.equal(run.generate(part, count=7)["sound"], made["sound"])
    assert not torch.equal(run.generate(part, count=7, seed=1)["sound"], made["sound"])
    assert run.generate(count=4)["sound"].shape == (4, 4)
    still = run.generate(part, count=2, shared="mean")["picture"]
    assert not torch.equal(still[:, 0], still[:, 1])  # s_picture is drawn
    whole = run.encode(run.dataset)
    alone = run.encode({"word": run.dataset.observed(torch.arange(8))["word"]})
    torch.testing.assert_close(whole[:8], alone)  # rows that have nothing else


def test_codes_are_scored_and_pictures_of_one_modality_refused(run):
    assert {score.metric for score in run.score("elbo", "kl")} == {"elbo", "kl"}
    for refused in (lambda: run.score("reconstruction/l2"), run.traverse):
        with pytest.raises(UsageError, match="modality"):
            refused()
    assert {name: len(rows) for name, rows in run.sample(3).items()} == {"picture": 3, "sound": 3, "word": 3}
    with pytest.raises(UsageError, match="modalities"):
        refine(run)


def test_the_page_draws_images_and_tells_labels(run):
    page = run.report().read_text()
    for section in ("completion", "translations", "reconstructions", "samples"):
        assert f'id="{section}"' in page
        assert f'href="#{section}"' in page
    shown = build_multimodal_section(run.evaluation)
    titles = [each["title"] for each in shown.translations]
    assert len(titles) == 2
    assert all(title in page and names(title, "picture") for title in titles)
    assert names(titles[1], "word")
    assert "a, b, c" in page
    assert names(shown.left_out, "sound", "word")
    assert shown.left_out in page
    assert page.count("<img") == 4  # a reconstruction, a swap, images of classes, samples
    told = {(row["label"], row["source"]): row for row in shown.labels}
    assert set(told) == {("word", "picture"), ("word", "sound")}
    there = run.dataset.modalities["sound"].present
    assert told["word", "sound"]["rows"] == int(there.sum())
    made = run.generate({"sound": run.dataset.observed(there.nonzero()[:, 0])["sound"]}, shared="mean")["word"]
    right = (made[:, 0].argmax(-1) == (torch.arange(40) % 3)[there]).double().mean()
    assert told["word", "sound"]["right"] == pytest.approx(float(right))


def test_likelihoods_of_what_is_there_add_up(run):
    scores = {score.name: score for score in run.score("log-likelihood", draws=300, samples=40)}
    assert scores["log-likelihood/joint"].samples == 40
    assert scores["log-likelihood/marginal/picture"].samples == int(run.dataset.modalities["picture"].present.sum())
    words = scores["log-likelihood/marginal/word"].value, scores["log-likelihood/conditional/word"].value
    assert all(-3 < value < 0 for value in words)  # about -log 3: hardly trained


@pytest.mark.compiles
@pytest.mark.slow
@pytest.mark.parametrize(("recipe", "settings"), [("partitioned-mvae", {}), ("mmvae", {"gradient": "dreg"})])
def test_a_compiled_step_sees_the_same_numbers(recipe, settings):
    own = {"size": 16, "orientations": 3, "positions": 3}
    data = load("sprites-pairs", own)
    settings |= {"network": "mlp", "encoder.hidden": (8,), "decoder.hidden": (8,), "batch": 16}
    config = configure(recipe, Choice("sprites-pairs", own), data, settings)
    lines = []
    for execution in ("plain", "compiled"):
        state = prepare(config, data, execution=execution)
        with no_fallback():
            for _ in range(3):
                state.advance()
        lines.append(state.take_means()[0])
    assert lines[1] == pytest.approx(lines[0], rel=1e-4)


def test_translations_are_grids_of_the_target(tmp_path):
    made = api.train("partitioned-mvae", data="sprites-pairs", root=tmp_path, s=2, **SMALL, **PAIRS)
    picture = made.translate("m1", "m2", columns=4, rows=2, prior_rows=1, prior_columns=1)
    assert picture.size == (6 * 64 + 5 * 4, 4 * 64 + 3 * 4)
    blue, across = (51, 102, 217, 255), 68  # the prior's column, and its row
    assert picture.getpixel((5 * across + 9, 9)) == picture.getpixel((9, 3 * across + 9)) == blue
    assert picture.getpixel((9, 9)) == (255, 255, 255, 255)
    assert made.translate("m2", "m2", columns=2, rows=1, prior_rows=0).size == (3 * 64 + 2 * 4, 2 * 64 + 4)
    with pytest.raises(UsageError, match="m3"):
        made.translate("m1", "m3")
    shown = build_multimodal_section(made.evaluation)
    pairs = [("m1",), ("m2", "m1"), ("m1", "m2"), ("m2",)]  # of one modality: its c and s swapped
    for each, shows in zip(shown.translations, pairs, strict=True):
        assert names(each["title"], *shows)
    assert (len(shown.reconstructions), len(shown.samples), shown.labels, shown.left_out) == (2, 2, [], "")


def test_own_networks_come_by_modality(tmp_path):
    names = ("picture", "sound", "word")
    encoder = torch.nn.ModuleDict({n: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LazyLinear(6)) for n in names})
    for name, x in torn().observed(torch.arange(2)).items():
        encoder[name](x)
    made = api.train("mvae", data=torn(), root=tmp_path, encoder=encoder, **SMALL)
    again = api.load(made.path, data=torn(), encoder=encoder, device="cpu")
    assert torch.equal(again.encode(torn()), made.encode(torn()))
    with pytest.raises(UsageError, match=naming("ModuleDict", "picture", "sound", "word")):
        api.train("mvae", data=torn(), root=tmp_path, encoder=encoder["word"], **SMALL)


@pytest.mark.parametrize(
    ("recipe", "data", "settings", "facts"),
    [
        ("partitioned-mvae", "sprites-small", {}, ["modalities", "sprites-small", "data=paired"]),
        ("beta-vae", "mixed", {}, ["mixed", "picture", "sound", "word"]),
        ("mvae", "mixed", {"z": 4}, ["c=5", "s=5"]),
        ("mvae", "mixed", {"c": 0}, ["shared", "c", 1]),
        ("mvae", "mixed", {"encoder.smell": "mlp"}, ["smell"]),
        ("mvae", "mixed", {"likelihood": "categorical"}, ["labels", "picture", "mixed", "images"]),
        ("mvae", "mixed", {"likelihood": "mixed"}, ["likelihood=mixed", "picture", "likelihood.picture=bernoulli"]),
        ("mvae", "mixed", {"likelihood.word": "mixed"}, ["likelihood=mixed", "word", "likelihood.word=categorical"]),
        (
            "mvae",
            "mixed",
            {"likelihood.sound": "mixed", "likelihood.sound.widths": (999,)},
            ["likelihood.sound.widths", 999],
        ),
        ("mvae", "mixed", {"likelihood.sound": "bernoulli"}, ["likelihood.sound=gaussian"]),
        ("mvae", "mixed", {"weights": ("smell:2",)}, ["smell"]),
        ("partitioned-mvae", "mixed", {"alone": "smell"}, ["smell"]),
        ("partitioned-mvae", "mixed", {"penalty": "ratio", "s": 0}, ["s", 1]),
        ("mmvae", "mixed", {"samples": 0}, ["samples", 1]),
        ("mopoe", "mixed", {"beta_c": -1.0}, ["beta_c", "mopoe", 0, -1]),
    ],
)
def test_what_cannot_be_trained_is_refused(recipe, data, settings, facts, tmp_path):
    given = multimodal("mixed", mixed()) if data == "mixed" else load(data)
    with pytest.raises(UsageError, match=naming(*facts)):
        api.train(recipe, data=given, root=tmp_path, device="cpu", **settings)


def test_blank_rows_do_not_reach_others_through_batchnorm(tmp_path):
    there = torch.arange(24) % 3 > 0
    views = [Modality(n, "image", Pixels(torch.rand(24, 1, 32, 32), (1, 32, 32)), there) for n in ("near", "far")]
    views[1] = replace(views[1], present=None)
    tiny = {"steps": 1, "batch": 8, "root": tmp_path, "device": "cpu", "network": "mlp"}
    with pytest.raises(UsageError, match=naming("near", "BatchNorm", "encoder.near=")):
        api.train("mvae", data=multimodal("views", views), **tiny, **{"encoder.near": "dcgan"})
    api.train("mvae", data=multimodal("views", views), **tiny, **{"encoder.far": "dcgan"})


def test_rows_that_are_given_may_lack_some(run):
    """As those of data do: NaN, None, -1 and empty words."""
    seen = run.dataset.observed(torch.arange(20, 23))
    sound, blank = seen["sound"].clone(), torch.full((4,), torch.nan)
    sound[1] = blank
    whole = run.encode({"sound": sound, "word": [0, 2, -1]})
    torch.testing.assert_close(whole[0], run.encode({"sound": sound[:1], "word": ["a"]})[0])
    torch.testing.assert_close(whole[1], run.encode({"word": ["c"]})[0])
    torch.testing.assert_close(whole[2], run.encode({"sound": sound[2:]})[0])
    rows = [row.tolist() for row in sound]
    assert torch.equal(whole, run.encode({"sound": [rows[0], None, rows[2]], "word": ["a", "c", ""]}))
    made = run.generate({"sound": sound, "word": ["a", "c", None]})
    assert all(bool(x.isfinite().all()) for x in made.values())


def test_given_arrays_must_fit(run):
    for given, facts in (
        ({"smell": torch.zeros(2, 3)}, ["smell"]),
        ({"sound": torch.zeros(2, 3)}, ["(4,)"]),
        ({"sound": torch.zeros(2, 4), "word": torch.tensor([0])}, ["sound", 2, "word", 1]),
        ({"word": torch.arange(2_000)}, [0, 2, -1, 3]),
        ({"word": ["d"]}, ["d", "word", "a", "b", "c"]),
        ({"sound": ["cup"]}, ["sound", "numbers"]),
        ({"sound": [[0, 0, 0, 0], [0, 0]]}, ["shape"]),
        ({"sound": [[0, 0, 0, float("nan")]]}, ["row 0", "NaN"]),
        ({"sound": [[0, 0, 0, float("inf")]]}, ["infinite"]),
        ({"sound": 3.0}, ["sound", "row"]),
        ({"sound": [[0, 0, 0, 0], None], "word": ["a", ""]}, ["Row 1"]),
        ({"word": None}, ["word"]),
        ({"picture": torch.full((2, 1, 8, 8), 255.0)}, ["picture", 255, "[0, 1]"]),
        ({"picture": torch.full((2, 1, 8, 8), -0.5)}, ["picture", -0.5, "[0, 1]"]),
    ):
        for use in (run.generate, run.encode):
            with pytest.raises((UsageError, DataError), match=naming(*facts)):
                use(given)
    with pytest.raises(UsageError, match="word"):
        generation.generate(run.model, {"word": ["a"]})
    for options in ({"shared": "average"}, {"own": "given"}):
        with pytest.raises(UsageError, match=naming(*options.values())):
            run.generate(count=1, **options)
    for of in (run.encode, run.generate):
        with pytest.raises(UsageError, match="modality"):
            of(torch.zeros(2, 4))
    for of in (run.encode, lambda given: run.generate(given)["sound"]):
        assert torch.equal(of({"word": "a"}), of({"word": ["a"]}))


def test_members_train_as_alone_where_modalities_are_missing(run):
    from dataclasses import replace

    training = replace(run.config.training, precision="f64")
    configs = [replace(run.config, training=replace(training, seed=seed)) for seed in (0, 3)]
    together = prepare(configs, run.dataset)
    alone = [prepare(config, run.dataset) for config in configs]
    for state in (together, *alone):
        for _ in range(4):
            state.advance()
    for m, single in enumerate(alone):
        for name, parameter in single.group.parameters.items():
            torch.testing.assert_close(together.group.parameters[name][m], parameter[0], rtol=1e-8, atol=1e-8)


def test_whole_numbers_are_classes_of_labels_alone(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {"weight": rng.standard_normal((40, 1)).astype(np.float32), "kind": rng.integers(0, 3, 40)}
    run = api.train("mopoe", data=arrays, c=2, steps=2, batch=8, root=tmp_path, device="cpu")
    for whole, real in (([0, 2, -1], [0.0, 2.0, -1.0]),):
        assert torch.equal(run.encode({"weight": whole}), run.encode({"weight": real}))
    one_hot = run.encode({"kind": [0, 2]})
    assert not torch.equal(one_hot[0], one_hot[1])


def test_a_page_without_rows_of_a_modality_says_so(tmp_path):
    rng = np.random.default_rng(0)
    images = rng.random((200, 28, 28)).astype(np.float32)
    rare = np.full_like(images, np.nan)
    rare[:4] = images[:4]
    run = api.train("mopoe", data={"photo": images, "depth": rare}, c=2, s=1, steps=2, batch=16, split=0.05,
                   network="mlp", encoder_hidden=(8,), decoder_hidden=(8,), root=tmp_path, device="cpu")  # fmt: skip
    there = run.dataset.has("depth", run.evaluation.rows)
    assert not bool(there.any()), "the case needs held-out rows without it"
    left_out = build_multimodal_section(run.evaluation).left_out
    assert names(left_out, "depth")
    assert left_out in run.report().read_text()
    with pytest.raises(UsageError, match="depth"):
        run.translate("depth", "photo")


def test_weights_of_latents_that_are_not_there_are_refused(tmp_path):
    pairs = {"data": "sprites-pairs", "data_size": 16, "data_orientations": 2, "data_positions": 2, "steps": 1}
    for given, facts in (({"betas": ["m2:50"]}, ["m2", "latents"]), ({"beta_m": 50.0}, ["beta_m", 50])):
        with pytest.raises(UsageError, match=naming(*facts)):
            api.train("mvae", **pairs, **given, batch=8, root=tmp_path, device="cpu")


def test_observed_rows_are_completed_without_their_absent_cells(run):
    data, rows = run.dataset, torch.arange(8, 24)
    picture, sound = (data.has(name, rows) for name in ("picture", "sound"))
    assert bool((picture & ~sound).any()), "the rows must lack something"
    observed = data.observed(rows)
    made = run.generate({name: observed[name] for name in ("picture", "sound", "word")}, shared="mean")
    marked = run.generate(observed, shared="mean")
    exact = run.generate(
        {
            "picture": [x.numpy() if there else None for x, there in zip(observed["picture"], picture, strict=True)],
            "sound": [x.numpy() if there else None for x, there in zip(observed["sound"], sound, strict=True)],
            "word": observed["word"],
        },
        shared="mean",
    )
    assert torch.equal(marked["word"], exact["word"])
    assert not torch.allclose(marked["word"], made["word"]), "zeros are an observation like any other"


def test_unknown_options_of_pictures_are_named(run):
    with pytest.raises(UsageError, match=naming("counts", "count")):
        run.generate(counts=3)
    with pytest.raises(UsageError, match=naming("rowz", "base")):
        run.traverse(rowz=3)
