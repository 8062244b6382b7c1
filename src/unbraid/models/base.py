"""The registry of models, and how a config becomes one."""

import copy
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from unbraid.config import Choice, Config
from unbraid.data.factors import FactorDataset
from unbraid.errors import UsageError
from unbraid.latents import Space
from unbraid.networks import Likelihood, Outputs, make_likelihood
from unbraid.networks import decoder as decoders
from unbraid.networks import encoder as encoders
from unbraid.networks.base import NetworkFacts
from unbraid.noise import Need
from unbraid.registry import Facts, Registry
from unbraid.types import Layout, Noise, Output, Shape

model: Registry[type["Model"], Facts] = Registry("model")
"""Decorator for a `Model`; its keyword arguments take their values from the settings of the recipe."""

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
    decoders: ClassVar[Registry[Callable[..., nn.Module], NetworkFacts]] = decoders
    """Where the network that a config calls its decoder is registered."""

    whole_posterior: ClassVar[bool] = True
    """Whether `encode` gives q(z|x) itself, and not just its moments."""

    @classmethod
    def ports(cls, space: Space, settings: Mapping[str, Any]) -> tuple[dict[str, int], int]:
        """Return what an encoder must output, by name and width, and the width of what a decoder takes."""
        return space.outputs, space.width

    @classmethod
    def encoder_of(cls, chosen: Choice, outputs: Outputs, shape: Shape, *first: "Model") -> nn.Module:
        """The registered network that a config calls its encoder; `first` is the model that is refined, if one is."""
        return encoders[chosen.name].make(shape, outputs, **chosen.settings)

    @classmethod
    def decoder_of(cls, chosen: Choice, width: int, shape: Shape, *first: "Model") -> nn.Module:
        """The registered network that a config calls its decoder."""
        return cls.decoders[chosen.name].make(width, shape, **chosen.settings)

    @classmethod
    def parts(
        cls,
        config: Config,
        space: Space,
        shape: Any,
        encoder: nn.Module | None,
        decoder: nn.Module | None,
        settings: Mapping[str, Any],
        *first: "Model",
    ) -> tuple[nn.Module, nn.Module, nn.Module]:
        """Return the encoder and the decoder, a config's or the user's own, and the likelihood."""
        outputs, width = cls.ports(space, settings)
        encoder = cls.encoder_of(config.encoder, outputs, shape, *first) if encoder is None else encoder
        decoder = cls.decoder_of(config.decoder, width, shape, *first) if decoder is None else decoder
        return encoder, decoder, make_likelihood(config.likelihood.name, config.likelihood.settings)

    @property
    @abstractmethod
    def likelihoods(self) -> dict[str, Likelihood]:
        """Likelihood of each modality; none where a model has no density of observations."""

    def begin(self, dataset: FactorDataset, rows: Tensor, seed: int) -> None:
        """Once, before a run trains on some rows of the data: fill buffers that come from them, by the run's seed."""

    @abstractmethod
    def needs(self, batch: int) -> dict[str, Need]:
        """Noise that one forward of `batch` rows consumes."""

    @abstractmethod
    def forward(self, x: Mapping[str, Tensor], noise: Noise) -> Output:
        """Encode, sample, decode."""

    @abstractmethod
    def encode(self, x: Any, noise: Noise | None = None) -> dict[str, Tensor]:
        """Posterior parameters by block; `noise` is that of a training step, None elsewhere."""

    @abstractmethod
    def decode(self, code: Tensor) -> dict[str, Tensor]:
        """Likelihood parameters of a code."""

    def log_likelihood(self, dataset: FactorDataset, rows: Tensor, code: Tensor) -> Tensor:
        """log p(x|z) [rows] of rows of the data at codes [rows, width]."""
        x = dataset.images(rows)
        return self.likelihood.log_prob(self.decode(code), x, x.ndim - 1)

    def prior_needs(self, count: int) -> dict[str, Need]:
        """Noise that `prior_codes` consumes."""
        return self.space.needs(count)

    def prior_codes(self, noise: Noise) -> Tensor:
        """What the decoder takes for draws from the model, [count, width]."""
        prior = {**self.space.prior(like=next(iter(noise.values()))), **self.learned_prior()}
        return self.space.join(self.space.sample_prior(prior, noise))

    def completed(self, code: Tensor, drawn: Tensor) -> Tensor:
        """A code [count, width] with what the decoder takes besides, as noise, from draws that `prior_codes` made."""
        return torch.cat([code, drawn[..., self.space.width :]], -1)

    def learned_prior(self) -> dict[str, Tensor]:
        """The parameters of a learned prior, flat; nothing where the prior is the standard one."""
        return {}

    def prior_of(self, posterior: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The prior that these posteriors are compared with, whatever is learned included."""
        return {**self.space.prior_of(posterior), **self.learned_prior()}


def full_precision(tensor: Tensor) -> Tensor:
    """Whatever the networks compute in, densities and likelihoods are float32 at least."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def encoded(network: nn.Module, x: Tensor, width: int) -> Tensor:
    """What an encoder returns, [batch, width], in full precision."""
    flat = full_precision(network(x))
    if flat.ndim != 2 or flat.shape[1] != width:
        raise UsageError(f"The encoder must return [batch, {width}], not {tuple(flat.shape)}.")
    return flat


def observations(network: nn.Module, shape: Shape, *given: Tensor, name: str = "decoder") -> Tensor:
    """What a decoder returns, [batch, *shape], in full precision."""
    raw = full_precision(network(*given))
    if tuple(raw.shape[1:]) != tuple(shape):  # a likelihood would broadcast, and train on nonsense
        raise UsageError(f"The {name} must return observations of shape {shape}, not {tuple(raw.shape[1:])}.")
    return raw


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Initial weights are drawn on the CPU, from this seed alone; the caller's generators stay as they are."""
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        yield


def build(config: Config, shape: Layout, encoder: nn.Module | None = None, decoder: nn.Module | None = None) -> Model:
    """The model of a config, its weights drawn from the config's seed; copies of own modules replace named ones.

    The first stage of a run that refines another one is built from the other's config, and has no weights yet either.
    """
    space = Space.from_config(config.latents, config.groups, config.prior)
    kind = model[config.model]
    own = kind.resolve({key: value for key, value in config.objective.settings.items() if key in kind.settings})
    encoder, decoder = copy.deepcopy(encoder), copy.deepcopy(decoder)
    first = () if config.parent is None else (build(Config.from_dict(config.parent["config"]), shape),)
    with seeded(config.training.seed):
        parts = kind.make.parts(config, space, shape, encoder, decoder, own, *first)
        return kind.make(space, shape, *parts, *first, **own)
