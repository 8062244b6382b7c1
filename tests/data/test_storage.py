"""The one file that a data set is kept in."""

import json

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from tests.support.messages import naming
from unbraid.data import Factor, FactorDataset, Pixels, storage as stored
from unbraid.errors import DataError

FULL = FactorDataset(
    "full",
    Pixels(torch.randint(256, (6, 3, 4, 4), dtype=torch.uint8), (3, 4, 4)),
    (Factor("shape", 2, ("round", "square")), Factor("size", 3, (0.1, 0.2, 0.3))),
    torch.randint(2, (6, 2)),
    torch.tensor([4, 5]),
    "a test",
)
BITS = FactorDataset("bits", Pixels(torch.randint(256, (4, 2), dtype=torch.uint8), (1, 3, 4), bits=True))
VECTORS = FactorDataset("vectors", Pixels(torch.randn(4, 7), (7,)), (Factor("k", 4),))


@pytest.mark.parametrize("data", [FULL, BITS, VECTORS], ids=lambda data: data.name)
def test_what_is_saved_is_read(tmp_path, data):
    path = tmp_path / "new" / "data.safetensors"
    stored.save(path, data, {"more": [1, 2]})
    back = stored.read(path)
    assert back.content_hash() == data.content_hash()
    assert (back.name, back.factors, back.source, back.shape) == (data.name, data.factors, data.source, data.shape)
    assert (back.held_out is None) == (data.held_out is None)
    assert [file.name for file in path.parent.iterdir()] == ["data.safetensors"]


def test_every_damaged_byte_of_the_data_is_noticed(tmp_path):
    path = tmp_path / "data.safetensors"
    stored.save(path, BITS)
    whole = path.read_bytes()
    for position in range(len(whole) - 8, len(whole)):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 4]) + whole[position + 1 :])
        with pytest.raises(DataError, match=naming(path)):
            stored.read(path)


def test_cut_file_is_noticed(tmp_path):
    path = tmp_path / "data.safetensors"
    stored.save(path, FULL)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match=naming(path)):
        stored.read(path)


def test_other_format_is_refused(tmp_path):
    path = tmp_path / "data.safetensors"
    save_file({"images": torch.zeros(2, 2)}, path, {"format": "99", "description": json.dumps({})})
    with pytest.raises(DataError, match=naming("format", 99, 1)):
        stored.read(path)


@pytest.mark.parametrize(
    "error",
    [
        OSError(28, "No space left on device"),
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
)
def test_failed_write_leaves_nothing(tmp_path, monkeypatch, error):
    def full_disk(*_):
        raise error

    monkeypatch.setattr("safetensors.torch.save_file", full_disk)
    with pytest.raises(DataError, match=naming("data.safetensors", "No space left on device", "UNBRAID_DATA")):
        stored.save(tmp_path / "data.safetensors", FULL)
    assert list(tmp_path.iterdir()) == []


def test_a_data_set_that_can_be_made_again_does_not_wait_for_the_disk(tmp_path, monkeypatch):
    monkeypatch.setattr("unbraid.atomic._sync", lambda path: pytest.fail("waited"))
    made = stored.read_or_make(tmp_path / "data.safetensors", lambda: BITS)
    assert stored.read_or_make(tmp_path / "data.safetensors", lambda: pytest.fail("made again")).device == made.device
