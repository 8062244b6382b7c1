"""Tables of a user's own: what becomes of columns, and what a run returns in their units."""

import re

import numpy as np
import pytest
import torch

from tests.support.messages import naming
from unbraid.data import from_array, from_arrays, from_table
from unbraid.data.find import find_data
from unbraid.data.given_rows import read_rows
from unbraid.data.table_columns import (
    columns_from_json,
    columns_to_json,
    encode_cells,
    list_features,
    restore,
    to_cells,
)
from unbraid.data.tables import explain_scale
from unbraid.errors import DataError, UsageError
from unbraid.networks import make_likelihood

CPU = torch.device("cpu")


class Frame:
    """What pandas and polars share, as far as tables need it."""

    def __init__(self, columns):
        self.columns, self._arrays = list(columns), columns
        self.dtypes, self.shape = None, (len(next(iter(columns.values()))), len(columns))

    def __getitem__(self, name):
        array = self._arrays[name]
        return type("Series", (), {"to_numpy": lambda self: array})()


def write(path, text):
    path.write_text(text)
    return path


@pytest.fixture
def fish(tmp_path):
    return write(tmp_path / "fish.csv", "length mm,species,rings\n100,cod,1\n300,pike,2\n200,cod,6\n")


@pytest.mark.parametrize(
    ("name", "facts"),
    [("a.png", ["picture", "folder"]), ("b.xlsx", [".csv", ".parquet", ".npy"]), ("c.txt", [".csv"]), ("d", [".csv"])],
)
def test_a_file_that_is_no_table_is_refused_with_what_is_one(tmp_path, name, facts):
    path = write(tmp_path / name, "x")
    for given in (path, str(path)):
        with pytest.raises(UsageError, match=naming(path, *facts)):
            find_data(given, {}, CPU)


def test_a_folder_is_no_table(tmp_path):
    with pytest.raises(DataError, match=naming(tmp_path, "folder", ".csv", ".parquet")):
        from_table(tmp_path)


def test_numbers_are_standardised_and_text_becomes_classes(fish):
    data = from_table(fish)
    assert list_features(data.columns) == ["length mm", "species=cod", "species=pike", "rings"]
    x = data.images(torch.arange(3))
    assert torch.allclose(x[:, [0, 3]].mean(0), torch.zeros(2), atol=1e-6)
    assert torch.allclose(x[:, [0, 3]].var(0, correction=0), torch.ones(2))
    assert x[:, 1:3].tolist() == [[1, 0], [0, 1], [1, 0]]
    back = to_cells(data.columns, restore(data.columns, x))
    assert back == {"length mm": [100, 300, 200], "species": ["cod", "pike", "cod"], "rings": [1, 2, 6]}
    assert columns_from_json(columns_to_json(data.columns)) == data.columns


def test_a_plain_table_stays_as_it_is(fish):
    data = from_table(fish, standardise=False, without=["species"])
    assert data.images(torch.arange(3)).tolist() == [[100, 1], [300, 2], [200, 6]]


def test_every_source_of_one_table_gives_the_same_rows(fish, tmp_path):
    parquet, arrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    cells = {"length mm": [100.0, 300.0, 200.0], "species": ["cod", "pike", "cod"], "rings": [1, 2, 6]}
    parquet.write_table(arrow.table(cells), tmp_path / "fish.parquet")
    frame = Frame({name: np.array(column) for name, column in cells.items()})
    wanted = from_table(fish)
    for source in (tmp_path / "fish.parquet", frame):
        assert from_table(source).columns == wanted.columns
        assert torch.equal(from_table(source).pixels.stored, wanted.pixels.stored)
    numbers = np.array([[100.0, 1], [300, 2], [200, 6]])
    np.save(tmp_path / "fish.npy", numbers)
    choice, data = find_data(str(tmp_path / "fish.npy"), {}, CPU)
    assert choice.name == "table"
    assert torch.equal(data.pixels.stored, wanted.pixels.stored[:, [0, 3]])


def test_a_frame_is_data_of_one_modality_or_of_several():
    frame = Frame({"x": np.array([1.0, 2.0]), "y": np.array(["a", None], dtype=object)})
    assert list(find_data(frame, {}, CPU, several=True)[1].modalities) == ["x", "y"]
    with pytest.raises(DataError, match=naming("y", "incomplete")):
        find_data(frame, {}, CPU, several=False)
    choice, data = find_data(frame, {"data.without": ["y"]}, CPU, several=False)
    assert (choice.name, data.shape) == ("given", (1,))
    with pytest.raises(UsageError, match=naming("wihtout", "without")):
        find_data(frame, {"data.wihtout": ["y"]}, CPU)


def test_the_recipe_decides_how_a_csv_file_is_read(tmp_path):
    fish = write(tmp_path / "fish.csv", "length,kind\n1,cod\n2,pike\n3,cod\n")
    assert find_data(fish, {}, CPU, several=True)[0].name == "paired"
    assert [find_data(fish, {}, CPU, several=each)[0].name for each in (False, None)] == ["table", "table"]


