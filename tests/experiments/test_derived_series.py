"""Series that refine another one or are as large as another's, on the frame itself and in msvae2020's studies."""

import shutil
from dataclasses import replace

import pytest
import torch

from tests.support.messages import names
from tests.support.results import made_up
from unbraid.config import Choice
from unbraid.data import Factor, FactorDataset, Pixels
from unbraid.errors import UsageError
from unbraid.experiments import Results, judge
from unbraid.experiments.base import Experiment, Scale, experiment
from unbraid.experiments.derived_series import match_size
from unbraid.experiments.running import _run_experiment
from unbraid.experiments.stored_runs import Source
from unbraid.models import build
from unbraid.networks import decoder, refiner
from unbraid.networks.base import count_parameters
from unbraid.papers.msvae2020 import ablations, conditioning
from unbraid.papers.msvae2020.cars import (
    BASE,
    BIG,
    BIG_VAE,
    DISTANCE,
    L1,
    LARGE,
    MIG,
    MS,
    RE_ENCODED,
    STUDENT,
)
from unbraid.papers.msvae2020.identity import ABOVE_CHANCE, CHANGE
from unbraid.run import Run
from unbraid.store import RunFolder
from unbraid.training import configure

SHAPE = (3, 64, 64)
SPRITES = {"data": "sprites-small", "data.positions": 4}
NETS = {"encoder.hidden": (8,), "decoder.hidden": (8,), "steps": 2, "batch": 8}
FACTS = Experiment(
    claims=(),
    series={
        "first": {"recipe": "beta-vae"},
        "stage": {"recipe": "ms-vae", "refines": "first", "encoder": "mlp", "decoder": "mlp"},
        "chosen": {"recipe": "ms-code", "refines": "first", "encoder": "mlp", "decoder": "mlp"},
        "third": {"recipe": "ms-vae", "refines": "stage", "z": 2, "encoder": "mlp", "decoder": "mlp"},
    },
    only={"chosen": {"beta": [4]}, "third": {"z": 2}},
    scales={
        "smoke": Scale(
            {
                "data": "sprites-small",
                "data.positions": 4,
                "network": "mlp",
                "z": 3,
                "beta": [1, 4],
                "seed": [3],
                **NETS,
            },
            per_series={"stage": {**NETS, "z": [1, 2]}, "chosen": NETS, "third": NETS},
            measures={"gap": ("mig-of/blocks/c", {"resamples": 0})},
        )
    },
    metrics=("kl/closed-form", "cond/X"),
)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("refined")


def run(root):
    return _run_experiment(FACTS, "smoke", root, "cpu", None)


def test_stages_stand_on_each_finished_run_with_its_settings_and_are_kept(root):
    results, runs, _ = run(root)
    folders = dict(zip((m.run for m in results.members), runs, strict=True))
    by = {name: [m for m in results.members if m.settings["recipe"] == name] for name in results.series}
    assert [len(members) for members in by.values()] == [2, 4, 1, 2]
    firsts = {folders[m.run].config.run_id: m for m in by["first"]}
    for stage in by["stage"]:
        config = folders[stage.run].config
        first = firsts[config.parent["run"]]
        assert {key: stage.settings[key] for key in ("beta", "seed")} == {
            key: first.settings[key] for key in ("beta", "seed")
        }
        assert config.training.seed == first.settings["seed"]
        assert config.latents["z"]["size"] == stage.settings["z"]
        assert {"kl/closed-form", "cond/X", "gap"} <= stage.scores.keys()
        assert Run(folders[stage.run]).unchanged["max_change"] == 0
    assert {m.settings["beta"] for m in by["chosen"]} == {4}
    assert {(m.settings["seed"], m.settings["z"]) for m in by["third"]} == {(3, 2)}
    assert all("cond/X" not in m.scores for m in by["first"])
    swept = list(root.glob("beta-vae-*/runs/*"))
    assert len(swept) == 2
    assert not any((path / "left-out.json").exists() for path in swept)
    before = {folder.path: folder.model_path.stat().st_mtime_ns for folder in runs}
    lines = {folder.path: folder.read_lines("scores") for folder in runs}
    again, others, _ = run(root)
    assert {folder.path: folder.model_path.stat().st_mtime_ns for folder in others} == before
    assert {folder.path: folder.read_lines("scores") for folder in others} == lines
    for new, old in zip(again.members, results.members, strict=True):
        assert {name: new.scores[name] for name in old.scores} == old.scores


