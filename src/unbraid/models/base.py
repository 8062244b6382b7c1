"""The registry of models, and how a config becomes one."""

import copy
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from unbraid.config import Config
from unbraid.latents import Space
from unbraid.networks import Likelihood, make_likelihood
from unbraid.networks import decoder as decoders
from unbraid.networks import encoder as encoders
from unbraid.noise import Need
from unbraid.registry import Registry
from unbraid.types import Noise, Output, Shape

model: Registry[Callable[..., "Model"]] = Registry("model")
"""Decorator for a `Model`."""

CUSTOM = "custom"
"""Name under which a config records a module that the user passed in."""


class Model(nn.Module):
    """What training, metrics and reports ask of a model.

    Its forward is a tensor function of observations and noise whose only state are buffers: no random draw, no
    `.item()`, no branch on a tensor, so that it can be compiled, captured and stacked.
    """

    space: Space
    shape: Shape
    likelihood: Likelihood

    @property
    @abstractmethod
    def likelihoods(self) -> dict[str, Likelihood]:
        """Likelihood of each modality."""

    @abstractmethod
    def needs(self, batch: int) -> dict[str, Need]:
        """Noise that one forward of `batch` rows consumes."""

    @abstractmethod
    def forward(self, x: Mapping[str, Tensor], noise: Noise) -> Output:
        """Encode, sample, decode."""

    @abstractmethod
    def encode(self, x: Tensor, noise: Noise | None = None) -> dict[str, Tensor]:
        """Posterior parameters by block; `noise` is that of a training step, None elsewhere."""

    @abstractmethod
    def decode(self, code: Tensor) -> dict[str, Tensor]:
        """Likelihood parameters of a code."""


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Initial weights are drawn on the CPU, from this seed alone; the caller's generators stay as they are."""
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        yield


def build(config: Config, shape: Shape, encoder: nn.Module | None = None, decoder: nn.Module | None = None) -> Model:
    """The model of a config, its weights drawn from the config's seed; copies of own modules replace named ones."""
    space = Space.from_config(config.latents, config.groups)
    encoder, decoder = copy.deepcopy(encoder), copy.deepcopy(decoder)
    with seeded(config.training.seed):
        if encoder is None:
            encoder = encoders[config.encoder.name].make(shape, space.outputs, **config.encoder.settings)
        if decoder is None:
            decoder = decoders[config.decoder.name].make(space.width, shape, **config.decoder.settings)
        likelihood = make_likelihood(config.likelihood.name, config.likelihood.settings)
        return model[config.model].make(space, shape, encoder, decoder, likelihood)
