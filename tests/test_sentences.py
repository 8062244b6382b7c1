"""Sentences that users meet when they give little data, or data that are not as expected."""

import numpy as np
import pytest
from PIL import Image

import unbraid as ub
from tests.support.command import unbraid
from tests.support.messages import names, naming
from unbraid.errors import DataError, UsageError
from unbraid.printable import pluralise

TABLE = "size,weight,leaves\n" + "".join(f"{row},{row % 7 / 2},{row % 5}\n" for row in range(30))


def test_nouns_agree_with_their_number():
    assert [pluralise(number, "row") for number in (0, 1, 1200)] == ["0 rows", "1 row", "1,200 rows"]
    assert [pluralise(number, "batch", "batches") for number in (1, 2)] == ["1 batch", "2 batches"]


def test_one_row_is_too_little_for_an_estimator(tmp_path, capsys):
    with pytest.raises(UsageError, match=naming("stratified", "only 1 row")):
        ub.train("beta-tcvae", data=np.ones((1, 4)), root=tmp_path, device="cpu")
    assert "1 row to train on makes 1 batch\n" in capsys.readouterr().err


@pytest.mark.parametrize("score", [ub.metrics.mig, ub.metrics.sap])
def test_one_latent_has_no_second_best(score):
    factors = np.random.default_rng(0).integers(0, 3, (200, 2))
    with pytest.raises(UsageError, match="only 1 latent"):
        score(factors[:, :1].astype(float), factors)


@pytest.mark.parametrize("cell", ["inf", "many"])
def test_a_cell_that_is_no_finite_number_is_quoted(tmp_path, cell):
    (tmp_path / "table.csv").write_text(TABLE.replace("3,1.5,3", f"3,1.5,{cell}"))
    with pytest.raises(DataError, match=naming("line 5", "leaves", f"'{cell}' is not a finite number")):
        ub.train("vae", data=tmp_path / "table.csv", root=tmp_path, device="cpu")


def test_columns_without_variation_are_named_by_train_and_advise(tmp_path, capsys):
    rows = "".join(f"{row},0.3,red,{row % 3}\n" for row in range(30))
    (tmp_path / "table.csv").write_text(f"size,ph,colour,leaves\n{rows}")
    told = unbraid("advise", "table.csv", "--device", "cpu", cwd=tmp_path)
    assert names(told, "columns ph, colour", "same value", "data.without=[ph,colour]")
    settings = {"steps": 2, "root": tmp_path / "runs", "device": "cpu"}
    ub.train("vae", data=tmp_path / "table.csv", data_without=("colour",), **settings)
    assert names(capsys.readouterr().err, "note", "column ph has", "data.without=[ph]")
    ub.train("vae", data=tmp_path / "table.csv", data_without=("colour", "ph"), **settings)
    assert not names(capsys.readouterr().err, "same value")


def test_a_missing_file_of_labels_is_called_missing(tmp_path):
    for number in range(3):
        Image.new("L", (8, 8), number).save(tmp_path / f"{number}.png")
    with pytest.raises(DataError, match=r"There is no file .*nolabels\.csv\.$"):
        ub.train("vae", data=tmp_path, data_labels=tmp_path / "nolabels.csv", root=tmp_path / "runs", device="cpu")


@pytest.mark.parametrize(("split", "held_out"), [("none", False), ("0.5", True)])
def test_a_row_beyond_the_data_says_which_data_are_meant(tmp_path, split, held_out):
    (tmp_path / "table.csv").write_text(TABLE)
    unbraid("train", "vae", "data=table.csv", f"split={split}", "steps=2", "--name", "mine", cwd=tmp_path)
    told = unbraid("traverse", "runs/mine", "--row", "5000", cwd=tmp_path, code=2)
    assert names(told, "--row", "5000", "14" if held_out else "29")
    assert names(told, "held-out data") == held_out
