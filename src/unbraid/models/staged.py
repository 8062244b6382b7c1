r"""Models in stages (msvae2020): a frozen first stage C -> Y, and a second stage (Y, Z) -> X that adds details.

    c ~ q(c|x) of the first stage       y = E p(y|c), its decoder's mean
    z ~ q(z|x - y)                      x ~ p(x|y, z), by a refiner that z only modulates

The first stage is a whole model, `first`. It stays in evaluation mode, its parameters have no gradient, and it runs
without autograd, so no loss can change it. It may have stages itself.
"""

from typing import Any

import torch
from torch import Tensor, nn

from unbraid.config import Choice
from unbraid.data.factors import FactorDataset
from unbraid.data.label_codes import LabelCodes
from unbraid.errors import UsageError
from unbraid.latents import Space, StackedSpace
from unbraid.models.base import Model, model, run_decoder, run_encoder
from unbraid.models.recentre import Frame, choose_rows_to_fit
from unbraid.networks import Likelihood, refiner
from unbraid.noise import Need
from unbraid.store import select_prefix
from unbraid.types import Inputs, Noise, Output, Shape

FIRST = "first."
"""Prefix of the first stage's noise."""

FIRST_CODE, OWN_CODE = "first", "own"
"""Keys of `Inputs.given`: known codes c of the first stage and z of this one, e.g. from labels."""


class LaterStage(Model):
    """A stage on a frozen first one: codes are [c, z], with c of the first stage and z of this one."""

    space: StackedSpace  # type: ignore[override]
    first: Model  # type: ignore[override]

    def __init__(
        self, space: Space, shape: Shape, first: Model, given: tuple[str, ...] = (), circular: tuple[str, ...] = ()
    ) -> None:
        super().__init__()
        if not space.has_density:
            raise UsageError("Quantised latents have no density, and a later stage needs one; choose other latents.")
        self.space = StackedSpace(first.space, space)
        self.shape = shape
        self.first = first.requires_grad_(False).eval()
        self.given_factors = given  # whose labels replace c
        self.circular_factors = tuple(name for name in circular if name in given)

    def train(self, mode: bool = True) -> "LaterStage":
        """Set the mode of this stage; the first stage, including its BatchNorms, stays in evaluation mode."""
        super().train(mode)
        self.first.eval()
        return self

    def label_codes(self, dataset: FactorDataset) -> LabelCodes | None:
        """Return the codes of the labels that replace c; None if c is encoded."""
        return LabelCodes(dataset, self.given_factors, self.circular_factors) if self.given_factors else None

    def training_inputs(self, dataset: FactorDataset, rows: Tensor, dtype: torch.dtype = torch.float32) -> Inputs:
        labels = self.label_codes(dataset)
        given = {} if labels is None else {FIRST_CODE: labels.codes(dataset.values_of(rows), dtype)}
        return Inputs({"x": dataset.images(rows).to(dtype)}, given=given)

    def fit_frame(self, frame: Frame, dataset: FactorDataset, rows: Tensor) -> None:
        """Move a frame to the coordinates in which the posteriors of some rows fit the prior best."""
        inputs = (self.training_inputs(dataset, part, frame.unit.dtype) for part in choose_rows_to_fit(rows))
        frame.fit(map(self.encode, inputs))

    def encode_given(self, x: Tensor, code: Tensor) -> dict[str, Tensor]:
        """Return `encode` of observations with known codes c [rows, width] of the first stage, e.g. from labels."""
        return self.encode(Inputs({"x": x}, given={FIRST_CODE: code}))

    def encode_first(self, x: Tensor) -> dict[str, Tensor]:
        """Return the first stage's posterior under its own block names, in full precision and without a gradient."""
        with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
            return self.first.encode(x)

    def decode_first(self, code: Tensor) -> Tensor:
        """Return y, the first stage's expected observations of codes c, without a gradient."""
        with torch.no_grad(), torch.autocast(code.device.type, enabled=False):
            return self.first.likelihood.mean(self.first.decode(code))

    def get_first_code(self, inputs: Inputs) -> Tensor:
        """Return the given code c of rows, or else the deterministic one."""
        if FIRST_CODE in inputs.given:
            return inputs.given[FIRST_CODE]
        return self.first.space.center(self.encode_first(inputs.x["x"]))

    def refine(self, y: Tensor, z: Tensor) -> dict[str, Tensor]:
        """Return likelihood parameters of p(x|y, z) at any y; raise if this stage has no refiner."""
        raise UsageError("The second stage of this model decodes codes, or is a flow around y; it takes no other y.")

    def decode_stages(self, code: Tensor) -> list[Tensor]:
        return [*self.first.decode_stages(self.split_code(code)[0]), *super().decode_stages(code)]

    def split_code(self, code: Tensor) -> tuple[Tensor, Tensor]:
        """Return c, followed by the noise of the first stage's decoder if it has any, and z."""
        width = self.space.last_stage.width
        return code[..., :-width], code[..., -width:]

    def learned_prior(self) -> dict[str, Tensor]:
        return self.first.learned_prior()

    def prior_needs(self, count: int) -> dict[str, Need]:
        first = {FIRST + name: need for name, need in self.first.prior_needs(count).items()}
        return {**first, **self.space.last_stage.needs(count)}

    def prior_codes(self, noise: Noise) -> Tensor:
        z_space, c = self.space.last_stage, self.first.prior_codes(select_prefix(FIRST, noise))
        return torch.cat([c, z_space.join(z_space.sample_prior(z_space.prior(like=c), noise))], -1)

    def complete_code(self, code: Tensor, drawn: Tensor) -> Tensor:
        """Insert the noise of the first stage's decoder between c and z."""
        (c, z), earlier = self.split_code(code), self.split_code(drawn)[0]
        return torch.cat([self.first.complete_code(c, earlier), z], -1)


