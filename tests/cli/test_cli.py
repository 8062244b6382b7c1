"""The command line as a person or a program uses it: output, exit codes, one clear sentence for a mistake."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import unbraid.cli.train as commands
from tests.support.command import SOURCE, unbraid
from tests.support.messages import names, naming
from unbraid.cli.printing import print_rows
from unbraid.store import load_tensors, save_tensors

SMALL = ["data=sprites-small", "network=mlp", "encoder.hidden=[16]", "z=3", "batch=32", "steps=30"]
VAE = ["train", "vae", "data=sprites-small"]
TINY = ["data=sprites-small", "data.positions=4", "network=mlp", "steps=3"]
NARROW = ["encoder.hidden=[16]", "decoder.hidden=[16]", "z=3", "batch=16"]


def is_one_error(printed):
    return printed.startswith("error: ") and len(printed.strip().splitlines()) == 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("cli")
    told = json.loads(unbraid("train", "beta-tcvae", *SMALL, "--json", "--device", "cpu", cwd=made))
    assert told["step"] == 30
    assert Path(made / told["run"]).name == told["id"]
    return made / told["run"]


def test_importing_what_trains_imports_no_compiler():
    code = (
        "import sys, unbraid; unbraid.train, unbraid.sweep; assert not {'triton', 'torch._inductor'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": SOURCE}
    )
    assert done.returncode == 0, done.stderr


def test_help_imports_no_torch_and_shows_an_example():
    code = "import sys, unbraid.cli\nsys.argv = ['unbraid', '--help']\n"
    code += "try:\n    unbraid.cli.main()\nexcept SystemExit:\n    pass\n"
    code += "assert not {'torch', 'numpy', 'scipy'} & set(sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": SOURCE}
    )
    assert done.returncode == 0, done.stderr
    assert "unbraid train beta-tcvae" in " ".join(done.stdout.split())
    for command in ("demo", "train", "sweep", "evaluate", "report", "reproduce", "list", "data"):
        assert command in done.stdout
    assert not re.search(r"[\w,]\.\.\.$", done.stdout, re.MULTILINE)  # summaries end at a clause


@pytest.mark.parametrize(
    "command",
    [
        ["train"],
        ["sweep"],
        ["evaluate"],
        ["report"],
        ["reproduce"],
        ["list"],
        ["demo"],
        ["data", "fetch"],
        ["data", "check"],
    ],
)
def test_every_command_helps_with_an_example(command):
    assert re.search(r"Examples?: +unbraid ", unbraid(*command, "--help"))


def test_evaluate_prints_names_with_protocols(folder):
    table = unbraid("evaluate", folder, "--metric", "mig", "--device", "cpu")
    assert all(name in table for name in ("mig/exact", "mig/histogram-mean", "mig/histogram-sampled"))
    records = json.loads(unbraid("evaluate", folder, "--metric", "tc/exact", "--json", "--device", "cpu"))
    assert records[0]["metric"] == "tc"
    assert records[0]["protocol"] == "exact"
    names = [json.loads(line)["metric"] for line in (folder / "scores.jsonl").read_text().splitlines()]
    assert names.count("mig") == 4
    assert names.count("tc") == 1


def test_compare_prints_differences(folder):
    how = ("--metric", "mig/histogram-mean", "--resamples", "3", "--device", "cpu", "--json")
    (found,) = json.loads(unbraid("compare", folder, folder, *how))
    assert found["score"] == "mig/histogram-mean"
    assert found["difference"] == 0
    assert names(unbraid("compare", folder, "beta=1", code=2), "two runs")


def test_misspelt_settings_of_metrics_are_refused(folder):
    told = unbraid("evaluate", folder, "bin=3", "--metric", "mig", "--device", "cpu", code=2)
    assert names(told, "bin", "bins")
    assert names(unbraid("evaluate", folder, "--metric", "migg", "--device", "cpu", code=2), "migg", "mig")


@pytest.mark.parametrize(
    ("metric", "setting", "facts"),
    [
        ("mig", "bins=0", ["bins", 2, 0]),
        ("mig", "bins=few", ["bins", "few"]),
        ("mig", "factors=[posZ]", ["posZ", "posY"]),
        ("full", "factors=[posZ]", ["posZ", "posY"]),
    ],
)
def test_wrong_settings_are_refused_whichever_protocols_have_them(folder, metric, setting, facts):
    told = unbraid("evaluate", folder, setting, "--metric", metric, "--device", "cpu", code=2)
    assert names(told, *facts)
    assert is_one_error(told)


def test_records_hold_their_whole_protocol(folder):
    record = json.loads(
        unbraid("evaluate", folder, "bins=7", "--metric", "mig/histogram-mean", "--json", "--device", "cpu")
    )
    assert record[0]["details"]["settings"]["bins"] == 7
    assert record[0]["details"]["rows"] == "all"


def test_headers_of_a_wide_table_break_between_words(capsys):
    scores = ("mig/histogram-mean", "mig/histogram-sampled", "elbo/closed-form", "reconstruction/nats")
    row = {f"median {score} {k}": 0.5 for k in range(2) for score in scores}
    print_rows([row], as_json=False)
    wide = capsys.readouterr().out
    assert wide.count("histogram-sampled") == wide.count("reconstruction/") == 2
    print_rows([{"median mig/exact": 0.5}], as_json=False)
    assert "median mig/exact" in capsys.readouterr().out


def test_report_is_written(folder):
    path = unbraid("report", folder, "--device", "cpu").strip()
    assert Path(path).read_text().startswith("<!doctype html>")


def test_finished_run_is_not_trained_again(folder):
    before = (folder / "model.safetensors").stat().st_mtime_ns
    told = unbraid("train", "beta-tcvae", *SMALL, "--device", "cpu", cwd=folder.parents[1])
    assert names(told, "finished")
    assert (folder / "model.safetensors").stat().st_mtime_ns == before


@pytest.mark.parametrize("kind", ["objectives", "networks", "datasets", "metrics", "likelihoods"])
def test_listings(kind):
    rows = json.loads(unbraid("list", kind, "--json"))
    assert rows
    assert all(row["name"] and row["what"].endswith(".") for row in rows)


def test_data_listing_and_check():
    rows = json.loads(unbraid("data", "list", "--json"))
    assert {"sprites", "mnist", "images"} <= {row["name"] for row in rows}
    assert json.loads(unbraid("data", "check", "sprites", "--json"))[0]["state"] == "made"


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (["train", "beta-tcva"], ["objective", "beta-tcva", "beta-tcvae"]),
        (["train", "vae", "data=sprite"], ["data", "sprite", "sprites"]),
        (["train", "vae", "data=images"], ["images", "data.folder"]),
        ([*VAE, "stepz=3"], ["stepz", "vae", "steps"]),
        ([*VAE, "steps=many"], ["steps", "many"]),
        ([*VAE, "network=mlp-chan"], ["network", "mlp-chan", "mlp-chen"]),
        ([*VAE, "network=mlp-esmaeili-64"], ["64x64"]),
        ([*VAE, "encoder.widht=3"], ["widht", "conv-small", "width"]),
        ([*VAE, "data.sise=3"], ["sise", "sprites-small"]),
        (["data", "check", "mnist", "name=3"], ["name", "mnist"]),
        (["data", "fetch", "mnist", "source=3"], ["source", "mnist"]),
        ([*VAE, "z=0"], ["latent", 1, 0]),
        ([*VAE, "z=3.5"], ["z", "3.5"]),
        (["train", "vae", "photos"], ["data=photos", "key=value"]),
        (["train", "data=photos"], ["beta-tcvae", "data=photos"]),
        (["train", "vae", "data=photos"], ["folder", "photos"]),
        ([*VAE, "--device", "tpu"], ["device", "tpu"]),
        ([*VAE, "--fresh"], ["--fresh", "--name"]),
        ([*VAE, "encoder=broadcast"], ["broadcast", "encoder=NAME"]),
        (["train", "hfvae", *TINY, "batch=1"], ["stratified", "batch", 2]),
        (["train", "dip-vae-ii", *TINY, "batch=1"], ["DIP-VAE", "batch", 2]),
        (["train", "dip-vae-i", *TINY, "latents=concrete:3"], ["DIP-VAE", "latent"]),
        (["train", "anchored-corex", *TINY, "anchors=[10]"], ["anchors", 0, 9]),
        (["sweep", "hfvae", *TINY, "batch=1", "seed=0,1"], ["stratified", "batch", 2]),
        (["sweep", "dip-vae-ii", *TINY, "batch=8,1"], ["DIP-VAE", "batch"]),
        ([*VAE, "batch=99999"], ["batch", 99999, 1536]),
        ([*VAE, "--name", "../evil"], ["name", "../evil"]),
        ([*VAE, "device=cpu"], ["device", "--device"]),
        ([*VAE, "cadence=3"], ["cadence"]),
        ([*VAE, "recipe=3"], ["recipe"]),
        ([*VAE, "seed=99999999999999999999"], ["seed", 0, "2^62"]),
        ([*VAE, "likelihood=gaussian", "likelihood.scale=0"], ["scale", 0]),
        ([*VAE, "--checkpoint-steps", "0"], ["checkpoint_steps", 1, 0]),
        ([*VAE, "--device", "cpu:x"], ["cpu:x"]),
        (["list", "objective"], ["objective", "objectives"]),
        (["train", "beta-vae", *TINY, "warmup=-10"], ["steps", -10]),
        (["train", "annealed-vae", *TINY, "capacity_steps=-1"], ["steps", -1]),
        (["train", "info-vae", *TINY, "alpha=5"], ["alpha", 1, 5]),
        (["train", "info-vae", *TINY, "lambda_mmd=0"], ["alpha", "lambda_mmd", 1, 0]),
        (["train", "beta-tcvae", *TINY, "groups=3"], ["groups"]),
        (["train", "beta-tcvae", *TINY, "groups=true"], ["groups"]),
        ([*VAE, "latents=normal:10", "z=5"], ["z=5", "latents=normal:10"]),
        ([*VAE, "latents=normal:\u00b2"], ["normal:\u00b2"]),
        (["train", "vae", *TINY, "latents=concrete:3", "latents.c.final=1", "latents.c.anneal=9"], ["anneal", 9, 3]),
        (["train", "information-dropout", *TINY, "prior=flow"], ["prior=flow"]),
    ],
)  # fmt: skip
def test_wrong_use_is_one_error_and_exit_2(arguments, facts, tmp_path):
    told = unbraid(*arguments, cwd=tmp_path, code=2)
    assert names(told, *facts)
    assert is_one_error(told)
    assert not list(tmp_path.glob("runs/*")), "what was refused leaves no run behind"


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        (["evaluate", "nowhere"], "nowhere"),
        (["report", "."], "config.yaml"),
        (["train", "vae", "data=mnist"], "unbraid data fetch mnist"),
        (["train", "vae", "data=images", "data.folder=nothing"], "nothing"),
        ([*VAE, "data.positions=4", "--root", "/dev/null"], "/dev/null"),
    ],
)
def test_failures_are_one_error_and_exit_1(arguments, fact, tmp_path):
    told = unbraid(*arguments, cwd=tmp_path, code=1, UNBRAID_DATA=str(tmp_path / "data"))
    assert names(told, fact)
    assert is_one_error(told)


def test_a_scored_run_without_its_weights_is_never_taken_for_a_success(folder, tmp_path):
    import shutil

    copy = shutil.copytree(folder, tmp_path / "runs/lost")
    unbraid("evaluate", copy, "--metric", "kl/closed-form", "--device", "cpu")
    (copy / "model.safetensors").unlink()
    again = ["train", "beta-tcvae", *SMALL, "--name", "lost", "--device", "cpu"]
    for command in (["evaluate", copy, "--device", "cpu"], again, [*again, "--resume"]):
        told = unbraid(*command, cwd=tmp_path, code=1)
        assert is_one_error(told.splitlines()[-1])
        assert names(told, "weights are missing", "--fresh --name lost")
    unbraid(*again, "--fresh", cwd=tmp_path)
    assert (copy / "model.safetensors").exists()


def test_next_commands_can_be_pasted(tmp_path):
    told = unbraid("train", "vae", *TINY, *NARROW, "--root", "our runs", "--name", "mein Lauf", cwd=tmp_path)
    assert names(told, "unbraid report 'our runs/mein Lauf'")


def test_a_name_that_cannot_be_resumed_is_noticed(tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr(commands, "announce", said.append)
    for _ in range(2):
        unbraid("train", "vae", *TINY, *NARROW, "--name", "misspelt", "--resume", cwd=tmp_path)
    assert len(said) == 1, "the second call finds the run"
    assert names(said[0], "no run runs/misspelt to resume")


def test_damaged_weights_are_named(folder, tmp_path):
    import shutil

    copy = shutil.copytree(folder, tmp_path / "run")
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    assert names(unbraid("evaluate", copy, "--device", "cpu", code=1), "model.safetensors")


@pytest.mark.parametrize("name", ["model.safetensors", "config.yaml"])
def test_runs_that_changed_after_training_are_not_scored_or_reported(folder, tmp_path, name):
    import shutil

    copy = shutil.copytree(folder, tmp_path / "run")
    if name == "config.yaml":
        (copy / name).write_text((copy / name).read_text().replace("beta: 6.0", "beta: 5.0"))
    else:
        tensors = load_tensors(copy / name)[0]
        save_tensors(copy / name, {key: tensor + 1 for key, tensor in tensors.items()})
    for command in (["evaluate", copy, "--metric", "kl/closed-form"], ["report", copy]):
        told = unbraid(*command, "--device", "cpu", code=1)
        assert names(told, str(copy), "changed")
        assert is_one_error(told)
    (copy / "status.json").write_text('{"format": 1, "state": "finished"}')  # as of a run that never said which
    assert "kl/closed-form" in unbraid("evaluate", copy, "--metric", "kl/closed-form", "--device", "cpu")


def test_ctrl_c_saves_and_resume_finishes(tmp_path):
    command = [
        sys.executable,
        "-m",
        "unbraid",
        "train",
        "vae",
        *SMALL[:-1],
        "steps=100000",
        "--name",
        "long",
        "--log-steps",
        "5",
    ]
    env = {**os.environ, "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True)
    history = tmp_path / "runs/long/history.jsonl"
    deadline = time.monotonic() + 60
    while not (history.exists() and history.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    told = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    status = json.loads((tmp_path / "runs/long/status.json").read_text())
    assert status["state"] == "interrupted"
    assert names(told, status["step"], "--resume")
    again = unbraid("train", "vae", *SMALL[:-1], "steps=100000", "--name", "long", cwd=tmp_path, code=2)
    assert names(again, "--resume")
    other = unbraid("train", "vae", *SMALL, "--name", "long", cwd=tmp_path, code=1)
    assert names(other, "training.steps", 100000, 30)
    unbraid("train", "vae", *SMALL, "--name", "long", "--fresh", cwd=tmp_path)


@pytest.mark.parametrize(
    ("more", "fact"),
    [
        (["beat=6"], "beat"),
        (["--device", "cud"], "cud"),
        (["split=5"], "split"),
        (["network=mlp-esmaeili-64"], "64x64"),
        (["groups=3"], "groups"),
    ],
)
def test_a_wrong_request_for_a_fresh_run_leaves_the_old_one(more, fact, folder):
    before = sorted((path.name, path.stat().st_mtime_ns) for path in folder.iterdir() if path.is_file())
    again = ["--root", str(folder.parent), "--name", folder.name, "--fresh"]
    assert names(unbraid(*VAE, *more, *again, code=2), fact)
    assert sorted((path.name, path.stat().st_mtime_ns) for path in folder.iterdir() if path.is_file()) == before


def test_nothing_but_a_run_is_ever_removed_or_written_into(tmp_path):
    root = tmp_path / "runs"
    (root / "photos").mkdir(parents=True)
    (root / "photos" / "thesis.txt").write_text("years of work")
    outside = tmp_path / "precious"
    unbraid("train", "vae", *SMALL, "--root", str(tmp_path), "--name", "precious")
    unbraid("sweep", "vae", *TINY, *NARROW, "seed=0,1", "--metric", "elbo", "--root", str(root), "--name", "many")
    for name, code in (("photos", 1), ("many", 1), ("../precious", 2)):
        for fresh in ([], ["--fresh"]):
            assert names(unbraid(*VAE, "--root", str(root), "--name", name, *fresh, code=code), name)
    assert (root / "photos" / "thesis.txt").read_text() == "years of work"
    assert (outside / "model.safetensors").exists()
    assert (root / "many" / "sweep.yaml").exists()
    assert len(list((root / "many" / "runs").iterdir())) == 2


def test_ctrl_c_outside_training_is_told(folder, monkeypatch):
    def interrupted(*given, **others):
        raise KeyboardInterrupt

    monkeypatch.setattr("unbraid.run.load", interrupted)
    assert unbraid("evaluate", folder, code=130).count("\n") == 1


def test_completion_knows_the_recipes():
    from unbraid.cli import registered_names
    from unbraid.data import dataset
    from unbraid.methods import objective
    from unbraid.metrics import metric

    assert registered_names("methods", "objective|preset") == list(objective)
    assert registered_names("data", "dataset") == list(dataset)
    assert registered_names("metrics", r"\w*metric\w*") == sorted(metric)


def test_train_help_names_every_setting():
    from unbraid.config import Training

    told = unbraid("train", "--help")
    assert all(name in told for name in [*Training.fields(), "network", "likelihood", "decoder"])


def test_words_that_look_like_nothing_are_words(tmp_path):
    unbraid("train", "vae", *SMALL, "split=none", "decay=none", "--device", "cpu", cwd=tmp_path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("data.json", "[]"),
        ("status.json", "{"),
        ("data.json", None),
        ("scores.jsonl", '{"a": 1}\n'),
        ("history.jsonl", "[[\n"),
    ],
)
def test_damaged_files_are_named(folder, tmp_path, name, content):
    import shutil

    copy = shutil.copytree(folder, tmp_path / "run")
    (copy / name).unlink(missing_ok=True)
    if content is not None:
        (copy / name).write_text(content)
    command = "report" if name.endswith("l") else "evaluate"
    told = unbraid(command, copy, "--device", "cpu", code=1) if name != "status.json" else ""
    assert name == "status.json" or name in told
    if name == "status.json":
        from unbraid.errors import RunError
        from unbraid.store import RunFolder

        with pytest.raises(RunError, match=naming("status.json")):
            _ = RunFolder(copy).finished


def test_scores_that_data_do_not_allow_are_noted_and_the_others_kept(tmp_path):
    unbraid("train", "vae", *SMALL, "split=posX:3", "--name", "one", "--device", "cpu", cwd=tmp_path)
    table = unbraid("evaluate", "runs/one", "--device", "cpu", cwd=tmp_path)
    assert "tc/exact" in table
    assert "mig" not in table
    allowed = unbraid(
        "evaluate", "runs/one", "factors=[posY,scale]", "--metric", "mig", "--device", "cpu", cwd=tmp_path
    )
    assert "mig/exact" in allowed


def test_several_runs_are_scored_together_and_compared(tmp_path):
    for seed in (0, 1, 2):
        unbraid("train", "vae", *TINY, *NARROW, f"seed={seed}", "--name", f"s{seed}", "--device", "cpu", cwd=tmp_path)
    table = unbraid("evaluate", "runs/s0", "runs/s1", "runs/s2", "--metric", "udr", "--device", "cpu", cwd=tmp_path)
    assert table.count("udr/spearman") == table.count("udr/lasso") == 3
    records = json.loads(
        unbraid("evaluate", "runs/s0", "runs/s1", "--metric", "units", "--json", "--device", "cpu", cwd=tmp_path)
    )
    assert list(records) == ["runs/s0", "runs/s1"]
    alone = unbraid("evaluate", "runs/s0", "--metric", "udr", "--device", "cpu", cwd=tmp_path, code=2)
    assert "unbraid evaluate RUN RUN" in alone
    unbraid("train", "vae", *TINY, *NARROW, "data.scales=3", "--name", "other", "--device", "cpu", cwd=tmp_path)
    told = unbraid("evaluate", "runs/s0", "runs/other", "--metric", "udr", "--device", "cpu", cwd=tmp_path, code=2)
    assert names(told, "data")


def test_random_rows_and_published_protocols(folder):
    table = unbraid("evaluate", folder, "--metric", "mig/exact", "--rows", "100", "--device", "cpu")
    assert names(table, 100)
    record = json.loads(
        unbraid("evaluate", folder, "--metric", "mig/exact", "--rows", "100", "--json", "--device", "cpu")
    )[0]
    assert record["samples"] == 100
    assert names(record["details"]["rows"], 100)
    assert names(unbraid("evaluate", folder, "--rows", "1", "--device", "cpu", code=2), "rows", 2)
    assert names(unbraid("evaluate", "bins=3", code=2), "run")
    told = unbraid("evaluate", folder, "--metric", "frechet/inception", "--device", "cpu", code=2)
    assert "weights" in told
