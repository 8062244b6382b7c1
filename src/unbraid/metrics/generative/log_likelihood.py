r"""Log likelihoods of models of several modalities, in nats, by importance sampling (burda2016; wu2018; shi2019).

    joint         log p(x_A)                    A: all modalities of a row
    marginal      log p(x_m)                    one modality
    conditional   log p(x_m|x_A without m) = log p(x_A) - log p(x_A without m)

The proposal for c and the s_m is the posterior given the explained modalities. An estimate lies below the truth on
average, and closer with more draws, so compare equal numbers of `draws`. A difference of two estimates is no bound.
"""

from dataclasses import replace

import torch
from torch import Tensor

from unbraid.errors import UsageError
from unbraid.metrics.arrays import check_at_least
from unbraid.metrics.base import Evaluation, Score, metric
from unbraid.metrics.intervals import spread_at
from unbraid.metrics.unsupervised.elbo import SampledTerms
from unbraid.models import MultimodalModel, as_multimodal
from unbraid.models.generation import log_likelihoods
from unbraid.progress import track

MAX_DRAWS_IN_MEMORY = 16_384
NEEDS = ("modalities",)
TRIAL = {"draws": 4, "samples": 20}


@metric("log-likelihood/joint", reference="burda2016", needs=NEEDS, trial=TRIAL)
def joint(evaluation: Evaluation, *, draws: int = 256, samples: int = 1_000) -> Score:
    """log p of all modalities of a row, mean over random rows."""
    names = _get_model(evaluation, draws, samples).modalities
    return _average(_estimate(evaluation, names, names, draws, samples), "joint", None)


@metric("log-likelihood/marginal", reference="wu2018", needs=NEEDS, trial=TRIAL)
def marginal(evaluation: Evaluation, *, draws: int = 256, samples: int = 1_000) -> list[Score]:
    """log p(x_m) of each modality, mean over random rows that have it."""
    names = _get_model(evaluation, draws, samples).modalities
    return [_average(_estimate(evaluation, (name,), (name,), draws, samples), "marginal", name) for name in names]


@metric("log-likelihood/conditional", reference="wu2018", needs=NEEDS, trial=TRIAL)
def conditional(evaluation: Evaluation, *, draws: int = 256, samples: int = 1_000) -> list[Score]:
    """log p(x_m|all other modalities of the row), mean over random rows that have x_m and another one."""
    model, scores = _get_model(evaluation, draws, samples), []
    if len(model.modalities) < 2:
        raise UsageError("log-likelihood/conditional needs at least 2 modalities.")
    for name in model.modalities:
        others = tuple(other for other in model.modalities if other != name)
        joint = _estimate(evaluation, model.modalities, (name,), draws, samples, others)
        rest = _estimate(evaluation, others, (name,), draws, samples, others)
        scores.append(_average(joint - rest, "conditional", name))
    return scores


def _average(values: Tensor, protocol: str, part: str | None) -> Score:
    terms, covers = SampledTerms({protocol: values}, len(values)), spread_at(len(values))  # few draws bias it
    return replace(terms.score(protocol, "log-likelihood", protocol, covers), part=part)


def _get_model(evaluation: Evaluation, draws: int, samples: int) -> MultimodalModel:
    check_at_least(1, draws=draws)
    check_at_least(2, samples=samples)
    return as_multimodal(evaluation.model)


def _estimate(
    evaluation: Evaluation,
    explained: tuple[str, ...],
    needed: tuple[str, ...],
    draws: int,
    samples: int,
    others: tuple[str, ...] = (),
) -> Tensor:
    """Return log p(x_explained) [rows] of random rows that have one of `needed` and one of `others`, if not empty."""
    model, data = as_multimodal(evaluation.model), evaluation.dataset
    rows = evaluation.rows[evaluation.choose(len(evaluation))]
    for names in (needed, others):
        if names:
            rows = rows[torch.stack([data.has(name, rows) for name in names]).any(0)]
    rows, values = rows[:samples], []
    if len(rows) < 2:
        raise UsageError(f"Fewer than 2 rows of {data.name} have the modalities {', '.join(needed + others)}.")
    for number, part in enumerate(track("log likelihood", rows.split(max(1, MAX_DRAWS_IN_MEMORY // draws)))):
        inputs = data.inputs(part)
        inputs = inputs._replace(x={name: inputs.x[name] for name in explained})
        values.append(log_likelihoods(model, inputs, explained, draws, evaluation.seed, number))
    return torch.cat(values)
