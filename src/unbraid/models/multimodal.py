r"""A model of several modalities: a shared latent c, and for each modality m a latent s_m of its own (daunhawer2019).

    p(x, s, c) = p(c) prod_m p(s_m) p(x_m|c, s_m)        q(c, s|x) = q(c|x_A) prod_m q(s_m|x_m)

Each modality's encoder gives an expert on c and the posterior of its s_m from one backbone. q(c|x_A) fuses the experts
of the modalities A that a row has (`unbraid.latents.fusion`); without any it is the prior, and so is q(s_m|x_m) where
x_m is missing. A training step draws c from the posteriors of several subsets of A at once and decodes each modality
from some of these draws; which ones is what methods differ in.
"""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from unbraid.config import Choice, Config
from unbraid.data.factors import FactorDataset
from unbraid.errors import UsageError
from unbraid.latents import Space
from unbraid.latents.fusion import DiagonalNormal, ExpertMixture, product
from unbraid.models.base import Model, run_encoder, to_full_precision
from unbraid.networks import Likelihood, make_likelihood
from unbraid.noise import Need
from unbraid.types import Inputs, Noise, Output, Shape

SHARED = "c"
"""Name of the shared latent block."""

MODALITIES = "modalities"
"""Name of a config's section that holds a choice for each modality."""

Decoded = dict[str, dict[str, Tensor]]
"""Likelihood parameters by modality and name."""


def private_block(name: str) -> str:
    """Return the name of a modality's own latent block."""
    return f"s_{name}"


class ModalityPosteriors(NamedTuple):
    """Each modality's posteriors: experts on c [rows, M, D], those of the s_m by block, and which are present."""

    experts: DiagonalNormal
    private: dict[str, Tensor]
    present: Tensor

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.present)


class SubsetCodes(NamedTuple):
    """Posteriors of c given subsets of the modalities [rows, S, 2D], draws [rows, S, D], and the subsets [rows, S, M].

    `frozen` holds decodings of the draws through which only the codes have a gradient, for methods that need them.
    """

    parameters: Tensor
    draws: Tensor
    masks: Tensor
    frozen: Decoded


