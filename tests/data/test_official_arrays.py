"""Converters of data sets that are arrays, on small files in the official format, and on files that are not."""

import gzip
import hashlib

import numpy as np
import pytest
import torch

from tests.support.messages import naming
from tests.support.official_files import noise, pixels
from unbraid.data import dsprites, mnist, mpi3d, shapes3d, smallnorb
from unbraid.data.factors import Factor
from unbraid.data.file_formats import find_file
from unbraid.errors import DataError

# MNIST


def idx(array):
    head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    return head + array.astype(np.uint8).tobytes()


@pytest.fixture
def digits():
    return {
        "train_images": noise(5, 28, 28),
        "train_labels": np.array([3, 1, 4, 1, 5], np.uint8),
        "test_images": noise(2, 28, 28),
        "test_labels": np.array([9, 2], np.uint8),
    }


@pytest.mark.parametrize("form", ["gz", "plain", "npz"])
def test_mnist(tmp_path, digits, form):
    source = tmp_path
    for key, array in digits.items():
        if form == "gz":
            (tmp_path / f"{mnist.PARTS[key]}.gz").write_bytes(gzip.compress(idx(array)))
        elif form == "plain":
            (tmp_path / mnist.PARTS[key]).write_bytes(idx(array))
    if form == "npz":
        source = tmp_path / "mnist.npz"
        np.savez_compressed(source, **digits)
    data = mnist.convert(source, "mnist", mnist.DIGIT)
    assert data.shape == (1, 28, 28)
    assert data.table[:, 0].tolist() == [3, 1, 4, 1, 5, 9, 2]
    assert data.held_out.tolist() == [5, 6]
    assert (pixels(data, 5)[0] == digits["test_images"][0]).all()
    assert data.factors[0].values[3] == "3"


@pytest.mark.parametrize(
    ("content", "facts"),
    [
        (b"\0\0\x0b\x01\0\0\0\x01\0", ["00000b01"]),
        (idx(np.zeros((2, 3, 3)))[:-1], [18, 17]),
        (gzip.compress(idx(np.zeros((2, 3, 3))))[:-12], []),
        (b"", []),
    ],
    ids=["wrong-type", "short", "half-packed", "empty"],
)
def test_broken_idx_file(tmp_path, content, facts):
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(content)
    with pytest.raises(DataError, match=naming("train-images-idx3-ubyte", *facts)):
        mnist.read_idx(path)


def test_digits_are_not_taken_for_garments(tmp_path, digits, monkeypatch):
    """Both data sets have files of the same names and shapes; the labels tell them apart."""
    path = tmp_path / "digits.npz"
    np.savez(path, **digits)
    labels = np.concatenate([digits["train_labels"], digits["test_labels"]]).astype(np.uint8)
    monkeypatch.setitem(mnist.OFFICIAL_LABELS, "mnist", hashlib.sha256(labels.tobytes()).hexdigest())
    mnist.convert(path, "mnist", mnist.DIGIT)
    with pytest.raises(DataError, match=naming("digits.npz", "mnist", "fashion-mnist")):
        mnist.convert(path, "fashion-mnist", mnist.GARMENT)


def test_mnist_says_what_is_missing_or_wrong(tmp_path, digits):
    with pytest.raises(DataError, match=naming(tmp_path, "train-images-idx3-ubyte.gz")):
        mnist.convert(tmp_path, "mnist", mnist.DIGIT)
    path = tmp_path / "mnist.npz"
    np.savez(path, train_images=digits["train_images"])
    with pytest.raises(DataError, match=naming("mnist.npz", "train_labels")):
        mnist.convert(path, "mnist", mnist.DIGIT)
    np.savez(path, **{**digits, "test_labels": np.array([9], np.uint8)})
    with pytest.raises(DataError, match=naming("mnist.npz", "(7, 28, 28)", "(6,)")):
        mnist.convert(path, "mnist", mnist.DIGIT)
    np.savez(path, **{**digits, "test_labels": np.array([9, 10], np.uint8)})
    with pytest.raises(DataError, match=naming("labels", 0, 9)):
        mnist.convert(path, "mnist", mnist.DIGIT)
    np.savez(path, **{**digits, "test_images": np.array([{"an": "object"}, 2], object)})
    with pytest.raises(DataError, match=naming("test_images", "object")):
        mnist.convert(path, "mnist", mnist.DIGIT)


