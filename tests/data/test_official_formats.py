"""Every family's converter, on small files written in the official format, and on files that are not."""

import gzip
import hashlib
import io
import tarfile
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat

from tests.support.messages import naming
from unbraid.data import cars3d, celeba, chairs3d, dsprites, faces3d, mnist, mpi3d, shapes3d, smallnorb
from unbraid.data.factors import Factor
from unbraid.data.file_formats import find_file
from unbraid.errors import DataError

RANDOM = np.random.default_rng(0)


def noise(*shape):
    return RANDOM.integers(0, 256, shape, dtype=np.uint8)


def add(archive, name, data):
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))


def png(array):
    file = io.BytesIO()
    Image.fromarray(array).save(file, "PNG")
    return file.getvalue()


def pixels(data, row):
    return data.pixels.stored[row].numpy()


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


# Cars3D


@pytest.fixture
def meshes():
    return {f"car_{number:03d}_mesh.mat": noise(8, 8, 3, 3, 2) for number in (2, 10, 1)}


def mat(array):
    file = io.BytesIO()
    savemat(file, {"im": array, "mask": np.zeros(3)})
    return file.getvalue()


@pytest.mark.parametrize("form", ["archive", "folder", "downloads"])
def test_cars3d(tmp_path, meshes, form):
    source = tmp_path / "nips2015-analogy-data.tar.gz"
    if form == "folder":
        source = tmp_path
        (tmp_path / "cars").mkdir()
        for name, array in meshes.items():
            (tmp_path / "cars" / name).write_bytes(mat(array))
    else:
        with tarfile.open(source, "w:gz") as archive:
            add(archive, "data/cars/list.txt", b"car_001_mesh\n")
            add(archive, "data/sprites/sprite.mat", b"something else")
            for name, array in meshes.items():
                add(archive, f"data/cars/{name}", mat(array))
        source = tmp_path if form == "downloads" else source
    data = cars3d.convert(source)
    assert data.is_grid
    assert (data.factor_names, data.sizes, data.shape) == (("car", "azimuth", "elevation"), (3, 3, 2), (3, 4, 4))
    row = int(data.index_of(torch.tensor([2, 1, 0])))  # the last file name, 10, second azimuth, first elevation
    blocks = meshes["car_010_mesh.mat"][..., 1, 0].astype(float).reshape(4, 2, 4, 2, 3).mean((1, 3))
    assert (abs(pixels(data, row).transpose(1, 2, 0) - blocks) <= 0.5).all()


def test_cars3d_from_npz(tmp_path):
    images = noise(2, 3, 2, 6, 6, 3)
    np.savez(tmp_path / "cars.npz", images=images)
    data = cars3d.convert(tmp_path / "cars.npz")
    assert data.sizes == (2, 3, 2)
    row = int(data.index_of(torch.tensor([1, 2, 0])))
    assert (pixels(data, row).transpose(1, 2, 0) == images[1, 2, 0]).all()


def test_cars3d_says_what_is_wrong(tmp_path, meshes):
    path = tmp_path / "cars.npz"
    np.savez(path, images=noise(2, 6, 6, 3))
    with pytest.raises(DataError, match=naming("cars.npz", "(2, 6, 6, 3)")):
        cars3d.convert(path)
    path.write_bytes(b"no archive")
    with pytest.raises(DataError, match=naming("cars.npz", "nips2015-analogy-data.tar.gz")):
        cars3d.convert(path)
    (tmp_path / "a_mesh.mat").write_bytes(b"no mesh")
    with pytest.raises(DataError, match=naming("a_mesh.mat", "im")):
        cars3d.convert(tmp_path)
    (tmp_path / "a_mesh.mat").write_bytes(mat(noise(8, 8, 3)))
    with pytest.raises(DataError, match=naming("im", "(8, 8, 3)")):
        cars3d.convert(tmp_path)
    (tmp_path / "a_mesh.mat").write_bytes(mat(noise(8, 8, 3, 2, 2)))
    (tmp_path / "b_mesh.mat").write_bytes(mat(noise(8, 8, 3, 2, 1)))
    with pytest.raises(DataError, match="shape"):
        cars3d.convert(tmp_path)


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
    images = dsprites_file(path, order=RANDOM.permutation(72))
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


