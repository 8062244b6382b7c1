"""What metrics need of a model, its data and their own settings, checked in one place (`metrics.base.evaluate`)."""

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from unbraid.errors import DataError, UnbraidError, UsageError
from unbraid.latents import Normal

INCEPTION_VARIABLE = "UNBRAID_INCEPTION"
"""Environment variable that names the file with Inception weights."""

NO_WEIGHTS = (
    "inception needs the weights that define the FID (pt_inception-2015-12-05-….pth, or the same tensors as "
    f".safetensors), which do not come with unbraid: give their place by weights=FILE or {INCEPTION_VARIABLE}=FILE."
)


class Need(NamedTuple):
    """A condition on an `Evaluation` and a metric's settings, and the error for a metric whose need is not met.

    The sentence may use {metric}, {family} (the name before its protocol) and {data}.
    """

    is_met: Callable[[Any, Mapping[str, Any]], bool]
    sentence: str
    error: type[UnbraidError] = UsageError


def _is_image(evaluation: Any, channels: Iterable[int]) -> bool:
    data = evaluation.dataset
    return not data.multimodal and len(data.shape) == 3 and data.shape[0] in channels


NEEDS: dict[str, Need] = {
    "factors": Need(
        lambda evaluation, _: bool(evaluation.dataset.factors),
        "{data} has no factor labels, so {metric} cannot be computed on it.",
        DataError,
    ),
    "modalities": Need(
        lambda evaluation, _: evaluation.model.multimodal,
        "{metric} needs a run on several modalities, and this one has a single one (x).",
    ),
    "images": Need(
        lambda evaluation, _: _is_image(evaluation, (1, 3)),
        "{metric} needs images with 1 or 3 channels, and {data} has other observations.",
    ),
    "strokes": Need(
        lambda evaluation, _: _is_image(evaluation, (1,)),
        "{metric} measures strokes on images of one channel, and {data} has other observations.",
        DataError,
    ),
    "normal": Need(
        lambda evaluation, _: all(isinstance(block, Normal) for block in evaluation.space.blocks.values()),
        "{metric} needs Normal latents, and some of this model's are not.",
    ),
    "some normal": Need(
        lambda evaluation, _: any(isinstance(block, Normal) for block in evaluation.space.blocks.values()),
        "{metric} needs Normal latents, and this model has none.",
    ),
    "discrete": Need(
        lambda evaluation, _: any(block.discrete for block in evaluation.space.blocks.values()),
        "{metric} needs a discrete latent of classes (latents=normal:10+concrete:10), and this model has none.",
    ),
    "posterior": Need(
        lambda evaluation, _: evaluation.model.whole_posterior,
        "{metric} needs q(z|x) itself, and of this model's mixture of experts a code has mean and variance only: use "
        "log-likelihood/joint and kl-blocks/sampled.",
    ),
    "latent density": Need(
        lambda evaluation, _: evaluation.space.density,
        "Quantised latents are points without a density, so {metric} cannot be computed for them.",
    ),
    "closed form": Need(
        lambda evaluation, _: evaluation.space.closed_form,
        "{metric}: these latents, or their learned prior, have no KL in closed form; use {family}/sampled.",
    ),
    "likelihood": Need(
        lambda evaluation, _: bool(evaluation.model.likelihoods),
        "{metric} needs a likelihood p(x|z), and this model has none, so no bound and no reconstruction in nats.",
    ),
    "density": Need(
        lambda evaluation, _: evaluation.model.has_density,
        "{metric} needs a model with a density of its own, an ms-flow; others have elbo.",
    ),
    "staged": Need(
        lambda evaluation, _: evaluation.model.first is not None,
        "{metric} looks at the stages of a model, and this one has a single stage; refine it first.",
    ),
    "given labels": Need(
        lambda evaluation, _: bool(evaluation.model.given) and evaluation.space.own.leaves > 0,
        "{metric} is of a stage with latents that was given labels; refine with given=[…].",
    ),
    "peers": Need(
        lambda evaluation, _: bool(evaluation.peers),
        "{family} needs runs to compare with: unbraid evaluate RUN RUN … --metric {family}",
    ),
    "weights": Need(
        lambda _, settings: bool(settings.get("weights") or os.environ.get(INCEPTION_VARIABLE)), NO_WEIGHTS
    ),
}


def check_needs(evaluation: Any, metric: str, needs: Iterable[str], settings: Mapping[str, Any]) -> None:
    """Raise the error of the first need of a metric that an evaluation or its settings do not meet."""
    for name in needs:
        need = NEEDS[name]
        if not need.is_met(evaluation, settings):
            family = metric.partition("/")[0]
            raise need.error(need.sentence.format(metric=metric, family=family, data=evaluation.dataset.name))