# dSprites


def dsprites_file(path, sizes=(1, 3, 2, 2, 2, 3), order=None):
    classes = np.array(list(np.ndindex(*sizes)))
    order = np.arange(len(classes)) if order is None else order
    images = (noise(len(classes), 8, 8) > 127).astype(np.uint8)
    np.savez(
        path,
        imgs=images[order],
        latents_classes=classes[order],
        latents_values=(classes * 0.5 + 1)[order],
        metadata=np.array({"pickled": "never read"}, object),
    )
    return images


def test_dsprites(tmp_path):
    images = dsprites_file(tmp_path / "dsprites_small.npz")
    data = dsprites.convert(tmp_path)
    assert data.is_grid
    assert data.pixels.bits
    assert (data.factor_names, data.sizes) == (("shape", "scale", "orientation", "posX", "posY"), (3, 2, 2, 2, 3))
    assert data.factors[0].values == ("square", "ellipse", "heart")
    assert data.factors[4].values == (1.0, 1.5, 2.0)
    assert (data.images(torch.arange(len(data)))[:, 0].numpy() == images).all()


def test_dsprites_in_another_order_is_put_into_grid_order(tmp_path):
    path = tmp_path / dsprites.FILE
    images = dsprites_file(path, order=np.random.default_rng(1).permutation(72))
    data = dsprites.convert(path)
    assert data.is_grid
    assert (data.images(torch.arange(72))[:, 0].numpy() == images).all()


def test_dsprites_says_what_is_wrong(tmp_path):
    path = tmp_path / "x.npz"
    np.savez(path, imgs=noise(4, 8, 8), latents_values=np.zeros((3, 6)))
    with pytest.raises(DataError, match=naming("x.npz", "imgs", "(4, 8, 8)", "latents_values", "(3, 6)")):
        dsprites.convert(path)
    np.savez(path, other=np.zeros(3))
    with pytest.raises(DataError, match=naming("x.npz", "imgs")):
        dsprites.convert(path)
    path.write_bytes(b"PK not really")
    with pytest.raises(DataError, match=naming("x.npz", "imgs", "zip")):
        dsprites.convert(path)


def test_cut_npz_is_noticed(tmp_path):
    path = tmp_path / "x.npz"
    np.savez(path, imgs=noise(4, 8, 8), latents_values=np.zeros((4, 6)))
    whole = path.read_bytes()
    middle = whole.index(b"imgs.npy") + 300
    path.write_bytes(whole[:middle] + bytes(8) + whole[middle + 8 :])
    with pytest.raises(DataError, match=naming("x.npz", "imgs", "CRC-32")):
        dsprites.convert(path)


# 3D Shapes


def test_shapes3d(tmp_path):
    h5py = pytest.importorskip("h5py")
    sizes = (2, 2, 2, 2, 2, 3)
    labels = np.array(list(np.ndindex(*sizes))) * 0.25 - 1
    images = noise(len(labels), 6, 6, 3)
    with h5py.File(tmp_path / "3dshapes.h5", "w") as file:
        file["images"], file["labels"] = images, labels
    data = shapes3d.convert(tmp_path)
    assert data.is_grid
    assert (data.factor_names, data.sizes, data.shape) == (shapes3d.NAMES, sizes, (3, 6, 6))
    assert data.factors[5].values == (-1.0, -0.75, -0.5)
    assert (pixels(data, 7).transpose(1, 2, 0) == images[7]).all()


def test_shapes3d_says_what_is_wrong(tmp_path):
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "3dshapes.h5"
    path.write_bytes(b"no h5")
    with pytest.raises(DataError, match=naming("3dshapes.h5", "images", "labels")):
        shapes3d.convert(path)
    with h5py.File(path, "w") as file:
        file["images"] = noise(4, 6, 6, 3)
    with pytest.raises(DataError, match=naming("3dshapes.h5", "labels")):
        shapes3d.convert(path)
    with h5py.File(path, "a") as file:
        file["labels"] = np.zeros((3, 6))
    with pytest.raises(DataError, match=naming("3dshapes.h5", "(4, 6, 6, 3)", "(3, 6)")):
        shapes3d.convert(path)


# MPI3D


