r"""The student of Jacobian supervision (lezama2019): an autoencoder that moves its images as a frozen teacher does.

    (c', z) = E_S(x)                     c = E_T(x), the teacher's code
    reconstruction of x: D_S(c', z)      D_S(c_2, z) - D_S(c, z) should be D_T(c_2) - D_T(c), c_2 of another row

The teacher is the run that is refined, under `first`. Unlike a second stage, the student learns c anew.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from unbraid.config import Choice
from unbraid.errors import UsageError
from unbraid.latents import Normal, Space
from unbraid.models.base import Model, encoded, model
from unbraid.models.coded import OfCodes
from unbraid.networks import Likelihood, Outputs
from unbraid.noise import Need
from unbraid.types import Noise, Output, Shape

SPREAD = 1e-3
"""Standard deviation that stands for none: a code of the student is a point."""

STUDENT, TEACHER = "student", "teacher"
"""Names, beside the observations' own, of how images of either decoder differ at two codes."""

OTHER = "other"
"""Beside the observations, the other row of each pair: which one it is must not depend on which rows a process has."""


@model("student", year=2019, reference="lezama2019")
class Student(OfCodes):
    """(c, z) of x by one encoder, x of (c, z) by one decoder, both deterministic."""

    def __init__(
        self,
        space: Space,
        shape: Shape,
        encoder: nn.Module,
        decoder: nn.Module,
        likelihood: Likelihood,
        first: Model,
    ) -> None:
        for block in (*first.space.blocks.values(), *space.blocks.values()):
            if not isinstance(block, Normal) or block.coupled:
                raise UsageError("A student's codes are points, so it and its teacher must have Normal latents only.")
        super().__init__(space, shape, first)
        self.encoder, self.decoder, self.likelihood = encoder, decoder, likelihood

    @classmethod
    def ports(cls, space: Space, settings: Mapping[str, Any]) -> tuple[dict[str, int], int]:
        """Codes without a spread, of z alone: those of c come with the teacher."""
        return {"z": space.width}, space.width

    @classmethod
    def encoder_of(cls, chosen: Choice, outputs: Outputs, shape: Shape, *first: Model) -> nn.Module:
        """The encoder of a config, which gives c before z."""
        return super().encoder_of(chosen, {"c": first[0].space.width, **dict(outputs)}, shape)

    def needs(self, batch: int) -> dict[str, Need]:
        """Nothing is drawn."""
        return {}

    def forward(self, x: Mapping[str, Tensor], noise: Noise) -> Output:
        """Codes, reconstructions, and how images differ at the teacher's codes of a row and of another one.

        The teacher's posterior stands in the prior's place: it is what the student's is compared with.
        """
        code, earlier = encoded(self.encoder, x["x"], self.space.width), self.earlier(x["x"])
        teacher, z = self.first.space.center(earlier), self.apart(code)[1]
        other = self.first.space.center(self.earlier(x[OTHER]))
        moved = self._image(torch.cat([other, z], -1)) - self._image(torch.cat([teacher, z], -1))
        decoded = {
            "x": self.decode(code),
            STUDENT: {"": moved},
            TEACHER: {"": self.coarse(other) - self.coarse(teacher)},
        }
        return Output(self._points(code), self.space.named(earlier), self.space.unjoin(code), decoded)

    def encode(self, x: Tensor, noise: Noise | None = None) -> dict[str, Tensor]:
        """The student's codes by block, as Normals of next to no spread."""
        return self._points(encoded(self.encoder, x, self.space.width))

    def _image(self, code: Tensor) -> Tensor:
        return self.likelihood.mean(self.decode(code))

    def _points(self, code: Tensor) -> dict[str, Tensor]:
        spread = 2 * math.log(SPREAD)
        means = self.space.unjoin(code)
        return {name: torch.cat([mean, torch.full_like(mean, spread)], -1) for name, mean in means.items()}
