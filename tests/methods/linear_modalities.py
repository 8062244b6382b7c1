"""Linear-Gaussian models of several modalities, whose every density is known, and slow versions of what is tested.

x_m = a_m c + b_m s_m + scale e with c, s_m and e standard normal, one number each. With s of size 0 and experts
N(x_m / a_m, scale^2 / a_m^2), the product with the prior's own expert is the true posterior of every subset.
"""

import math

import torch
from torch import nn
from torch.distributions import MultivariateNormal, Normal
from torch.utils._pytree import tree_map

from unbraid import noise
from unbraid.latents import Normal as Block, Space
from unbraid.methods import objective as objectives
from unbraid.models import model
from unbraid.networks import make_likelihood
from unbraid.objectives import Context, bind
from unbraid.types import Batch, Inputs

SCALE = 1.0


class Affine(nn.Module):
    """Means that are linear in x, and variances that do not depend on it: c, then s."""

    def __init__(self, slope, log_variance):
        super().__init__()
        self.slope = nn.Parameter(torch.tensor(slope, dtype=torch.float64))
        self.log_variance = nn.Parameter(torch.tensor(log_variance, dtype=torch.float64))

    def forward(self, x):
        log_variance = self.log_variance.expand(len(x), -1)
        parts = [torch.cat([x * self.slope[k], log_variance[:, k : k + 1]], -1) for k in range(len(self.slope))]
        return torch.cat(parts, -1)


def space(names, own):
    return Space({"c": Block(size=1), **{f"s_{name}": Block(size=1) for name in names if own}})


def linear(recipe, a, b=None, experts=None, **settings):
    """A model and its bound objective; `experts` are slopes and log variances by modality, else the true ones of c."""
    names = [f"m{m + 1}" for m in range(len(a))]
    kind, own = model[objectives[recipe].facts.model], b is not None
    encoder, decoder, densities = nn.ModuleDict(), nn.ModuleDict(), nn.ModuleDict()
    for m, name in enumerate(names):
        true = ([1 / a[m]], [2 * math.log(SCALE / abs(a[m]))])
        encoder[name] = Affine(*(true if experts is None else experts[m]))
        layer = nn.Linear(2 if own else 1, 1, bias=False)
        layer.weight.data = torch.tensor([[a[m], b[m]] if own else [a[m]]], dtype=torch.float64)
        decoder[name], densities[name] = layer, make_likelihood("gaussian", {"scale": SCALE})
    resolved = objectives[recipe].resolve(settings)
    passed = {key: value for key, value in resolved.items() if key in kind.settings}
    made = kind.make(space(names, own), dict.fromkeys(names, (1,)), encoder, decoder, densities, **passed).double()
    return made, bind(recipe, resolved)


def noise_of(bound, made, rows, seed=0):
    """What an objective itself wants drawn."""
    return {k: v.double() for k, v in noise.draw(bound.needs(rows, made.space), noise.seed_tensor(seed), 0).items()}


def terms(made, bound, x, present=None, seed=0, apply=lambda *_: None):
    """The objective's terms on rows x {name: [rows, 1]} of one member, with the output and the noise behind them."""
    rows = len(next(iter(x.values())))
    seeds = noise.seed_tensor(seed)
    drawn = {k: v.double() for k, v in noise.draw(made.needs(rows), seeds, 0).items()}
    mask = None if present is None else torch.stack([present[name] for name in made.modalities], -1)
    out = made(Inputs(x, mask), {name: value[0] for name, value in drawn.items()})
    out, seen = tree_map(lambda tensor: tensor.unsqueeze(0), (out, x))
    batch = Batch(seen, torch.arange(rows)[None], None if mask is None else mask[None])
    extra = noise_of(bound, made, rows, seed)
    context = Context(made.space, made.likelihoods, 100, 0, {**drawn, **extra}, apply)
    return bound.terms(out, batch, context), out, {name: value[0] for name, value in drawn.items()}


def log_evidence(x, a, b=None):
    """log p of rows {name: [rows, 1]} of any of the modalities, exactly."""
    chosen = [int(name[1:]) - 1 for name in x]
    loading = torch.tensor([a[m] for m in chosen], dtype=torch.float64)[:, None]
    own = torch.tensor([0.0 if b is None else b[m] for m in chosen], dtype=torch.float64)
    covariance = loading @ loading.T + torch.diag(own.square() + SCALE**2)
    return MultivariateNormal(torch.zeros(len(chosen), dtype=torch.float64), covariance).log_prob(
        torch.cat(list(x.values()), -1)
    )


def expert(made, name, value):
    """Mean and variance of c, and of s where there is one, by one modality alone."""
    flat = made.encoder[name](value[None])[0].tolist()
    return [(flat[k], math.exp(flat[k + 1])) for k in range(0, len(flat), 2)]


def posterior(made, row, subset, prior_expert=True):
    """Mean and variance of the product of the experts of a subset, by a loop."""
    precision, weighted = (1.0 if prior_expert or not subset else 0.0), 0.0
    for name in subset:
        mean, variance = expert(made, name, row[name])[0]
        precision, weighted = precision + 1 / variance, weighted + mean / variance
    return weighted / precision, 1 / precision


def kl(mean, variance):
    return 0.5 * (variance + mean**2 - 1 - math.log(variance))


def log_p(made, name, row, c, s):
    code = torch.tensor([[c] if s is None else [c, s]], dtype=torch.float64)
    return float(Normal(made.decoder[name](code)[0].detach(), SCALE).log_prob(row[name]))
