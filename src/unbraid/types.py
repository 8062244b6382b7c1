"""Types that the layers exchange: batches, inputs, outputs, terms, players.

A compiled or stacked step sees only trees of tensors. In a group of runs each tensor has a leading member axis, written
[member, batch, …]; one run is a group of one.
"""

import functools
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

from torch import Tensor, nn

Weight = Annotated[float | Tensor, "sweepable"]
"""A number that may differ between members: a float in a config, a tensor [member] inside a stacked step."""

Shape = tuple[int, ...]
"""Shape of one observation: (channels, height, width) of an image or (features,) of a vector."""

Layout = Shape | Mapping[str, Shape]
"""Shape of one observation, or that of each of its modalities by name."""

Noise = Mapping[str, Tensor]
"""One named tensor per random draw of a step (see `unbraid.noise`)."""


class Modules(NamedTuple):
    """Networks of the user's own, in place of those that a config names."""

    encoder: nn.Module | None = None
    decoder: nn.Module | None = None


NO_MODULES = Modules()


class Batch(NamedTuple):
    """Observations by modality, with their positions in the data set.

    A data set with one modality calls it `x`. `present` [..., batch, modalities] marks the modalities that a row has;
    None means that nothing is missing in all the data. `factors` are the rows' factor values [..., batch, factors] for
    objectives that learn from them, -1 where a row has no label; None elsewhere.
    """

    x: dict[str, Tensor]
    index: Tensor
    present: Tensor | None = None
    factors: Tensor | None = None


class Inputs(NamedTuple):
    """The inputs of a model: observations by modality [rows, …], and other facts about the rows.

    `present` [rows, modalities] marks the modalities that a row has; None means all that are in `x`. `given` holds
    tensors that the objective supplies, by names that the model documents: codes known from labels, or other rows.
    """

    x: Mapping[str, Tensor]
    present: Tensor | None = None
    given: Mapping[str, Tensor] = {}


class Output(NamedTuple):
    """The tensors that a model's forward returns; the latent space and the likelihoods interpret them.

    `posterior` and `prior` hold each latent block's flat parameters, `sample` its reparameterised draw, `decoded`
    each modality's likelihood parameters by name. `extra` is a named tuple of the model's own for everything else;
    most models leave it empty.
    """

    posterior: dict[str, Tensor]
    prior: dict[str, Tensor]
    sample: dict[str, Tensor]
    decoded: dict[str, dict[str, Tensor]]
    extra: Any = ()


class Term(NamedTuple):
    """One summand of a loss: its value (nats, mean over the batch, one per member) and its weight."""

    value: Tensor
    weight: Weight


class Terms(Mapping[str, Term]):
    """Ordered mapping from a term's name to value and weight; the loss is the weighted sum.

    A weight of exactly 0.0 (a float, so the same for every member) logs a term without training on it.
    """

    def __init__(self, terms: Mapping[str, tuple[Tensor, Weight]] | None = None) -> None:
        self._terms = {name: Term(value, weight) for name, (value, weight) in (terms or {}).items()}

    def __getitem__(self, name: str) -> Term:
        return self._terms[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._terms)

    def __len__(self) -> int:
        return len(self._terms)

    def __or__(self, other: "Terms") -> "Terms":
        return Terms({**self._terms, **other._terms})

    @property
    def loss(self) -> Tensor:
        """The weighted sum of all terms [member]."""
        trained = [t for t in self._terms.values() if not (isinstance(t.weight, float) and t.weight == 0.0)]
        return functools.reduce(operator.add, [term.value * term.weight for term in trained])

    @property
    def logged(self) -> dict[str, Tensor]:
        """The unweighted values, detached, for the history."""
        return {name: term.value.detach() for name, term in self._terms.items()}


@dataclass(frozen=True)
class Player:
    """One side of a training game: the parameters it moves, its loss, and how often it moves.

    `owns` are prefixes of parameter names. `loss` receives the shared forward's output, the batch and the objective's
    context, and returns the player's terms; gradients are taken for its own parameters only.
    """

    name: str
    owns: tuple[str, ...]
    loss: Callable[..., Terms]
    every: int = 1
    optimizer: Mapping[str, Any] = field(default_factory=dict)
