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


class Requirement(NamedTuple):
    """A condition on an `Evaluation` and a metric's settings, and the error where it is not met.

    The sentence may use {metric}, {family} (the metric's name before its protocol) and {data}.
    """

    is_met: Callable[[Any, Mapping[str, Any]], bool]
    sentence: str
    error: type[UnbraidError] = UsageError


def _blocks(evaluation: Any) -> Iterable[Any]:
    return evaluation.space.blocks.values()


def _has_images(evaluation: Any, *channels: int) -> bool:
    data = evaluation.dataset
    return not data.multimodal and len(data.shape) == 3 and data.shape[0] in channels


NEEDS: dict[str, Requirement] = {
    "factors": Requirement(
        lambda of, _: bool(of.dataset.factors),
        "{data} has no factor labels, so {metric} cannot be computed.",
        DataError,
    ),
    "modalities": Requirement(
        lambda of, _: of.model.multimodal,
        "{metric} needs a run on several modalities, and this one has a single one (x).",
    ),
    "images": Requirement(
        lambda of, _: _has_images(of, 1, 3), "{metric} needs images with 1 or 3 channels, which {data} does not have."
    ),
    "strokes": Requirement(
        lambda of, _: _has_images(of, 1), "{metric} needs images with 1 channel, which {data} does not have.", DataError
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
        "{metric} needs a discrete latent of classes (latents=normal:10+concrete:10), and this model has none.",
    ),
    "posterior": Requirement(
        lambda of, _: of.model.whole_posterior,
        "{metric} needs q(z|x) itself, and of this model's mixture of experts a code has mean and variance only: use "
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
        "{metric} needs a model with a density of its own, an ms-flow; others have elbo.",
    ),
    "staged": Requirement(
        lambda of, _: of.model.first is not None,
        "{metric} looks at the stages of a model, and this one has a single stage; refine it first.",
    ),
    "given labels": Requirement(
        lambda of, _: bool(of.model.given_factors) and of.space.last_stage.leaves > 0,
        "{metric} is of a stage with latents that was given labels; refine with given=[…].",
    ),
    "peers": Requirement(
        lambda of, _: bool(of.peers),
        "{family} needs runs to compare with: unbraid evaluate RUN RUN … --metric {family}",
    ),
    "weights": Requirement(lambda _, given: bool(given["weights"] or os.environ.get(INCEPTION_VARIABLE)), NO_WEIGHTS),
}


def check_needs(evaluation: Any, metric: str, needs: Iterable[str], settings: Mapping[str, Any]) -> None:
    """Raise the error of the first need of a metric that an evaluation, or its settings, do not meet."""
    for name in needs:
        is_met, sentence, error = NEEDS[name]
        if not is_met(evaluation, settings):
            words = {"metric": metric, "family": metric.partition("/")[0], "data": evaluation.dataset.name}
            raise error(sentence.format(**words))
