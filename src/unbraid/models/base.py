"""The contract of a model, the registry of models, and how a config becomes one."""

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
from unbraid.types import Inputs, Layout, Noise, Output, Shape

model: Registry[type["Model"], Facts] = Registry("model")
"""Decorator for a `Model`; its keyword arguments take their values from the settings of the recipe."""

CUSTOM = "custom"
"""Name under which a config records a module that the user passed in."""


class Model(nn.Module):
    """What training, metrics and reports ask of a model.

    Its forward is a tensor function of inputs and noise whose only state are buffers: no random draw, no `.item()`, no
    branch on a tensor, so that it can be compiled, captured and stacked. The class attributes say what a model can do;
    nothing asks for its class.
    """

    space: Space
    shape: Shape
    likelihood: Likelihood
    decoders: ClassVar[Registry[Callable[..., nn.Module], NetworkFacts]] = decoders
    """Registry of the network that a config calls its decoder."""

    multimodal: ClassVar[bool] = False
    """Whether observations have several modalities (`unbraid.models.multimodal`)."""
    whole_posterior: ClassVar[bool] = True
    """Whether `encode` returns q(z|x) itself, rather than its moments."""
    has_density: ClassVar[bool] = False
    """Whether the forward returns log densities of observations [rows] by name, as `extra`."""
    given_factors: tuple[str, ...] = ()
    """Factors whose labels stand for the code of the first stage."""

    def __init__(self) -> None:
        super().__init__()
        self.first: Model | None = None
        """The frozen model that this one refines (`unbraid.models.staged`)."""

    # construction

    @classmethod
    def check(cls, space: Space, settings: Mapping[str, Any]) -> None:
        """Raise a `UsageError` for settings that this model cannot have, before it is built."""

    @classmethod
    def network_widths(cls, space: Space, settings: Mapping[str, Any]) -> tuple[dict[str, int], int]:
        """Return what the encoder must output, by name and width, and the width of the decoder's input."""
        return space.outputs, space.width

    @classmethod
    def make_encoder(cls, chosen: Choice, outputs: Outputs, shape: Shape, *first: "Model") -> nn.Module:
        """Build the network that a config calls its encoder; `first` is the model to refine, if there is one."""
        return encoders[chosen.name].make(shape, outputs, **chosen.settings)

    @classmethod
    def make_decoder(cls, chosen: Choice, width: int, shape: Shape, *first: "Model") -> nn.Module:
        """Build the network that a config calls its decoder."""
        return cls.decoders[chosen.name].make(width, shape, **chosen.settings)

    @classmethod
    def make_networks(
        cls,
        config: Config,
        space: Space,
        shape: Any,
        encoder: nn.Module | None,
        decoder: nn.Module | None,
        settings: Mapping[str, Any],
        *first: "Model",
    ) -> tuple[nn.Module, nn.Module, nn.Module]:
        """Return the encoder and the decoder, the user's own or those of the config, and the likelihood."""
        outputs, width = cls.network_widths(space, settings)
        encoder = cls.make_encoder(config.encoder, outputs, shape, *first) if encoder is None else encoder
        decoder = cls.make_decoder(config.decoder, width, shape, *first) if decoder is None else decoder
        return encoder, decoder, make_likelihood(config.likelihood.name, config.likelihood.settings)

    # training

    @property
    @abstractmethod
    def likelihoods(self) -> dict[str, Likelihood]:
        """Likelihood of each modality; empty if the model has no density p(x|z)."""

    @abstractmethod
    def needs(self, batch: int) -> dict[str, Need]:
        """Return the noise that one forward of `batch` rows consumes."""

    @abstractmethod
    def forward(self, inputs: Inputs, noise: Noise) -> Output:
        """Encode, sample, decode."""

    def begin(self, dataset: FactorDataset, rows: Tensor, seed: int) -> None:
        """Fill buffers that come from the training rows, once, before training."""

    def recentre(self, dataset: FactorDataset, rows: Tensor) -> None:
        """Move latents to the coordinates that fit their prior best, once, after training; most models do not."""

    def training_inputs(self, dataset: FactorDataset, rows: Tensor) -> Inputs:
        """Return rows of the data as training sees them, with codes that labels give, if some do."""
        return dataset.inputs(rows)

    # use

    def encode(self, inputs: Inputs | Tensor, noise: Noise | None = None) -> dict[str, Tensor]:
        """Return posterior parameters by block; a tensor stands for the observations of the only modality.

        `noise` is that of a training step, None elsewhere.
        """
        return self.infer(Inputs({"x": inputs}) if isinstance(inputs, Tensor) else inputs, noise)

    @abstractmethod
    def infer(self, inputs: Inputs, noise: Noise | None) -> dict[str, Tensor]:
        """Return posterior parameters by block; implements `encode`."""

    @abstractmethod
    def decode(self, code: Tensor) -> dict[str, Tensor]:
        """Return likelihood parameters of codes [rows, width]."""

    def decode_stages(self, code: Tensor) -> list[Tensor]:
        """Return the expected observations of codes after each stage, the first stage's first."""
        return [self.likelihood.mean(self.decode(code))]

    def log_likelihood(self, dataset: FactorDataset, rows: Tensor, code: Tensor) -> Tensor:
        """Return log p(x|z) [rows] of rows of the data at codes [rows, width]."""
        x = dataset.images(rows)
        return self.likelihood.log_prob(self.decode(code), x, x.ndim - 1)

    # prior

    def prior_needs(self, count: int) -> dict[str, Need]:
        """Return the noise that `prior_codes` consumes."""
        return self.space.needs(count)

    def prior_codes(self, noise: Noise) -> Tensor:
        """Draw inputs of the decoder from the model, [count, width]; noise of the decoder comes last."""
        prior = {**self.space.prior(like=next(iter(noise.values()))), **self.learned_prior()}
        return self.space.join(self.space.sample_prior(prior, noise))

    def complete_code(self, code: Tensor, drawn: Tensor) -> Tensor:
        """Append the decoder's noise to codes [count, width], from draws of `prior_codes`."""
        return torch.cat([code, drawn[..., self.space.width :]], -1)

    def learned_prior(self) -> dict[str, Tensor]:
        """Return the flat parameters of a learned prior; nothing if the prior is the standard one."""
        return {}

    def prior_of(self, posterior: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the prior that these posteriors are compared with, a learned one included."""
        return {**self.space.prior_of(posterior), **self.learned_prior()}


def to_full_precision(tensor: Tensor) -> Tensor:
    """Return a network's output in float32 at least: densities and likelihoods need it."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def run_encoder(network: nn.Module, x: Tensor, width: int, name: str = "encoder") -> Tensor:
    """Run an encoder; return its output [batch, width] in full precision, or raise if it has another shape."""
    flat = to_full_precision(network(x))
    if flat.ndim != 2 or flat.shape[1] != width:
        raise UsageError(f"The {name} must return [batch, {width}], not {tuple(flat.shape)}.")
    return flat


def run_decoder(network: nn.Module, shape: Shape, *given: Tensor, name: str = "decoder") -> Tensor:
    """Run a decoder; return its output [batch, *shape] in full precision, or raise if it has another shape."""
    raw = to_full_precision(network(*given))
    if tuple(raw.shape[1:]) != tuple(shape):  # a likelihood would broadcast, and train on nonsense
        raise UsageError(f"The {name} must return observations of shape {shape}, not {tuple(raw.shape[1:])}.")
    return raw


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw initial weights on the CPU from this seed alone; the caller's generators stay as they are."""
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        yield


def select_model_settings(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of a recipe's settings that its model reads."""
    return model[name].resolve({key: settings[key] for key in model[name].settings if key in settings})


def build(config: Config, shape: Layout, encoder: nn.Module | None = None, decoder: nn.Module | None = None) -> Model:
    """Build the model of a config, its weights drawn from the config's seed; copies of own modules replace named ones.

    The first stage of a run that refines another one is built from the other's config, and has no weights yet either.
    """
    space = Space.from_config(config.latents, config.groups, config.prior)
    kind, own = model[config.model].make, select_model_settings(config.model, config.objective.settings)
    kind.check(space, own)
    encoder, decoder = copy.deepcopy(encoder), copy.deepcopy(decoder)
    first = () if config.parent is None else (build(Config.from_dict(config.parent["config"]), shape),)
    with seeded(config.training.seed):
        networks = kind.make_networks(config, space, shape, encoder, decoder, own, *first)
        return kind(space, shape, *networks, *first, **own)  # pyrefly: ignore[bad-argument-count]
