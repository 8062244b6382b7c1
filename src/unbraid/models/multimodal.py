r"""Models of several modalities: a shared latent c, and a private latent s_m for each modality m (daunhawer2019).

    p(x, s, c) = p(c) prod_m p(s_m) p(x_m|c, s_m)        q(c, s|x) = q(c|x_A) prod_m q(s_m|x_m)

Each modality's encoder gives an expert on c and the posterior of s_m. q(c|x_A) fuses the experts of the modalities A
that a row has (`unbraid.latents.fusion`); if A is empty it is the prior, and so is q(s_m|x_m) if x_m is missing. A
training step draws c from the posteriors of several subsets of A and decodes each modality from some of these draws.
Methods differ in the subsets and the draws that they choose.
"""

from abc import abstractmethod
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from unbraid.config import Choice, Config
from unbraid.data.factors import FactorDataset
from unbraid.errors import UsageError
from unbraid.latents import Space
from unbraid.latents.fusion import DiagonalNormal, ExpertMixture, product, subsets
from unbraid.models.base import Model, OwnNetworks, run_decoder, run_encoder
from unbraid.networks import Likelihood, make_likelihood
from unbraid.noise import Need
from unbraid.types import Inputs, Noise, Output, Shape

SHARED = "c"
"""Name of the shared latent block."""

MODALITIES = "modalities"
"""Name in a config's section that holds one choice per modality."""

Decoded = dict[str, dict[str, Tensor]]
"""Likelihood parameters by modality and name."""

SUBSET_NOISE = "subsets"
"""Name of the uniform noise that chooses random subsets."""


def private_block(name: str) -> str:
    """Return the name of a modality's private latent block."""
    return f"s_{name}"


class ModalityPosteriors(NamedTuple):
    """Each modality's posteriors: experts on c [rows, M, D], those of the s_m by block, and a mask [rows, M]."""

    experts: DiagonalNormal
    private: dict[str, Tensor]
    present: Tensor

    @property
    def rows(self) -> int:
        return len(self.present)


class SubsetCodes(NamedTuple):
    """Posteriors of c given S subsets of the modalities [rows, S, 2D], draws [rows, S, D], and the masks [rows, S, M].

    Some methods also decode the draws with frozen decoders, so that only codes have a gradient; see `frozen`.
    """

    parameters: Tensor
    draws: Tensor
    masks: Tensor
    frozen: Decoded


