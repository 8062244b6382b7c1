"""A mistake on the command line is one clear sentence and an exit code."""

import pytest

from tests.cli.shared import SMALL, TINY, VAE, is_one_error
from tests.support.command import unbraid
from tests.support.messages import names


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
        ([*VAE, "z=0"], ["z", 1, 0]),
        (["train", "beta-vae", *TINY, "beta=inf"], ["beta", "finite", 0]),
        (["list"], ["objectives", "priors"]),
        (["sample", "demo", "-n", "0"], ["--count", "at least 1", 0]),
        (["evaluate", "demo", "--rows", "0", "--device", "cpu"], ["rows", "at least 2", 0]),
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
        ([*VAE, "--name", "../evil"], ["name", "../evil", "--root"]),
        ([*VAE, "--name", "a" * 250], ["name", "too long", 250, 200]),
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


@pytest.mark.parametrize("command", ["evaluate", "report", "explore", "encode"])
def test_a_folder_of_runs_is_no_run_and_the_command_that_lists_them_is_named(tmp_path, command):
    (tmp_path / "my runs/one").mkdir(parents=True)
    (tmp_path / "my runs/one/config.yaml").touch()
    assert names(unbraid(command, "my runs", cwd=tmp_path, code=1), "config.yaml", "unbraid runs 'my runs'")


@pytest.mark.parametrize(
    ("name", "text", "code", "facts"),
    [("boxes.csv", "a,b\n1,2\n", 2, ["config.yaml"]), ("config.yaml", "", 1, ["empty"])],
)
def test_a_file_that_is_no_config_is_refused_by_its_name(tmp_path, name, text, code, facts):
    (tmp_path / name).write_text(text)
    told = unbraid("train", "--config", name, cwd=tmp_path, code=code)
    assert names(told, name, *facts)
    assert "mapping" not in told


def test_a_second_stage_is_not_offered_other_data():
    assert "data=" not in unbraid("refine", "--help")


def test_words_that_look_like_nothing_are_words(tmp_path):
    unbraid("train", "vae", *SMALL, "split=none", "decay=none", "--device", "cpu", cwd=tmp_path)


@pytest.mark.parametrize("data", ["sprites-small", "table.csv"])
def test_nothing_held_out_is_a_word_also_if_the_data_choose_the_batch(tmp_path, data):
    (tmp_path / "table.csv").write_text("a,b\n" + "1,2\n3,4\n5,5\n" * 9)
    unbraid("train", "vae", f"data={data}", "network=mlp", "steps=2", "split=none", "--device", "cpu", cwd=tmp_path)