class MultimodalModel(Model):
    """Encoders, decoders and likelihoods by modality, around one shared latent."""

    multimodal = True

    def __init__(
        self,
        space: Space,
        shape: Mapping[str, Shape],
        encoder: nn.Module,
        decoder: nn.Module,
        densities: nn.ModuleDict,
        *,
        prior_expert: bool = True,
    ) -> None:
        super().__init__()
        self.space, self.shapes, self.prior_expert = space, dict(shape), prior_expert
        self.modalities = tuple(self.shapes)
        for side, networks in (("encoder", encoder), ("decoder", decoder)):
            if not isinstance(networks, nn.ModuleDict) or set(networks) != set(self.modalities):
                names = ", ".join(self.modalities)
                raise UsageError(f"Your own {side} of several modalities must be a torch.nn.ModuleDict of {names}.")
        self.encoder: Any = encoder
        self.decoder: Any = decoder
        self.densities = densities

    @classmethod
    def make_networks(
        cls, config: Config, space: Space, shape: Any, encoder: Any, decoder: Any, settings: Any, *first: Model
    ) -> tuple[nn.Module, nn.Module, nn.Module]:
        """Build the networks and likelihoods of each modality, in the order of the data."""
        encoders, decoders, densities = nn.ModuleDict(), nn.ModuleDict(), nn.ModuleDict()
        for name, own_shape in shape.items():
            outputs, width = cls.modality_widths(space, name)
            if encoder is None:
                encoders[name] = cls.make_encoder(choice_of(config.encoder, name), outputs, own_shape)
            if decoder is None:
                decoders[name] = cls.make_decoder(choice_of(config.decoder, name), width, own_shape)
            likelihood = choice_of(config.likelihood, name)
            densities[name] = make_likelihood(likelihood.name, likelihood.settings)
        return encoders if encoder is None else encoder, decoders if decoder is None else decoder, densities

    @classmethod
    def modality_widths(cls, space: Space, name: str) -> tuple[dict[str, int], int]:
        """Return the outputs of a modality's encoder, by name and width, and the width of its decoder's input."""
        part = Space({n: space.blocks[n] for n in (SHARED, private_block(name)) if n in space.blocks})
        return part.outputs, part.width

    @property
    def likelihoods(self) -> dict[str, Likelihood]:
        return dict(self.densities.items())  # type: ignore[arg-type]

    @property
    def likelihood(self) -> Likelihood:  # type: ignore[override]
        """Raise a `UsageError`: there is no single likelihood."""
        raise self._refusal()

    def decode(self, code: Tensor) -> dict[str, Tensor]:
        """Raise a `UsageError`: there is no single observation."""
        raise self._refusal()

    def begin(self, dataset: FactorDataset, rows: Tensor, seed: int) -> None:
        """Raise a `UsageError` for an encoder that would mix rows which lack its modality with those that have it."""
        for name in self.modalities:
            complete = bool(dataset.has(name, rows).all())
            if not complete and any(isinstance(module, _BatchNorm) for module in self.encoder[name].modules()):
                raise UsageError(
                    f"Some rows lack {name}, and its encoder has BatchNorm, which would mix these blanks with the "
                    f"other rows: choose an encoder without it, as encoder.{name}=conv-small or mlp."
                )

    # encoding

    def encode_each(self, inputs: Inputs) -> ModalityPosteriors:
        """Return each modality's posteriors; one that is not in `x`, or that a row lacks, says nothing."""
        given = [name for name in self.modalities if name in inputs.x]
        if not given:
            raise UsageError(f"At least one of the modalities {', '.join(self.modalities)} must be given.")
        like, width = inputs.x[given[0]], self.space.blocks[SHARED].parameter_count
        experts, own, present = [], {}, []
        for m, name in enumerate(self.modalities):
            wanted = sum(self.modality_widths(self.space, name)[0].values())
            mask = like.new_full((len(like),), name in given, dtype=torch.bool)
            if name in given and inputs.present is not None:
                mask = inputs.present[:, m]
            flat = self._encode_modality(name, inputs, mask, wanted) if name in given else like.new_zeros(1, wanted)
            blank = torch.where(mask.unsqueeze(-1), flat, 0.0)  # mean 0 and log variance 0: the prior
            experts.append(blank[:, :width])
            if private_block(name) in self.space.blocks:
                own[private_block(name)] = blank[:, width:]
            present.append(mask)
        return ModalityPosteriors(DiagonalNormal(*torch.stack(experts, 1).chunk(2, -1)), own, torch.stack(present, 1))

    def _encode_modality(self, name: str, inputs: Inputs, mask: Tensor, width: int) -> Tensor:
        """Return a modality's parameters of c and s_m [rows, width]."""
        x = inputs.x[name]
        if inputs.present is not None:  # rows that lack it could hold anything
            x = torch.where(mask.view(-1, *[1] * (x.ndim - 1)), x, 0.0)
        return run_encoder(self.encoder[name], x, width, f"encoder of {name}")

    def fuse(self, posteriors: ModalityPosteriors) -> DiagonalNormal:
        """Return q(c|x_A) as one Normal [rows, D]."""
        return product(*posteriors.experts, posteriors.present, self.prior_expert)

    def fuse_as_mixture(self, posteriors: ModalityPosteriors) -> ExpertMixture:
        """Return q(c|x_A) as a mixture with components [rows, K, D]: here a single one."""
        mean, log_variance = self.fuse(posteriors)
        return ExpertMixture(mean.unsqueeze(1), log_variance.unsqueeze(1), mean.new_zeros(posteriors.rows, 1))

    def proposal(self, posteriors: ModalityPosteriors) -> ExpertMixture:
        """Return the distribution that proposes c where likelihoods are estimated: the one whose bound is trained."""
        return self.fuse_as_mixture(posteriors)

    def draw_shared(self, posteriors: ModalityPosteriors, uniform: Tensor, noise: Tensor) -> Tensor:
        """Draw from q(c|x_A) by noise [rows, count, D]; uniform numbers [rows, count] choose components."""
        return self.fuse_as_mixture(posteriors).repeat(uniform.shape[1]).draw(uniform, noise)

    def log_posterior(self, posteriors: ModalityPosteriors, value: Tensor) -> Tensor:
        """Return log q(c|x_A) [rows, count] of values [rows, count, D]."""
        return self.fuse_as_mixture(posteriors).repeat(value.shape[1]).log_density(value)

    def infer(self, inputs: Inputs, noise: Noise | None) -> dict[str, Tensor]:
        """Return posterior parameters by block, given any of the modalities."""
        posteriors = self.encode_each(inputs)
        return {SHARED: torch.cat(self.fuse(posteriors), -1), **posteriors.private}

    # decoding

    def decode_modality(self, name: str, c: Tensor, s: Tensor | None, frozen: bool = False) -> dict[str, Tensor]:
        """Return a modality's likelihood parameters for codes c [rows, D] and its own s, None where it has none.

        If `frozen`, only the codes have a gradient.
        """
        code, network = c if s is None else torch.cat([c, s], -1), self.decoder[name]
        raw = to_full_precision(
            functional_call(network, without_gradient(network), (code,)) if frozen else network(code)
        )
        if tuple(raw.shape[1:]) != tuple(self.shapes[name]):
            wanted = self.shapes[name]
            raise UsageError(f"The decoder of {name} must return observations of shape {wanted}, not {raw.shape[1:]}.")
        made = self.densities[name](raw)
        return {key: value.detach() if frozen and key else value for key, value in made.items()}

    def log_likelihood(self, dataset: FactorDataset, rows: Tensor, code: Tensor) -> Tensor:
        """Return sum_m log p(x_m|c, s_m) [rows] over the modalities that a row has."""
        values, total = self.space.unjoin(code), torch.zeros_like(code[:, 0])
        for name, x in dataset.observed(rows).items():
            decoded = self.decode_modality(name, values[SHARED], values.get(private_block(name)))
            each = self.likelihoods[name].log_prob(decoded, x, x.ndim - 1)
            total = total + torch.where(dataset.has(name, rows), each, 0.0)
        return total

    def expected(self, code: Tensor) -> dict[str, Tensor]:
        """Return the expected observations of each modality for whole codes [rows, width]."""
        values = self.space.unjoin(code)
        return {n: self.expected_modality(n, values[SHARED], values.get(private_block(n))) for n in self.modalities}

    def expected_modality(self, name: str, c: Tensor, s: Tensor | None) -> Tensor:
        """Return the expected observations of one modality."""
        return self.likelihoods[name].mean(self.decode_modality(name, c, s))

    # training

    @property
    @abstractmethod
    def subset_count(self) -> int:
        """Number S of the subsets whose posterior a step draws c from."""

    @abstractmethod
    def choose_subsets(self, present: Tensor, noise: Noise) -> Tensor:
        """Return these subsets [rows, S, M] of what rows have [rows, M]."""

    @property
    def decoded_from(self) -> list[list[int]]:
        """For each modality the numbers of the subsets from whose c a step decodes it; all of them by default."""
        return [list(range(self.subset_count))] * len(self.modalities)

    def needs(self, batch: int) -> dict[str, Need]:
        """Return noise for a draw of c given each subset, and for one of each s_m."""
        needs = self.space.needs(batch)
        needs[SHARED] = Need("normal", (batch, self.subset_count, self.space.blocks[SHARED].width))
        return needs

    def forward(self, inputs: Inputs, noise: Noise) -> Output:
        """Encode, fuse each subset, sample, decode [rows x subsets, …]."""
        posteriors, shared = self.encode_each(inputs), self.space.blocks[SHARED]
        masks = self.choose_subsets(posteriors.present, noise)
        mean, log_variance = (part.unsqueeze(1) for part in posteriors.experts)
        parameters = torch.cat(product(mean, log_variance, masks, self.prior_expert), -1)
        draws = shared.sample(parameters, noise[SHARED])
        s = {name: self.space.blocks[name].sample(flat, noise[name]) for name, flat in posteriors.private.items()}
        posterior = {SHARED: torch.cat(self.fuse(posteriors), -1), **posteriors.private}
        sample = {SHARED: shared.sample(posterior[SHARED], noise[SHARED][:, 0]), **s}
        decoded, frozen = self.decode_draws(draws, s)
        extra = SubsetCodes(parameters, draws, masks, frozen)
        return Output(posterior, self.prior_of(posterior), sample, decoded, extra)

    def decode_draws(self, c: Tensor, s: Mapping[str, Tensor]) -> tuple[Decoded, Decoded]:
        """Decode draws c [rows, S, D] and s_m [rows, D]; the second result is decoded with frozen decoders."""
        return self.decode_subsets(c, s), {}

    def decode_subsets(self, c: Tensor, s: Mapping[str, Tensor], frozen: bool = False) -> Decoded:
        """Return likelihood parameters [rows x subsets, …] by modality; a row's subsets lie next to each other."""
        made = {}
        for name, chosen in zip(self.modalities, self.decoded_from, strict=True):
            codes = c if len(chosen) == self.subset_count else torch.stack([c[:, subset] for subset in chosen], 1)
            own = s.get(private_block(name))
            own = None if own is None else own.unsqueeze(1).expand(-1, len(chosen), -1).flatten(0, 1)
            made[name] = self.decode_modality(name, codes.flatten(0, 1), own, frozen)
        return made

    def _refusal(self) -> UsageError:
        names = ", ".join(self.modalities)
        return UsageError(f"This needs a model of one modality, and this one has {names}; use generate or expected.")


def as_multimodal(model: Model) -> MultimodalModel:
    """Return the model; raise a `UsageError` unless it is one of several modalities."""
    if not isinstance(model, MultimodalModel):
        raise UsageError("This needs a run on several modalities, and this one has a single one (x).")
    return model


def without_gradient(network: nn.Module) -> dict[str, Tensor]:
    """Return a network's weights without gradients, and copies of its buffers, which a second pass may change."""
    weights = {key: weight.detach() for key, weight in network.named_parameters()}
    return {**weights, **{key: buffer.clone() for key, buffer in network.named_buffers()}}


def choice_of(section: Choice, name: str) -> Choice:
    """Return what a config's section says of one modality."""
    return Choice.from_dict(section.settings[name])
