"""Folders, arrays and torch Datasets of the user's own."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from tests.support.messages import names, naming
from unbraid.data import from_array, from_dataset, from_folder, load, unreadable_pictures
from unbraid.data.find import find_data
from unbraid.errors import DataError, UsageError

RANDOM = np.random.default_rng(0)


def noise(*shape):
    return RANDOM.integers(0, 256, shape, dtype=np.uint8)


def everything(data):
    return data.images(torch.arange(len(data))).numpy()


# folders


def test_grey_folder_in_path_order(tmp_path):
    pictures = noise(3, 5, 7)
    for name, picture in zip(("b.png", "a/z.PNG", "c.bmp"), pictures, strict=True):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.fromarray(picture).save(tmp_path / name)
    (tmp_path / "notes.txt").write_text("not a picture")
    data = load("images", {"folder": str(tmp_path)})
    assert data.shape == (1, 5, 7)
    assert (data.pixels.stored[:, 0].numpy() == pictures[[1, 0, 2]]).all()
    assert data.factors == ()


def test_every_mode_becomes_the_same_red_and_grey(tmp_path):
    red = Image.new("RGB", (4, 4), (200, 0, 0))
    red.save(tmp_path / "0_rgb.png")
    Image.new("RGBA", (4, 4), (200, 0, 0, 255)).save(tmp_path / "1_rgba.png")
    red.convert("P", palette=Image.Palette.ADAPTIVE).save(tmp_path / "2_p.png")
    red.convert("CMYK").save(tmp_path / "3_cmyk.tif")
    Image.new("RGBA", (4, 4), (200, 0, 0, 0)).save(tmp_path / "4_clear.png")
    Image.new("L", (4, 4), 100).save(tmp_path / "5_l.png")
    Image.new("LA", (4, 4), (100, 255)).save(tmp_path / "6_la.png")
    Image.fromarray(np.full((4, 4), 100 * 257, np.uint16)).save(tmp_path / "7_16.png")
    Image.new("1", (4, 4), 1).save(tmp_path / "8_1.png")
    Image.fromarray(np.full((4, 4), 100 / 255, np.float32)).save(tmp_path / "9_f.tif")
    data = from_folder(tmp_path)
    colours = [pixel.tolist() for pixel in data.pixels.stored[:, :, 2, 2]]
    assert colours == [*([[200, 0, 0]] * 4), [255, 255, 255], *([[100] * 3] * 3), [255] * 3, [100] * 3]


def test_grey_modes_alone_stay_grey(tmp_path):
    Image.new("L", (4, 4), 100).save(tmp_path / "l.png")
    Image.fromarray(np.full((4, 4), 65535, np.uint16)).save(tmp_path / "m.png")
    Image.new("LA", (4, 4), (100, 0)).save(tmp_path / "n.png")
    data = from_folder(tmp_path)
    assert data.shape == (1, 4, 4)
    assert data.pixels.stored[:, 0, 0, 0].tolist() == [100, 255, 255]


def test_size_takes_the_middle_and_averages(tmp_path):
    wide = np.zeros((4, 8), np.uint8)
    wide[:, 2:4], wide[:, 4:6] = 100, 200
    Image.fromarray(wide).save(tmp_path / "a.png")
    Image.fromarray(np.full((2, 2), 7, np.uint8)).save(tmp_path / "b.png")
    data = load("images", {"folder": tmp_path, "size": 2})
    assert data.pixels.stored[:, 0].tolist() == [[[100, 200]] * 2, [[7, 7]] * 2]


def test_camera_orientation_is_applied(tmp_path):
    picture = Image.fromarray(noise(4, 6))
    exif = Image.Exif()
    exif[0x0112] = 6
    picture.save(tmp_path / "turned.png", exif=exif)
    assert from_folder(tmp_path).shape == (1, 6, 4)


def test_folder_errors_name_the_files(tmp_path):
    with pytest.raises(DataError, match="nowhere"):
        from_folder(tmp_path / "nowhere")
    with pytest.raises(DataError, match=naming(tmp_path)):
        from_folder(tmp_path)
    with pytest.raises(UsageError, match="folder="):
        load("images")
    Image.new("L", (4, 4)).save(tmp_path / "a.png")
    Image.new("L", (4, 5)).save(tmp_path / "b.png")
    with pytest.raises(DataError, match=naming("a.png", "4 x 4", "b.png", "4 x 5", "size=")):
        from_folder(tmp_path)
    with pytest.raises(UsageError, match=naming("size", 1, 0)):
        from_folder(tmp_path, size=0)
    (tmp_path / "b.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"b\.png"):
        from_folder(tmp_path)
    Image.fromarray(noise(64, 64)).save(tmp_path / "b.png")
    whole = (tmp_path / "b.png").read_bytes()
    (tmp_path / "b.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"b\.png"):
        from_folder(tmp_path, size=4)
    Image.fromarray(np.full((4, 4), 7.5, np.float32)).save(tmp_path / "b.tif")
    (tmp_path / "b.png").unlink()
    with pytest.raises(DataError, match=naming("b.tif", "float")):
        from_folder(tmp_path)


@pytest.fixture
def partly_broken(tmp_path, monkeypatch):
    """A folder of eight pictures in two subfolders; one has no header, and two end too early."""
    monkeypatch.setenv("UNBRAID_DATA", str(tmp_path / "home"))
    folder = tmp_path / "photos"
    for row in range(8):
        place = folder / "ab"[row % 2] / f"{row}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noise(16, 16)).save(place)
        if row in (2, 5):
            place.write_bytes(place.read_bytes()[:150])
    (folder / "a" / "0.png").write_bytes(b"no picture")
    return folder


BROKEN = ("a/0.png", "a/2.png", "b/5.png")
WHOLE = ("a/4.png", "a/6.png", "b/1.png", "b/3.png", "b/7.png")


@pytest.mark.parametrize("stream", [False, True])
def test_unreadable_pictures_are_named_together(partly_broken, stream):
    wanted = naming("3 of 8", *BROKEN, "data.unreadable=skip")
    with pytest.raises(DataError, match=wanted):
        from_folder(partly_broken, stream=stream)
    with pytest.raises(DataError, match=wanted):
        find_data(str(partly_broken), {}, torch.device("cpu"))
    for row in range(10, 16):
        (partly_broken / f"{row}.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match=naming("9 of 14", "10.png", "14.png", "4 more")) as raised:
        from_folder(partly_broken, stream=stream)
    assert "15.png" not in str(raised.value)


@pytest.mark.parametrize("stream", [False, True])
def test_unreadable_pictures_are_left_out_with_their_labels(partly_broken, stream, capsys):
    data = from_folder(partly_broken, labels="subfolders", stream=stream, unreadable="skip")
    assert names(capsys.readouterr().err, "3 of 8", *BROKEN)
    wanted = np.stack([np.asarray(Image.open(partly_broken / name)) for name in WHOLE])
    assert (everything(data)[:, 0] == wanted.astype(np.float32) / 255).all()
    assert data.table.flatten().tolist() == [0, 0, 1, 1, 1]
    lines = [f"{name},{place}" for place, name in enumerate(sorted((*BROKEN, *WHOLE)))]
    (partly_broken / "labels.csv").write_text("\n".join(["picture,place", *lines]))
    labels = partly_broken / "labels.csv"
    data = from_folder(partly_broken, labels=labels, stream=stream, unreadable="skip")
    assert [data.factors[0].values[place] for place in data.table.flatten()] == [2, 3, 4, 5, 7]


def test_skipping_is_recorded_and_a_default_is_not(partly_broken):
    settings = {"data.unreadable": "skip"}
    choice, data = find_data(str(partly_broken), settings, torch.device("cpu"))
    assert choice.settings["unreadable"] == "skip"
    assert load("images", choice.settings).content_hash() == data.content_hash()
    for name in BROKEN:
        (partly_broken / name).unlink()
    choice, rest = find_data(str(partly_broken), {}, torch.device("cpu"))
    assert "unreadable" not in choice.settings, "ids of older runs stay the same"
    assert rest.content_hash() == data.content_hash()
    with pytest.raises(UsageError, match=naming("unreadable", "refuse", "skip")):
        find_data(str(partly_broken), {"data.unreadable": "drop"}, torch.device("cpu"))


def test_pictures_are_checked_once_and_again_when_they_change(partly_broken, monkeypatch):
    tried = []
    check = unreadable_pictures._try_picture
    monkeypatch.setattr(
        unreadable_pictures, "_try_picture", lambda folder, name: tried.append(name) or check(folder, name)
    )
    for _ in range(2):
        assert len(from_folder(partly_broken, unreadable="skip")) == 5
    assert len(tried) == 8
    Image.fromarray(noise(16, 16)).save(partly_broken / "a" / "0.png")
    assert len(from_folder(partly_broken, unreadable="skip")) == 6
    for name in ("a", "b"):
        for path in (partly_broken / name).iterdir():
            path.write_bytes(b"no picture")
    with pytest.raises(DataError, match=naming("none of 8")):
        from_folder(partly_broken, unreadable="skip")


def test_a_picture_that_is_only_locked_is_tried_again(partly_broken, monkeypatch):
    def lock(stream):
        if stream == partly_broken / "a" / "4.png":
            raise PermissionError(13, "Permission denied", str(stream))
        return opened(stream)

    opened = Image.open
    with monkeypatch.context() as patch:
        patch.setattr(Image, "open", lock)
        assert len(from_folder(partly_broken, unreadable="skip")) == 4
    assert len(from_folder(partly_broken, unreadable="skip")) == 5


# arrays


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy], ids=["numpy", "torch"])
def test_array_layouts_agree(kind):
    images = noise(6, 3, 8, 9)
    first, last = from_array(kind(images)), from_array(kind(np.ascontiguousarray(images.transpose(0, 2, 3, 1))))
    assert first.shape == (3, 8, 9)
    assert first.content_hash() == last.content_hash()
    assert from_array(kind(images[:, 0].copy())).shape == (1, 8, 9)
    assert (everything(first) == images.astype(np.float32) / 255).all()


def test_floats_that_are_bytes_are_stored_as_bytes():
    images = noise(6, 1, 8, 8)
    data = from_array(images.astype(np.float32) / 255)
    assert data.pixels.stored.dtype == torch.uint8
    assert data.content_hash() == from_array(images).content_hash()


def test_other_floats_are_kept():
    images = RANDOM.random((6, 1, 8, 8))
    data = from_array(images)
    assert data.pixels.stored.dtype == torch.float32
    assert np.allclose(everything(data), images)


def test_truth_values_are_stored_as_bits():
    images = RANDOM.random((6, 5, 5)) < 0.5
    data = from_array(images)
    assert data.pixels.bits
    assert (everything(data)[:, 0] == images).all()


def test_vectors_may_have_any_size():
    vectors = RANDOM.normal(0, 50, (7, 4))
    data = from_array(vectors)
    assert data.shape == (4,)
    assert np.allclose(everything(data), vectors)
    assert from_array([[1.0, 2.0], [3.0, 4.0]]).shape == (2,)
    assert from_array(vectors.astype(">f4")).content_hash() == data.content_hash()


def test_later_changes_of_the_array_stay_out():
    images = noise(2, 4, 4)
    data = from_array(images)
    images[:] = 0
    assert data.pixels.stored.sum() > 0


def test_factors_of_an_array():
    table = np.array([[0, 2], [1, 0], [1, 1]])
    data = from_array(noise(3, 4, 4), factors=table, factor_names=["left", "right"])
    assert (data.factor_names, data.sizes) == (("left", "right"), (2, 3))
    assert data.table.tolist() == table.tolist()
    assert from_array(noise(3, 4, 4), factors=torch.tensor([0, 1, 0])).factor_names == ("factor 0",)


@pytest.mark.parametrize(
    ("array", "facts"),
    [
        (np.array([[0.5, np.nan], [0, 1]]), ["NaN", "row 0"]),
        (torch.tensor([[[0.0]], [[float("inf")]]]), ["infinite", "row 1"]),
        (np.full((2, 4, 4), 200.0), [200, "[0, 1]"]),
        (np.full((2, 4, 4), -1.0), [-1, "[0, 1]"]),
        (np.zeros((2, 4, 4), np.int64), ["int64", "uint8"]),
        (np.zeros((2, 4, 4), np.complex64), ["complex64"]),
        (np.array([["a", "b"]]), ["<U1"]),
        (np.array([[None, 1]], object), ["object"]),
        ([[1.0, 2.0], [3.0]], ["shape"]),
        (np.zeros(5), ["(5,)", "[n, d]"]),
        (np.zeros((2, 3, 4, 5, 6)), ["(2, 3, 4, 5, 6)"]),
        (np.zeros((0, 4, 4), np.uint8), ["shape", "(0, 1, 4, 4)"]),
        (np.zeros((2, 0), np.float32), ["(2, 0)"]),
        (np.zeros((2, 3, 8, 3), np.uint8), ["channels='first'"]),
        (np.zeros((2, 8, 8, 8), np.uint8), ["channels="]),
    ],
)
def test_array_errors(array, facts):
    with pytest.raises(DataError, match=naming("mine", *facts)):
        from_array(array, name="mine")


def test_said_channels_are_believed():
    images = noise(2, 3, 8, 3)
    assert from_array(images, channels="first").shape == (3, 8, 3)
    assert from_array(images, channels="last").shape == (3, 3, 8)


@pytest.mark.parametrize(
    ("factors", "facts"),
    [
        (np.zeros(2, int), ["(2, 1)", 3]),
        (np.array([0, -2, 2]), [0]),
        (np.array([0.5, 1, 2]), [0]),
    ],
)
def test_factor_errors(factors, facts):
    with pytest.raises(DataError, match=naming("factors", *facts)):
        from_array(noise(3, 4, 4), factors=factors)


def test_wrong_number_of_factor_names():
    with pytest.raises(UsageError, match=naming("factor", 2, 1)):
        from_array(noise(3, 4, 4), factors=np.arange(3), factor_names=["a", "b"])


# torch Datasets


class Pictures(Dataset):
    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


class Stream(IterableDataset):
    def __iter__(self):
        return (torch.full((1, 4, 4), k / 255) for k in range(3))


def test_dataset_of_tensors_with_labels():
    images, labels = torch.from_numpy(noise(5, 3, 6, 6)), torch.tensor([4, 0, 1, 1, 2])
    data = from_dataset(TensorDataset(images, labels))
    assert (data.factor_names, data.sizes, data.table[:, 0].tolist()) == (("label",), (5,), labels.tolist())
    assert torch.equal(data.pixels.stored, images)


def test_dataset_of_pictures_and_stream():
    pictures = noise(3, 6, 5, 3)
    data = from_dataset(Pictures([(Image.fromarray(p), {"any": "thing"}) for p in pictures]))
    assert data.factors == ()
    assert (data.pixels.stored.numpy() == pictures.transpose(0, 3, 1, 2)).all()
    assert from_dataset(Pictures(list(pictures))).content_hash() == data.content_hash()
    assert from_dataset(Stream()).pixels.stored[:, 0, 0, 0].tolist() == [0, 1, 2]
    assert from_dataset(Pictures([torch.zeros(3), torch.ones(3)])).shape == (3,)


def test_dataset_errors():
    with pytest.raises(DataError, match="empty"):
        from_dataset(Pictures([]))
    with pytest.raises(DataError, match=naming("item 1", "(1, 4, 5)", "item 0", "(1, 4, 4)")):
        from_dataset(Pictures([torch.zeros(1, 4, 4), torch.zeros(1, 4, 5)]))
    with pytest.raises(UsageError, match="int"):
        from_dataset(3)
    with pytest.raises(DataError, match=naming("item 0", "<U6")):
        from_dataset(Pictures(["a word"]))


def test_labels_that_cannot_be_read_say_where(tmp_path):
    for name in ("a", "b"):
        Image.fromarray(noise(4, 4)).save(tmp_path / f"{name}.png")
    table = tmp_path / "labels.csv"
    for text, facts in (
        ("picture,f\na.png,1\n\n\nnone.png,2\n", ["line 5", "none.png"]),
        ("picture,f\na.png,1\nb.png,inf\n", ["inf", "f"]),
        (f"picture,f\na.png,{'x' * 200_000}\n", []),
    ):
        table.write_text(text)
        with pytest.raises(DataError, match=naming("labels.csv", *facts)):
            load("images", {"folder": tmp_path, "labels": table})


def test_factors_of_one_name_are_refused():
    with pytest.raises(UsageError, match="factor"):
        from_array(noise(6, 4), factors=np.zeros((6, 2), dtype=int), factor_names=["a", "a"])


@pytest.mark.filterwarnings("error")
def test_read_only_arrays_are_taken_without_a_warning():
    images, factors = np.zeros((4, 2, 2), np.uint8), np.arange(4)
    for array in (images, factors):
        array.flags.writeable = False
    assert from_array(images, factors=factors, factor_names=["n"]).sizes == (4,)


def test_bytes_as_floats_are_told_how_to_be_images():
    images = np.linspace(0, 255, 4 * 6 * 6, dtype=np.float32).reshape(4, 6, 6)
    with pytest.raises(DataError, match=naming("[0, 1]", 255, "uint8")):
        from_array(images)
    with pytest.raises(DataError, match=r"(?s)^(?!.*uint8)"):
        from_array(images - 100)
