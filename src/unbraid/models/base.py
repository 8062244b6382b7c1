"""The base class of models, their registry, and `build`, which makes a model from a config."""

import copy
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from unbraid.config import Choice, Config
from unbraid.data.factors import FactorDataset
from unbraid.errors import UsageError
from unbraid.latents import Space
from unbraid.networks import Likelihood, Outputs, decoder as decoders, encoder as encoders, make_likelihood
from unbraid.networks.base import NetworkFacts
from unbraid.noise import Need
from unbraid.registry import Facts, Registry
from unbraid.seeding import seeded as seeded
from unbraid.types import Inputs, Layout, Noise, Output, Shape

model: Registry[type["Model"], Facts] = Registry("model")
"""Decorator for a `Model`; its keyword arguments take their values from the settings of the recipe."""

CUSTOM = "custom"
"""Name that a config records for a module that the user passed in."""

OwnNetworks = tuple[nn.Module | None, nn.Module | None]
"""Encoder and decoder that the user passed in; None for those of the config."""


class Model(nn.Module):
    """The interface of a model for training, metrics and reports.

    `forward` is a tensor function of inputs and noise whose only state are buffers: no random draw, no `.item()`, no
    branch on a tensor. So it can be compiled, captured and stacked. The class attributes say what a model can do;
    callers read them and do not ask for its class.

    `build` calls `model(space, shape, encoder, decoder, likelihood, **settings)`, with the first stage after the
    likelihood if there is one. Subclasses call these arguments `parts`.
    """

    space: Space
    shape: Shape
    likelihood: Likelihood
    decoders: ClassVar[Registry[Callable[..., nn.Module], NetworkFacts]] = decoders  # for `decoder=` in a config
    multimodal: ClassVar[bool] = False  # observations have several modalities
    whole_posterior: ClassVar[bool] = True  # `encode` returns q(z|x), not only its moments
    has_density: ClassVar[bool] = False  # `forward` returns log densities of observations [rows] by name, as `extra`
    given_factors: tuple[str, ...] = ()  # factors whose labels replace the code of the first stage

    def __init__(self) -> None:
        super().__init__()
        self.first: Model | None = None  # the frozen model that this one refines

    @classmethod
    def check(cls, space: Space, settings: Mapping[str, Any]) -> None:
        """Raise a `UsageError` for settings that this model does not support, before it is built."""

    @classmethod
    def network_widths(cls, space: Space, settings: Mapping[str, Any]) -> tuple[dict[str, int], int]:
        """Return names and widths of the encoder's outputs, and the width of the decoder's input."""
        return space.outputs, space.width

    @classmethod
    def make_encoder(cls, chosen: Choice, outputs: Outputs, shape: Shape, *first: "Model") -> nn.Module:
        """Build the encoder of a config; `first` is the model to refine, if any."""
        return copy.deepcopy(encoders[chosen.name].make(shape, outputs, **chosen.settings))  # it may be a cached one

    @classmethod
    def make_decoder(cls, chosen: Choice, width: int, shape: Shape, *first: "Model") -> nn.Module:
        return copy.deepcopy(cls.decoders[chosen.name].make(width, shape, **chosen.settings))

    @classmethod
    def make_networks(
        cls, config: Config, space: Space, shape: Any, own: OwnNetworks, settings: Mapping[str, Any], *first: "Model"
    ) -> tuple[nn.Module, nn.Module, nn.Module]:
        """Return the encoder, the decoder (the user's own, or those of the config) and the likelihood."""
        (encoder, decoder), (outputs, width) = own, cls.network_widths(space, settings)
        encoder = cls.make_encoder(config.encoder, outputs, shape, *first) if encoder is None else encoder
        decoder = cls.make_decoder(config.decoder, width, shape, *first) if decoder is None else decoder
        return encoder, decoder, make_likelihood(config.likelihood.name, config.likelihood.settings)

    @property
    @abstractmethod
    def likelihoods(self) -> dict[str, Likelihood]:
        """Likelihood of each modality; empty if the model has no density p(x|z)."""

    @abstractmethod
    def needs(self, batch: int) -> dict[str, Need]:
        """Return the noise of one `forward` of `batch` rows."""

    @abstractmethod
    def forward(self, inputs: Inputs, noise: Noise) -> Output:
        """Encode, sample, decode."""

    def begin(self, dataset: FactorDataset, rows: Tensor, seed: int) -> None:
        """Fill buffers from the training rows, once, before training."""

    def recentre(self, dataset: FactorDataset, rows: Tensor) -> None:
        """Move latents to the coordinates that fit their prior best, once, after training. By default, do nothing."""

    def training_inputs(self, dataset: FactorDataset, rows: Tensor) -> Inputs:
        """Return rows of the data as in training, with the codes of labels if the model uses labels."""
        return dataset.inputs(rows)

    def encode(self, inputs: Inputs | Tensor, noise: Noise | None = None) -> dict[str, Tensor]:
        """Return posterior parameters by block; a tensor holds observations of the only modality.

        `noise` is the noise of a training step, and None elsewhere.
        """
        return self.infer(Inputs({"x": inputs}) if isinstance(inputs, Tensor) else inputs, noise)

    @abstractmethod
    def infer(self, inputs: Inputs, noise: Noise | None) -> dict[str, Tensor]:
        """Implement `encode`."""

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

    def prior_needs(self, count: int) -> dict[str, Need]:
        """Return the noise of `prior_codes`."""
        return self.space.needs(count)

    def prior_codes(self, noise: Noise) -> Tensor:
        """Draw inputs of the decoder [count, width] from the prior; noise of the decoder comes last."""
        prior = {**self.space.prior(like=next(iter(noise.values()))), **self.learned_prior()}
        return self.space.join(self.space.sample_prior(prior, noise))

    def complete_code(self, code: Tensor, drawn: Tensor) -> Tensor:
        """Append the decoder's noise to codes [count, width]; take it from draws of `prior_codes`."""
        return torch.cat([code, drawn[..., self.space.width :]], -1)

    def learned_prior(self) -> dict[str, Tensor]:
        """Return the flat parameters of a learned prior; an empty dictionary for the standard one."""
        return {}

    def prior_of(self, posterior: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the prior of KL(posterior || prior), including the parameters of a learned one."""
        return {**self.space.prior_of(posterior), **self.learned_prior()}


def to_full_precision(tensor: Tensor) -> Tensor:
    """Return a network's output in float32 or float64, for densities and likelihoods."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def run_encoder(network: nn.Module, x: Tensor, width: int, name: str = "encoder") -> Tensor:
    """Return an encoder's output [batch, width] in full precision; raise if it has another shape."""
    before = None if torch.compiler.is_compiling() or x.is_inference() else x._version
    flat = _take_tensor(network(x), name)
    if before is not None and x._version != before:
        raise UsageError(f"The {name} changes its input in place, which is also the target; let it change a copy.")
    if flat.ndim != 2 or flat.shape[1] != width:
        raise UsageError(f"The {name} must return [batch, {width}], not {tuple(flat.shape)}.")
    return flat


def run_decoder(network: Callable[..., Tensor], shape: Shape, *inputs: Tensor, name: str = "decoder") -> Tensor:
    """Return a decoder's output [batch, *shape] in full precision; raise if it has another shape."""
    raw = _take_tensor(network(*inputs), name)
    if tuple(raw.shape[1:]) != tuple(shape):  # a likelihood would broadcast it silently
        raise UsageError(f"The {name} must return observations of shape {shape}, not {tuple(raw.shape[1:])}.")
    return raw


def _take_tensor(output: Any, name: str) -> Tensor:
    """Return what a network has made in full precision; raise if it is no tensor."""
    if not isinstance(output, Tensor):
        raise UsageError(f"The {name} must return a tensor, not a {type(output).__name__}.")
    return to_full_precision(output)


def select_model_settings(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a recipe that its model reads."""
    return model[name].resolve({key: settings[key] for key in model[name].settings if key in settings})


def build(config: Config, shape: Layout, encoder: nn.Module | None = None, decoder: nn.Module | None = None) -> Model:
    """Build the model of a config with initial weights from its seed; `encoder` and `decoder` replace named ones.

    If the run refines another one, the first stage is built from the other's config, with initial weights, too.
    """
    space = Space.from_config(config.latents, config.groups, config.prior)
    kind, settings = model[config.model].make, select_model_settings(config.model, config.objective.settings)
    kind.check(space, settings)
    own = copy.deepcopy((encoder, decoder))  # together: they may share weights
    for network in filter(None, own):
        network.float()  # trained weights are in float32, and so are observations
    first = () if config.parent is None else (build(Config.from_dict(config.parent["config"]), shape),)
    with seeded(config.training.seed):
        networks = kind.make_networks(config, space, shape, own, settings, *first)
        return kind(space, shape, *networks, *first, **settings)  # pyrefly: ignore[bad-argument-count]
