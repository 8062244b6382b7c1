"""Fashion-MNIST as pairs of an image and its class, where some training rows lack the class."""

from dataclasses import replace

import torch

from unbraid import noise
from unbraid.data.base import dataset
from unbraid.data.files import Recipe, load_stored
from unbraid.data.mnist import GARMENTS, fashion_recipe
from unbraid.data.modalities import MultimodalDataset, multimodal
from unbraid.data.modality import ClassLabels, Modality
from unbraid.errors import UsageError

NAME = "fashion-labels"
MODALITIES = ("image", "label")


def recipe(missing: float, seed: int) -> Recipe:
    """Return the recipe of Fashion-MNIST, whose stored file serves this data set."""
    return replace(fashion_recipe(), name=NAME, file="fashion-mnist")


@dataset("fashion-labels", images=70_000, shape=(1, 28, 28), factors=("class",), modalities=MODALITIES, recipe=recipe)
def fashion_labels(*, missing: float = 0.0, seed: int = 0) -> MultimodalDataset:
    """Pictures of clothing and their classes as two modalities; the official test rows are held out.

    `missing` is the share of training rows that lack their label, at random by `seed`. Test rows have theirs. The
    factor `class`, which only scores use, is known for all rows.
    """
    if not 0 <= missing < 1 or seed < 0:
        raise UsageError(f"{NAME}: missing must be from 0 up to 1 and seed 0 or above, not {missing:g} and {seed}.")
    data = load_stored(recipe(missing, seed))
    assert data.table is not None and data.held_out is not None
    present = torch.ones(len(data), dtype=torch.bool, device=data.device)
    trained = present.clone()
    trained[data.held_out] = False
    rows = trained.nonzero().squeeze(-1)
    order = noise.bits(noise.seed_tensor(seed, device=data.device), 0, f"{NAME}/missing", (len(rows),))[0].argsort()
    present[rows[order[: round(missing * len(rows))]]] = False
    labels = ClassLabels(data.table[:, 0].where(present, -1), GARMENTS)
    image = Modality("image", "image", data.pixels)
    label = Modality("label", "label", labels, present if missing else None)
    return multimodal(NAME, [image, label], data.factors, data.table, data.held_out, data.source)
