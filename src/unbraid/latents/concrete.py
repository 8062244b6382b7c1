r"""Discrete variables that can be differentiated through: Concrete and binary Concrete (maddison2017, jang2017).

With logits a, temperature t and standard Gumbel noise g, a Concrete variable over K classes is

    y = softmax((a + g) / t),    x = log y,
    log q(x) = log (K-1)! + (K-1) log t + sum_k (a_k - t x_k) - K logsumexp_k (a_k - t x_k)

(maddison2017, appendix C.3.3). Densities are taken of x, which neither overflows nor underflows; that of y differs by a
Jacobian which is the same for posterior and prior, and cancels in every KL, mutual information and total correlation.
The decoder sees y. A binary one has a logistic x = (a + logit u) / t with

    log q(x) = log t + a - t x - 2 softplus(a - t x),    y = sigmoid(x).

The prior has equal probabilities at the same temperature, which is part of the flat parameters, since it may move: from
`temperature` to `final` over `anneal` steps, geometrically. With `straight_through` the decoder sees the nearest vertex
and the gradient of y. There is no closed-form KL: it is taken at the step's own draw, without bias.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from unbraid.errors import UsageError
from unbraid.latents.blocks import Block, block
from unbraid.noise import Need

LEAST = 1e-30
"""Probability below which a code is not told from 0."""


class Tempered(Block):
    """A relaxed discrete block, whose flat parameters are logits and the logarithm of a temperature."""

    closed_form = False
    discrete = True

    def __init__(self, temperature: float, final: float | None, anneal: int, straight_through: bool) -> None:
        final = temperature if final is None else final
        if not (temperature > 0 and final > 0):
            raise UsageError(f"A temperature must be above 0, not {min(temperature, final)}.")
        if anneal < 0 or (anneal == 0 and final != temperature):
            raise UsageError("A temperature that moves to final=… needs the number of steps, anneal=….")
        self.temperature, self.final, self.anneal = temperature, final, anneal
        self.straight_through = straight_through

    def needs(self, name: str, batch: int) -> dict[str, Need]:
        """Return noise, and the step where the temperature moves."""
        moving = {f"{name}.step": Need("step", ())} if self.anneal else {}
        return {name: self.need(batch), **moving}

    def complete(self, parameters: Tensor, step: Tensor | None) -> Tensor:
        start, end = math.log(self.temperature), math.log(self.final)
        if step is None or not self.anneal:
            column = torch.full_like(parameters[..., :1], end)
        else:
            share = (step / self.anneal).clamp(max=1.0).to(parameters.dtype)
            column = (start + (end - start) * share).expand_as(parameters[..., :1])
        return torch.cat([parameters, column], dim=-1)

    def kl(self, posterior: Tensor, prior: Tensor, value: Tensor) -> Tensor:
        """Return log q(x) - log p(x) at a draw."""
        return self.log_density(posterior, value) - self.log_density(prior, value)

    def standard(self, like: Tensor) -> Tensor:
        """Return equal probabilities at the final temperature (see `prior_of`)."""
        zeros = torch.zeros(1, self.parameter_count, dtype=like.dtype, device=like.device)
        return self.complete(zeros, None)

    def prior_of(self, posterior: Tensor) -> Tensor:
        """Return equal probabilities at the posterior's temperature."""
        return torch.cat([torch.zeros_like(posterior[..., :-1]), posterior[..., -1:]], dim=-1)


