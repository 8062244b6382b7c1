"""Things in several modalities from a CSV file and from arrays, and what is said where a file or an array is wrong."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import unbraid as ub
from tests.support.messages import naming
from unbraid.cli import app
from unbraid.data import from_arrays, from_csv, load
from unbraid.data.find import find_data
from unbraid.errors import DataError, UnbraidError, UsageError

RANDOM = np.random.default_rng(0)
LINES = """photo,pet,pose.1,pose.0,weight,age
pics/a.png,cat,2,1,-1.5,old
,dog,NA,,2e3,young
pics/b.png,,4,3,,old
"""


@pytest.fixture
def pictures(tmp_path):
    """Two pictures of colour and one of another size, below a folder of their own."""
    (tmp_path / "pics").mkdir()
    shapes = {"a": (6, 8, 3), "b": (6, 8, 3), "small": (4, 4, 3)}
    made = {name: RANDOM.integers(0, 256, shape, dtype=np.uint8) for name, shape in shapes.items()}
    for name, array in made.items():
        Image.fromarray(array).save(tmp_path / "pics" / f"{name}.png")
    return made


@pytest.fixture
def write(tmp_path, pictures):
    def written(text):
        path = tmp_path / "things.csv"
        path.write_text(text, encoding="utf-8")
        return path

    return written


def test_all_kinds_and_missing_cells(write, pictures):
    data = from_csv(write(LINES), factors=["age"])
    rows = torch.arange(3)
    assert {name: modality.kind for name, modality in data.modalities.items()} == {
        "photo": "image",
        "pet": "label",
        "pose": "vector",
        "weight": "vector",
    }
    seen, there = data.observed(rows), data.present(rows)
    assert (seen["photo"][2] * 255).round().byte().permute(1, 2, 0).numpy().tolist() == pictures["b"].tolist()
    assert seen["pose"].tolist() == [[1, 2], [0, 0], [3, 4]]
    assert seen["weight"].tolist() == [[-1.5], [2000], [0]]
    assert seen["pet"].tolist() == [[1, 0], [0, 1], [0, 0]]
    assert data.modalities["pet"].values.classes == ("cat", "dog")
    assert {name: mask.tolist() for name, mask in zip(data.modalities, there.T, strict=True)} == {
        "photo": [True, False, True],
        "pet": [True, True, False],
        "pose": [True, False, True],
        "weight": [True, True, False],
    }
    assert data.factor_names == ("age",)
    assert data.values_of(rows)[:, 0].tolist() == [0, 1, 0]


def test_the_registered_set_reads_what_the_command_line_spells(write):
    settings = {"csv": str(write(LINES)), "size": 4, "modalities": ("photo", "age", "weight")}
    data = load("paired", {**settings, "kinds": ("weight:label:2e3:-1.5:0", "age:label"), "factors": ("age",)})
    assert data.layout == {"photo": (3, 4, 4), "age": (2,), "weight": (3,)}
    assert data.observed(torch.arange(3))["weight"].tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 0]]
    assert data.factor_names == ("age",)
    for wrong in ("weight", "weight:image:a", "weight:number"):
        with pytest.raises(UsageError, match="kind"):
            load("paired", {**settings, "kinds": (wrong,)})


@pytest.mark.parametrize("mark", [";", "\t"])
def test_other_separators_blank_lines_and_quoted_cells(write, mark):
    text = "photo,pet\n\npics/a.png,'cat, big'\npics/b.png,dog\n".replace(",", mark).replace(f"cat{mark}", "cat,")
    data = from_csv(write("\ufeff" + text.replace("'", '"')))
    assert data.modalities["pet"].values.classes == ("cat, big", "dog")
    assert len(data) == 2


WRONG = {
    "ragged": ("photo,pet\npics/a.png,cat\npics/b.png\n", ["things.csv", "line 3", "pet"]),
    "long": ("photo,pet\npics/a.png,cat,1\n", ["line 2", 3, 2, "pet"]),
    "absent": ("photo,pet\n,cat\n,dog\n", ["photo"]),
    "blank": ("photo,pet\npics/a.png,\n,dog\n,\n", ["line 4", "photo", "pet"]),
    "no file": ("photo,pet\npics/a.png,cat\npics/c.png,\n", ["line 3", "photo", "c.png"]),
    "unreadable": ("photo,pet\npics/a.png,cat\nthings.csv,\n", ["line 3", "photo"]),
    "sizes": ("photo,pet\npics/a.png,cat\npics/small.png,\n", ["line 3", "photo", "4 x 4", "size="]),
    "number": (
        "pet,weight\ncat,1\ncat,2\ndog,3a\n",
        ["line 4", "weight", "3a", "data.kinds=[weight:label]", "kinds={'weight': 'label'}"],
    ),
    "infinite": ("pet,w.0,w.1\ncat,1,inf\n", ["line 2", "w.1", "inf"]),
    "half": ("pet,w.0,w.1\ncat,1,\n", ["line 2", "w.1"]),
    "gap": ("pet,w.0,w.2\ncat,1,2\n", ["w.0", "w.1", "w.2"]),
    "empty": ("", ["things.csv"]),
    "no rows": ("photo,pet\n", ["things.csv"]),
    "twice": ("pet,pet\ncat,dog\n", ["columns", "pet"]),
    "unnamed": (",pet\n0,cat\n", ["column 1"]),
    "single": ("pet\ncat\n", [1, "modalities"]),
    "unique": ("pet,id\n" + "".join(f"cat,n{row}\n" for row in range(30)), ["id"]),
    "headless": ("pics/a.png,cat\npics/b.png,dog\n", ["columns", "pics/a.png"]),
    "among names": (
        "photo,pet\npics/a.png,cat\npics/b.png,7\npics/a.png,dog\n",
        ["line 3", "pet", 7, "data.kinds=[pet:label]"],
    ),
    "module": ("pet,type\ncat,a\n", ["type"]),
}


@pytest.mark.parametrize("text, facts", WRONG.values(), ids=WRONG)
def test_wrong_files_are_one_sentence_that_says_where(write, text, facts):
    with pytest.raises(DataError, match=naming(*facts)) as caught:
        from_csv(write(text))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "facts"),
    [
        ({"kinds": {"pet": ["cat", "cow"]}}, ["line 3", "pet", "dog", "cat", "cow"]),
        ({"kinds": {"pet": "vector"}}, ["line 2", "pet", "cat"]),
        ({"kinds": {"pose": "label"}}, ["pose", 2, "vector"]),
        ({"kinds": {"pets": "label"}}, ["pets", "things.csv", "pet"]),
        ({"factors": ["pose"]}, ["factor", "pose", 2]),
        ({"modalities": ["photo", "color"]}, ["color"]),
        ({"size": 0}, ["size", 1]),
    ],
)
def test_wrong_settings_are_named(write, settings, facts):
    with pytest.raises(UnbraidError, match=naming(*facts)):
        from_csv(write(LINES), **settings)


def test_a_file_that_is_not_there_or_no_text(tmp_path):
    with pytest.raises(DataError, match=r"none\.csv"):
        from_csv(tmp_path / "none.csv")
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe\x00a,b")
    with pytest.raises(DataError, match=r"bytes\.csv"):
        from_csv(tmp_path / "bytes.csv")


def test_arrays_by_name():
    images = RANDOM.integers(0, 256, (4, 5, 5, 3), dtype=np.uint8)
    vectors = np.array([[1.0, 2], [np.nan, np.nan], [3, 4], [5, 6]])
    data = from_arrays(
        {
            "photo": [*images[:3], None],
            "pose": vectors,
            "pet": ["dog", "cat", None, "cat"],
            "number": torch.tensor([2, -1, 0, 1]),
            "weight": [0.5, None, 1.5, float("nan")],
        },
        present={"number": np.array([True, True, True, False])},
        factors=[0, 1, -1, 0],
        factor_names=["age"],
    )
    rows = torch.arange(4)
    seen, there = data.observed(rows), data.present(rows)
    assert data.layout == {"photo": (3, 5, 5), "pose": (2,), "pet": (2,), "number": (3,), "weight": (1,)}
    assert (seen["photo"][1] * 255).round().byte().permute(1, 2, 0).numpy().tolist() == images[1].tolist()
    assert seen["pose"].tolist() == [[1, 2], [0, 0], [3, 4], [5, 6]]
    assert seen["pet"].argmax(-1).tolist() == [1, 0, 0, 0]
    assert seen["number"].sum(-1).tolist() == [1, 0, 1, 0]
    assert seen["weight"].tolist() == [[0.5], [0], [1.5], [0]]
    assert there.T.tolist() == [
        [True, True, True, False],
        [True, False, True, True],
        [True, True, False, True],
        [True, False, True, False],
        [True, False, True, False],
    ]
    assert data.values_of(rows)[:, 0].tolist() == [0, 1, -1, 0]


@pytest.mark.parametrize(
    ("arrays", "facts"),
    [
        ({"a": [1.0, 2.0], "b": ["x", "y", "z"]}, ["a", 2, "b", 3]),
        ({"a": [[1.0, np.nan], [1, 2]], "b": ["x", "y"]}, ["a", "row 0", "NaN"]),
        ({"a": [1.0, None], "b": ["x", None]}, ["row 1"]),
        ({"a": [None, None], "b": ["x", "y"]}, ["arrays", "a"]),
        ({"a": ["", ""], "b": ["x", "y"]}, ["modality", "a"]),
        ({"a": [[1.0], [1, 2]], "b": ["x", "y"]}, ["arrays", "a", "shape"]),
        ({"a": [-2, 3], "b": ["x", "y"]}, ["row 0", -2]),
        ({"a": [1.0, 2.0]}, ["arrays", 1, "(a)"]),
        ({}, ["arrays", "modalities"]),
    ],
)
def test_wrong_arrays_are_named(arrays, facts):
    with pytest.raises(DataError, match=naming(*facts)):
        from_arrays(arrays)


def test_one_modality_by_name_is_refused_whatever_the_recipe(tmp_path):
    for recipe in ("partitioned-mvae", "vae"):
        with pytest.raises(DataError, match=naming("modalities", "array")):
            ub.train(recipe, data={"a": np.zeros((8, 8, 8))}, root=tmp_path, steps=1, device="cpu")
    assert not list(tmp_path.iterdir())


def test_train_takes_a_file_and_arrays(write):
    path, cpu = write("size,pet\n0.5,cat\n1.5,\n"), torch.device("cpu")
    for given in (path, str(path)):
        choice, data = find_data(given, {"data.kinds": ("pet:label:cat:dog",)}, cpu)
        assert (choice.name, choice.settings["csv"]) == ("paired", str(path))
        assert data.layout == {"size": (1,), "pet": (2,)}
    choice, data = find_data({"size": np.arange(3) / 10, "pet": ["a", "b", None]}, {}, cpu)
    assert choice.name == "given"
    assert choice.settings["content"] == data.content_hash()
    assert data.layout == {"size": (1,), "pet": (2,)}


def test_the_page_completes_its_own_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "multimodal-data.md").read_text("utf-8")
    written, completed = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[:2]
    exec(compile(written.replace("range(1200)", "range(20)"), "multimodal-data.md", "exec"), {})
    lines = Path("things.csv").read_text().splitlines()
    assert "\n".join(lines[:4]) in page  # as many items as there are, they begin like this
    names = {}
    exec(compile(completed.replace('"things")', '"things", steps=1)'), "multimodal-data.md", "exec"), names)
    lacking = [number for number, line in enumerate(lines, 1) if line.endswith(",")]
    filled = re.findall(r"^line (\d+): (?:ball|box|star) \(\d+%\)$", capsys.readouterr().out, re.MULTILINE)
    assert [int(number) for number in filled] == lacking
    assert ub.load(names["run"].path).dataset.layout == {"photo": (1, 32, 32), "kind": (3,)}
    for call in re.findall(r"^\| `(run\..*?)` \|", page, re.MULTILINE):
        eval(call, {"run": names["run"], "images": torch.rand(2, 1, 32, 32)})
    assert len(re.findall(r"^\| `run\.", page, re.MULTILINE)) == 6


def test_show_says_what_was_understood_and_draws_it(write, tmp_path):
    write(LINES)
    drawn = tmp_path / "rows.png"
    asked = ["data", "show", str(tmp_path / "things.csv"), "factors=[age]", "--picture", str(drawn)]
    called = CliRunner().invoke(app, asked)
    assert called.exit_code == 0, called.output
    lines = [line.split() for line in called.output.splitlines()[1:]]
    assert lines == [
        ["photo", "image", "3x6x8", "2"],
        ["pet", "label", "2", "2", "cat,", "dog"],
        ["pose", "vector", "2", "2"],
        ["weight", "vector", "1", "2"],
        ["age", "factor", "2", "3", "old,", "young"],
    ]
    with Image.open(drawn) as picture:
        assert picture.size == (3 * 130 - 2, 4 * 130 - 2)
        grey = [[picture.getpixel((130 * x + 9, 130 * y + 24)) == (224,) * 3 for x in range(3)] for y in range(4)]
    assert grey == [[False, True, False], [False, False, True], [False, True, False], [False, False, True]]


def test_what_an_error_about_a_mixed_column_says_to_do_helps(write):
    path = write("pet,year\ncat,1999\ncat,2001\ndog,unknown\n")
    with pytest.raises(DataError) as told:
        from_csv(path)
    setting, kinds = re.search(r"(data\.kinds=\S+\]).*from_csv\(…, kinds=(\{.*\})\)", str(told.value)).groups()
    assert from_csv(path, kinds=eval(kinds)).layout["year"] == (3,)
    for spelled in (setting, setting.removeprefix("data.")):
        called = CliRunner().invoke(app, ["data", "show", str(path), spelled])
        assert called.exit_code == 0, called.output


def test_show_takes_data_of_one_modality():
    called = CliRunner().invoke(app, ["data", "show", "sprites-small", "positions=2", "--json"])
    assert '"kind": "image"' in called.output
    assert '"rows": 24' in called.output


def test_classes_keep_the_names_that_cells_give_them(write):
    lines = "\n".join(
        f"{i},{size},{code}"
        for i, size, code in zip((1234567, 1234568, 1234567), ("2", "10", "2.0"), ("007", "7", "007"), strict=True)
    )
    path = write(f"id,size,code\n{lines}\n")
    data = from_csv(path, kinds={"id": "label", "size": "label", "code": "label"})
    classes = {name: part.values.classes for name, part in data.modalities.items()}
    assert classes == {"id": ("1234567", "1234568"), "size": ("2", "10"), "code": ("007", "7")}
    assert data.modalities["size"].values.stored.tolist() == [0, 1, 0]
    with pytest.raises(UsageError, match="size"):
        from_csv(path, kinds={"size": ["2", "10", "2.0", "2"]})


def test_numbers_that_no_float32_holds_are_refused(write):
    with pytest.raises(DataError, match=naming("line 2", "weight", "1e39")):
        from_csv(write("weight,age\n1e39,1\n2,3\n"), kinds={"weight": "vector"})
    with pytest.raises(DataError, match=naming("infinite", "row 1")):
        ub.data.from_array(np.array([[1.0, 2.0], [1e39, 1.0]]))


def test_a_modality_may_not_have_a_name_of_torch():
    with pytest.raises(DataError, match="training"):
        from_arrays({"training": np.zeros((4, 3)), "other": np.zeros((4, 2))})