def take_from(root, tmp_path, *recipes):
    """Copy sweeps without weights, and return what an experiment makes of them: members by series, runs, notes."""
    folder = tmp_path / "scores"
    for path in root.glob("*/sweep.yaml"):
        if path.parent.name.rpartition("-")[0] in recipes:
            ignored = shutil.ignore_patterns("*.safetensors")
            shutil.copytree(path.parent, folder / path.parent.name, ignore=ignored)
    source = Source.open(folder)
    results, runs, notes = _run_experiment(FACTS, "smoke", tmp_path / "new", "cpu", source)
    folders = dict(zip((m.run for m in results.members), runs, strict=True))
    by = {name: [m for m in results.members if m.settings["recipe"] == name] for name in results.series}
    return by, {m.run: folders[m.run].path.is_relative_to(folder) for m in results.members}, notes


def test_stored_stages_are_taken_with_their_scores_and_need_no_weights(root, tmp_path):
    before, _, _ = run(root)
    by, taken, notes = take_from(root, tmp_path, "beta-vae", "ms-vae", "ms-code")
    assert all(taken.values())
    assert not (tmp_path / "new").exists(), "nothing is trained"
    after = {member.run: member for members in by.values() for member in members}
    assert after.keys() == {member.run for member in before.members}
    for member in before.members:
        assert (after[member.run].settings, after[member.run].state) == (member.settings, "finished")
        assert after[member.run].scores == member.scores
    assert len(notes) == 1 and names(notes[0], "taken", tmp_path / "scores")


def test_first_stages_without_weights_are_trained_anew_if_a_stage_is_missing(root, tmp_path):
    run(root)
    by, taken, notes = take_from(root, tmp_path, "beta-vae", "ms-vae")
    assert [len(members) for members in by.values()] == [2, 4, 1, 2]
    assert not any(taken.values()), "no stage stands on other weights than those of its first stage"
    (told,) = (note for note in notes if "weights" in note)
    assert names(told, "first", "chosen", tmp_path / "scores", "trained anew")
    assert {"kl/closed-form", "cond/X", "gap"} <= by["chosen"][0].scores.keys()


def test_first_stages_with_weights_are_refined_where_they_are(root, tmp_path):
    run(root)
    folder = shutil.copytree(next(root.glob("beta-vae-*")), tmp_path / "whole")
    results, runs, notes = _run_experiment(FACTS, "smoke", tmp_path / "new", "cpu", Source.open(folder))
    assert [path.path.is_relative_to(folder) for path in runs[:2]] == [True, True]
    assert len(results.members) == 9 and names(notes[-1], "first", "taken", "stage", "trained")


def sweeps(name):
    return experiment[f"msvae2020/{name}"].facts.build_sweeps("budget")


class Finished(RunFolder):
    """A run of which only the config is known, on images of Cars3D's shape."""

    finished, config, status = True, None, {"state": "finished"}

    def __init__(self, config):
        super().__init__("nowhere")
        self.config = config

    def read_json(self, name):
        return {"shape": list(SHAPE)}


