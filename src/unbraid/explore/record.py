"""Record the tensor operations that a function executes, twice, to tell the batch axis from all others.

A network runs once on 2 rows and once on 3. Both recordings hold the same operations; a dimension of 2k in the first
and 3k in the second is k times the batch, and every other dimension is fixed. Nothing is symbolic, so a network may do
whatever it likes as long as it does the same for every batch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from unbraid.errors import UsageError

BATCHES = (2, 3)
"""Rows of the first and of the second recording."""


@dataclass(frozen=True)
class Ref:
    """Place of a tensor among all those of a recording."""

    place: int


@dataclass
class Call:
    """One operation: what was called with which arguments, and the tensors that it returned."""

    function: Any
    arguments: dict[str, Any]
    outputs: list[Ref | None]


@dataclass
class Recording:
    """Operations in order. `tensors` holds every value seen, inputs first; `leaves` those that no operation made."""

    calls: list[Call] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    leaves: set[int] = field(default_factory=set)
    inputs: list[Ref] = field(default_factory=list)
    outputs: list[Ref] = field(default_factory=list)


class Recorder(TorchDispatchMode):
    """Writes every operation that torch executes into a recording; `split` names operations to break into simpler
    ones."""

    def __init__(self, split: dict[Any, Callable[..., Any]]) -> None:
        super().__init__()
        self.recording = Recording()
        self.split = split
        self._places: dict[int, int] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch would import its compiler, which takes seconds, only to say that nothing is compiled

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in self.split:
            with self:
                return self.split[func](*args, **kwargs)
        made = func(*args, **kwargs)
        named = {argument.name: value for argument, value in zip(func._schema.arguments, args, strict=False)}
        arguments = {
            argument.name: self._refer({**named, **kwargs}.get(argument.name, argument.default_value))
            for argument in func._schema.arguments
        }
        if not any(_refs(value) for value in arguments.values()):  # a factory, as zeros: its value is what counts
            return made
        outputs = made if isinstance(made, (tuple, list)) else (made,)
        self.recording.calls.append(Call(func, arguments, [self.remember(each) for each in outputs]))
        return made

    def remember(self, value: Any, leaf: bool = False) -> Ref | None:
        """Give a tensor a place, a new one if an operation has written into it."""
        if not isinstance(value, Tensor):
            return None
        place = len(self.recording.tensors)
        self.recording.tensors.append(value)
        self._places[id(value)] = place
        if leaf:
            self.recording.leaves.add(place)
        return Ref(place)

    def refer(self, value: Tensor) -> Ref:
        """Return the place of a tensor, which becomes a leaf if no operation has made it."""
        if id(value) in self._places:
            return Ref(self._places[id(value)])
        made = self.remember(value, leaf=True)
        assert made is not None
        return made

    def _refer(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self.refer(value)
        return [self._refer(each) for each in value] if isinstance(value, (list, tuple)) else value


def _refs(value: Any) -> list[Ref]:
    if isinstance(value, Ref):
        return [value]
    return [ref for each in value for ref in _refs(each)] if isinstance(value, list) else []


def refs_of(call: Call) -> list[Ref]:
    """Return the tensors among a call's arguments."""
    return [ref for value in call.arguments.values() for ref in _refs(value)]


def record(
    function: Callable[..., Sequence[Tensor]], examples: Sequence[Tensor], split: dict[Any, Callable[..., Any]]
) -> tuple[Recording, Recording]:
    """Run `function` on the first 2 and on 3 rows of the examples; return both recordings."""
    first, second = (_record(function, [each[:rows].clone() for each in examples], split) for rows in BATCHES)
    if [call.function for call in first.calls] != [call.function for call in second.calls]:
        raise UsageError(
            "This network does something else for 3 rows than for 2, so no single graph describes it; "
            "let it treat every row alike."
        )
    return first, second


def _record(
    function: Callable[..., Sequence[Tensor]], inputs: list[Tensor], split: dict[Any, Callable[..., Any]]
) -> Recording:
    recorder = Recorder(split)
    recorder.recording.inputs = [recorder.refer(each) for each in inputs]
    recorder.recording.leaves.clear()
    with torch.no_grad(), recorder:
        outputs = function(*inputs)
    recorder.recording.outputs = [recorder.refer(each) for each in outputs]
    return recorder.recording
