"""Converters of data sets of pictures, on small files in the official format, and on files that are not."""

import io
import tarfile
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat

from tests.support.messages import naming
from tests.support.official_files import add, noise, pixels, png
from unbraid.data import cars3d, celeba, chairs3d, faces3d
from unbraid.errors import DataError

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
    np.savez(path, x_train=np.zeros(3))
    with pytest.raises(DataError, match=naming("cars.npz", "'images'", "x_train")):
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
