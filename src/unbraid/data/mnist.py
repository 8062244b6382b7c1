"""MNIST and Fashion-MNIST: 28 x 28 grey images in ten classes, the training rows first, then the test rows.

Files: the four idx files, gzipped or not, or an npz file with train_images, train_labels, test_images, test_labels.
MNIST may have two more factors, thickness and width of the digits, measured on the images and cut into bins.
Fashion-MNIST is also a data set of pairs, an image and its class, where some training rows lack the class.
"""

import gzip
import hashlib
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from unbraid import noise
from unbraid.data import storage
from unbraid.data.base import data_home, dataset
from unbraid.data.download import Remote
from unbraid.data.factors import Factor, FactorDataset, Pixels
from unbraid.data.file_formats import explain_errors, find_file, has_npz_arrays, read_npz_array
from unbraid.data.files import Recipe, load_stored
from unbraid.data.modalities import MultimodalDataset, multimodal
from unbraid.data.modality import ClassLabels, Modality
from unbraid.data.stroke_measures import measure_strokes
from unbraid.errors import DataError, UsageError

PARTS = {
    "train_images": "train-images-idx3-ubyte",
    "train_labels": "train-labels-idx1-ubyte",
    "test_images": "t10k-images-idx3-ubyte",
    "test_labels": "t10k-labels-idx1-ubyte",
}
DIGIT = Factor("digit", 10, tuple("0123456789"))
GARMENTS = ("t-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
GARMENT = Factor("class", 10, GARMENTS)
WANTS = f"an npz file ({', '.join(PARTS)}) or a folder with the four idx files"
STROKE_BINS = 10
STROKE_FACTORS = ("thickness", "width")
OFFICIAL_LABELS = {
    "mnist": "671ff9d70b4811116d55c3dd479efa7a981e2e62753ef7a6d5c15fea81e63d27",
    "fashion-mnist": "8ab940a680640f36c0bf1d2549cb2f3b3d4068c12547116cc7b1161b1d26663d",
}
"""SHA-256 of all labels, in the order of the official files: both data sets have files of the same names and shapes."""

_CACHE_VERSION = 1  # raise it whenever the same images should give other measures
PAIRS = "fashion-labels"
PAIR_MODALITIES = ("image", "label")


def mnist_recipe(measured: bool = False) -> Recipe:
    """Return the recipe for MNIST's originals, with the checksums of the TensorFlow Datasets catalogue."""
    host = "https://storage.googleapis.com/cvdf-datasets/mnist/"
    sums = (
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    )
    return Recipe("mnist", partial(convert, name="mnist", factor=DIGIT), WANTS, _remotes(host, sums))


def fashion_recipe() -> Recipe:
    """Return the recipe for Fashion-MNIST's originals, with the checksums of the TensorFlow Datasets catalogue."""
    host = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
    sums = (
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    )
    make = partial(convert, name="fashion-mnist", factor=GARMENT)
    return Recipe("fashion-mnist", make, WANTS, _remotes(host, sums))


@dataset("mnist", images=70_000, shape=(1, 28, 28), factors=("digit",), recipe=mnist_recipe, later=("measured",))
def mnist(*, measured: bool = False) -> FactorDataset:
    """Handwritten digits; the official test rows are held out.

    `measured` adds the factors `thickness` and `width` of the strokes, in 10 bins each (`unbraid.data.mnist_strokes`).
    """
    data = load_stored(mnist_recipe())
    return add_stroke_factors(data) if measured else data


@dataset("fashion-mnist", images=70_000, shape=(1, 28, 28), factors=("class",), recipe=fashion_recipe)
def fashion_mnist() -> FactorDataset:
    """Pictures of clothing; the official test rows are held out."""
    return load_stored(fashion_recipe())


def convert(source: Path, name: str, factor: Factor) -> FactorDataset:
    """Convert the four arrays to one data set, training rows first."""
    parts = _read_npz(source) if source.is_file() else _read_folder(source)
    train = len(parts["train_images"])
    images = np.concatenate([parts["train_images"], parts["test_images"]])
    labels = np.concatenate([parts["train_labels"], parts["test_labels"]])
    if images.ndim != 3 or images.dtype != np.uint8 or labels.shape != images.shape[:1]:
        found = f"images {images.shape} {images.dtype} and labels {labels.shape}"
        raise DataError(f"{source}: {found} do not belong together.")
    if labels.max(initial=0) >= factor.size or labels.min(initial=0) < 0:
        raise DataError(f"{source}: labels must lie in 0 … {factor.size - 1}.")
    found = hashlib.sha256(labels.astype(np.uint8).tobytes()).hexdigest()
    for other, official in OFFICIAL_LABELS.items():
        if found == official and other != name:
            raise DataError(f"{source} holds {other}, not {name}.")
    pixels = Pixels(torch.from_numpy(images)[:, None], (1, *images.shape[1:]))
    table, held_out = torch.from_numpy(labels.astype(np.int64))[:, None], torch.arange(train, len(images))
    return FactorDataset(name, pixels, (factor,), table, held_out, "official files")


def read_idx(path: Path) -> np.ndarray:
    """Return the array in an idx file of unsigned bytes, gzipped or not."""
    with explain_errors(path, "an idx file of bytes"):
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        if data[:3] != b"\0\0\x08" or len(data) < 4:
            raise ValueError(f"it starts with {data[:4].hex()}")
        start = 4 + 4 * data[3]
        shape = np.frombuffer(data[4:start], ">u4").astype(np.int64)
        if len(data) - start != shape.prod():
            raise ValueError(f"{shape.prod()} bytes announced, {len(data) - start} present")
        return np.frombuffer(bytearray(data), np.uint8, offset=start).reshape(shape)


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    if not has_npz_arrays(path, *PARTS):
        raise DataError(f"{path} is not {WANTS}.")
    return {key: read_npz_array(path, key) for key in PARTS}


def _read_folder(folder: Path) -> dict[str, np.ndarray]:
    return {key: read_idx(find_file(folder, f"{name}.gz", name)) for key, name in PARTS.items()}


def _remotes(host: str, sums: tuple[str, ...]) -> tuple[Remote, ...]:
    return tuple(Remote(f"{host}{name}.gz", f"sha256:{s}") for name, s in zip(PARTS.values(), sums, strict=True))


def add_stroke_factors(data: FactorDataset) -> FactorDataset:
    """Return a data set of single-channel images with the additional factors `thickness` and `width`.

    Each has 10 bins with equally many rows; a bin's value is the median of its rows, in pixels.
    """
    columns = [bin_values(name, column) for name, column in zip(STROKE_FACTORS, _load_measures(data).T, strict=True)]
    values = data.values_of(torch.arange(len(data), device=data.device))
    table = torch.cat([values, *(column[:, None].to(values.device) for _, column in columns)], dim=1)
    return replace(data, factors=(*data.factors, *(factor for factor, _ in columns)), table=table)


def bin_values(name: str, values: np.ndarray, bins: int = STROKE_BINS) -> tuple[Factor, Tensor]:
    """Return measured values [n] as a factor of `bins` values with about equally many rows, and the rows' bins [n]."""
    inner = np.quantile(values, np.arange(1, bins) / bins)
    place = np.searchsorted(inner, values, side="right")
    used, place = np.unique(place, return_inverse=True)  # many equal values may leave a bin without rows
    centres = tuple(round(float(np.median(values[place == k])), 3) for k in range(len(used)))
    return Factor(name, len(used), centres), torch.from_numpy(place.reshape(-1).astype(np.int64))


def _load_measures(data: FactorDataset) -> np.ndarray:
    """Return thickness and width of every image [n, 2], measured once (seconds) and cached in the data folder."""
    path = data_home() / f"{data.name}-strokes-{data.content_hash()[:16]}-v{_CACHE_VERSION}.safetensors"
    return storage.read_or_make(path, lambda: _measure(data)).pixels.stored.numpy()


def _measure(data: FactorDataset) -> FactorDataset:
    images = data.pixels.stored
    if images.ndim != 4 or images.shape[1] != 1 or data.pixels.bits:
        raise DataError(f"{data.name}: strokes can only be measured on images of one channel of bytes or floats.")
    measures = torch.from_numpy(measure_strokes(images[:, 0].cpu().numpy()).astype(np.float32))
    return FactorDataset(f"{data.name}-strokes", Pixels(measures, (2,)), source="measured")


def pairs_recipe(missing: float, seed: int) -> Recipe:
    """Return the recipe of Fashion-MNIST, whose stored file serves this data set."""
    return replace(fashion_recipe(), name=PAIRS, file="fashion-mnist")


@dataset(
    "fashion-labels",
    images=70_000,
    shape=(1, 28, 28),
    factors=("class",),
    modalities=PAIR_MODALITIES,
    recipe=pairs_recipe,
)
def fashion_labels(*, missing: float = 0.0, seed: int = 0) -> MultimodalDataset:
    """Pictures of clothing and their classes as two modalities; the official test rows are held out.

    `missing` is the share of training rows that lack their label, at random by `seed`. Test rows have theirs. The
    factor `class`, which only scores use, is known for all rows.
    """
    if not 0 <= missing < 1 or seed < 0:
        raise UsageError(f"{PAIRS}: missing must be from 0 up to 1 and seed 0 or above, not {missing:g} and {seed}.")
    data = load_stored(pairs_recipe(missing, seed))
    assert data.table is not None and data.held_out is not None
    present = torch.ones(len(data), dtype=torch.bool, device=data.device)
    trained = present.clone()
    trained[data.held_out] = False
    rows = trained.nonzero().squeeze(-1)
    order = noise.bits(noise.seed_tensor(seed, device=data.device), 0, f"{PAIRS}/missing", (len(rows),))[0].argsort()
    present[rows[order[: round(missing * len(rows))]]] = False
    labels = ClassLabels(data.table[:, 0].where(present, -1), GARMENTS)
    image = Modality("image", "image", data.pixels)
    label = Modality("label", "label", labels, present if missing else None)
    return multimodal(PAIRS, [image, label], data.factors, data.table, data.held_out, data.source)
