"""What every registered data set promises, tested over the registry."""

import inspect

import numpy as np
import pytest
import torch

from tests.support.messages import naming
from unbraid.data import check, dataset, describe, fetch, load, storage as stored
from unbraid.errors import DataError, UnbraidError, UsageError

MADE = {"sprites": {"positions": 2, "orientations": 3}, "sprites-small": {}}
"""Data sets that need no files, with settings that make them small."""
FILED = [name for name in dataset if dataset[name].facts.recipe]


def test_every_data_set_is_covered_or_needs_files():
    covered = set(MADE) | set(FILED) | {"array", "images", "paired", "table"}
    made_elsewhere = {name for name in dataset if name not in covered}
    for name in made_elsewhere:
        assert all(p.default is not inspect.Parameter.empty for p in dataset[name].settings.values()), name


@pytest.mark.parametrize("name", sorted(MADE))
def test_made_data_keep_the_contract(name):
    data = load(name, MADE[name])
    index = torch.arange(len(data))
    images = data.images(index[:7])
    assert images.dtype == torch.float32
    assert images.shape == (7, *data.shape)
    assert 0 <= float(images.min()) <= float(images.max()) <= 1
    values = data.values_of(index)
    assert torch.equal(data.index_of(values), index)
    assert (values.max(0).values + 1).tolist() == list(data.sizes)
    assert all(factor.values is None or len(factor.values) == factor.size for factor in data.factors)
    assert data.name == name
    assert data.source


@pytest.mark.parametrize("name", sorted(dataset))
def test_every_entry_explains_itself(name):
    entry = dataset[name]
    assert entry.summary.endswith(".")
    assert all(p.kind is p.KEYWORD_ONLY for p in inspect.signature(entry.make).parameters.values())


def test_listing_has_every_data_set():
    lines = describe()
    assert [line.name for line in lines] == list(dataset)
    for line in lines:
        assert line.origin in ("rendered", "download", "your files")
        assert line.state in ("made", "present", "missing")
    small = next(line for line in lines if line.name == "sprites-small")
    assert (small.images, small.shape, small.state) == (1536, (1, 32, 32), "made")


@pytest.mark.parametrize("name", FILED)
def test_missing_files_are_one_sentence_with_the_command(name, tmp_path, monkeypatch):
    monkeypatch.setenv("UNBRAID_DATA", str(tmp_path))
    with pytest.raises(DataError, match=naming(name, f"unbraid data fetch {name}")):
        load(name)
    assert check(name).state == "missing"
    with pytest.raises(DataError, match=naming(tmp_path / "nothing", "unbraid data fetch")):
        fetch(name, tmp_path / "nothing")
    with pytest.raises(UnbraidError):
        fetch(name, tmp_path)  # an empty folder
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", FILED)
def test_published_checksums_are_well_formed(name):
    recipe = dataset[name].facts.recipe(**dataset[name].resolve({}))
    lengths = {"md5": 32, "sha256": 64}
    for remote in recipe.remotes:
        assert remote.url.startswith("http")
        if remote.checksum is not None:
            algorithm, _, digits = remote.checksum.partition(":")
            assert len(digits) == lengths[algorithm]
            int(digits, 16)


def test_without_a_download_the_command_needs_a_path():
    with pytest.raises(UsageError, match="unbraid data fetch celeba size=64 --from"):
        fetch("celeba")


def test_made_data_are_not_fetched():
    with pytest.raises(UsageError, match="sprites"):
        fetch("sprites")
    found = check("sprites")
    assert (found.state, found.path) == ("made", None)


def test_fetch_from_a_file_then_load_then_damage(tmp_path, monkeypatch):
    monkeypatch.setenv("UNBRAID_DATA", str(tmp_path / "home"))
    images = np.random.default_rng(0).integers(0, 256, (2, 3, 2, 8, 8, 3), dtype=np.uint8)
    np.savez(tmp_path / "cars.npz", images=images)
    path = fetch("cars3d", str(tmp_path / "cars.npz"))
    assert path == tmp_path / "home" / "cars3d-v1.safetensors"
    assert len(load("cars3d")) == 12
    assert check("cars3d").state == "present"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert check("cars3d").state == "damaged"
    with pytest.raises(DataError, match=r"cars3d-v1\.safetensors"):
        load("cars3d")
    fetch("cars3d", tmp_path / "cars.npz")
    assert check("cars3d").state == "present"


def test_settings_have_files_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setenv("UNBRAID_DATA", str(tmp_path))
    assert check("mpi3d", variant="real").path.name == "mpi3d-real-v1.safetensors"
    assert "unbraid data fetch mpi3d variant=real" in check("mpi3d", variant="real").words
    assert check("chairs3d").path.name == "chairs3d-64-v1.safetensors"
    assert check("chairs3d", size=32, crop=400, color=True).path.name == "chairs3d-32-400-color-v1.safetensors"
    with pytest.raises(UsageError, match=naming("variant", "toy", "realistic", "real")):
        check("mpi3d", variant="other")
    with pytest.raises(UsageError, match=naming("size", "mpi3d")):
        check("mpi3d", size=3)


def test_unknown_name_suggests_the_nearest():
    for call in (load, fetch, check):
        with pytest.raises(UsageError, match=naming("sprite", "sprites")):
            call("sprite")


def test_failed_conversion_keeps_the_old_file(tmp_path, monkeypatch):
    monkeypatch.setenv("UNBRAID_DATA", str(tmp_path / "home"))
    images = np.zeros((1, 2, 2, 8, 8, 3), np.uint8)
    np.savez(tmp_path / "cars.npz", images=images)
    path = fetch("cars3d", tmp_path / "cars.npz")
    before = stored.read(path).content_hash()
    np.savez(tmp_path / "cars.npz", images=images[0])
    with pytest.raises(DataError, match=r"cars\.npz"):
        fetch("cars3d", tmp_path / "cars.npz")
    assert stored.read(path).content_hash() == before
