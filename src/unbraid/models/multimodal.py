r"""One model of several modalities: a shared latent c, and for each modality m a latent s_m of its own (daunhawer2019).

    p(x, s, c) = p(c) prod_m p(s_m) p(x_m|c, s_m)        q(c, s|x) = q(c|x_A) prod_m q(s_m|x_m)

Each modality's encoder gives an expert on c and the posterior of its s_m from one backbone. q(c|x_A) fuses the experts
of the modalities that are there (`unbraid.latents.fusion`); without any of them it is the prior, and so is q(s_m|x_m)
where x_m is missing. A training step draws c from the posteriors of several subsets at once, the *paths* of a row
(`unbraid.models.paths`), and decodes each modality from some of them, its *routes*.
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
from unbraid.data.modalities import PRESENT
from unbraid.errors import UsageError
from unbraid.latents import Space
from unbraid.latents.fusion import Gaussian, Mixture, product
from unbraid.models.base import Model, full_precision
from unbraid.networks import Likelihood, make_likelihood
from unbraid.noise import Need
from unbraid.types import Noise, Output, Shape

SHARED = "c"
PATHS, MASKS = "c/paths", "paths"
"""In an output: parameters and draws of c [rows, paths, …], and the modalities [rows, paths, M] that paths look at."""

SECTION = "modalities"
"""Name of a config's section that holds a choice for each modality."""


def private(name: str) -> str:
    """Name of a modality's own latent block."""
    return f"s_{name}"


class Beliefs(NamedTuple):
    """What the encoders say: experts on c [rows, M, D], posteriors of the s_m by block, and what is there [rows, M]."""

    experts: Gaussian
    private: dict[str, Tensor]
    there: Tensor

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.there)