def test_mpi3d(tmp_path):
    images = noise(12, 6, 6, 3)
    np.savez(tmp_path / "mpi3d_real.npz", images=images)
    factors = (Factor("a", 3), Factor("b", 4))
    data = mpi3d.convert(tmp_path, "real", factors)
    assert (data.is_grid, data.sizes, data.shape) == (True, (3, 4), (3, 6, 6))
    assert (pixels(data, 11).transpose(1, 2, 0) == images[11]).all()
    with pytest.raises(DataError, match=naming("(12, 6, 6, 3)", "(1036800, 64, 64, 3)")):
        mpi3d.convert(tmp_path, "real")
    with pytest.raises(DataError, match=naming(tmp_path, "mpi3d_toy.npz")):
        mpi3d.convert(tmp_path, "toy")


# SmallNORB


def matrix(array):
    magic = {np.dtype("u1"): 0x1E3D4C55, np.dtype("<i4"): 0x1E3D4C54}[array.dtype]
    sizes = list(array.shape) + [1] * (3 - array.ndim)
    return np.array([magic, array.ndim, *sizes], "<i4").tobytes() + array.tobytes()


def write_norb(folder, instances, part, side=2, packed=False):
    ranges = (range(5), instances, range(9), range(18), range(6))
    rows = np.array(np.meshgrid(*ranges, indexing="ij")).reshape(5, -1).T
    rows = rows[np.random.default_rng(1).permutation(len(rows))]  # the official order is not the grid's
    images = noise(len(rows), 2, side, side)
    arrays = {
        "dat": images,
        "cat": rows[:, 0].astype("<i4"),
        "info": (rows[:, 1:] * [1, 1, 2, 1]).astype("<i4"),  # azimuths are 0, 2, …, 34
    }
    for kind, array in arrays.items():
        path = folder / f"{smallnorb.PARTS[part]}-{kind}.mat{'.gz' if packed else ''}"
        path.write_bytes(gzip.compress(matrix(array), 1) if packed else matrix(array))
    return rows, images


def test_smallnorb(tmp_path):
    parts = [write_norb(tmp_path, (4, 6, 7, 8, 9), "training")]
    parts += [write_norb(tmp_path, (0, 1, 2, 3, 5), "testing", packed=True)]
    data = smallnorb.convert(tmp_path, size=2)
    assert data.is_grid
    assert (len(data), data.shape, data.sizes) == (48600, (1, 2, 2), (5, 10, 9, 18, 6))
    for rows, images in parts:
        for row, image in zip(rows[:50], images[:50, 0], strict=True):
            assert (pixels(data, int(data.index_of(torch.from_numpy(row))))[0] == image).all()
    held_out = data.values_of(data.held_out)
    assert len(held_out) == 24300
    assert held_out[:, 1].unique().tolist() == [0, 1, 2, 3, 5]


def test_smallnorb_says_what_is_wrong(tmp_path):
    path = tmp_path / "x.mat"
    for content, facts in (
        (np.array([77, 1, 1, 1, 1], "<i4").tobytes(), ["0x4d"]),
        (matrix(noise(2, 3, 3))[:-1], ["reshape"]),
        (b"", ["unpack"]),
    ):
        path.write_bytes(content)
        with pytest.raises(DataError, match=naming("x.mat", *facts)):
            smallnorb.read_matrix(path)
    with pytest.raises(DataError, match=naming(tmp_path, "training-dat")):
        smallnorb.convert(tmp_path, size=64)
    with pytest.raises(DataError, match=naming("x.mat", "folder")):
        smallnorb.convert(path, size=64)


def test_files_of_the_same_names_in_two_folders_are_not_guessed(tmp_path):
    """Fashion-MNIST's files have the names of MNIST's, and lie beside them where torchvision puts both."""
    for each in ("FashionMNIST", "MNIST"):
        (tmp_path / each / "raw").mkdir(parents=True)
        (tmp_path / each / "raw" / "train.gz").write_bytes(b"")
    with pytest.raises(DataError, match=naming("train.gz", tmp_path / "FashionMNIST", tmp_path / "MNIST")):
        find_file(tmp_path, "train.gz")
    assert find_file(tmp_path / "MNIST", "other.gz", "train.gz").parent.parent.name == "MNIST"