# CelebA

ATTRIBUTES = "3\nBald Smiling \n{}  1 -1\n{} -1 -1\n{}  1  1\n"
FACES = ("000001.jpg", "000002.jpg", "000003.jpg")


@pytest.mark.parametrize("form", ["zip", "folder", "pictures"])
def test_celeba(tmp_path, form):
    pictures = {name: Image.new("RGB", (178, 218), (60 * k, 10, 200)) for k, name in enumerate(FACES)}
    (tmp_path / "list_attr_celeba.txt").write_text(ATTRIBUTES.format(*FACES))
    (tmp_path / "list_eval_partition.txt").write_text("000001.jpg 0\n000002.jpg 2\n000003.jpg 1\n")
    folder = tmp_path if form == "pictures" else tmp_path / "img_align_celeba"
    folder.mkdir(exist_ok=True)
    for name, picture in pictures.items():
        picture.save(folder / name, quality=95)
    if form == "zip":
        with zipfile.ZipFile(tmp_path / "img_align_celeba.zip", "w") as archive:
            for name in FACES:
                archive.write(folder / name, f"img_align_celeba/{name}")
                (folder / name).unlink()
        folder.rmdir()
    data = celeba.convert(tmp_path, size=64)
    assert (data.shape, data.factor_names, data.table.tolist()) == (
        (3, 64, 64),
        ("Bald", "Smiling"),
        [[1, 0], [0, 0], [1, 1]],
    )
    assert data.held_out.tolist() == [1]
    assert (abs(pixels(data, 2).astype(int) - np.array([120, 10, 200])[:, None, None]) < 6).all()


def test_celeba_keeps_the_middle(tmp_path):
    inside = np.zeros((218, 178, 3), np.uint8)
    inside[35:183, 15:163] = 255
    (tmp_path / "list_attr_celeba.txt").write_text("1\nBald\n1.jpg 1\n")
    Image.fromarray(inside).save(tmp_path / "1.jpg", quality=100)
    assert pixels(celeba.convert(tmp_path, size=64), 0).min() > 240


def test_celeba_says_what_is_missing_or_wrong(tmp_path):
    with pytest.raises(DataError, match=naming(tmp_path, "list_attr_celeba.txt")):
        celeba.convert(tmp_path, size=64)
    path = tmp_path / "list_attr_celeba.txt"
    path.write_text(ATTRIBUTES.format(*FACES))
    with pytest.raises(DataError, match=naming(tmp_path, "img_align_celeba.zip")):
        celeba.convert(tmp_path, size=64)
    with zipfile.ZipFile(tmp_path / "img_align_celeba.zip", "w") as archive:
        archive.writestr("other.jpg", b"")
    with pytest.raises(DataError, match=naming("000001.jpg", "list_attr_celeba.txt")):
        celeba.convert(tmp_path, size=64)
    for text, facts in (("2\nBald\n1.jpg 1\n", [2, 1]), ("1\nBald\n1.jpg 7\n", [-1, 1]), ("", [])):
        path.write_text(text)
        with pytest.raises(DataError, match=naming("list_attr_celeba.txt", *facts)):
            celeba.read_attributes(path)


# 3D chairs


def chair_files(missing=False):
    number = 0
    for chair in ("beef", "abba"):
        for elevation in (20, 30):
            for azimuth in (11, 104, 22):
                if not (missing and number == 3):
                    value = 100 * (chair == "beef") + elevation + azimuth // 10
                    name = (
                        f"rendered_chairs/{chair}/renders/image_{number:03d}_p{elevation:03d}_t{azimuth:03d}_r096.png"
                    )
                    yield name, np.full((20, 20, 3), value, np.uint8)
                number += 1


