r"""Shared parts of objectives with a generator and a critic: their losses, and instance noise.

    critic      E[softplus(-D(x))] + E[softplus(D(G))]
    generator   E[softplus(-D(G))]

The generator's loss is the non-saturating one (goodfellow2014). Both sides see observations blurred by the same amount
of noise, which falls linearly to 0 (instance noise, sonderby2017): early on, data and generated observations would not
overlap without it.
"""

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from unbraid.errors import UsageError
from unbraid.models.adversarial import GENERATED_NOISE, REAL_NOISE
from unbraid.objectives.base import Context, Objective, ramp
from unbraid.types import Batch, Output, Player, Terms, Weight

ADAM = {"betas": (0.5, 0.999)}


class AdversarialObjective(Objective):
    """An objective with a generator and a critic; the output's `extra` holds the generated `images`.

    `instance_noise` is the standard deviation of the noise on observations at the start; it is 0 after
    `instance_noise_steps` steps.
    """

    def __init__(self, *, instance_noise: Weight = 0.1, instance_noise_steps: int = 10_000) -> None:
        if instance_noise_steps < 0:
            raise UsageError(
                f"instance_noise_steps of {type(self).__name__} must be 0 or above, not {instance_noise_steps}."
            )
        self.instance_noise, self.instance_noise_steps = instance_noise, instance_noise_steps

    @abstractmethod
    def generate(self, out: Output, context: Context) -> Tensor:
        """Return observations of the current generator, for the codes and noise of the shared forward pass."""

    @abstractmethod
    def criticise(self, x: Tensor, out: Output, context: Context) -> tuple[Tensor, Any]:
        """Return the critic's logits [member, batch] of "real", and its other outputs."""

    def further_terms(self, outputs: Any, out: Output, context: Context) -> Terms:
        """Return more terms of both players, from the critic's other outputs for generated observations."""
        return Terms()

    def players(self) -> list[Player]:
        """Return the generator and then the critic, which sees the updated generator."""
        return [
            Player("generator", ("model.generator.",), self.terms, optimizer=ADAM),
            Player("critic", ("model.critic.",), self.critic_terms, optimizer=ADAM),
        ]

    def terms(self, out: Output, batch: Batch, context: Context) -> Terms:
        """Return the generator's loss, which falls as the critic takes generated observations for real."""
        logits, outputs = self.criticise(self._blur(out.extra.images, GENERATED_NOISE, context), out, context)
        return Terms({"adversarial": (softplus(-logits).mean(-1), 1.0)}) | self.further_terms(outputs, out, context)

    def critic_terms(self, out: Output, batch: Batch, context: Context) -> Terms:
        """Return the cross-entropies of real and of generated observations; log 2 each is chance.

        The generator has changed since the shared forward pass, so it generates again.
        """
        with torch.no_grad():
            generated = self.generate(out, context)
        real, _ = self.criticise(self._blur(batch.x["x"], REAL_NOISE, context), out, context)
        fake, outputs = self.criticise(self._blur(generated, GENERATED_NOISE, context), out, context)
        accuracy = 0.5 * ((real > 0).to(real).mean(-1) + (fake < 0).to(fake).mean(-1))
        losses = {"real": (softplus(-real).mean(-1), 1.0), "generated": (softplus(fake).mean(-1), 1.0)}
        level = torch.zeros_like(accuracy) + self.noise_level(context.step)
        logged = Terms({"accuracy": (accuracy, 0.0), "instance_noise": (level, 0.0)})
        return Terms(losses) | self.further_terms(outputs, out, context) | logged

    def noise_level(self, step: int | Tensor) -> Weight:
        """Return the standard deviation of the instance noise at a step."""
        return self.instance_noise * (1.0 - ramp(step, self.instance_noise_steps))

    def _blur(self, x: Tensor, name: str, context: Context) -> Tensor:
        level = self.noise_level(context.step)
        if isinstance(level, Tensor):
            level = level.view(-1, *[1] * (x.ndim - 1))  # [member, 1, …], or one for all
        return x + level * context.part(context.noise[name])
