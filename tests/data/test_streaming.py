"""Data that stay on disk: the same rows, hashes and weights as in memory."""

import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from tests.support.messages import naming
from unbraid import api, sweep
from unbraid.data import Factor, from_array, from_folder, from_npy, picture_cache, streamed_pixels
from unbraid.data.row_files import RowFile
from unbraid.errors import DataError

RANDOM = np.random.default_rng(0)
BYTES = RANDOM.integers(0, 256, (40, 3, 8, 8), dtype=np.uint8)
SMALL = {"network": "mlp", "encoder_hidden": (8,), "decoder_hidden": (8,), "z": 2, "batch": 8, "device": "cpu"}

ARRAYS = {
    "bytes": BYTES,
    "channels last": BYTES.transpose(0, 2, 3, 1),
    "grey": BYTES[:, 0],
    "truth values": BYTES[:, 0, :, :7] > 100,
    "exact floats": BYTES.astype(np.float32) / np.float32(255),
    "floats with overshoot": (BYTES / 255.0 + np.where(BYTES == 255, 5e-7, 0)).astype(np.float64),
    "half floats": RANDOM.random((40, 8, 8, 1)).astype(np.float16),
    "big-endian vectors": RANDOM.normal(0, 9, (40, 5)).astype(">f8"),
    "bytes of vectors": BYTES.reshape(40, -1),
}


def save(folder, array):
    np.save(folder / "big.npy", np.ascontiguousarray(array))
    return folder / "big.npy"


@pytest.mark.parametrize("kind", ARRAYS)
def test_a_streamed_array_has_the_rows_and_the_hash_of_one_in_memory(kind, tmp_path):
    path = save(tmp_path, ARRAYS[kind])
    streamed, loaded = from_npy(path, stream=True), from_npy(path, stream=False)
    assert streamed.pixels.streamed and not loaded.pixels.streamed
    index = torch.tensor([[3, 39, 3], [0, 17, 21]])
    assert torch.equal(streamed.images(index), loaded.images(index))
    assert streamed.content_hash() == loaded.content_hash()
    assert (streamed.shape, streamed.pixels.bits) == (loaded.shape, loaded.pixels.bits)
    assert streamed.pixels.stored.dtype == loaded.pixels.stored.dtype


def test_parts_of_a_mapped_array_are_read_where_they_lie(tmp_path):
    mapped = np.load(save(tmp_path, BYTES), mmap_mode="r")
    file = RowFile.of_memmap(mapped[5:25][3:])
    assert (file.read(np.array([9, 0, 9])) == BYTES[8:25][[9, 0, 9]]).all()
    assert (np.concatenate(list(file.chunks())) == BYTES[8:25]).all()
    assert RowFile.of_memmap(mapped[::2]) is None
    assert RowFile.of_memmap(np.load(tmp_path / "big.npy", mmap_mode="c")) is None


def test_chunks_of_a_pass_cover_every_row(tmp_path, monkeypatch):
    monkeypatch.setattr("unbraid.data.row_files.CHUNK_BYTES", 7 * 192)
    path = save(tmp_path, BYTES)
    assert [len(chunk) for chunk in RowFile.open(path).chunks()] == [7, 7, 7, 7, 7, 5]
    assert from_npy(path, stream=True).content_hash() == from_array(BYTES).content_hash()


def test_the_rule_is_a_share_of_the_memory(tmp_path, monkeypatch):
    path = save(tmp_path, BYTES)
    for free, streamed in ((4 * BYTES.nbytes, False), (4 * BYTES.nbytes - 4, True)):
        monkeypatch.setattr(streamed_pixels, "available_memory", lambda free=free: free)
        assert from_npy(path).pixels.streamed is streamed
    assert not from_npy(path, stream=False).pixels.streamed


