"""Every verb as a command, on one run of pictures, one of a table and one of several modalities."""

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import unbraid as ub
from tests.support.command import SOURCE, unbraid
from tests.support.messages import names, naming
from unbraid.errors import UsageError

TINY = ["network=mlp", "encoder.hidden=[16]", "decoder.hidden=[16]", "z=2", "--device", "cpu"]


def read(path):
    with path.open() as handle:
        return list(csv.reader(handle))


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with two folders of pictures, a table of two factors, a table of two modalities, and a run of each."""
    home, rng = tmp_path_factory.mktemp("verbs"), np.random.default_rng(0)
    for kind, bright in (("dark", 60), ("light", 220)):
        (home / "photos" / kind).mkdir(parents=True)
        for number in range(6):
            pixels = rng.integers(0, bright, (8, 8)).astype(np.uint8)
            Image.fromarray(pixels).save(home / "photos" / kind / f"{number}.png")
    size, kind = rng.normal(size=200), rng.integers(0, 2, 200)
    with (home / "table.csv").open("w") as handle:
        handle.write("length,weight,kind\n")
        for each, place in zip(size, kind, strict=True):
            handle.write(f"{500 + 80 * each:.3f},{2e4 + 5e3 * each:.1f},{('cod', 'pike')[place]}\n")
    with (home / "pairs.csv").open("w") as handle:
        handle.write("photo,kind\n")
        for kind in ("dark", "light"):
            for number in range(6):
                handle.write(f"{'' if number == 5 else f'photos/{kind}/{number}.png'},{'' if number == 4 else kind}\n")
    unbraid("train", "vae", "data=photos", "steps=5", "--name", "photos", *TINY, cwd=home)
    unbraid("train", "vae", "data=table.csv", "steps=100", "lr=0.03", "batch=100", "--name", "table", *TINY, cwd=home)
    unbraid(
        "train", "mvae", "data=pairs.csv", "steps=12", "c=2", "network=mlp", "--name", "pairs", "--device=cpu", cwd=home
    )
    return home


@pytest.mark.parametrize("command", ["encode", "reconstruct", "sample", "traverse", "explore", "export --onnx"])
def test_output_of_a_folder_that_cannot_be_written_goes_elsewhere(home, monkeypatch, command):
    run = home / "runs/table"
    monkeypatch.setattr("os.access", lambda path, mode: mode != os.W_OK or not Path(path).is_relative_to(run))
    name, *options = command.split()
    assert names(unbraid(name, run, *options, cwd=home, code=1), run, "--out")


@pytest.mark.parametrize(("limit", "said"), [(5, True), (1200, False)])
def test_a_page_above_its_limit_says_so(home, tmp_path, monkeypatch, capsys, limit, said):
    monkeypatch.chdir(home)
    page = ub.load(home / "runs/table").explore(tmp_path / "page.html", max_kb=limit, open=False)
    assert names(capsys.readouterr().err, page.path.stat().st_size // 1000, limit) == said


def test_a_table_beside_which_nothing_can_be_written_is_completed_elsewhere(home, tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: mode != os.W_OK or Path(path) != home)
    assert names(unbraid("complete", "runs/table", home / "table.csv", cwd=home, code=1), home, "--out")
    unbraid("complete", "runs/table", home / "table.csv", "-o", tmp_path / "whole.csv", cwd=home)


def test_a_score_of_labels_says_how_data_get_them(home):
    told = unbraid("evaluate", "runs/table", "--metric", "mig/exact", cwd=home, code=1)
    assert names(told, "mig/exact", "labels", "table", "data.factors")


def test_codes_go_out_and_come_back(home):
    told = unbraid("encode", "runs/photos", cwd=home)
    assert names(told, "codes.csv", 12)
    rows = read(home / "runs/photos/codes.csv")
    assert rows[0] == ["file", "z0", "z1"]
    assert [row[0] for row in rows[1:]] == [f"{kind}/{n}.png" for kind in ("dark", "light") for n in range(6)]
    unbraid("encode", "runs/photos", "photos", "-o", "codes.npy", cwd=home)
    codes = np.load(home / "codes.npy")
    assert np.allclose(codes, np.array([row[1:] for row in rows[1:]], float), atol=1e-5)
    run = ub.load(home / "runs/photos", device="cpu")
    assert np.array_equal(codes, run.encode(home / "photos").numpy())
    one = run.encode([home / "photos/light/2.png"])
    assert np.allclose(one.numpy(), codes[8:9], atol=1e-6)
    unbraid("decode", "runs/photos", "runs/photos/codes.csv", "--out", "decoded.npy", cwd=home)
    assert np.allclose(np.load(home / "decoded.npy"), run.reconstruct(home / "photos").numpy(), atol=1e-4)
    unbraid("reconstruct", "runs/photos", "photos", "--out", "again", cwd=home)
    assert Image.open(home / "again/light/5.png").size == (8, 8)
    assert names(unbraid("reconstruct", "runs/photos", "photos", "--out", "again", cwd=home, code=2), "again")


def test_broken_pictures_are_left_out_by_every_verb(home, tmp_path):
    shutil.copytree(home / "photos", tmp_path / "photos")
    (tmp_path / "photos/dark/3.png").write_bytes(b"no picture")
    (tmp_path / "photos/light/0.png").write_bytes((home / "photos/light/0.png").read_bytes()[:-30])
    told = unbraid("train", "vae", "data=photos", "steps=5", "--name", "run", *TINY, cwd=tmp_path, code=1)
    assert names(told, "2 of 12", "dark/3.png", "light/0.png", "data.unreadable=skip")
    assert names(unbraid("advise", "photos", "--device=cpu", cwd=tmp_path, code=1), "2 of 12", "data.unreadable=skip")
    told = unbraid("advise", "photos", "data.unreadable=skip", "--device=cpu", cwd=tmp_path)
    assert names(told, "10 rows", "data=photos data.unreadable=skip")
    skip = ["data=photos", "data.unreadable=skip", "steps=5", "--name", "run"]
    unbraid("train", "vae", *skip, *TINY, cwd=tmp_path)
    whole = [f"{kind}/{n}.png" for kind, lost in (("dark", 3), ("light", 0)) for n in range(6) if n != lost]
    for given in ([], ["photos"]):
        unbraid("encode", "runs/run", *given, "-o", "codes.csv", cwd=tmp_path)
        assert [row[0] for row in read(tmp_path / "codes.csv")] == ["file", *whole]
        (tmp_path / "codes.csv").unlink()
    assert names(unbraid("encode", home / "runs/photos", "photos", cwd=tmp_path, code=1), "2 of 12", "dark/3.png")


def test_default_names_never_overwrite(home):
    for name in ("sample.png", "sample-2.png"):
        assert names(unbraid("sample", "runs/photos", "-n", 5, cwd=home), name)
        assert Image.open(home / "runs/photos" / name).width > 8
    unbraid("traverse", "runs/photos", "--out", "moves.gif", "--row", 3, "--latent", "z1", cwd=home)
    assert Image.open(home / "moves.gif").n_frames > 3
    assert names(unbraid("traverse", "runs/photos", "--by", "quantile", cwd=home, code=2), "quantiles")
    assert names(unbraid("sample", "runs/photos", "--out", "s.csv", cwd=home, code=2), "s.csv", ".png")


def test_subfolders_are_labels(home):
    run = ub.load(home / "runs/photos", device="cpu")
    assert run.config.data.settings["labels"] == "subfolders"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        assert run.dataset.factors[0].values == ("dark", "light")
        assert run.dataset.table.flatten().tolist() == [0] * 6 + [1] * 6
        run.report()


def test_a_table_comes_back_in_its_units(home):
    unbraid("reconstruct", "runs/table", "table.csv", "--out", "again.csv", cwd=home)
    rows, truth = read(home / "again.csv"), read(home / "table.csv")
    assert rows[0] == truth[0]
    made, wanted = (np.array([row[:2] for row in each[1:]], float) for each in (rows, truth))
    assert (1 - ((made - wanted) ** 2).mean(0) / wanted.var(0) > 0.9).all(), "in millimetres and grams"
    unbraid("sample", "runs/table", "-n", 50, "--out", "drawn.csv", cwd=home)
    assert {row[2] for row in read(home / "drawn.csv")[1:]} == {"cod", "pike"}
    run = ub.load(home / "runs/table", device="cpu")
    lines = np.array([[500, 2e4, 1, 0], [580, 2.5e4, 0, 1]])
    (home / "two.csv").write_text("kind,length,weight,note\ncod,500,20000,x\npike,580,25000,y\n")
    assert torch.allclose(run.encode(lines), run.encode(home / "two.csv"), atol=1e-5), "columns are known by name"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        assert run.traverse(row=3).width > 300
        page = run.report().read_text()
    assert "length" in page
    assert "kind=cod" in page


def test_missing_cells_of_a_table_are_filled(home):
    lines = (home / "table.csv").read_text().splitlines()
    truth = [line.split(",") for line in lines[1:]]
    holed = [[length, "" if row % 2 else weight, kind] for row, (length, weight, kind) in enumerate(truth)]
    (home / "holes.csv").write_text("\n".join([lines[0], *(",".join(row) for row in holed)]) + "\n")
    told = unbraid("complete", "runs/table", "holes.csv", cwd=home)
    assert names(told, "holes-completed.csv", 100, "weight")
    done = read(home / "holes-completed.csv")[1:]
    made, wanted = (np.array([row[1] for row in each[1::2]], float) for each in (done, truth))
    assert 1 - ((made - wanted) ** 2).mean() / wanted.var() > 0.8, "length tells weight"
    assert [row[0] for row in done] == [row[0] for row in truth], "what is known stays as it is"
    assert names(unbraid("encode", "runs/table", "holes.csv", cwd=home, code=2), "weight", "complete")
    with pytest.raises(UsageError, match=naming("table")):
        ub.load(home / "runs/photos", device="cpu").complete(home / "holes.csv")


def test_a_table_is_completed_in_the_form_in_which_it_came(home):
    lines = [line.split(",") for line in (home / "table.csv").read_text().splitlines()[:9]]
    holes = [["", *line[1:]] if row % 4 == 1 else line for row, line in enumerate(lines)]
    european = "\r\n".join(";".join(line).replace(".", ",") + f";{row},Größe 3.5" for row, line in enumerate(holes))
    (home / "euro.csv").write_bytes((european + "\r\n").encode("cp1252"))
    unbraid("complete", "runs/table", "euro.csv", cwd=home)
    done = (home / "euro-completed.csv").read_bytes().decode("cp1252").split("\r\n")
    for before, after in zip(european.split("\r\n"), done, strict=False):
        was, became = before.split(";"), after.split(";")
        assert became[1:] == was[1:], "what is known stays as it is"
        assert was[0] == became[0] or (was[0] == "" and float(became[0].replace(",", ".")) > 0 and "," in became[0])
    tabs = (home / "table.csv").read_text().replace(",", "\t").replace("cod", "")
    (home / "tabs.tsv").write_text(tabs)
    unbraid("complete", "runs/table", "tabs.tsv", cwd=home)
    assert (home / "tabs-completed.tsv").read_text().startswith("length\tweight\tkind\n")


def test_codes_of_a_table_with_holes_name_the_rows_of_the_file(home, tmp_path):
    lines = (home / "table.csv").read_text().splitlines()[:21]
    dropped = (0, 7, 8)
    cut = [lines[0], *(f",{line.partition(',')[2]}" if row in dropped else line for row, line in enumerate(lines[1:]))]
    (tmp_path / "sparse.csv").write_text("\n".join(cut) + "\n")
    unbraid(
        "train", "vae", "data=sparse.csv", "data.incomplete=drop", "steps=2", "--name", "sparse", *TINY, cwd=tmp_path
    )
    unbraid("encode", "runs/sparse", cwd=tmp_path)
    rows = read(tmp_path / "runs/sparse/codes.csv")
    assert [row[0] for row in rows] == ["row", *(str(row) for row in range(20) if row not in dropped)]
    unbraid("encode", "runs/sparse", home / "table.csv", "-o", "all.csv", cwd=tmp_path)
    known = {row[0]: row[1:] for row in read(tmp_path / "all.csv")}
    joined = np.array([known[row[0]] for row in rows[1:]], float)
    assert np.allclose(joined, np.array([row[1:] for row in rows[1:]], float), atol=1e-5), "joined by row"


def test_missing_modalities_are_filled_with_classes_and_pictures(home):
    told = json.loads(unbraid("complete", "runs/pairs", "pairs.csv", "--out", "full/done.csv", "--json", cwd=home))
    assert told["filled"] == {"photo": 2, "kind": 2}
    rows = read(home / "full/done.csv")
    assert rows[0] == ["photo", "kind"]
    assert all(row[1] in ("dark", "light") for row in rows[1:])
    assert all((home / "full" / row[0]).is_file() for row in rows[1:]), "paths are relative to the new file"
    pixels = [np.asarray(Image.open(home / "full" / row[0]).convert("L")) for row in rows[1:]]
    assert all(each.shape == (8, 8) for each in pixels)
    run = ub.load(home / "runs/pairs", device="cpu")
    (home / "kinds.csv").write_text("kind\nlight\ndark\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        assert torch.equal(run.encode(home / "kinds.csv"), run.encode({"kind": ["light", "dark"]}))
    unbraid("sample", "runs/pairs", "-n", 3, "--out", "drawn/s.csv", cwd=home)
    assert len(read(home / "drawn/s.csv")) == 4


def test_runs_are_listed_without_torch(home):
    code = "import sys, unbraid.cli\nsys.argv = ['unbraid', 'runs', '--json']\n"
    code += "try:\n    unbraid.cli.main()\nexcept SystemExit:\n    pass\n"
    code += "assert 'torch' not in sys.modules"
    environment = {**os.environ, "PYTHONPATH": SOURCE}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=home)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert [(row["name"], row["recipe"], row["state"]) for row in rows] == [
        ("pairs", "mvae", "finished"),
        ("photos", "vae", "finished"),
        ("table", "vae", "finished"),
    ]
    assert rows[2]["data"] == "table table.csv"
    assert all(row["kind"] == "run" and row["step"] == row["steps"] > 0 for row in rows)
    assert all(isinstance(row["seconds"], float) and isinstance(row["scores"], dict) for row in rows)


def test_a_table_is_refused_by_a_run_of_pictures(home):
    assert names(unbraid("encode", "runs/photos", "table.csv", cwd=home, code=2), "pictures", "table")


def test_show_tells_formula_settings_and_reference():
    shown = unbraid("show", "beta-tcvae")
    assert names(shown, "alpha MI", "beta", "6.0", "stratified", "Isolating sources")
    protocols = json.loads(unbraid("show", "mig", "--json"))
    assert {"mig/exact", "mig/histogram-mean"} <= {each["name"] for each in protocols}
    assert {each["kind"] for each in json.loads(unbraid("show", "mlp", "--json"))} == {"encoder", "decoder", "refiner"}
    assert names(unbraid("show", "beta-tcva", code=2), "beta-tcvae")
    assert {"normal", "concrete"} <= {row["name"] for row in json.loads(unbraid("list", "latents", "--json"))}


def test_every_reference_is_spelt_out():
    from unbraid.cli.references import spell_out
    from unbraid.cli.show import KINDS, _registry

    for kind in KINDS:
        for name in (registry := _registry(kind)):
            reference = registry[name].reference.partition(",")[0]
            assert not reference or ":" in spell_out(reference), (name, reference)
