"""Kills, a full disk, flipped bytes and threads: the result has the bits of an undisturbed one, or says what is wrong.

Each test has a quick form and a slow one with 200 cases, or with every file operation of six commands; the number of
cases is printed (`pytest -s`, or `-rP`).
"""

import json
import os
import random
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import unbraid as ub
from unbraid import folder_check
from unbraid.errors import RunError
from unbraid.store import RunFolder, load_tensors
from unbraid.training import Cadence, Interrupted
from unbraid.training.state import State

ROOT = Path(__file__).parents[2]
TINY = {
    "data": "sprites-small",
    "data_positions": 4,
    "data_scales": 2,
    "device": "cpu",
    "steps": 20,
    "batch": 16,
    "z": 4,
}
TINY |= {"encoder": "mlp", "decoder": "mlp", "encoder_hidden": (8,), "decoder_hidden": (8,)}
ALL = ("train", "fresh", "sweep", "refine", "report", "fetch")


def break_commands(folder: Path, kind: str, count: int, *scenarios: str) -> dict:
    """Run `tests/support/broken.py` in a process that forks before it computes."""
    command = [sys.executable, str(ROOT / "tests/support/broken.py"), kind, str(folder), str(count), *scenarios]
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    settings = {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths, "UNBRAID_QUIET": "1", "UNBRAID_DATA": str(folder / "data")}
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **settings}, timeout=6000)
    assert done.returncode == 0, done.stderr[-2000:]
    facts = json.loads(done.stdout.splitlines()[-1])
    print(f"{kind}: {facts['done']} cases of {facts['operations']} operations, {len(facts['wrong'])} wrong")
    print("\n".join(facts["wrong"]))
    return facts


@pytest.mark.parametrize(
    ("count", "scenarios"),
    [
        (3, ("fresh",)),
        pytest.param(10_000, ALL, marks=pytest.mark.slow, id="all"),
        pytest.param(12, ("reproduce",), marks=pytest.mark.slow, id="reproduce"),
    ],
)
def test_a_process_killed_at_a_file_operation_loses_nothing(tmp_path, count, scenarios):
    facts = break_commands(tmp_path, "kill", count, *scenarios)
    assert facts["wrong"] == []
    assert facts["done"] >= min(count, sum(facts["operations"].values())) - len(scenarios)


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["train", "fresh", "sweep", "refine", "report", "fetch"])
def test_a_disk_that_fills_at_any_write_is_one_sentence_and_loses_nothing(tmp_path, scenario):
    facts = break_commands(tmp_path, "full", 10_000, scenario)
    assert facts["wrong"] == []
    assert facts["done"] == facts["operations"][scenario] > 0


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A finished run with a score, and the same settings stopped at step 15 with two checkpoints."""
    root, advance = tmp_path_factory.mktemp("flipped"), State.advance

    def stop_at_15(self):
        advance(self)
        if self.step == 15:
            raise Interrupted("stop here")

    ub.train("vae", **TINY, root=root, name="finished").score("kl/closed-form")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(State, "advance", stop_at_15)
        ub.train("vae", **TINY, root=root, name="stopped", cadence=Cadence(checkpoint_steps=5))
    return root


def read_everything(folder: RunFolder) -> dict:
    """Everything that a command takes from a run, except facts that nothing depends on."""
    texts = {name: folder.read_json(name) for name in ("status", "data")}
    known = {name: {k: v for k, v in text.items() if k in KNOWN} for name, text in texts.items()}
    lines = {name: [{k: v for k, v in x.items() if k in KNOWN} for x in folder.read_lines(name)] for name in LINES}
    weights = {n: t.tolist() for n, t in load_tensors(folder.model_path)[0].items()} if folder.finished else {}
    return {**known, **lines, "config": folder.config, "weights": weights}


LINES = ("history", "scores")
KNOWN = {"state", "step", "content", "shape", "images", "loss", "metric", "protocol", "value", "samples", "details"}


@pytest.mark.parametrize("places", [8, pytest.param(200, marks=pytest.mark.slow)])
def test_a_flipped_byte_is_refused_by_name_or_changes_nothing(runs, tmp_path, places):
    chance, refused, harmless = random.Random(places), 0, 0
    expected = {name: read_everything(RunFolder(runs / name)) for name in ("finished", "stopped")}
    weights = load_tensors(runs / "finished" / "model.safetensors")[0]
    for number in range(places):
        name = chance.choice(["finished", "stopped"])
        copy = shutil.copytree(runs / name, tmp_path / str(number))
        file = chance.choice(sorted(path for path in copy.rglob("*") if path.is_file() and path.stat().st_size))
        content = bytearray(file.read_bytes())
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        file.write_bytes(content)
        damage = [each for each in folder_check.check(copy).findings if each.state == "damaged"]
        if damage:
            assert any(file.name in each.file + each.what for each in damage), (file, damage)
            refused += 1
        else:
            assert read_everything(RunFolder(copy)) == expected[name], file
            harmless += 1
        if name == "stopped":
            assert_resumes_equal(copy, weights, file)
        shutil.rmtree(copy)
    print(f"{places} flipped bytes: {refused} refused by name, {harmless} without an effect")
    assert refused > 0


def assert_resumes_equal(copy: Path, weights: dict, file: Path) -> None:
    """Resume from the newest whole checkpoint, if the texts are whole, to the weights of the unbroken run."""
    try:
        resumed = ub.train("vae", **TINY, root=copy.parent, name=copy.name)
    except RunError as error:
        assert file.name in str(error)
        return
    found = load_tensors(resumed.folder.model_path)[0]
    assert all(torch.equal(found[name], weights[name]) for name in weights), file


@pytest.mark.parametrize("tasks", [4, pytest.param(200, marks=pytest.mark.slow)])
def test_threads_give_the_bits_of_one_after_the_other(runs, tmp_path, tasks):
    images = ub.load(runs / "finished", device="cpu").dataset.images(torch.arange(8))

    def work(root: Path, number: int) -> object:
        kind, seed = number % 4, number // 4 % 3
        if kind < 2:
            run = ub.train(("vae", "beta-tcvae")[kind], **TINY, seed=seed, root=root, name=str(number))
            return {name: tensor.tolist() for name, tensor in load_tensors(run.folder.model_path)[0].items()}
        opened = ub.load(runs / "finished", device="cpu")
        if kind == 2:
            return [score.value for score in opened.score("kl/closed-form", "elbo/closed-form", save=False)]
        return opened.encode(images).tolist()

    state = torch.get_rng_state()
    alone = {number: work(tmp_path / "alone", number) for number in range(min(tasks, 12))}
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda number: work(tmp_path / "together", number), range(tasks)))
    assert torch.equal(torch.get_rng_state(), state)
    different = [number for number in range(tasks) if together[number] != alone[number % 12]]
    print(f"{tasks} tasks in 8 threads, {len(different)} different")
    assert different == []
