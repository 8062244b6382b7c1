"""The contract of an objective: a function of a model's output that returns named, weighted terms.

A stateless objective is a decorated function `(out, batch, context, *, settings) -> Terms`. One with networks of its
own or with several players is a small class over `Objective`, decorated in the same way.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor, nn

from unbraid.data.factors import FactorDataset
from unbraid.data.label_codes import LabelCodes
from unbraid.errors import UsageError
from unbraid.latents import Normal, Space
from unbraid.models.base import model
from unbraid.networks import Likelihood
from unbraid.noise import Need
from unbraid.registry import Entry, Facts, Registry, is_weight, read_settings
from unbraid.types import Batch, Noise, Output, Player, Shape, Terms, Weight

Draw = Callable[[str, tuple[int, ...]], Tensor]
"""Uniform numbers of a step [member, *shape], by a name and a shape."""


@dataclass(frozen=True)
class ObjectiveFacts(Facts):
    """Facts about a recipe: an objective with its model.

    `model` names the registered model; `fixed` names settings of that model that stay at their default in this
    recipe. `stage` is the name of a second stage for `refine`. `network` maps the shape of an observation to
    the default networks. `defaults` holds settings that differ from the usual ones, `trial` settings of a small run for
    tests. Weights in `signed` may be negative. `untrained` names learned priors that no term would train.
    """

    model: str = "vae"
    fixed: tuple[str, ...] = ()
    stage: str | None = None
    network: Callable[[Shape], Any] | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    trial: Mapping[str, Any] = field(default_factory=dict)
    signed: tuple[str, ...] = ()
    untrained: tuple[str, ...] = ()


class ObjectiveEntry(Entry[Callable[..., Any], ObjectiveFacts]):
    """A registered objective with its model, under the name that users type.

    Its settings are those of the objective and those of the model. The recipe's own `defaults` take precedence.
    """

    @property
    def settings(self) -> dict[str, inspect.Parameter]:
        """Settings of the objective, followed by those that only its model reads."""
        objective = read_settings(self.make)
        shared = {name: p for name, p in model[self.facts.model].settings.items() if name not in self.facts.fixed}
        every = {**objective, **shared, **objective}
        return {name: p.replace(default=self.facts.defaults.get(name, p.default)) for name, p in every.items()}

    @property
    def sweepable(self) -> frozenset[str]:
        """Weights of the objective; the settings of a model are structure."""
        return frozenset(name for name, p in read_settings(self.make).items() if is_weight(p.annotation))


objective: Registry[Callable[..., Any], ObjectiveFacts] = Registry("objective", ObjectiveFacts, ObjectiveEntry)
"""Decorator: `@objective("name", model="vae", year=…, reference=…)`; the name is the recipe that users type."""


@dataclass(frozen=True)
class Context:
    """Everything that an objective may use in addition to the output: structure, the number of data points, the step.

    `apply` runs one of the objective's own networks, by name, or a part of the model, as `model.decoder`, on tensors
    with a member axis. If several processes train one run, `out.decoded`, `out.extra` and `batch.x` hold the rows of
    this process and everything else holds all rows (`unbraid.training.distributed`): take means over the batch, and do
    not mix the two. `part` returns this process's rows of a tensor that holds all.
    """

    space: Space
    likelihoods: Mapping[str, Likelihood]
    size: int
    step: int | Tensor
    noise: Noise
    apply: Callable[..., Any]
    part: Callable[[Tensor], Tensor] = lambda whole: whole


class Objective:
    """An objective bound to its settings: terms, players, and the noise, rows and networks that it needs."""

    labelled = False
    """True if batches carry the rows' factor values."""

    recentres = False
    """True if `Model.recentre` is called after training."""

    def terms(self, out: Output, batch: Batch, context: Context) -> Terms:
        """Return the terms of the first player's loss."""
        raise NotImplementedError

    def players(self) -> list[Player]:
        """Return the players, in the order in which they move."""
        return [Player("model", ("model.",), self.terms)]

    def networks(self, space: Space) -> dict[str, nn.Module]:
        """Return networks that are trained in addition to the model, by name."""
        return {}

    def needs(self, batch: int, space: Space) -> dict[str, Need]:
        """Return noise that a step consumes in addition to the model's."""
        return {}

    def check(self, dataset: FactorDataset, space: Space) -> None:
        """Raise a `UsageError` for data or latents that this objective cannot learn from."""

    def check_parent(self, dataset: FactorDataset, parent: Mapping[str, Any]) -> None:
        """Raise a `UsageError` for a run, by its config as a mapping, that this objective cannot refine."""

    def begin(self, dataset: FactorDataset, rows: Tensor) -> None:
        """Store facts about the training rows that the terms need, once, before training."""

    def choose_rows(self, index: Tensor, dataset: FactorDataset, draw: Draw) -> Tensor:
        """Return the rows [member, …] of a step, from those of the batch [member, batch].

        Rows that belong together must be neighbours, because several processes divide them in order.
        """
        return index

    def given(self, batch: Batch) -> dict[str, Tensor]:
        """Return tensors [member, rows, …] for `Inputs.given`, of all rows of a step."""
        return {}


class FunctionObjective(Objective):
    """An objective whose terms a function returns."""

    def __init__(self, terms: Callable[..., Terms]) -> None:
        self.terms = terms


def bind(name: str, settings: Mapping[str, Any]) -> Objective:
    """Return a registered objective with those of a recipe's settings that it reads.

    A `Weight` may be a tensor [member]. A weight below 0 would reward what the objective punishes, so it raises a
    `UsageError` unless the recipe lists it in `signed`.
    """
    entry = objective[name]
    for key in entry.sweepable:
        value = settings.get(key, 0.0)
        if isinstance(value, Tensor):  # the members of a group were checked one by one
            continue
        if not math.isfinite(value) or (value < 0 and key not in entry.facts.signed):
            least = "" if key in entry.facts.signed else ", 0 or above"
            raise UsageError(f"{key} of {name} must be a finite number{least}, not {value:g}.")
    used = {key: settings[key] for key in read_settings(entry.make) if key in settings}
    return entry.make(**used) if isinstance(entry.make, type) else FunctionObjective(partial(entry.make, **used))


def ramp(step: int | Tensor, over: int) -> Weight:
    """Return a number that rises from 0 to 1 in a straight line over the first `over` steps, or 1 if `over` is 0."""
    if over < 0:
        raise UsageError(f"A weight or target rises over a number of steps, 0 or above, not {over}.")
    if over == 0:
        return 1.0
    fraction = (step + 1) / over
    return fraction.clamp(max=1.0) if isinstance(fraction, Tensor) else min(1.0, fraction)


def check_normal(space: Space, reason: str) -> None:
    """Raise a `UsageError` for latents that are not independent Normal variables."""
    for name, block in space.blocks.items():
        if not isinstance(block, Normal) or block.coupled:
            wanted = "every latent block must be normal with independent coordinates"
            raise UsageError(f"{reason}, so {wanted}, and {name!r} is not.")


def check_label_latents(space: Space, labels: LabelCodes) -> None:
    """Raise a `UsageError` unless the latents are one Normal variable for each coordinate of the labels."""
    check_normal(space, "A label is compared with a mean")
    if space.leaves != labels.width or len(space.blocks) > 1:
        raise UsageError(f"These labels are {labels.width} coordinates, not {space.leaves}: use z={labels.width}.")
