"""Outputs of a model that is not there: random posteriors, their draws, and a decoder's guess of a few pixels."""

import torch

from unbraid import noise
from unbraid.latents import Normal, Space
from unbraid.networks import make_likelihood
from unbraid.objectives import Context, Objective
from unbraid.types import Batch, Output

PIXELS = (1, 2, 2)


def normal_space(size):
    return Space({"z": Normal(size=size)})


def made_output(space, members=2, rows=6, seed=0, posterior=None):
    """Output and batch [member, rows, …] in float64; `posterior` by block replaces the random one."""
    seeds = noise.seed_tensor(*range(seed, seed + members))
    if posterior is None:
        width = sum(space.outputs.values())
        posterior = space.split(noise.normal(seeds, 0, "posterior", (rows, width)).double())
    drawn = {key: value.double() for key, value in noise.draw(space.needs(rows), seeds, 0).items()}
    decoded = noise.normal(seeds, 0, "decoded", (rows, *PIXELS)).double()
    x = noise.uniform(seeds, 0, "x", (rows, *PIXELS)).double()
    index = torch.arange(rows).expand(members, rows)
    out = Output(posterior, space.prior_of(posterior), space.sample(posterior, drawn), {"x": {"": decoded}})
    return out, Batch({"x": x}, index)


def made_context(space, objective=None, members=2, rows=6, size=50, seed=0, apply=None):
    """A context with the noise that an objective asks for."""
    seeds = noise.seed_tensor(*range(seed, seed + members))
    needs = (objective or Objective()).needs(rows, space)
    drawn = {key: value.double() for key, value in noise.draw(needs, seeds, 0).items()}
    return Context(space, {"x": make_likelihood("bernoulli", {})}, size, 0, drawn, apply or (lambda *_: None))


def bound(out, batch):
    """-E[log p(x|z)] and KL(q(z|x) || N(0, 1)) of each member by torch's own distributions."""
    logits, x = out.decoded["x"][""], batch.x["x"]
    log_p = x * logits.sigmoid().log() + (1 - x) * (-logits).sigmoid().log()
    mean, log_variance = out.posterior["z"].chunk(2, -1)
    q = torch.distributions.Normal(mean, (log_variance / 2).exp())
    kl = torch.distributions.kl_divergence(q, torch.distributions.Normal(0.0, 1.0))
    return -log_p.flatten(2).sum(-1).mean(-1), kl.sum(-1).mean(-1)