def test_bad_files_are_named(tmp_path):
    for array, words in (
        (np.asfortranarray(BYTES), ("C order",)),
        (BYTES // 255, ("bytes 0 and 1",)),
        (BYTES.astype(np.int32), ("int32",)),
        (np.full((4, 2), np.nan), ("NaN", "row 0")),
        (BYTES * 1.0, ("255", "[0, 1]")),
    ):
        np.save(tmp_path / "bad.npy", array)
        with pytest.raises(DataError, match=naming("bad", *words)):
            from_npy(tmp_path / "bad.npy", stream=True)
    path = save(tmp_path, BYTES)
    os.truncate(path, 1000)
    with pytest.raises(DataError, match=naming("big.npy", "cut off")):
        from_npy(path)


# training


def weights(run):
    return run.folder.load_model()


def same(first, second):
    assert first.config == second.config and first.folder.content() == second.folder.content()
    assert all(torch.equal(tensor, weights(second)[name]) for name, tensor in weights(first).items())


def test_streamed_training_has_the_weights_of_training_in_memory(tmp_path):
    """Twelve steps are more than two epochs, so that the feed reads across their borders."""
    path = save(tmp_path, BYTES)
    runs = [
        api.train("beta-vae", data=path, data_stream=stream, steps=12, split=0.1, root=tmp_path / str(stream), **SMALL)
        for stream in (True, False)
    ]
    assert runs[0].dataset.pixels.streamed and not runs[1].dataset.pixels.streamed
    same(*runs)
    assert "stream" not in runs[0].config.data.settings
    assert runs[0].score("kl/closed-form")[0].value == runs[1].score("kl/closed-form")[0].value
    assert torch.equal(runs[0].encode(from_npy(path, stream=True)), runs[1].encode(BYTES))


def test_groups_and_pairs_of_rows_are_streamed_too(tmp_path):
    factors = (Factor("row", 5), Factor("column", 8))
    mapped = np.load(save(tmp_path, BYTES), mmap_mode="r")
    streamed = replace(from_array(mapped, stream=True), factors=factors)
    options = {"seed": [0, 1], "steps": 6, "metrics": [], "report": False, **SMALL}
    runs = [
        sweep("ada-gvae", data=data, root=tmp_path / name, **options).runs
        for name, data in {"disk": streamed, "memory": replace(from_array(BYTES), factors=factors)}.items()
    ]
    for first, second in zip(*runs, strict=True):
        same(first, second)


# folders


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("UNBRAID_DATA", str(tmp_path / "cache"))
    monkeypatch.setattr(picture_cache, "BLOCK_ROWS", 8)
    pictures = tmp_path / "pictures"
    for row, picture in enumerate(BYTES):
        place = pictures / ("a" if row % 2 else "a-b")
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture.transpose(1, 2, 0)).save(place / f"{row:02}.png")
    return pictures


def count_decoded(monkeypatch):
    decoded = []
    read = picture_cache._read
    monkeypatch.setattr(picture_cache, "_read", lambda *given: decoded.append(given[-1]) or read(*given))
    return decoded


def test_a_folder_is_decoded_once(folder, monkeypatch):
    decoded = count_decoded(monkeypatch)
    first = from_folder(folder, stream=True)
    assert first.content_hash() == from_folder(folder, stream=False).content_hash()
    assert len(decoded) == 41  # every picture, and the first one for its shape
    from_folder(folder, stream=True)
    assert len(decoded) == 41
    os.utime(folder / "a" / "01.png", ns=(1, 1))
    from_folder(folder, stream=True)
    assert len(decoded) == 82


def test_decoding_goes_on_where_it_was_interrupted(folder, monkeypatch):
    read = picture_cache._read

    def fail(*given):
        if given[-1].endswith("39.png"):
            raise KeyboardInterrupt
        return read(*given)

    monkeypatch.setattr(picture_cache, "_read", fail)
    with pytest.raises(KeyboardInterrupt):
        from_folder(folder, stream=True)
    monkeypatch.setattr(picture_cache, "_read", read)
    decoded = count_decoded(monkeypatch)
    again = from_folder(folder, stream=True)
    assert 0 < len(decoded) < 41
    assert again.content_hash() == from_folder(folder, stream=False).content_hash()