class MultimodalModel(Model):
    """An encoder, a decoder and a likelihood for each modality, and one shared latent."""

    multimodal = True

    encoder: Any
    decoder: Any
    shapes: dict[str, Shape]

    def __init__(self, *parts: Any, prior_expert: bool = True) -> None:
        super().__init__()
        self.space, self.shapes, self.encoder, self.decoder, self.densities = parts
        self.modalities, self.prior_expert = tuple(self.shapes), prior_expert
        for side, networks in (("encoder", self.encoder), ("decoder", self.decoder)):
            if not isinstance(networks, nn.ModuleDict) or set(networks) != set(self.modalities):
                names = ", ".join(self.modalities)
                raise UsageError(f"The {side} of several modalities must be a torch.nn.ModuleDict with keys {names}.")

    @classmethod
    def make_networks(
        cls, config: Config, space: Space, shape: Any, own: OwnNetworks, settings: Any, *first: Model
    ) -> tuple[nn.Module, nn.Module, nn.Module]:
        encoders, decoders, densities = nn.ModuleDict(), nn.ModuleDict(), nn.ModuleDict()
        encoder, decoder = own
        for name, modality_shape in shape.items():
            outputs, width = cls.modality_widths(space, name)
            if encoder is None:
                encoders[name] = cls.make_encoder(_modality_choice(config.encoder, name), outputs, modality_shape)
            if decoder is None:
                decoders[name] = cls.make_decoder(_modality_choice(config.decoder, name), width, modality_shape)
            likelihood = _modality_choice(config.likelihood, name)
            densities[name] = make_likelihood(likelihood.name, likelihood.settings)
        return encoders if encoder is None else encoder, decoders if decoder is None else decoder, densities

    @classmethod
    def modality_widths(cls, space: Space, name: str) -> tuple[dict[str, int], int]:
        """Return names and widths of a modality's encoder outputs, and the width of its decoder's input."""
        part = Space({n: space.blocks[n] for n in (SHARED, private_block(name)) if n in space.blocks})
        return part.outputs, part.width

    @property
    def likelihoods(self) -> dict[str, Likelihood]:
        return dict(self.densities.items())  # type: ignore[arg-type]

    @property
    def likelihood(self) -> Likelihood:  # type: ignore[override]
        names = ", ".join(self.modalities)
        raise UsageError(f"This needs a model of one modality; this one has {names}. Use generate or expected.")

    def decode(self, code: Tensor) -> dict[str, Tensor]:
        """Raise a `UsageError`, as `likelihood` does: a code has several observations."""
        return self.likelihood(code)

    def begin(self, dataset: FactorDataset, rows: Tensor, seed: int) -> None:
        for name in self.modalities:
            complete = bool(dataset.has(name, rows).all())
            if not complete and any(isinstance(module, _BatchNorm) for module in self.encoder[name].modules()):
                raise UsageError(
                    f"Some rows lack {name}, and BatchNorm in its encoder would mix these blanks with the other rows; "
                    f"choose an encoder without BatchNorm, as encoder.{name}=conv-small or mlp."
                )

    def encode_each(self, inputs: Inputs) -> ModalityPosteriors:
        """Return each modality's posteriors: the prior for a modality that `inputs.x` or a row lacks."""
        given = [name for name in self.modalities if name in inputs.x]
        if not given:
            raise UsageError(f"At least one of the modalities {', '.join(self.modalities)} must be given.")
        like, width = inputs.x[given[0]], self.space.blocks[SHARED].parameter_count
        experts, privates, present = [], {}, []
        for m, name in enumerate(self.modalities):
            outputs = sum(self.modality_widths(self.space, name)[0].values())
            # not `len(like)`, which would fix the number of rows that an exported file takes
            mask = like.new_full(like.shape[:1], name in given, dtype=torch.bool)
            if name in given and inputs.present is not None:
                mask = inputs.present[:, m]
            flat = self._encode_modality(name, inputs, mask, outputs) if name in given else like.new_zeros(1, outputs)
            flat = torch.where(mask.unsqueeze(-1), flat, 0.0)  # mean 0 and log variance 0: the prior
            experts.append(flat[:, :width])
            if private_block(name) in self.space.blocks:
                privates[private_block(name)] = flat[:, width:]
            present.append(mask)
        normals = DiagonalNormal(*torch.stack(experts, 1).chunk(2, -1))
        return ModalityPosteriors(normals, privates, torch.stack(present, 1))

    def _encode_modality(self, name: str, inputs: Inputs, mask: Tensor, width: int) -> Tensor:
        x = inputs.x[name]
        if inputs.present is not None:  # other rows may hold NaN
            x = torch.where(mask.view(-1, *[1] * (x.ndim - 1)), x, 0.0)
        return run_encoder(self.encoder[name], x, width, f"encoder of {name}")

    def fuse(self, posteriors: ModalityPosteriors) -> DiagonalNormal:
        """Return q(c|x_A) as one Normal [rows, D]."""
        return product(*posteriors.experts, posteriors.present, self.prior_expert)

    def fuse_as_mixture(self, posteriors: ModalityPosteriors) -> ExpertMixture:
        """Return q(c|x_A) as a mixture with components [rows, K, D]: here a single one."""
        mean, log_variance = self.fuse(posteriors)
        return ExpertMixture(mean.unsqueeze(1), log_variance.unsqueeze(1), mean.new_zeros(mean.shape[0], 1))

    def proposal(self, posteriors: ModalityPosteriors) -> ExpertMixture:
        """Return the proposal for c in estimates of likelihoods: the distribution in the trained bound."""
        return self.fuse_as_mixture(posteriors)

    def draw_shared(self, posteriors: ModalityPosteriors, uniform: Tensor, noise: Tensor) -> Tensor:
        """Draw from q(c|x_A) with noise [rows, count, D]; uniform numbers [rows, count] choose components."""
        return self.fuse_as_mixture(posteriors).repeat(uniform.shape[1]).draw(uniform, noise)

    def log_posterior(self, posteriors: ModalityPosteriors, value: Tensor) -> Tensor:
        """Return log q(c|x_A) [rows, count] of values [rows, count, D]."""
        return self.fuse_as_mixture(posteriors).repeat(value.shape[1]).log_density(value)

    def infer(self, inputs: Inputs, noise: Noise | None) -> dict[str, Tensor]:
        posteriors = self.encode_each(inputs)
        return {SHARED: torch.cat(self.fuse(posteriors), -1), **posteriors.private}

    def decode_modality(self, name: str, c: Tensor, s: Tensor | None, frozen: bool = False) -> dict[str, Tensor]:
        """Return a modality's likelihood parameters for codes c [rows, D] and s_m, None if it has no private latent.

        If `frozen`, only the codes have a gradient.
        """
        code, network = c if s is None else torch.cat([c, s], -1), self.decoder[name]
        if frozen:
            network = partial(functional_call, network, _detach_state(network))
        parameters = self.densities[name](run_decoder(network, self.shapes[name], code, name=f"decoder of {name}"))
        return {key: value.detach() if frozen and key else value for key, value in parameters.items()}

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
        return self.likelihoods[name].mean(self.decode_modality(name, c, s))

    @property
    @abstractmethod
    def subset_count(self) -> int:
        """Number S of subsets in a step."""

    @abstractmethod
    def choose_subsets(self, present: Tensor, noise: Noise) -> Tensor:
        """Return subsets [rows, S, M] of each row's modalities [rows, M]."""

    @property
    def decoded_from(self) -> list[list[int]]:
        """For each modality the subsets whose draws of c decode it; all of them by default."""
        return [list(range(self.subset_count))] * len(self.modalities)

    def needs(self, batch: int) -> dict[str, Need]:
        needs = self.space.needs(batch)
        needs[SHARED] = Need("normal", (batch, self.subset_count, self.space.blocks[SHARED].width))
        return needs

    def forward(self, inputs: Inputs, noise: Noise) -> Output:
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
        """Decode draws c [rows, S, D] and s_m [rows, D]; the second result comes from frozen decoders."""
        return self.decode_subsets(c, s), {}

    def decode_subsets(self, c: Tensor, s: Mapping[str, Tensor], frozen: bool = False) -> Decoded:
        """Return likelihood parameters [rows x subsets, …] by modality; the subsets of a row are adjacent."""
        decoded = {}
        for name, chosen in zip(self.modalities, self.decoded_from, strict=True):
            codes = c if len(chosen) == self.subset_count else torch.stack([c[:, subset] for subset in chosen], 1)
            private = s.get(private_block(name))
            if private is not None:
                private = private.unsqueeze(1).expand(-1, len(chosen), -1).flatten(0, 1)
            decoded[name] = self.decode_modality(name, codes.flatten(0, 1), private, frozen)
        return decoded


