r"""Discrete variables that can be differentiated through: Concrete and binary Concrete (maddison2017, jang2017).

With logits a, temperature t and standard Gumbel noise g, a Concrete variable over K classes is

    y = softmax((a + g) / t),    x = log y,
    log q(x) = log (K-1)! + (K-1) log t + sum_k (a_k - t x_k) - K logsumexp_k (a_k - t x_k)

(maddison2017, appendix C.3.3). Densities are taken of x, which neither overflows nor underflows; The density of y
differs by a Jacobian that posterior and prior share; it cancels in every KL, mutual information and total correlation.
The decoder sees y. A binary one has a logistic x = (a + logit u) / t with

    log q(x) = log t + a - t x - 2 softplus(a - t x),    y = sigmoid(x).

The prior has equal probabilities at the same temperature. The temperature is one of the flat parameters, because it may
move from `temperature` to `final` over `anneal` steps, geometrically. With `straight_through` the decoder sees the
nearest vertex, with the gradient of y. The KL has no closed form; its value at the step's draw is unbiased.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from unbraid.errors import UsageError
from unbraid.latents.blocks import Block, block
from unbraid.noise import Need

MIN_PROBABILITY = 1e-30

MAX_EXPONENT = 690.0
"""Bound of exponents in float64, which overflows at 709."""


class Tempered(Block):
    """A relaxed discrete block; its flat parameters are logits and the log temperature."""

    closed_form = False
    discrete = True

    def __init__(
        self, *, temperature: float = 0.66, final: float | None = None, anneal: int = 0, straight_through: bool = False
    ) -> None:
        final = temperature if final is None else final
        if not (temperature > 0 and final > 0):
            raise UsageError(f"A temperature must be above 0, not {min(temperature, final)}.")
        if anneal < 0 or (anneal == 0 and final != temperature):
            raise UsageError("final=… moves the temperature; give the number of steps, too, as anneal=….")
        self.temperature, self.final, self.anneal = temperature, final, anneal
        self.straight_through = straight_through

    def need(self, batch: int) -> Need:
        return Need("uniform", (batch, self.width))

    def needs(self, name: str, batch: int) -> dict[str, Need]:
        moving = {f"{name}.step": Need("step", ())} if self.anneal else {}
        return {name: self.need(batch), **moving}

    def complete(self, parameters: Tensor, step: Tensor | None) -> Tensor:
        start, end = math.log(self.temperature), math.log(self.final)
        log_t = torch.full_like(parameters[..., :1], end)
        if step is not None and self.anneal:
            progress = (step / self.anneal).clamp(max=1.0).to(parameters.dtype)
            log_t = (start + (end - start) * progress).expand_as(log_t)
        return torch.cat([parameters, log_t], dim=-1)

    def kl(self, posterior: Tensor, prior: Tensor, value: Tensor) -> Tensor:
        """Return log q(x) - log p(x) at a draw."""
        return self.log_density(posterior, value) - self.log_density(prior, value)

    def standard(self, like: Tensor) -> Tensor:
        zeros = torch.zeros(1, self.parameter_count, dtype=like.dtype, device=like.device)
        return self.complete(zeros, None)

    def prior_of(self, posterior: Tensor) -> Tensor:
        """Return equal probabilities at the posterior's temperature."""
        return torch.cat([torch.zeros_like(posterior[..., :-1]), posterior[..., -1:]], dim=-1)


