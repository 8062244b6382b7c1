"""Conditions that metrics state on a model, its data and their own settings; `metrics.base.prepare` checks them."""

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from unbraid.errors import DataError, UnbraidError, UsageError
from unbraid.latents import Normal

INCEPTION_VARIABLE = "UNBRAID_INCEPTION"
"""Environment variable that names the file with Inception weights."""

NO_WEIGHTS = (
    "inception needs the weights that define the FID (pt_inception-2015-12-05-….pth, or the same tensors as "
    f".safetensors), which do not come with unbraid: set weights=FILE or {INCEPTION_VARIABLE}=FILE."
)


class Requirement(NamedTuple):
    """A condition on an `Evaluation` and a metric's settings, and the error if it is not met.

    The message may use {metric}, {family} (the metric's name before its protocol), {data}, {shape} of its observations,
    {latents}, the kinds of the model's latents, and {labelling}, how the data get labels.
    """

    is_met: Callable[[Any, Mapping[str, Any]], bool]
    message: str
    error: type[UnbraidError] = UsageError


LABELLING = {
    "images": "; train with data.labels=labels.csv",
    "table": "; train with data.factors=[COLUMN]",
    "paired": "; train with data.factors=[COLUMN]",
}
"""How a data set of one's own gets labels, by its name."""


def _blocks(evaluation: Any) -> Iterable[Any]:
    return evaluation.space.blocks.values()


def _has_images(evaluation: Any, *channels: int) -> bool:
    data = evaluation.dataset
    return not data.multimodal and len(data.shape) == 3 and data.shape[0] in channels


NEEDS: dict[str, Requirement] = {
    "factors": Requirement(
        lambda of, _: bool(of.dataset.factors),
        "{metric} needs factor labels, which {data} does not have{labelling}.",
        DataError,
    ),
    "modalities": Requirement(
        lambda of, _: of.model.multimodal,
        "{metric} needs a run on several modalities, and this run has one (x).",
    ),
    "images": Requirement(
        lambda of, _: _has_images(of, 1, 3),
        "{metric} needs images with 1 or 3 channels; observations of {data} have the shape {shape}.",
    ),
    "strokes": Requirement(
        lambda of, _: _has_images(of, 1),
        "{metric} needs images with 1 channel; observations of {data} have the shape {shape}.",
        DataError,
    ),
    "normal": Requirement(
        lambda of, _: all(isinstance(block, Normal) for block in _blocks(of)),
        "{metric} needs Normal latents, and some of this model's are not.",
    ),
    "some normal": Requirement(
        lambda of, _: any(isinstance(block, Normal) for block in _blocks(of)),
        "{metric} needs Normal latents, and this model has none.",
    ),
    "discrete": Requirement(
        lambda of, _: any(block.discrete for block in _blocks(of)),
        "{metric} needs a discrete latent of classes (latents=normal:10+concrete:10); this model's are {latents}.",
    ),
    "posterior": Requirement(
        lambda of, _: of.model.whole_posterior,
        "{metric} needs q(z|x) itself, and this model's mixture of experts gives only its mean and variance: use "
        "log-likelihood/joint and kl-blocks/sampled.",
    ),
    "latent density": Requirement(
        lambda of, _: of.space.has_density,
        "Quantised latents are points without a density, so {metric} cannot be computed for them.",
    ),
    "closed form": Requirement(
        lambda of, _: of.space.closed_form,
        "{metric}: these latents, or their learned prior, have no KL in closed form; use {family}/sampled.",
    ),
    "likelihood": Requirement(
        lambda of, _: bool(of.model.likelihoods), "{metric} needs a likelihood p(x|z), which this model does not have."
    ),
    "density": Requirement(
        lambda of, _: of.model.has_density,
        "{metric} needs a model with a density, such as ms-flow; use elbo for other models.",
    ),
    "staged": Requirement(
        lambda of, _: of.model.first is not None,
        "{metric} compares the stages of a model, and this model has one stage; refine it first.",
    ),
    "given labels": Requirement(
        lambda of, _: bool(of.model.given_factors) and of.space.last_stage.leaves > 0,
        "{metric} needs a stage with latents that was given labels; refine with given=[…].",
    ),
    "peers": Requirement(
        lambda of, _: bool(of.peers),
        "{family} needs runs to compare with: unbraid evaluate RUN RUN … --metric {family}",
    ),
    "weights": Requirement(
        lambda _, settings: bool(settings["weights"] or os.environ.get(INCEPTION_VARIABLE)), NO_WEIGHTS
    ),
}


def check_needs(evaluation: Any, metric: str, needs: Iterable[str], settings: Mapping[str, Any]) -> None:
    """Raise the error of the first need that an evaluation, or a metric's settings, do not meet."""
    for name in needs:
        is_met, message, error = NEEDS[name]
        if not is_met(evaluation, settings):
            data, kinds = evaluation.dataset, dict.fromkeys(type(block).__name__ for block in _blocks(evaluation))
            words = {"metric": metric, "family": metric.partition("/")[0], "data": data.name, "shape": data.layout}
            words["labelling"] = LABELLING.get(data.name, "")
            raise error(message.format(**words, latents=" and ".join(kinds)))
