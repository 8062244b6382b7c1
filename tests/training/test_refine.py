"""A second stage: what it must leave as it was, what it refuses, and that chains, members and commands of it work."""

import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import unbraid as ub
from tests.support.messages import names, naming
from unbraid.cli import app
from unbraid.errors import RunError, UnbraidError, UsageError
from unbraid.latents import Space, StackedSpace
from unbraid.methods import objective
from unbraid.models import StagedVAE, build
from unbraid.networks.refiners import AdaIN
from unbraid.noise import draw, seed_tensor
from unbraid.objectives import bind
from unbraid.store import RunFolder, load_tensors, save_tensors, select_prefix
from unbraid.training.grouping import structure_key
from unbraid.training.prepare import prepare
from unbraid.types import Inputs

TINY = {"network": "mlp", "encoder_hidden": (8,), "decoder_hidden": (8,), "batch": 8, "steps": 6, "device": "cpu"}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def first(root):
    return ub.train("beta-vae", data="sprites-small", z=3, root=root, name="first", **TINY)


@pytest.fixture(scope="module")
def second(root, first):
    return ub.refine(first, "vae", z=2, root=root, name="second", lr=1e-2, **TINY)


@pytest.mark.parametrize("members", [1, 2])
def test_a_first_stage_keeps_full_precision_beside_copies_in_bfloat16(second, members):
    training = [replace(second.config.training, precision="bf16", seed=seed) for seed in range(members)]
    configs = [replace(second.config, training=each) for each in training]
    plain, copying = (prepare(configs, second.dataset, execution="plain") for _ in range(2))
    copying.group.keep_half_copies()
    assert copying.group.half_leaves and not any(".first." in name for name in copying.group.half_copies)
    plain.advance()
    copying.advance()
    losses = [[means["loss"] for means in state.take_means()] for state in (plain, copying)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


@pytest.mark.gpu
def test_a_second_stage_trains_in_bfloat16_on_a_gpu(root, first):
    run = ub.refine(first, "vae", z=2, root=root, name="half", **TINY | {"device": "cuda", "precision": "bf16"})
    assert run.folder.finished


def test_codes_before_and_after_are_compared_in_full_precision(root, first, monkeypatch):
    seen = []
    uses_tf32 = property(lambda self: bool(seen.append(self.precision)))
    monkeypatch.setattr("unbraid.metrics.base.Evaluation.uses_tf32", uses_tf32)
    half = ub.train("vae", data=first.dataset, z=2, root=root, name="half-first", **TINY | {"precision": "bf16"})
    seen.clear()
    stage = ub.refine(half, "vae", z=2, root=root, name="half-second", **TINY | {"precision": "bf16"})
    assert set(seen) == {"f32"}
    assert stage.unchanged["max_change"] == 0.0


def copied(run, to) -> RunFolder:
    shutil.copytree(run.path, to)
    return RunFolder(to)


def test_the_first_stage_is_the_parent_bit_for_bit_and_its_codes_have_not_moved(first, second):
    before, after = (load_tensors(run.folder.model_path)[0] for run in (first, second))
    frozen = select_prefix("model.first.", after)
    assert frozen.keys() == select_prefix("model.", before).keys()
    assert all(torch.equal(tensor, before[f"model.{name}"]) for name, tensor in frozen.items())
    assert second.unchanged == {"path": str(first.path), "rows": 1000, "max_change": 0.0}
    images = first.dataset.images(torch.arange(50))
    assert torch.equal(second.encode(images)[:, :3], first.encode(images))
    assert not (second.path / "parent.safetensors").exists()
    assert second.config.parent["content"] == first.folder.content() == first.folder.read_json("status")["content"]
    assert list(second.model.space.blocks) == ["c", "z"]


@pytest.mark.parametrize("samples", [0, 2])
def test_no_gradient_reaches_the_first_stage_even_if_its_parameters_ask_for_one(second, samples):
    settings = {**second.config.objective.settings, "samples": samples}
    config = replace(second.config, objective=replace(second.config.objective, settings=settings))
    model = build(config, (1, 32, 32)).train()
    assert isinstance(model, StagedVAE)
    assert not any(part.training for part in model.first.modules())
    assert not any(p.requires_grad for p in model.first.parameters())
    model.requires_grad_(True)
    index = bind("ms-vae", settings).choose_rows(torch.arange(4)[None], second.dataset, lambda *_: torch.empty(0))[0]
    noise = {name: drawn[0] for name, drawn in draw(model.needs(4), seed_tensor(0), 0).items()}
    out = model(Inputs({"x": second.dataset.images(index)}), noise)
    loss = out.decoded["x"][""].square().sum() + sum(part.square().sum() for part in out.posterior.values())
    grads = dict(
        zip(
            dict(model.named_parameters()),
            torch.autograd.grad(loss, list(model.parameters()), allow_unused=True),
            strict=True,
        )
    )
    assert all(grad is None for name, grad in grads.items() if name.startswith("first."))
    assert all(grad is not None for name, grad in grads.items() if not name.startswith("first."))
    assert torch.equal(out.sample["c"][0], out.sample["c"][1]) is False
    same = torch.equal(out.posterior["z"][0], out.posterior["z"][1])
    assert same is False  # other rows, or other draws of the same row's c


@pytest.mark.parametrize("modulation", ["channel", "spatial"])
def test_adain_is_the_formula(modulation):
    layer = AdaIN(3, 4, 5, modulation).double()
    a, z = torch.randn(2, 4, 5, 5, dtype=torch.float64), torch.randn(2, 3, dtype=torch.float64)
    weight, x, codes = layer.affine.weight.detach().numpy(), a.numpy(), z.numpy()
    for n in range(2):
        parameters = weight @ codes[n]
        half = len(parameters) // 2
        for c in range(4):
            mean = x[n, c].sum() / 25
            deviation = np.sqrt(((x[n, c] - mean) ** 2).sum() / 25 + 1e-5)
            gamma, beta = parameters[:half], parameters[half:]
            if modulation == "spatial":
                gamma, beta = (part.reshape(4, 5, 5)[c] for part in (gamma, beta))
            else:
                gamma, beta = gamma[c], beta[c]
            expected = (1 + gamma) * (x[n, c] - mean) / deviation + beta
            np.testing.assert_allclose(layer(a, z)[n, c].detach().numpy(), expected, atol=1e-12)
    with pytest.raises(UsageError, match="1x1"):
        AdaIN(3, 4, 1)


def test_a_space_in_stages_keeps_a_learned_prior_and_groups_of_c():
    earlier = Space.from_config(
        {"z": {"kind": "normal", "size": 2}, "b": {"kind": "concrete", "classes": 3}}, "blocks", None
    )
    both = StackedSpace(earlier, Space.from_config({"z": {"kind": "normal", "size": 2}}))
    assert list(both.blocks) == ["c_z", "c_b", "z"]
    assert both.levels[1] == ((0, 1), (2,), (3, 4))
    from unbraid.config import Choice
    from unbraid.latents import LEARNED_PRIOR

    earlier = Space.from_config({"z": {"kind": "normal", "size": 2}}, None, Choice("covariance", {}))
    both = StackedSpace(earlier, Space.from_config({"z": {"kind": "normal", "size": 1}}))
    learned = {LEARNED_PRIOR: torch.randn(4)}
    c, z = torch.randn(5, 4), torch.randn(5, 2)
    prior = {"c": torch.zeros(1, 4), "z": torch.zeros(1, 2), **learned}
    whole = both.joint_kl({"c": c, "z": z}, prior, {"c": c[:, :2], "z": z[:, :1]})
    parts = earlier.joint_kl({"z": c}, {"z": torch.zeros(1, 4), **learned}, {"z": c[:, :2]})
    torch.testing.assert_close(
        whole, parts + both.last_stage.joint_kl({"z": z}, {"z": torch.zeros(1, 2)}, {"z": z[:, :1]})
    )


def test_a_chain_of_three_stages_trains_loads_and_draws(root, second):
    third = ub.refine(second.path, z=1, root=root, name="third", **TINY)
    assert list(third.model.space.blocks) == ["c_c", "c_z", "z"]
    assert third.unchanged["max_change"] == 0.0
    images = second.dataset.images(torch.arange(7))
    assert torch.equal(third.encode(images)[:, :5], second.encode(images))
    made = third.model.decode_stages(third.encode(images))
    assert len(made) == 3
    assert torch.equal(made[1], second.decode(second.encode(images)))
    again = ub.load(third.path, device="cpu")
    assert torch.equal(again.encode(images), third.encode(images))
    assert again.sample(3).shape == (3, 1, 32, 32)
    assert third.triples(columns=4).height > second.triples(columns=4).height
    assert 'id="stages"' in third.report().read_text()


@pytest.mark.parametrize("recipe", ["hfvae", "info-gan", "qlae"])
def test_runs_of_other_objectives_can_be_refined(root, recipe):
    own = {"network": "mlp-infogan"} if recipe == "info-gan" else {}
    parent = ub.train(recipe, data="sprites-small", root=root, **{**TINY, "steps": 2, **own})
    run = ub.refine(parent, z=2, root=root, **{**TINY, "steps": 2})
    assert run.unchanged["max_change"] == 0.0
    assert run.sample(2).shape == (2, 1, 32, 32)
    run.traverse(columns=2)
    assert run.score("reconstruction/l2", rows=50)


def test_a_run_from_before_some_setting_was_added_is_not_taken_for_a_changed_one(first, tmp_path):
    old = copied(first, tmp_path / "old")
    text = (old.path / "config.yaml").read_text()
    assert "  decay: none\n" in text
    (old.path / "config.yaml").write_text(text.replace("  decay: none\n", ""))
    old.write_json("status", {**old.read_json("status"), "content": old.content()})
    assert ub.load(old.path, device="cpu").score("reconstruction/l2", rows=50)
    stage = ub.refine(old.path, "vae", z=2, root=tmp_path, **{**TINY, "steps": 1})
    assert stage.unchanged["max_change"] == 0.0
    assert old.content() != first.folder.content()


def test_what_cannot_be_refined_is_refused_in_one_line(root, first, tmp_path):
    def refused(error, run, kind="vae", **given):
        with pytest.raises(error) as caught:
            ub.refine(run, kind, root=tmp_path, **{"device": "cpu", **given})
        assert str(caught.value).count("\n") == 0
        return str(caught.value)

    assert names(refused(RunError, tmp_path / "nowhere"), tmp_path / "nowhere")
    assert names(refused(UsageError, first, "tea"), "tea")
    unfinished = copied(first, tmp_path / "unfinished")
    unfinished.write_json("status", {"state": "interrupted", "step": 3})
    assert names(refused(RunError, unfinished.path), unfinished.path, "interrupted")
    (lacking := copied(first, tmp_path / "lacking")).model_path.unlink()
    assert names(refused(RunError, lacking.path), lacking.path, "model.safetensors")
    unverified = copied(first, tmp_path / "unverified")
    unverified.write_json("status", {k: v for k, v in first.folder.read_json("status").items() if k != "content"})
    assert names(refused(RunError, unverified.path), unverified.path, "status.json")
    weights = copied(first, tmp_path / "weights")
    tensors = load_tensors(weights.model_path)[0]
    save_tensors(weights.model_path, {name: tensor + 1e-3 for name, tensor in tensors.items()})
    assert weights.content() != first.folder.content()
    assert names(refused(RunError, weights.path), weights.path, "changed")
    settings = copied(first, tmp_path / "settings")
    text = (settings.path / "config.yaml").read_text()
    (settings.path / "config.yaml").write_text(text.replace("beta: 4.0", "beta: 5.0"))
    assert settings.content() != first.folder.content()
    assert names(refused(RunError, settings.path), settings.path, "changed")
    (nameless := copied(first, tmp_path / "nameless")).path.joinpath("data.json").unlink()
    assert names(refused(RunError, nameless.path), "data.json")
    reshaped = copied(first, tmp_path / "reshaped")
    reshaped.write_json("data", {**first.folder.read_json("data"), "shape": [1, 16, 16]})
    assert names(refused(RunError, reshaped.path), "model.safetensors")
    assert names(refused(UsageError, first, data=np.zeros((4, 16, 16), "uint8")), "32x32")
    assert names(refused(UsageError, first, data=np.zeros((4, 32, 32), "uint8")), "data")
    assert names(refused(UsageError, first, data_positions=4), "data")
    own = ub.train(
        "vae",
        data="sprites-small",
        root=tmp_path,
        encoder=torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(1024, 20)),
        steps=1,
        device="cpu",
    )
    assert names(refused(UsageError, own), "encoder")
    assert names(refused(UsageError, first, latents="concrete:3"), "c")
    with pytest.raises(UsageError, match="unbraid refine RUN --with vae"):
        ub.train("ms-vae", data="sprites-small", root=tmp_path, device="cpu")
    assert not any(path.name.startswith("ms-vae") for path in tmp_path.iterdir())