def test_missing_cells_are_refused_or_left_out(tmp_path):
    path = write(tmp_path / "holes.csv", "a,b\n1,2\n,4\n5,6\n")
    with pytest.raises(DataError, match=naming("line 3", "a", "1 of 3 rows lacks", "incomplete", "partitioned-mvae")):
        from_table(path)
    assert len(from_table(path, incomplete="drop")) == 2


def test_rows_that_stay_keep_their_numbers(tmp_path):
    data = from_table(write(tmp_path / "holes.csv", "a,b\n1,2\n,4\n5,6\n7,\n9,1\n"), incomplete="drop")
    rows = read_rows(data, data.shape)
    assert (rows.heading, rows.names) == ("row", ["0", "2", "4"])
    whole = from_table(write(tmp_path / "whole.csv", "a,b\n1,2\n5,6\n9,1\n"))
    assert read_rows(whole, whole.shape).names == ["0", "1", "2"]
    assert data.content_hash() == whole.content_hash(), "numbers are no content: older runs stay valid"


def test_messages_name_lines_and_rows_of_tables_without_lines_from_0(tmp_path):
    columns = from_table(write(tmp_path / "whole.csv", "a,b\n1,2\n5,6\n")).columns
    for text in ("a,b\n1,2\n3,\n", "a,b\n1,2\n3,x\n"):
        with pytest.raises((DataError, UsageError), match=naming("other.csv, line 3", "b")):
            read_rows(write(tmp_path / "other.csv", text), (2,), columns)
    with pytest.raises(DataError, match=naming("row 1 (from 0)", "a")):
        from_table(Frame({"a": np.array([1, [2]], dtype=object)}))
    with pytest.raises(DataError, match=naming("row 2 (from 0)", "a", "x")):
        from_table(Frame({"a": np.array([1, 3, "x"], dtype=object)}))


def test_a_bad_cell_is_named_by_its_line_also_after_lines_that_are_left_out(tmp_path):
    path = write(tmp_path / "t.csv", "a,b\n1,2\n\n,3\n2,x\n3,4\n4,5\n")
    with pytest.raises(DataError, match=naming("t.csv, line 5", "b", "x", "data.without")):
        from_table(path, incomplete="drop")


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("a,b\n1,2\n2,x\n3,4\n4,5\n", ["x", "b", "data.without"]),
        ("id,b\nq,1\nr,2\ns,3\n", ["id", 3, "data.without"]),
        ("1,2\n3,4\n", ["1", "names"]),
    ],
)
def test_columns_that_are_no_features_are_named(tmp_path, text, facts):
    with pytest.raises(DataError, match=naming(*facts)):
        from_table(write(tmp_path / "t.csv", text))


def test_numbers_may_be_classes_and_columns_factors(tmp_path):
    data = from_table(
        write(tmp_path / "t.csv", "year,x,kind\n2001,1,a\n2002,2,b\n2001,3,a\n"), classes=["year"], factors=["kind"]
    )
    assert list_features(data.columns) == ["year=2001", "year=2002", "x"]
    assert data.factors[0].values == ("a", "b")
    assert data.table.flatten().tolist() == [0, 1, 0]


def test_cells_of_other_tables_are_scaled_as_the_first(fish):
    columns = from_table(fish).columns
    values, known = encode_cells(columns, {"rings": ["3", None], "other": ["q", "r"]}, "t.csv")
    assert values[:, 3].tolist() == [0.0, 0.0], "3 is the mean, and so is a missing cell"
    assert known.tolist() == [[False, False, False, True], [False] * 4]
    with pytest.raises(UsageError, match=naming("trout", "cod", "species")):
        encode_cells(columns, {"species": ["trout"]}, "t.csv")


def test_mixed_likelihood_is_normal_and_categorical_side_by_side():
    mixed, raw = make_likelihood("mixed", {"widths": (1, 3, 1), "scale": 0.5}), torch.randn(4, 5)
    x = torch.tensor([[0.3, 0, 1, 0, -1.0]]).expand(4, 5)
    got = mixed.log_prob(mixed(raw), x, 1)
    normal = torch.distributions.Normal(raw[:, [0, 4]], 0.5).log_prob(x[:, [0, 4]]).sum(-1)
    classes = torch.distributions.Categorical(logits=raw[:, 1:4]).log_prob(torch.ones(4, dtype=torch.long))
    assert torch.allclose(got, normal + classes, atol=1e-5)
    assert torch.allclose(mixed.mean(mixed(raw))[:, 1:4].sum(-1), torch.ones(4))


def test_a_wide_scale_is_explained_in_words():
    numbers = np.stack([np.arange(4.0), np.array([0, 2e5, -7e5, 1])], 1)
    assert explain_scale(from_array(numbers)) and not explain_scale(from_array(numbers[:, :1]))
    told = explain_scale(from_array(numbers))
    assert re.search(naming("column 1", "-7e+05", "from_table"), told)
    several = from_arrays({"weight": numbers[:, 1:], "kind": ["a", "b", "a", "b"]})
    told = explain_scale(several)
    assert re.search(naming("weight", "-7e+05", "standard deviation"), told) and "from_table" not in told
