"""Data and a config as small as can be, with names that a page must escape."""

import torch

from unbraid.config import Choice, Config, Training
from unbraid.data.factors import Factor, FactorDataset, Pixels

HOSTILE = "<script>alert('x')</script>"


def tiny_data(channels=1, factors=True):
    """Twenty-four random 8 x 8 images, two named shapes, three columns, four rows."""
    images = torch.rand(24, channels, 8, 8, generator=torch.Generator().manual_seed(0))
    named = (Factor("shape", 2, ("disc", HOSTILE)), Factor("posX", 3), Factor("posY", 4)) if factors else ()
    return FactorDataset("tiny", Pixels((images * 255).byte(), (channels, 8, 8)), named, source=HOSTILE)


def tiny_config(likelihood="bernoulli"):
    mlp = Choice("mlp", {"hidden": (16,)})
    latents = {"z": {"kind": "normal", "size": 3}}
    objective = Choice("beta-tcvae", {"alpha": 1.0, "beta": 6.0, "gamma": 1.0, "estimator": "stratified"})
    data = Choice("tiny", {"note": HOSTILE})
    return Config(objective, "vae", data, mlp, mlp, Choice(likelihood), latents, Training(steps=10, batch=4))
