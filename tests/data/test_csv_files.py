"""CSV files as spreadsheets of several countries write them: read rightly, or refused in one sentence."""

import codecs

import numpy as np
import pytest
import torch

from tests.support.messages import names, naming
from unbraid.completion import CompletedTable, tabulate
from unbraid.data import from_csv, from_table, load
from unbraid.data.code_files import read_codes
from unbraid.data.csv_files import CsvForm, _tell_once, read_csv
from unbraid.data.given_rows import read_rows
from unbraid.errors import DataError

USUAL = "length,width,kind\n1.5,2,cod\n-0.25,3,pike\n1e3,4,cod\n"
EUROPEAN = "length;width;kind\n1,5;2;cod\n-0,25;3;pike\n1e3;4;cod\n"


@pytest.fixture
def write(tmp_path):
    _tell_once.cache_clear()

    def written(text, encoding="utf-8", name="table.csv"):
        path = tmp_path / name
        path.write_bytes(text.encode(encoding))
        return path

    return written


@pytest.mark.parametrize(
    "text",
    [
        EUROPEAN,
        EUROPEAN.replace(";", "\t"),
        EUROPEAN.replace("\n", "\r\n"),
    ],
    ids=["semicolons", "tabs", "Windows"],
)
def test_decimal_commas_are_read_as_numbers(write, text, capsys):
    usual, other = from_table(write(USUAL, name="usual.csv")), from_table(write(text))
    assert other.columns == usual.columns
    assert torch.equal(other.images(torch.arange(3)), usual.images(torch.arange(3)))
    told = capsys.readouterr().err
    assert names(told, "table.csv", "1,5", "length", 1.5) and told.count("\n") == 1, "said once"
    given = read_rows(write(text), (4,), usual.columns).data
    assert torch.equal(given.images(torch.arange(3)), usual.images(torch.arange(3)))
    several = from_csv(write(text)).observed(torch.arange(3))
    assert several["length"].tolist() == [[1.5], [-0.25], [1000]]


def test_numbers_with_points_are_read_as_ever_and_in_silence(write, capsys):
    for text in (USUAL, USUAL.replace(",", ";"), USUAL.replace(",", "\t")):
        assert [column.name for column in from_table(write(text)).columns] == ["length", "width", "kind"]
    assert capsys.readouterr().err == ""


def test_commas_in_text_and_in_names_of_columns_stay(write):
    file = read_csv(write("Länge, mm;sort, or kind\n1,5;1,5\n2;red, blue\n3;green\n4;grey\n"))
    assert file.header == ["Länge, mm", "sort, or kind"]
    assert [cells for _, cells in file.lines][:2] == [["1.5", "1,5"], ["2", "red, blue"]], "most of sort are words"
    assert file.form.comma_columns == ("Länge, mm",)


UNCLEAR = {
    "both marks in a column": ("a;b\n1,5;1\n1.5;2\n1,5;3\n", "1,5"),
    "both marks in a file": ("a;b\n1,5;1.25\n2,5;2.5\n1,5;1.5\n", "1,5"),
    "thousands in Europe": ("a;b\n1.234,5;1\n2,5;2\n2,5;3\n", "1.234,5"),
    "thousands in America": ('a,b\n"1,234.5",1\n2.5,2\n2.5,3\n', "1,234.5"),
    "millions": ("a;b\n1,234,567;1\n2,345;2\n2,345;3\n", "1,234,567"),
    "spaces": ("a;b\n1 234,5;1\n2,5;2\n2,5;3\n", "1 234,5"),
    "1.234 or 1234": ('a,b\n"1,234",1\n"2,345",2\n"1,234",3\n', "1,234"),
}


@pytest.mark.parametrize("text, cell", UNCLEAR.values(), ids=UNCLEAR)
def test_unclear_numbers_are_refused_and_never_become_classes(write, text, cell):
    path = write(text)
    with pytest.raises(DataError, match=naming("table.csv", cell, "a", "decimal points", "semicolons")):
        from_table(path)
    with pytest.raises(DataError, match=naming("table.csv", cell, "a", "decimal points")):
        from_csv(path)
    assert [column.name for column in from_table(path, without=["a"]).columns] == ["b"]
    known = from_table(write("a,b\n1,2\n2,3\n", name="known.csv")).columns
    with pytest.raises(DataError, match=naming("table.csv", "a", "decimal points")):
        read_rows(write(text), (2,), known)
    assert from_table(path, classes=["a"]).columns[0].classes, "unless they are called so"