def as_multimodal(model: Model) -> MultimodalModel:
    """Return the model; raise a `UsageError` if it has a single modality."""
    if not isinstance(model, MultimodalModel):
        raise UsageError("This needs a run on several modalities; this one has a single modality (x).")
    return model


def _detach_state(network: nn.Module) -> dict[str, Tensor]:
    """Return a network's weights without gradients, and copies of its buffers, which a second pass may change."""
    weights = {key: weight.detach() for key, weight in network.named_parameters()}
    return {**weights, **{key: buffer.clone() for key, buffer in network.named_buffers()}}


def _modality_choice(section: Choice, name: str) -> Choice:
    return Choice.from_dict(section.settings[name])


def draw_subsets(among: Tensor, uniform: Tensor) -> Tensor:
    """Draw a non-empty subset of each set [..., M], all equally likely, with a number in (0, 1) [...].

    The number chooses one of 1 to 2^k - 1; its binary digits select among the set's k elements. An empty set gives the
    empty subset.
    """
    count = 2 ** among.sum(-1) - 1
    chosen = torch.minimum(1 + (uniform * count).to(count.dtype), count)
    place = (among.cumsum(-1) - 1).clamp(min=0)
    return among & ((chosen.unsqueeze(-1) >> place) & 1 == 1)


def draw_proper_subsets(present: Tensor, uniform: Tensor) -> Tensor:
    """Draw subsets [rows, count, M] of at least two modalities of a row [rows, M], but not all of them.

    Uniform numbers [rows, count] choose among them. A row with fewer than three modalities gets the empty set.
    """
    table = subsets(present.shape[-1], present.device)  # [S, M]
    size, every = table.sum(-1), present.unsqueeze(-2)
    fit = (every | ~table).all(-1) & (size > 1) & (size < every.sum(-1))  # [rows, S]
    count = fit.sum(-1, keepdim=True)
    chosen = torch.minimum((uniform * count).to(count.dtype), count - 1).unsqueeze(-1)  # [rows, count, 1]
    picked = fit.unsqueeze(-2) & (fit.cumsum(-1).unsqueeze(-2) == chosen + 1)
    return (picked.unsqueeze(-1) & table).any(-2)


def single_modalities(present: Tensor) -> Tensor:
    """Return the single-modality subsets [rows, M, M]; the empty set for a modality that a row [rows, M] lacks."""
    return torch.eye(present.shape[-1], dtype=torch.bool, device=present.device) & present.unsqueeze(-2)