@block("concrete")
class Concrete(Tempered):
    """Relaxed categorical variables of `classes` values each; parameters are their logits."""

    def __init__(self, *, classes: int = 10, size: int = 1, **tempered: Any) -> None:
        super().__init__(**tempered)
        if classes < 2 or size < 1:
            raise UsageError(f"A Concrete block needs at least 2 classes and 1 variable, not {classes} and {size}.")
        self.classes, self.leaves, self.width = classes, size, classes * size
        self.parameters = {"logits": self.width}

    def sample(self, parameters: Tensor, noise: Tensor) -> Tensor:
        gumbel = -(-noise.log()).log()
        tempered = (parameters[..., :-1] + gumbel) / parameters[..., -1:].exp()
        return self._by_variable(tempered).log_softmax(-1).flatten(-2)

    def center(self, parameters: Tensor) -> Tensor:
        """Return the probabilities of the classes."""
        return self._by_variable(parameters[..., :-1]).softmax(-1).flatten(-2)

    def log_density(self, parameters: Tensor, value: Tensor) -> Tensor:
        log_t = parameters[..., -1:]
        shifted = self._by_variable(parameters[..., :-1]) - log_t.exp().unsqueeze(-1) * self._by_variable(value)
        normal = math.lgamma(self.classes) + (self.classes - 1) * log_t
        return normal + shifted.sum(-1) - self.classes * shifted.logsumexp(-1)

    def multiply_pairs(self, parameters: Tensor, value: Tensor) -> Tensor:
        r"""Return the log density of every pair [..., i, leaves, j] by one product over classes, in float64:

            log (K-1)! + (K-1) log t - K log sum_k exp(a_jk - mean_k a_jk) exp(-t (x_ik - mean_k x_ik)).

        The mean exponent of a sum is 0, so the sum is at least K and does not underflow. An exponent above 690 counts
        as 690, a sum above exp(690) as that and one below K as K, without a gradient. Either the pair has a density
        below exp(-690 K), or the posterior is so sure of a class that float32 rounds all other probabilities to 0.

        The product needs one t for all components, which `complete` gives to a block without annealing; a block whose
        temperature moves keeps the general form.
        """
        if self.anneal:
            return self.pairwise(parameters, value)
        log_t = parameters[..., -1:].double()
        logits, x = (self._by_variable(flat.double()).transpose(-2, -3) for flat in (parameters[..., :-1], value))
        components = (logits - logits.mean(-1, keepdim=True)).clamp(max=MAX_EXPONENT).exp()  # [..., leaves, j, K]
        t = log_t[..., :1, :].exp().unsqueeze(-3)
        rows = (t * (x.mean(-1, keepdim=True) - x)).clamp(max=MAX_EXPONENT).exp()  # [..., leaves, i, K]
        sums = rows @ components.transpose(-1, -2)
        log_sums = sums.clamp(self.classes, math.exp(MAX_EXPONENT)).log()
        normal = math.lgamma(self.classes) + (self.classes - 1) * log_t.transpose(-1, -2).unsqueeze(-3)
        return torch.add(normal, log_sums, alpha=-self.classes).to(value.dtype).transpose(-2, -3)

    @property
    def numbers_per_pair(self) -> int:
        """A product has one float64 number per pair and variable, where the general form has one per class, too."""
        return self.width if self.anneal else 2 * self.leaves

    def traversal_codes(self, columns: int, span: float) -> Tensor:
        """Return each class once, whatever `columns` is."""
        return torch.eye(self.classes)

    def to_code(self, value: Tensor) -> Tensor:
        """Return y = exp x, or the nearest vertex with the gradient of y."""
        soft = value.exp()
        if not self.straight_through:
            return soft
        hard = F.one_hot(self._by_variable(value).argmax(-1), self.classes).to(soft.dtype).flatten(-2)
        return hard + soft - soft.detach()

    def from_code(self, code: Tensor) -> Tensor:
        return code.clamp_min(MIN_PROBABILITY).log()

    def _by_variable(self, flat: Tensor) -> Tensor:
        return flat.unflatten(-1, (self.leaves, self.classes))


@block("bernoulli")
class Bernoulli(Tempered):
    """Relaxed binary variables; parameters are their logits."""

    def __init__(self, *, size: int = 1, **tempered: Any) -> None:
        super().__init__(**tempered)
        if size < 1:
            raise UsageError(f"A latent block needs at least 1 variable, not {size}.")
        self.width = self.leaves = size
        self.parameters = {"logits": size}

    def sample(self, parameters: Tensor, noise: Tensor) -> Tensor:
        return (parameters[..., :-1] + noise.logit()) / parameters[..., -1:].exp()

    def center(self, parameters: Tensor) -> Tensor:
        """Return the probability of a 1."""
        return parameters[..., :-1].sigmoid()

    def log_density(self, parameters: Tensor, value: Tensor) -> Tensor:
        log_t = parameters[..., -1:]
        shifted = parameters[..., :-1] - log_t.exp() * value
        return log_t + shifted - 2 * F.softplus(shifted)

    def traversal_codes(self, columns: int, span: float) -> Tensor:
        return torch.linspace(0, 1, columns).unsqueeze(-1)

    def to_code(self, value: Tensor) -> Tensor:
        """Return y = sigmoid x, or the nearer of 0 and 1 with the gradient of y."""
        soft = value.sigmoid()
        return (value > 0).to(soft.dtype) + soft - soft.detach() if self.straight_through else soft

    def from_code(self, code: Tensor) -> Tensor:
        return code.clamp(MIN_PROBABILITY, 1 - 2.0**-24).logit()