@pytest.mark.parametrize("form", ["tar", "folder", "downloads"])
def test_chairs3d(tmp_path, form):
    source = tmp_path
    if form == "folder":
        for name, array in chair_files():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes(png(array))
    else:
        with tarfile.open(tmp_path / "rendered_chairs.tar", "w") as archive:
            add(archive, "rendered_chairs/all_chair_names.mat", b"not a picture")
            for name, array in chair_files():
                add(archive, name, png(array))
        source = tmp_path if form == "downloads" else tmp_path / "rendered_chairs.tar"
    data = chairs3d.convert(source, 10, None, False)
    assert data.is_grid
    assert (data.sizes, data.shape) == ((2, 3, 2), (1, 10, 10))
    assert data.factors[0].values == ("abba", "beef")
    assert data.factors[1].values == (11, 22, 104)
    row = int(data.index_of(torch.tensor([1, 2, 0])))  # beef, 104 degrees, 20 degrees
    assert (pixels(data, row) == 130).all()
    assert chairs3d.convert(source, 4, 8, True).shape == (3, 4, 4)


def test_chairs3d_with_a_missing_view_has_a_table(tmp_path):
    with tarfile.open(tmp_path / "rendered_chairs.tar", "w") as archive:
        for name, array in chair_files(missing=True):
            add(archive, name, png(array))
    data = chairs3d.convert(tmp_path, 10, None, False)
    assert not data.is_grid
    assert len(data) == 11


def test_chairs3d_says_what_is_wrong(tmp_path):
    with pytest.raises(DataError, match=naming(tmp_path, "rendered_chairs.tar")):
        chairs3d.convert(tmp_path, 64, None, False)
    path = tmp_path / "rendered_chairs.tar"
    path.write_bytes(b"no tar")
    with pytest.raises(DataError, match=naming(path)):
        chairs3d.convert(path, 64, None, False)
    with tarfile.open(path, "w") as archive:
        add(archive, "rendered_chairs/a/renders/image_000_p020_t011_r096.png", b"no picture")
    with pytest.raises(DataError, match=r"image_000_p020_t011_r096\.png"):
        chairs3d.convert(path, 64, None, False)


# 3D faces


def test_faces3d(tmp_path):
    images = noise(2, 3, 2, 2, 6, 6)
    np.savez(tmp_path / "faces.npz", images=images)
    (tmp_path / "renders").mkdir()
    for place in np.ndindex(2, 3, 2, 2):
        identity, azimuth, elevation, lighting = place
        name = f"face_{identity:03d}_az_{azimuth:02d}_el_{elevation:02d}_li_{lighting:02d}.png"
        (tmp_path / "renders" / name).write_bytes(png(images[place]))
    from_npz = faces3d.convert(tmp_path / "faces.npz", size=6)
    from_folder = faces3d.convert(tmp_path / "renders", size=6)
    assert from_npz.is_grid
    assert (from_npz.factor_names, from_npz.sizes, from_npz.shape) == (faces3d.NAMES, (2, 3, 2, 2), (1, 6, 6))
    assert from_npz.content_hash() == from_folder.content_hash()
    assert (pixels(from_npz, 23)[0] == images[1, 2, 1, 1]).all()


def test_faces3d_says_what_is_wrong(tmp_path):
    with pytest.raises(DataError, match=naming(tmp_path, "images")):
        faces3d.convert(tmp_path, size=64)
    path = tmp_path / "faces.npz"
    np.savez(path, images=noise(4, 6, 6))
    with pytest.raises(DataError, match=naming("faces.npz", "(4, 6, 6)")):
        faces3d.convert(path, size=64)
    np.savez(path, images=noise(2, 1, 1, 1, 6, 6))
    with pytest.raises(DataError, match=naming("6 x 6", "64 x 64", "size=")):
        faces3d.convert(path, size=64)


def test_files_of_the_same_names_in_two_folders_are_not_guessed(tmp_path):
    """Fashion-MNIST's files have the names of MNIST's, and lie beside them where torchvision puts both."""
    for each in ("FashionMNIST", "MNIST"):
        (tmp_path / each / "raw").mkdir(parents=True)
        (tmp_path / each / "raw" / "train.gz").write_bytes(b"")
    with pytest.raises(DataError, match=naming("train.gz", tmp_path / "FashionMNIST", tmp_path / "MNIST")):
        find_file(tmp_path, "train.gz")
    assert find_file(tmp_path / "MNIST", "other.gz", "train.gz").parent.parent.name == "MNIST"