def test_big_models_and_the_student_have_as_many_parameters_as_both_stages():
    data = FactorDataset("cars3d", Pixels(torch.zeros(2, *SHAPE, dtype=torch.uint8), SHAPE), (Factor("car", 2),))
    configs, counts = {}, {}
    every = {name: own for each in ("fig4", "fig4-student") for name, own in sweeps(each).items()}
    for name, asked in every.items():
        settings = {key: value[0] if isinstance(value, (list, range)) else value for key, value in asked.items()}
        firsts = [Finished(configs[settings.pop("refines")])] if "refines" in settings else []
        if "as_large_as" in settings:
            settings = match_size(settings, [Finished(configs[settings["as_large_as"]])], firsts)
        parent = {"run": "first", "content": "", "config": firsts[0].config.as_dict()} if firsts else None
        recipe, _ = settings.pop("recipe"), settings.pop("data", None)
        configs[name] = configure(recipe, Choice("cars3d", {}), data, settings, parent=parent)
        model = build(configs[name], SHAPE)
        counts[name] = count_parameters(model) - (count_parameters(model.first) if name == STUDENT else 0)
    for name in (BIG, BIG_VAE, STUDENT):
        assert counts[name] == pytest.approx(counts[MS], rel=0.005)
    assert configs[BIG].latents["z"]["size"] == configs[LARGE].latents["z"]["size"] == 15
    assert counts[LARGE] < counts[MS] / 4
    both = configs[BASE].training.steps + configs[MS].training.steps
    assert configs[BIG].training.steps == configs[BIG_VAE].training.steps == both


@pytest.mark.parametrize("scale", ["budget", "paper"])
def test_decoders_of_the_ablations_are_as_large_as_the_refiner(scale):
    asked, counts = experiment["msvae2020/fig38"].facts.build_sweeps(scale), []
    for name in (ablations.A2, ablations.A3, ablations.A4):
        own = {key.partition(".")[2]: value for key, value in asked[name].items() if key.startswith("decoder.")}
        with torch.device("meta"):
            if name == ablations.A4:
                made = refiner["adain"].make((3, 64, 64), 5, **own)
            else:
                made = decoder[asked[name]["decoder"]].make(10, (3, 64, 64), **own)
        counts.append(count_parameters(made))
    assert counts == pytest.approx([counts[-1]] * 3, rel=0.005)


def test_nothing_can_be_as_large_as_what_is_not_there():
    with pytest.raises(UsageError, match="MS-VAE"):
        match_size({"as_large_as": "MS-VAE", "recipe": "vae"}, [], [])


# claims


def verdicts(name, results):
    return [judge(claim, results).verdict for claim in experiment[f"msvae2020/{name}"].facts.claims]


def scored(members, rows):
    """Members of made-up results whose scores get the names of rows, which may have any number of parts."""
    named = [
        m._replace(scores=dict(zip(rows[m.settings["recipe"], m.settings["beta"]], m.scores.values(), strict=True)))
        for m in members
    ]
    return Results(tuple(named))


def made(rows, **how):
    """Made-up results of scores with any names."""
    plain = {at: {f"x/{k}": value for k, value in enumerate(row.values())} for at, row in rows.items()}
    return scored(made_up(plain, **how).members, rows)


def study(sharper=10.0, moved=0.0, shown=0.0, rising=0.1, kept=0.0):
    """Runs whose MS-VAE is nearer by `sharper`; `moved` is added to its MIG, `shown` to that of refined images."""
    at = {1: 0.1, 4: 0.1 + rising / 2, 10: 0.1 + rising}
    rows = {}
    for beta, gap in at.items():
        rows[BASE, beta] = {DISTANCE: 50 + beta, MIG: gap, L1: 0.2}
        rows[LARGE, beta] = {DISTANCE: 48 + beta, MIG: gap - 0.05, L1: 0.2}
        rows[BIG, beta] = {DISTANCE: 45 + beta, MIG: gap - 0.05}
        if beta != 4:
            rows[STUDENT, beta] = {DISTANCE: 44 + beta, MIG: gap + kept}
    rows[BIG_VAE, 1] = {DISTANCE: 43, MIG: 0.1}
    members = list(made(rows, seeds=5, noise=0.001).members)
    for one in [m for m in members if m.settings["recipe"] == BASE]:
        gap, beta = one.scores[MIG], one.settings["beta"]
        values = {DISTANCE: 40 - sharper + beta, MIG: gap.value + moved, RE_ENCODED: gap.value + shown, L1: 0.19}
        scores = {name: replace(gap, value=float(value)) for name, value in values.items()}
        members.append(one._replace(run=f"{one.run}, refined", settings={**one.settings, "recipe": MS}, scores=scores))
    return Results(tuple(members))