class Multimodal(Model):
    """Encoders, decoders and likelihoods by modality, around one shared latent."""

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
        self.names = tuple(self.shapes)
        for side, networks in (("encoder", encoder), ("decoder", decoder)):
            if not isinstance(networks, nn.ModuleDict) or set(networks) != set(self.names):
                raise UsageError(
                    f"Your own {side} of several modalities is a torch.nn.ModuleDict of {', '.join(self.names)}."
                )
        self.encoder: Any = encoder
        self.decoder: Any = decoder
        self.densities = densities

    @classmethod
    def parts(
        cls, config: Config, space: Space, shape: Any, encoder: Any, decoder: Any, settings: Any, *first: Model
    ) -> tuple[nn.Module, nn.Module, nn.Module]:
        """Networks and likelihoods of each modality, in the order of the data."""
        made: tuple[dict[str, nn.Module], ...] = ({}, {}, {})
        for name, own_shape in shape.items():
            outputs, width = cls.modality_ports(space, name)
            if encoder is None:
                made[0][name] = cls.encoder_of(chosen(config.encoder, name), outputs, own_shape)
            if decoder is None:
                made[1][name] = cls.decoder_of(chosen(config.decoder, name), width, own_shape)
            likelihood = chosen(config.likelihood, name)
            made[2][name] = make_likelihood(likelihood.name, likelihood.settings)
        encoder = nn.ModuleDict(made[0]) if encoder is None else encoder
        decoder = nn.ModuleDict(made[1]) if decoder is None else decoder
        return encoder, decoder, nn.ModuleDict(made[2])

    @classmethod
    def modality_ports(cls, space: Space, name: str) -> tuple[dict[str, int], int]:
        """What a modality's encoder gives, by name and width, and the width of what its decoder takes."""
        blocks = {n: space.blocks[n] for n in (SHARED, private(name)) if n in space.blocks}
        part = Space(blocks)
        return part.outputs, part.width

    @property
    def likelihoods(self) -> dict[str, Likelihood]:
        """Likelihood of each modality."""
        return dict(self.densities.items())  # type: ignore[arg-type]

    @property
    def likelihood(self) -> Likelihood:  # type: ignore[override]
        """There is no single one."""
        raise self._refusal()

    def decode(self, code: Tensor) -> dict[str, Tensor]:
        """There is no single observation."""
        raise self._refusal()

    def begin(self, dataset: FactorDataset, rows: Tensor, seed: int) -> None:
        """Refuse encoders that would mix rows which lack a modality, and are blank, with those that have it."""
        there = dataset.present(rows) or {}
        for name, mask in there.items():
            if not bool(mask.all()) and any(isinstance(m, _BatchNorm) for m in self.encoder[name].modules()):
                raise UsageError(
                    f"Some rows lack {name}, and its encoder has BatchNorm, through which these blanks would reach the "
                    f"other rows: choose one without, as encoder.{name}=conv-small or mlp."
                )

    # encoding

    def beliefs(self, x: Mapping[str, Tensor]) -> Beliefs:
        """What each modality of `x` says; one that is absent, or masked by `present/NAME`, says nothing."""
        given = [name for name in self.names if name in x]
        if not given:
            raise UsageError(f"At least one of the modalities {', '.join(self.names)} must be given.")
        rows, width = len(x[given[0]]), self.space.blocks[SHARED].parameter_count
        experts, own, there = [], {}, []
        for name in self.names:
            flat, mask = self._encoded(name, x, rows)
            blank = torch.where(mask.unsqueeze(-1), flat, 0.0)  # mean 0 and log variance 0: the prior
            experts.append(blank[:, :width])
            if private(name) in self.space.blocks:
                own[private(name)] = blank[:, width:]
            there.append(mask)
        return Beliefs(Gaussian(*torch.stack(experts, 1).chunk(2, -1)), own, torch.stack(there, 1))

    def _encoded(self, name: str, x: Mapping[str, Tensor], rows: int) -> tuple[Tensor, Tensor]:
        """A modality's parameters of c and s_m [rows, …], and which rows have it [rows]."""
        wanted = sum(self.modality_ports(self.space, name)[0].values())
        like = next(x[n] for n in self.names if n in x)
        if name not in x:
            return like.new_zeros(rows, wanted), torch.zeros(rows, dtype=torch.bool, device=like.device)
        seen, mask = x[name], x.get(PRESENT + name)
        if mask is None:
            mask = torch.ones(rows, dtype=torch.bool, device=like.device)
        else:  # what is not there could hold anything
            seen = torch.where(mask.view(-1, *[1] * (seen.ndim - 1)), seen, 0.0)
        flat = full_precision(self.encoder[name](seen))
        if flat.ndim != 2 or flat.shape[1] != wanted:
            raise UsageError(f"The encoder of {name} must return [batch, {wanted}], not {tuple(flat.shape)}.")
        return flat, mask

    def fused(self, beliefs: Beliefs) -> Gaussian:
        """q(c|x_A) of the modalities that are there, as one Normal [rows, D]."""
        return product(*beliefs.experts, beliefs.there, self.prior_expert)

    def conditional(self, beliefs: Beliefs) -> Mixture:
        """q(c|x_A) of the modalities that are there, with components [rows, K, D]: here a single one."""
        mean, log_variance = self.fused(beliefs)
        return Mixture(mean.unsqueeze(1), log_variance.unsqueeze(1), mean.new_zeros(beliefs.rows, 1))

    def proposal(self, beliefs: Beliefs) -> Mixture:
        """What proposes c where likelihoods are estimated: the posterior whose bound is trained."""
        return self.conditional(beliefs)

    def drawn(self, beliefs: Beliefs, uniform: Tensor, noise: Tensor) -> Tensor:
        """Draws of q(c|x_A) [rows, count, D] from noise of this shape; numbers [rows, count] choose components."""
        return self.conditional(beliefs).repeated(uniform.shape[1]).drawn(uniform, noise)

    def log_posterior(self, beliefs: Beliefs, value: Tensor) -> Tensor:
        """log q(c|x_A) [rows, count] of values [rows, count, D]."""
        return self.conditional(beliefs).repeated(value.shape[1]).log_density(value)

    def encode(self, x: Mapping[str, Tensor], noise: Noise | None = None) -> dict[str, Tensor]:
        """Posterior parameters by block, given any of the modalities."""
        beliefs = self.beliefs(x)
        return {SHARED: torch.cat(self.fused(beliefs), -1), **beliefs.private}

    # decoding

    def decoded(self, name: str, c: Tensor, s: Tensor | None, frozen: bool = False) -> dict[str, Tensor]:
        """Likelihood parameters of a modality for codes c [rows, D] and its own s, None where it has none.

        Where it is `frozen`, only the codes have a gradient.
        """
        code, network = c if s is None else torch.cat([c, s], -1), self.decoder[name]
        raw = full_precision(functional_call(network, held(network), (code,)) if frozen else network(code))
        if tuple(raw.shape[1:]) != tuple(self.shapes[name]):
            wanted = self.shapes[name]
            raise UsageError(f"The decoder of {name} must return observations of shape {wanted}, not {raw.shape[1:]}.")
        made = self.densities[name](raw)
        return {key: value.detach() if frozen and key else value for key, value in made.items()}

    def log_likelihood(self, dataset: FactorDataset, rows: Tensor, code: Tensor) -> Tensor:
        """sum_m log p(x_m|c, s_m) [rows] over what is there."""
        values, present = self.space.unjoin(code), dataset.present(rows)
        total = torch.zeros_like(code[:, 0])
        for name, x in dataset.observed(rows).items():
            decoded = self.decoded(name, values[SHARED], values.get(private(name)))
            each = self.likelihoods[name].log_prob(decoded, x, x.ndim - 1)
            total = total + (each if present is None else torch.where(present[name], each, 0.0))
        return total

    def expected(self, code: Tensor) -> dict[str, Tensor]:
        """Expected observations of each modality for whole codes [rows, width]."""
        values = self.space.unjoin(code)
        return {n: self.expected_of(n, values[SHARED], values.get(private(n))) for n in self.names}

    def expected_of(self, name: str, c: Tensor, s: Tensor | None) -> Tensor:
        """Expected observations of one modality."""
        return self.likelihoods[name].mean(self.decoded(name, c, s))

    # training

    @property
    @abstractmethod
    def routes(self) -> list[list[int]]:
        """For each modality the paths from which it is decoded in training."""

    @abstractmethod
    def paths(self, there: Tensor, noise: Noise) -> Tensor:
        """Modalities [rows, paths, M] that each path looks at, of those that are there [rows, M]."""

    @property
    @abstractmethod
    def path_count(self) -> int:
        """Number of paths."""

    def needs(self, batch: int) -> dict[str, Need]:
        """A draw of c for each path, and one of each s_m."""
        needs = self.space.needs(batch)
        needs[SHARED] = Need("normal", (batch, self.path_count, self.space.blocks[SHARED].width))
        return needs

    def forward(self, x: Mapping[str, Tensor], noise: Noise) -> Output:
        """Encode, fuse along each path, sample, decode along the routes [rows x routes, …]."""
        beliefs = self.beliefs(x)
        masks = self.paths(beliefs.there, noise)
        mean, log_variance = beliefs.experts.mean.unsqueeze(1), beliefs.experts.log_variance.unsqueeze(1)
        fused = product(mean, log_variance, masks, self.prior_expert)
        along = torch.cat(fused, -1)
        c = self.space.blocks[SHARED].sample(along, noise[SHARED])
        s = {name: self.space.blocks[name].sample(flat, noise[name]) for name, flat in beliefs.private.items()}
        posterior = {SHARED: torch.cat(self.fused(beliefs), -1), **beliefs.private}
        whole = self.space.blocks[SHARED].sample(posterior[SHARED], noise[SHARED][:, 0])
        prior = self.prior_of(posterior)
        posterior |= {PATHS: along, MASKS: masks.to(along.dtype)}
        return Output(posterior, prior, {SHARED: whole, **s, PATHS: c}, self.decodings(c, s))

    def decodings(self, c: Tensor, s: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
        """What a step decodes of draws c [rows, paths, D] and each s_m [rows, D]."""
        return self.along_routes(c, s)

    def along_routes(self, c: Tensor, s: Mapping[str, Tensor], frozen: bool = False) -> dict[str, dict[str, Tensor]]:
        """Likelihood parameters by modality, the routes of a row next to each other."""
        made = {}
        for name, route in zip(self.names, self.routes, strict=True):
            codes = c if len(route) == self.path_count else torch.stack([c[:, path] for path in route], 1)
            own = s.get(private(name))
            own = None if own is None else own.unsqueeze(1).expand(-1, len(route), -1).flatten(0, 1)
            made[name] = self.decoded(name, codes.flatten(0, 1), own, frozen)
        return made

    def _refusal(self) -> UsageError:
        return UsageError(
            f"This takes a model of one modality, and this one has {', '.join(self.names)}; use generate, or "
            "model.expected(codes)."
        )


def held(network: nn.Module) -> dict[str, Tensor]:
    """A network's weights without gradients, and copies of its buffers, so that a second pass leaves no trace."""
    weights = {key: weight.detach() for key, weight in network.named_parameters()}
    return {**weights, **{key: buffer.clone() for key, buffer in network.named_buffers()}}


def chosen(section: Choice, name: str) -> Choice:
    """What a config's section says of one modality."""
    return Choice.from_dict(section.settings[name])