@block("concrete")
class Concrete(Tempered):
    """Relaxed categorical variables of `classes` values each; parameters are their logits."""

    def __init__(
        self,
        *,
        classes: int = 10,
        size: int = 1,
        temperature: float = 0.66,
        final: float | None = None,
        anneal: int = 0,
        straight_through: bool = False,
    ) -> None:
        super().__init__(temperature, final, anneal, straight_through)
        if classes < 2 or size < 1:
            raise UsageError(f"A Concrete block needs at least 2 classes and 1 variable, not {classes} and {size}.")
        self.classes, self.leaves, self.width = classes, size, classes * size
        self.parameters = {"logits": self.width}

    def need(self, batch: int) -> Need:
        """Return uniform numbers, which become Gumbel noise."""
        return Need("uniform", (batch, self.width))

    def sample(self, parameters: Tensor, noise: Tensor) -> Tensor:
        """Return log softmax((logits + Gumbel) / temperature)."""
        gumbel = -(-noise.log()).log()
        tempered = (parameters[..., :-1] + gumbel) / parameters[..., -1:].exp()
        return self._apart(tempered).log_softmax(-1).flatten(-2)

    def center(self, parameters: Tensor) -> Tensor:
        """Return the probabilities of the classes."""
        return self._apart(parameters[..., :-1]).softmax(-1).flatten(-2)

    def log_density(self, parameters: Tensor, value: Tensor) -> Tensor:
        """Return the density of x = log y."""
        log_t = parameters[..., -1:]
        shifted = self._apart(parameters[..., :-1]) - log_t.exp().unsqueeze(-1) * self._apart(value)
        normal = math.lgamma(self.classes) + (self.classes - 1) * log_t
        return normal + shifted.sum(-1) - self.classes * shifted.logsumexp(-1)

    def traversal_codes(self, columns: int, span: float) -> Tensor:
        """Return each class once, whatever the number of columns is: there is nothing between them."""
        return torch.eye(self.classes)

    def to_code(self, value: Tensor) -> Tensor:
        """Return y = exp x, or the nearest vertex with y's gradient."""
        soft = value.exp()
        if not self.straight_through:
            return soft
        hard = F.one_hot(self._apart(value).argmax(-1), self.classes).to(soft.dtype).flatten(-2)
        return hard + soft - soft.detach()

    def from_code(self, code: Tensor) -> Tensor:
        """Return log y."""
        return code.clamp_min(LEAST).log()

    def _apart(self, flat: Tensor) -> Tensor:
        return flat.unflatten(-1, (self.leaves, self.classes))


@block("bernoulli")
class Bernoulli(Tempered):
    """Relaxed binary variables; parameters are their logits."""

    def __init__(
        self,
        *,
        size: int = 1,
        temperature: float = 0.66,
        final: float | None = None,
        anneal: int = 0,
        straight_through: bool = False,
    ) -> None:
        super().__init__(temperature, final, anneal, straight_through)
        if size < 1:
            raise UsageError(f"A latent block needs at least 1 variable, not {size}.")
        self.width = self.leaves = size
        self.parameters = {"logits": size}

    def need(self, batch: int) -> Need:
        """Return uniform numbers, which become logistic noise."""
        return Need("uniform", (batch, self.width))

    def sample(self, parameters: Tensor, noise: Tensor) -> Tensor:
        """Return (logit + logistic noise) / temperature."""
        return (parameters[..., :-1] + noise.logit()) / parameters[..., -1:].exp()

    def center(self, parameters: Tensor) -> Tensor:
        """Return the probability of a 1."""
        return parameters[..., :-1].sigmoid()

    def log_density(self, parameters: Tensor, value: Tensor) -> Tensor:
        """Return the density of x = logit y."""
        log_t = parameters[..., -1:]
        shifted = parameters[..., :-1] - log_t.exp() * value
        return log_t + shifted - 2 * F.softplus(shifted)

    def traversal_codes(self, columns: int, span: float) -> Tensor:
        """Return numbers from 0 to 1."""
        return torch.linspace(0, 1, columns).unsqueeze(-1)

    def to_code(self, value: Tensor) -> Tensor:
        """Return y = sigmoid x, or the nearer of 0 and 1 with y's gradient."""
        soft = value.sigmoid()
        return (value > 0).to(soft.dtype) + soft - soft.detach() if self.straight_through else soft

    def from_code(self, code: Tensor) -> Tensor:
        """Return logit y."""
        return code.clamp(LEAST, 1 - 2.0**-24).logit()