def test_verdicts_on_the_trade_off():
    assert verdicts("fig4", study()) == ["holds"] * 6
    assert verdicts("fig4-student", study()) == ["holds"] * 2
    assert verdicts("table1", study()) == ["holds"] * 3
    assert verdicts("fig4", study(sharper=-30))[0] == "does not hold"
    assert verdicts("table1", study(sharper=-30))[0] == "does not hold"
    assert verdicts("fig4", study(moved=1e-5))[1] == "holds"  # a row of 10,000 in another bin
    assert verdicts("fig4", study(moved=1e-3))[1] == "does not hold"
    assert verdicts("fig4", study(shown=-0.08))[2] == "does not hold"
    assert verdicts("fig4", study(rising=-0.1))[4] == "does not hold"
    assert verdicts("fig4-student", study(kept=-0.2))[1] == "does not hold"
    assert verdicts("fig34", study()) == ["holds", "holds"]


def test_verdicts_on_conditioning_and_attributes():
    scores = (conditioning.M1, conditioning.M2, conditioning.M3, conditioning.M4)

    def conditioned(*values):
        return made({(MS, beta): dict(zip(scores, values, strict=True)) for beta in (1, 4, 10)}, noise=0.005)

    assert verdicts("fig5", conditioned(0.6, 0.7, 0.55, 0.1)) == ["holds"] * 3
    assert verdicts("fig5", conditioned(0.6, 0.5, 0.3, 0.25)) == ["does not hold", "does not hold", "does not hold"]
    names = (conditioning.FROM_C, conditioning.FROM_Z, conditioning.GAIN)

    def known(falls, gain):
        rows = {beta: (0.5 - falls * beta, 0.3 + falls * beta, gain) for beta in (1, 4, 10)}
        return made({(MS, beta): dict(zip(names, row, strict=True)) for beta, row in rows.items()}, noise=0.005)

    assert verdicts("fig6", known(0.03, 0.1)) == ["holds"] * 3
    assert verdicts("fig6", known(-0.03, -0.1)) == ["does not hold"] * 3


def test_verdicts_on_the_ablations():
    bv, a1, a2, a3, a4, a5 = (getattr(ablations, name) for name in ("BV", "A1", "A2", "A3", "A4", "A5"))

    def results(entangled, sharp, keeps, held):
        view = dict.fromkeys(ablations.VIEW, 0.5)
        rows = {bv: {MIG: 0.2, ablations.KL_OF_Z: 10.0, **view}, a1: {MIG: 0.2 - entangled}}
        rows[a5] = {ablations.KL_OF_Z: held, **{name: value + held / 10 - 0.5 for name, value in view.items()}}
        for name, better in ((a2, 0.0), (a3, keeps), (a4, keeps)):
            rows[name] = {DISTANCE: 30 - (sharp if name == a4 else 0), ABOVE_CHANCE: 0.4 + better, CHANGE: 0.05}
        return made({(name, 4): row for name, row in rows.items()}, noise=0.002)

    good, bad = results(0.1, 5, 0.2, 0.2), results(-0.1, -5, -0.2, 9.0)
    for name, claims in (("fig37", 1), ("fig38", 2), ("fig39", 2)):
        assert verdicts(name, good) == ["holds"] * claims
        assert verdicts(name, bad) == ["does not hold"] * claims