def test_a_parent_that_changes_under_an_unfinished_run_is_noticed(first, tmp_path):
    parent = copied(first, tmp_path / "parent")
    ub.refine(parent.path, z=2, root=tmp_path, name="child", **{**TINY, "steps": 1})
    save_tensors(parent.model_path, {name: t * 2 for name, t in load_tensors(parent.model_path)[0].items()})
    parent.write_json("status", {**parent.read_json("status"), "content": parent.content()})
    with pytest.raises(UnbraidError, match=naming("child", "fresh=True")):
        ub.refine(parent.path, z=2, root=tmp_path, name="child", **{**TINY, "steps": 1})


def test_members_may_refine_different_parents_and_equal_runs_alone(root, first, second, tmp_path):
    other = ub.train("beta-vae", data="sprites-small", z=3, beta=1, seed=1, root=root, **TINY)
    given = {**{key: value for key, value in TINY.items() if key != "device"}, "z": 2, "precision": "f64"}
    swept = ub.sweep("ms-vae", refines=[first, other], seed=[0, 5], root=tmp_path, metrics=(), device="cpu", **given)
    made = swept.runs
    configs = [run.config for run in made]
    assert len({structure_key(config) for config in configs}) == 1
    assert structure_key(second.config) != structure_key(configs[0])
    assert [(run.config.parent["run"], run.config.training.seed) for run in made] == [
        (parent.config.run_id, seed) for parent in (first, other) for seed in (0, 5)
    ]
    assert all(run.unchanged["max_change"] == 0 for run in made)
    assert {path.name for path in swept.path.glob("runs/*")} == {config.run_id for config in configs}
    assert not list(swept.path.glob("runs/*/parent.safetensors"))
    for run, parent in zip(made[1:3], (first, other), strict=True):
        alone = ub.refine(parent, seed=run.config.training.seed, root=tmp_path, name="alone-" + run.path.name, **given)
        expected, member = (load_tensors(each.folder.model_path)[0] for each in (alone, run))
        assert all(torch.allclose(expected[name], member[name], rtol=1e-8, atol=1e-8) for name in expected)


