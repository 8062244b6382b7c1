"""Small data of several modalities."""

import torch

from unbraid.data import ClassLabels, Modality, Pixels


def mixed(rows=6, present=None):
    """An image, a vector and a label."""
    images = Pixels(torch.arange(rows * 12).view(rows, 3, 2, 2).to(torch.uint8), (3, 2, 2))
    vectors = Pixels(torch.randn(rows, 4), (4,))
    labels = ClassLabels(torch.arange(rows) % 3, ("a", "b", "c"))
    return [
        Modality("picture", "image", images, present),
        Modality("sound", "vector", vectors),
        Modality("word", "label", labels),
    ]
