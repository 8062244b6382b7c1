"""A model of pictures, and pictures made worse, for scores of generated pictures."""

import torch
from torch import nn
from torch.nn import functional

from unbraid.data import load
from unbraid.latents import Normal, Space
from unbraid.metrics import Evaluation
from unbraid.models import VAE
from unbraid.networks import make_likelihood


def blurred(images, width):
    """Every pixel the mean of the square of `width` pixels around it."""
    return functional.avg_pool2d(images, width, stride=1, padding=width // 2, count_include_pad=False)


def speckled(images, scale):
    noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(0))
    return (images + scale * noise).clamp(0, 1)


def picture_model():
    """A VAE of sprites-small as it was initialised."""
    torch.manual_seed(0)
    data = load("sprites-small")
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(1024, 6))
    decoder = nn.Sequential(nn.Linear(3, 1024), nn.Unflatten(1, (1, 32, 32)))
    model = VAE(Space({"z": Normal(size=3)}), (1, 32, 32), encoder, decoder, make_likelihood("bernoulli", {}))
    return Evaluation(model, data)
