r"""Objectives that are weights on the terms of the evidence lower bound: HFVAE's table 1 (esmaeili2018) as code.

    loss = -E[log p(x|z)] + w_MI MI + w_TC TC + w_dim (dimension-wise KL)        (terms: `objectives/decomposition.py`)

| objective           | MI    | TC                              | dimension |
|---------------------|-------|---------------------------------|-----------|
| vae                 | 1     | 1                               | 1         |
| beta-vae, beta-svae | beta  | beta                            | beta      |
| beta-tcvae          | alpha | beta                            | gamma     |
| hfvae               | alpha | beta between, gamma within groups | 1       |
| zhao2017            | 0     | lambda_kl                       | lambda_kl |
| information-dropout | beta  | gamma                           | 0         |

A preset returns the weights of its terms. `{"kl": …}` only needs the closed form. Weights on `mi`, `tc` and `dimension`
need an estimate of log q(z) and bring the settings `estimator` and `kl`: with `closed` the loss is the closed-form KL
plus the sampled terms times the rest of their weights (lower variance), with `sampled` the weighted sum of the sampled
terms, as the papers write it.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any, Literal

from unbraid.density import batch_aggregate
from unbraid.errors import UsageError
from unbraid.latents import Space
from unbraid.objectives.base import Context, objective, ramp
from unbraid.objectives.decomposition import Estimator, divergences, elbo_terms, total_correlation_names
from unbraid.registry import read_settings
from unbraid.types import Batch, Output, Terms, Weight

Weights = dict[str, Weight]


class Preset:
    """An objective that weighs its terms by a function of its settings."""

    def __init__(self, weights_of: Callable[..., Weights]) -> None:
        functools.update_wrapper(self, weights_of)
        own = read_settings(weights_of)
        needs_density = "kl" not in weights_of(**{name: parameter.default for name, parameter in own.items()})
        self.weights_of, self.own = weights_of, tuple(own)
        self.shared_terms: Callable[..., Terms] = _sampled_terms if needs_density else _closed_terms
        self.__signature__ = inspect.Signature([*own.values(), *read_settings(self.shared_terms).values()])

    def __call__(self, out: Output, batch: Batch, context: Context, **settings: Any) -> Terms:
        own = {key: settings.pop(key) for key in self.own}
        return self.shared_terms(out, batch, context, self.weights_of(**own), **settings)


def preset(name: str, **facts: Any) -> Callable[[Callable[..., Weights]], Callable[..., Weights]]:
    """Register a function from settings to weights as an objective (a decorator)."""

    def register(weights_of: Callable[..., Weights]) -> Callable[..., Weights]:
        objective(name, **facts)(Preset(weights_of))
        return weights_of

    return register


def _closed_terms(out: Output, batch: Batch, context: Context, weights: Weights, *, warmup: int = 0) -> Terms:
    """Return reconstruction and the closed-form KL, without pairwise densities."""
    return elbo_terms(out, batch, context, weights["kl"] * ramp(context.step, warmup))


def _sampled_terms(
    out: Output,
    batch: Batch,
    context: Context,
    weights: Weights,
    *,
    estimator: Estimator = "stratified",
    kl: Literal["closed", "sampled"] = "closed",
    warmup: int = 0,
) -> Terms:
    space = context.space
    aggregate = batch_aggregate(space, out.posterior, out.sample, estimator, context.size)
    values = divergences(out, space, aggregate)
    weights = _by_level(weights, space)
    if set(values) != set(weights):
        raise UsageError(f"This objective weighs {', '.join(weights)}, but these latents have {', '.join(values)}.")
    scale = ramp(context.step, warmup)
    base = weights["dimension"] if kl == "closed" else 0.0
    parts = {f"{name}/{estimator}": (value, (weights[name] - base) * scale) for name, value in values.items()}
    return elbo_terms(out, batch, context, base * scale) | Terms(parts)


def _by_level(weights: Weights, space: Space) -> Weights:
    """Replace a weight on `tc` by one on the total correlation of each level of groups, which add up to it.

    In a deeper tree, `tc_between` weighs the first level and `tc_within` all levels below it.
    """
    names = total_correlation_names(space)
    levels = {"tc": names} | ({"tc_between": names[:1], "tc_within": names[1:]} if len(names) > 2 else {})
    return {name: weight for key, weight in weights.items() for name in levels.get(key, [key])}


@preset("vae", reference="kingma2014")
def vae() -> Weights:
    """VAE: the evidence lower bound, E[log p(x|z)] - KL(q(z|x) || p(z))."""
    return {"kl": 1.0}


@preset("beta-vae", reference="higgins2017")
def beta_vae(*, beta: Weight = 4.0) -> Weights:
    """beta-VAE: E[log p(x|z)] - beta KL(q(z|x) || p(z))."""
    return {"kl": beta}


@preset("beta-tcvae", reference="chen2018")
def beta_tcvae(*, alpha: Weight = 1.0, beta: Weight = 6.0, gamma: Weight = 1.0) -> Weights:
    """beta-TCVAE: E[log p(x|z)] - alpha MI - beta TC - gamma dimension-wise KL (eq. 5)."""
    return {"mi": alpha, "tc": beta, "dimension": gamma}


MNIST_LATENTS = {"latents": "normal:10+concrete:10"}
"""Latents of esmaeili2018 on MNIST."""


@preset("beta-svae", reference="esmaeili2018", defaults=MNIST_LATENTS)
def beta_svae(*, beta: Weight = 4.0) -> Weights:
    """beta-SVAE: beta-VAE on Normal and Concrete latents, E[log p(x|z)] - beta KL(q(z|x) || p(z))."""
    return {"kl": beta}


@preset("hfvae", reference="esmaeili2018", defaults={**MNIST_LATENTS, "groups": "blocks"})
def hfvae(*, alpha: Weight = 1.0, beta: Weight = 4.0, gamma: Weight = 3.0) -> Weights:
    """HFVAE: E[log p(x|z)] - alpha MI - beta TC between groups - gamma TC within them - dimension-wise KL (eq. 7)."""
    return {"mi": alpha, "tc_between": beta, "tc_within": gamma, "dimension": 1.0}


@preset("zhao2017", reference="zhao2017")
def zhao2017(*, lambda_kl: Weight = 1.0) -> Weights:
    """InfoVAE's family without mutual information: E[log p(x|z)] - lambda_kl KL(q(z) || p(z)).

    KL(q(z) || p(z)) = TC + dimension: a code may know everything about its observation if all codes together look like
    draws from the prior. It is `info-vae` with alpha = 1 and this divergence instead of the MMD.
    """
    return {"mi": 0.0, "tc": lambda_kl, "dimension": lambda_kl}


@preset("information-dropout", reference="achille2018", untrained=("flow",))
def information_dropout(*, beta: Weight = 1.0, gamma: Weight = 1.0) -> Weights:
    """Information dropout: E[log p(x|z)] - beta I(x; z) - gamma TC(z), an information bottleneck with factors.

    With gamma = beta the two terms are beta E KL(q(z|x) || prod_d q(z_d)): the best factorised prior replaces a fixed
    one, so the dimension-wise KL has no weight. The scale of a code is then free (MI and TC ignore the scale of a
    dimension), and draws from N(0, 1) are not draws from the model.
    """
    return {"mi": beta, "tc": gamma, "dimension": 0.0}