@pytest.mark.parametrize(
    "text",
    ['length,width\n"1,5",2\n"-0,25",3\n', "id;length\n1;950\n2;1,020\n3;987\n"],
    ids=["between commas", "perhaps thousands"],
)
def test_commas_that_may_be_something_else_are_not_read_as_decimal(write, text):
    with pytest.raises(DataError, match=naming("table.csv", "length", "unclear")):
        from_table(write(text))


def test_pairs_of_numbers_stay_apart(write):
    file = read_csv(write('image,place\na.png,"10,1"\nb.png,"10,10"\n'))
    assert [cells[1] for _, cells in file.lines] == ["10,1", "10,10"]


def test_spaces_and_line_breaks_that_spreadsheets_write(write):
    with pytest.raises(DataError, match=naming("table.csv", "a", "thousands")):
        from_table(write("a;b\n1\xa0234;2\n2\xa0345;3\n", "cp1252"))
    assert read_csv(write('"a\nx";b;c\n1,5;2;3\n')).form.separator == ";"


def test_unquoted_decimal_commas_between_commas_say_what_to_write(write):
    with pytest.raises(DataError, match=naming("line 2", 4, 2, "semicolons", "decimal commas")):
        from_table(write("a,b\n1,5,2,5\n"))


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "utf-16", "utf-8", "utf-8-sig"])
def test_encodings_are_found_and_guesses_are_said(write, encoding, capsys):
    text = "Größe;Art\n1,5;Bär\n2,5;Möwe\n3,5;Bär\n"
    data = from_table(write(text, encoding))
    assert [column.name for column in data.columns] == ["Größe", "Art"]
    assert data.columns[1].classes == ("Bär", "Möwe")
    guessed = encoding in ("latin-1", "cp1252")
    assert guessed == names(capsys.readouterr().err, "table.csv", "Windows-1252", "UTF-8", "Größe")


def test_text_that_is_damaged_or_none_is_refused(write):
    damaged = "Größe;Art\n1;Bär\n2;Möwe\n".encode().replace("Möwe".encode(), b"M\xf6we")
    path = write("")
    path.write_bytes(damaged)
    with pytest.raises(DataError, match=naming("table.csv", "line 3", "UTF-8")):
        from_table(path)
    path.write_bytes(codecs.BOM_UTF8 + damaged)
    with pytest.raises(DataError, match=naming("table.csv", "line 3", "UTF-8")):
        from_table(path)
    for other in (b"PK\x03\x04\0\0\xff\xfe", b"a,b\n\x81\x8d,1\n"):
        path.write_bytes(other)
        with pytest.raises(DataError, match=naming("table.csv", "UTF-8")):
            from_table(path)


def test_labels_and_codes_come_from_spreadsheets_too(write, tmp_path):
    from PIL import Image

    (tmp_path / "pictures").mkdir()
    for name in "ab":
        Image.fromarray(np.zeros((4, 4), np.uint8)).save(tmp_path / "pictures" / f"{name}.png")
    labels = write("file;age;kind\na.png;1,5;Bär\nb.png;2,5;Möwe\n", "latin-1", "labels.csv")
    data = load("images", {"folder": str(tmp_path / "pictures"), "labels": str(labels)})
    assert [factor.values for factor in data.factors] == [(1.5, 2.5), ("Bär", "Möwe")]
    codes = read_codes(write("row;z0;z1\n0;1,5;-2\n1;0,25;3\n"), ["z0", "z1"])
    assert codes.tolist() == [[1.5, -2], [0.25, 3]]


def test_filled_numbers_have_the_decimal_mark_of_the_file(write, tmp_path):
    values = {"size": torch.tensor([[1.5], [2.0]]), "grade": torch.eye(2), "word": torch.eye(2)}
    made = tabulate(values, {"grade": ("1.5", "2"), "word": ("v1", "3.5")})
    made.form = CsvForm(";", ",")
    assert made.save(tmp_path / "made.csv").read_text() == "size;grade;word\n1,5;1,5;v1\n2;2;3.5\n"
    made.form = CsvForm()
    assert made.save(tmp_path / "made.csv").read_text() == "size,grade,word\n1.5,1.5,v1\n2,2,3.5\n"


def test_a_filled_letter_that_the_encoding_lacks_makes_the_file_utf_8(tmp_path, capsys):
    form = CsvForm(encoding="cp1252")
    path = CompletedTable({"kind": ["Bär", "Łoś"]}, {"kind": 1}, form=form).save(tmp_path / "made.csv")
    assert path.read_text("utf-8-sig") == "kind\nBär\nŁoś\n"
    assert names(capsys.readouterr().err, "made.csv", "UTF-8", "cp1252", "Ł")
