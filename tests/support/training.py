"""Small runs on small sprites, and what they have learned."""

import torch

from unbraid.config import Choice
from unbraid.store import load_tensors
from unbraid.training import Cadence, GroupFolders, configure, train_group
from unbraid.training.loop import check_not_diverged
from unbraid.types import Modules

OWN = {"decoder.hidden": (16,), "network": "mlp", "z": 3, "batch": 32, "steps": 24}
SMALL = {"encoder.hidden": (16,), **OWN}


def config_of(sprites, recipe="beta-tcvae", **overrides):
    return configure(recipe, Choice("sprites-small", {}), sprites, {**SMALL, **overrides})


def train(folder, dataset, cadence=None, world=None, **modules):
    """Train one run into its folder, continuing from its newest checkpoint; raise if it diverges."""
    train_group(GroupFolders(folder, [folder], cadence or Cadence()), dataset, world, modules=Modules(**modules))
    check_not_diverged(folder, world)


def weights_of(folder):
    return load_tensors(folder.model_path)[0]


def assert_same(first, second):
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
