"""What an objective is: a function of a model's output that returns named, weighted terms.

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
from unbraid.errors import UsageError
from unbraid.latents import Space
from unbraid.models.base import Model, model
from unbraid.networks import Likelihood
from unbraid.noise import Need
from unbraid.registry import Entry, Facts, Registry, is_weight, settings_of
from unbraid.types import Batch, Noise, Output, Player, Shape, Terms

Draw = Callable[[str, tuple[int, ...]], Tensor]
"""Uniform numbers of a step [member, *shape], by a name and a shape."""


@dataclass(frozen=True)
class ObjectiveFacts(Facts):
    """How a recipe is built around its objective.

    `model` names the registered model; `fixed` names settings of that model which stay at their default in this
    recipe. `stage` is the name under which `refine` knows a second stage. `network` maps the shape of an observation to
    the default networks. `defaults` holds settings that differ from the usual ones, `trial` settings of a small run for
    tests. `signed` weights may be negative. `untrained` names learned priors that no term would train.
    """

    model: str = "vae"
    fixed: tuple[str, ...] = ()
    stage: str | None = None
    network: Callable[[Shape], Any] | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    trial: Mapping[str, Any] = field(default_factory=dict)
    signed: tuple[str, ...] = ()
    untrained: tuple[str, ...] = ()


class Recipe(Entry[Callable[..., Any], ObjectiveFacts]):
    """A registered objective with its model: the name that users type.

    Its settings are those of the objective and those of the model, each declared by what reads it. The recipe's own
    `defaults` take precedence.
    """

    @property
    def settings(self) -> dict[str, inspect.Parameter]:
        """Settings of the objective, then those that only its model reads."""
        of_model = {name: p for name, p in model[self.facts.model].settings.items() if name not in self.facts.fixed}
        every = {**settings_of(self.make), **of_model, **settings_of(self.make)}
        return {name: p.replace(default=self.facts.defaults.get(name, p.default)) for name, p in every.items()}

    @property
    def sweepable(self) -> frozenset[str]:
        """Weights of the objective; a model's settings are structure."""
        return frozenset(name for name, p in settings_of(self.make).items() if is_weight(p.annotation))


objective: Registry[Callable[..., Any], ObjectiveFacts] = Registry("objective", ObjectiveFacts, Recipe)
"""Decorator: `@objective("name", model="vae", year=…, reference=…)`; the name is the recipe that users type."""


@dataclass(frozen=True)
class Context:
    """What an objective may know besides the output: structure, the number of data points, the step.

    `apply` runs one of the objective's own networks, by name, or a part of the model, as `model.decoder`, on tensors
    with a member axis. Where several processes
    train one run, `out.decoded` and `batch.x` hold this one's share of the rows, and everything else all rows
    (`unbraid.training.distributed`): take means over the batch, and do not mix the two.
    """

    space: Space
    likelihoods: Mapping[str, Likelihood]
    size: int
    step: int | Tensor
    noise: Noise
    apply: Callable[..., Any]
    part: Callable[[Tensor], Tensor] = lambda whole: whole
    """This process's rows of a tensor that holds all rows."""


class Objective:
    """An objective bound to its settings: terms, players, and the noise, rows and networks that it needs."""

    labelled = False
    """Whether batches carry the rows' factor values."""

    closing = False
    """Whether there is something left to do when training is over (see `close`)."""

    def __init__(self, terms: Callable[[Output, Batch, Context], Terms]) -> None:
        self.terms = terms

    def players(self) -> list[Player]:
        """The sides that are trained, in the order in which they move."""
        return [Player("model", ("model.",), self.terms)]

    def networks(self, space: Space) -> dict[str, nn.Module]:
        """Networks besides the model, by name."""
        return {}

    def needs(self, batch: int, space: Space) -> dict[str, Need]:
        """Noise besides the model's."""
        return {}

    def suits(self, dataset: FactorDataset, space: Space) -> None:
        """A `UsageError` for data or latents that this objective cannot learn from, before anything is trained."""

    def follows(self, dataset: FactorDataset, parent: Mapping[str, Any]) -> None:
        """A `UsageError` for a run, by its config as a mapping, that this objective cannot refine."""

    def begin(self, dataset: FactorDataset, rows: Tensor) -> None:
        """Once, before training on some rows of the data: keep whatever facts about them the terms need."""

    def close(self, model: Model, dataset: FactorDataset, rows: Tensor) -> None:
        """Once, after training on some rows of the data: what has a best value, given all else, takes it."""

    def rows(self, index: Tensor, dataset: FactorDataset, draw: Draw) -> Tensor:
        """Rows [member, …] to learn from at a step, made of the batch's own [member, batch].

        Rows that belong together stand next to each other, because several processes share them out in order.
        """
        return index

    def inputs(self, batch: Batch) -> dict[str, Tensor]:
        """What the model's forward is given besides the observations [member, rows, …], of all rows of a step."""
        return {}


def bind(name: str, settings: Mapping[str, Any]) -> Objective:
    """Return a registered objective with those of a recipe's settings that it reads.

    A `Weight` may be a tensor [member]. A weight below 0 would reward what the objective is there to punish, so it
    raises a `UsageError` unless it is one of the `signed` ones.
    """
    entry = objective[name]
    for key in entry.sweepable:
        value = settings.get(key, 0.0)
        if isinstance(value, Tensor):  # of a group, whose members were each checked when they were configured
            continue
        if not math.isfinite(value) or (value < 0 and key not in entry.facts.signed):
            wanted = "a finite number" if key in entry.facts.signed else "0 or above"
            raise UsageError(f"{key} of {name} must be {wanted}, not {value:g}.")
    own = {key: settings[key] for key in settings_of(entry.make) if key in settings}
    return entry.make(**own) if isinstance(entry.make, type) else Objective(partial(entry.make, **own))
