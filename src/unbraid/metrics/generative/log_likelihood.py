r"""Log likelihoods of models of several modalities, in nats, by importance sampling (burda2016; wu2018; shi2019).

    joint         log p(x_A)                    A: all that a row has
    marginal      log p(x_m)                    one modality alone
    conditional   log p(x_m|x_A without m) = log p(x_A) - log p(x_A without m)

each with c and the s_m drawn from the posterior of the modalities that are explained. An estimate from K draws lies
below the truth on average, less so the more draws there are; `draws` is part of what a number means, and a difference
of two of them is no bound.
"""

from dataclasses import replace

import torch
from torch import Tensor

from unbraid.errors import UsageError
from unbraid.metrics.arrays import check_at_least
from unbraid.metrics.base import Evaluation, Score, metric
from unbraid.metrics.unsupervised.elbo import SampledTerms
from unbraid.models import MultimodalModel, as_multimodal
from unbraid.models.generation import log_likelihoods
from unbraid.progress import progress

WORK = 16_384
"""Draws that are decoded at once."""

NEEDS = ("modalities",)
TRIAL = {"draws": 4, "samples": 20}


@metric("log-likelihood/joint", reference="burda2016", needs=NEEDS, trial=TRIAL)
def joint(evaluation: Evaluation, *, draws: int = 256, samples: int = 1_000) -> Score:
    """log p of all modalities that a row has, mean over random rows."""
    model = _model(evaluation, draws, samples)
    values = _estimates(evaluation, model.modalities, model.modalities, draws, samples)
    return SampledTerms({"joint": values}, len(values)).score("joint", "log-likelihood", "joint")


@metric("log-likelihood/marginal", reference="wu2018", needs=NEEDS, trial=TRIAL)
def marginal(evaluation: Evaluation, *, draws: int = 256, samples: int = 1_000) -> list[Score]:
    """log p(x_m) of each modality alone, mean over random rows that have it."""
    names = _model(evaluation, draws, samples).modalities
    return [_part(_estimates(evaluation, (name,), (name,), draws, samples), "marginal", name) for name in names]


@metric("log-likelihood/conditional", reference="wu2018", needs=NEEDS, trial=TRIAL)
def conditional(evaluation: Evaluation, *, draws: int = 256, samples: int = 1_000) -> list[Score]:
    """log p(x_m|all other modalities that a row has), mean over random rows that have x_m and another one."""
    model, made = _model(evaluation, draws, samples), []
    if len(model.modalities) < 2:
        raise UsageError("log-likelihood/conditional needs at least 2 modalities.")
    for name in model.modalities:
        others = tuple(other for other in model.modalities if other != name)
        whole = _estimates(evaluation, model.modalities, (name,), draws, samples, others)
        made.append(_part(whole - _estimates(evaluation, others, (name,), draws, samples, others), "conditional", name))
    return made


def _part(values: Tensor, protocol: str, name: str) -> Score:
    return replace(SampledTerms({name: values}, len(values)).score(name, "log-likelihood", protocol), part=name)


def _model(evaluation: Evaluation, draws: int, samples: int) -> MultimodalModel:
    check_at_least(1, draws=draws)
    check_at_least(2, samples=samples)
    return as_multimodal(evaluation.model)


def _estimates(
    evaluation: Evaluation,
    explained: tuple[str, ...],
    needed: tuple[str, ...],
    draws: int,
    samples: int,
    beside: tuple[str, ...] = (),
) -> Tensor:
    """log p(x_explained) of random rows [rows] that have one of `needed` and, where asked for, one `beside` it."""
    model, data = as_multimodal(evaluation.model), evaluation.dataset
    rows = evaluation.rows[evaluation.choose(len(evaluation))]
    for names in (needed, beside):
        if names:
            rows = rows[torch.stack([data.has(name, rows) for name in names]).any(0)]
    rows, made = rows[:samples], []
    if len(rows) < 2:
        raise UsageError(f"Fewer than 2 rows of {data.name} have what this looks at ({', '.join(needed + beside)}).")
    with progress("log likelihood", len(rows)) as bar:
        for number, part in enumerate(rows.split(max(1, WORK // draws))):
            inputs = data.inputs(part)
            inputs = inputs._replace(x={name: inputs.x[name] for name in explained})
            made.append(log_likelihoods(model, inputs, explained, draws, evaluation.seed, number))
            bar.advance(len(part))
    return torch.cat(made)