def test_the_command_refines_scores_and_reports(root, first):
    runner = CliRunner()
    words = ["z=2", "encoder=mlp", "decoder=mlp", "decoder.hidden=[8]", "encoder.hidden=[8]", "steps=4", "batch=8"]
    how = ["--with", "vae", "--root", str(root), "--name", "typed", "--device", "cpu"]
    told = runner.invoke(app, ["refine", str(first.path), *words, *how], catch_exceptions=False)
    assert told.exit_code == 0
    assert names(told.stdout, 0, "1,000")
    scored = runner.invoke(app, ["evaluate", str(root / "typed"), "--metric", "mig/histogram-mean", "--rows", "200"])
    assert "mig/histogram-mean" in scored.stdout
    again = runner.invoke(app, ["refine", str(first.path), *words, *how, "--json"], catch_exceptions=False)
    assert json.loads(again.stdout)["parent"]["max_change"] == 0.0
    listed = json.loads(runner.invoke(app, ["list", "networks", "--json"]).stdout)
    assert {row["name"]: row["sides"] for row in listed}["adain"] == "refiner"
    helped = runner.invoke(app, ["refine", "--help"]).stdout
    assert "unbraid refine runs/demo --with vae z=5" in " ".join(helped.split())
    for facts in (objective[name].facts for name in objective if objective[name].facts.stage):
        (own,) = re.findall(rf"^  {facts.stage} (.*?)(?=\n  \w|\n\n)", helped, re.MULTILINE | re.DOTALL)
        told = {key: float(value) for key, value in re.findall(r"\b(z|lr|batch)=(\S+)", own)}
        defaults = dict(facts.defaults)
        latents = defaults.pop("latents") or ""
        wanted = {key: defaults[key] for key in ("lr", "batch") if key in defaults}
        assert told == wanted | ({"z": int(latents.removeprefix("normal:"))} if latents else {})
    with pytest.raises(UsageError, match=naming("fresh", root / "typed")):
        runner.invoke(app, ["refine", str(root / "typed"), "--fresh", *how], catch_exceptions=False)


def test_networks_of_no_size_and_images_that_are_not_square(first, root):
    for given in ({"decoder": "adain", "decoder_channels": 0}, {"encoder": "mlp", "encoder_hidden": (8, 0)}):
        with pytest.raises(UsageError, match=naming(1, 0)):
            ub.refine(first, "vae", z=2, steps=1, root=root, device="cpu", **given)
    images = np.zeros((20, 28, 64), dtype=np.uint8)
    wide = ub.train("vae", data=images, z=2, root=root, **TINY)
    code = ub.refine(wide, "code", z=2, steps=1, batch=8, root=root, device="cpu")
    assert code.config.decoder.name == "mlp"