def as_stage(model: Model) -> LaterStage:
    """Return the model; raise a `UsageError` if it has a single stage."""
    if not isinstance(model, LaterStage):
        raise UsageError("This needs a model in stages; this one has a single stage. Refine it first.")
    return model


class AutoencodingStage(LaterStage):
    """A stage with its own encoder, decoder and likelihood."""

    def __init__(self, *parts: Any, **labels: Any) -> None:
        space, shape, encoder, decoder, likelihood, first = parts
        super().__init__(space, shape, first, **labels)
        self.encoder, self.decoder, self.likelihood = encoder, decoder, likelihood

    @property
    def likelihoods(self) -> dict[str, Likelihood]:
        return {"x": self.likelihood}


class StageOnCodes(AutoencodingStage):
    """A stage whose decoder takes the code [c, z]."""

    @classmethod
    def make_decoder(cls, chosen: Choice, width: int, shape: Shape, *first: Model) -> nn.Module:
        return super().make_decoder(chosen, first[0].space.width + width, shape)

    def decode(self, code: Tensor) -> dict[str, Tensor]:
        return self.likelihood(run_decoder(self.decoder, self.shape, code))


@model("staged", reference="msvae2020")
class StagedVAE(AutoencodingStage):
    """q(c|x) and E p(y|c) by a frozen model, q(z|x - y) by the encoder, p(x|y, z) by a refiner and the likelihood.

    In training y comes from the mean of c or, for `samples` above 0, from that many draws of c; each observation is
    repeated that often. Elsewhere y comes from the deterministic code of c. Labels of the factors in `given` replace c
    (`unbraid.data.label_codes`).
    """

    decoders = refiner

    def __init__(
        self, *parts: Any, samples: int = 0, given: tuple[str, ...] = (), circular: tuple[str, ...] = ()
    ) -> None:
        super().__init__(*parts, given=given, circular=circular)
        self.samples, self.frame = samples, Frame(self.space.last_stage)

    @classmethod
    def make_decoder(cls, chosen: Choice, width: int, shape: Shape, *first: Model) -> nn.Module:
        return cls.decoders[chosen.name].make(shape, width, **chosen.settings)

    def needs(self, batch: int) -> dict[str, Need]:
        return self.space.needs(max(1, self.samples) * batch)

    def forward(self, inputs: Inputs, noise: Noise) -> Output:
        """Run the first stage, encode the residual, sample and refine. Codes in `inputs.given` replace encoded ones.

        The returned prior covers z only.
        """
        x, z_space = inputs.x["x"], self.space.last_stage
        earlier, drawn = dict[str, Tensor](), dict[str, Tensor]()
        if FIRST_CODE in inputs.given:
            code = inputs.given[FIRST_CODE]
        else:
            earlier = self.encode_first(x)
            drawn = self.first.space.sample(earlier, {old: noise[new] for old, new in self.space.names.items()})
            code = self.first.space.join(drawn) if self.samples else self.first.space.center(earlier)
        y = self.decode_first(code)
        posterior = {**self.space.rename_blocks(earlier), **self.encode_residual(x, y, noise)}
        known = inputs.given.get(OWN_CODE)
        z = z_space.sample(posterior, noise) if known is None else dict.fromkeys(z_space.blocks, known)
        decoded = {"x": self.refine(y, z_space.join(z))}
        return Output(posterior, z_space.prior_of(posterior), {**self.space.rename_blocks(drawn), **z}, decoded)

    def encode_residual(self, x: Tensor, y: Tensor, noise: Noise | None = None) -> dict[str, Tensor]:
        """Return the parameters of q(z|x - y) by block."""
        z_space = self.space.last_stage
        flat = run_encoder(self.encoder, x - y, sum(z_space.outputs.values()))
        return self.frame.posterior(z_space.split(flat, noise))

    def recentre(self, dataset: FactorDataset, rows: Tensor) -> None:
        self.fit_frame(self.frame, dataset, rows)

    def refine(self, y: Tensor, z: Tensor) -> dict[str, Tensor]:
        return self.likelihood(run_decoder(self.decoder, self.shape, y, self.frame.code(z), name="refiner"))

    def infer(self, inputs: Inputs, noise: Noise | None) -> dict[str, Tensor]:
        """Return the posteriors of c and of z given y; only that of z if c is given."""
        x = inputs.x["x"]
        if FIRST_CODE in inputs.given:
            return self.encode_residual(x, self.decode_first(inputs.given[FIRST_CODE]), noise)
        earlier = self.encode_first(x)
        y = self.decode_first(self.first.space.center(earlier))
        return {**self.space.rename_blocks(earlier), **self.encode_residual(x, y, noise)}

    def decode(self, code: Tensor) -> dict[str, Tensor]:
        c, z = self.split_code(code)
        return self.refine(self.decode_first(c), z)
