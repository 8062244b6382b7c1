"""Write recorded operations of torch as those of the graph, by the rules of `rules.py`."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from unbraid.errors import UsageError
from unbraid.explore.graph import Graph, Node
from unbraid.explore.record import BATCHES, Call, Recording, Ref

Rule = Callable[["Lowering", dict[str, Any], list[Any]], int | list[int]]
"""From the arguments by name, tensors as numbers of values, and the result's shapes to the numbers of the results."""

RULES: dict[str, Rule] = {}
"""Rules by the name of torch's operation; one that writes in place has the name of the one that does not."""


class Lowering:
    """Writes recorded calls into a graph."""

    def __init__(self, pair: tuple[Recording, Recording]) -> None:
        self.pair, self.graph, self._count = pair, Graph(), 0
        self._values: dict[int, int] = {}
        self._numbers: dict[float, int] = {}
        for ref in pair[0].inputs:
            self._values[ref.place] = self._next()
            self.graph.inputs[self._values[ref.place]] = self.shape(ref.place)

    def _next(self) -> int:
        self._count += 1
        return self._count - 1

    def shape(self, place: int) -> tuple[int, ...]:
        """Return a tensor's shape, batch multiples as negative numbers."""
        sizes = [tuple(recording.tensors[place].shape) for recording in self.pair]
        return tuple(_dimension(*both) for both in zip(*sizes, strict=True))

    def value(self, place: int) -> int:
        """Return the number of a recorded tensor, which is a constant if no operation of the graph has made it."""
        if place not in self._values:
            first, second = (recording.tensors[place] for recording in self.pair)
            self._values[place] = self._constant_rows(first, second, self.shape(place))
        return self._values[place]

    def _constant_rows(self, first: Tensor, second: Tensor, shape: tuple[int, ...]) -> int:
        """Add a constant; one that has a row for each row of the batch is one row, repeated."""
        whole = first
        for axis, size in enumerate(shape):
            if size < 0:
                first, second = first.narrow(axis, 0, 1), second.narrow(axis, 0, 1)
        if not torch.equal(first, second) or not torch.equal(whole, first.expand_as(whole)):
            raise UsageError("This network adds another constant to each row of a batch; let it treat rows alike.")
        value = self.constant(first)
        return value if tuple(first.shape) == shape else self.emit("expand", [value], shape)

    def constant(self, tensor: Tensor) -> int:
        """Add a constant of any type."""
        value = self._next()
        self.graph.constants[value] = tensor.detach().to("cpu", torch.float32).contiguous()
        return value

    def number(self, number: float) -> int:
        """Add a single number."""
        number = float(number)
        if number not in self._numbers:
            self._numbers[number] = self.constant(torch.tensor(number))
        return self._numbers[number]

    def emit(self, operation: str, inputs: list[int], shape: tuple[int, ...], **settings: Any) -> int:
        """Add a node and return the number of its value."""
        value = self._next()
        self.graph.nodes[value] = Node(operation, tuple(inputs), shape, settings)
        return value

    def lower(self, call: Call) -> None:
        """Write one recorded call."""
        name = call.function.overloadpacket.__name__
        arguments = {key: self._argument(value) for key, value in call.arguments.items()}
        shapes = [None if ref is None else self.shape(ref.place) for ref in call.outputs]
        made = RULES[name](self, {**arguments, "name": name.rstrip("_") or name, "call": call}, shapes)
        for ref, value in zip(call.outputs, made if isinstance(made, list) else [made], strict=False):
            if ref is not None:
                self._values[ref.place] = value
        if name.endswith("_") and not name.startswith("_"):  # what wrote in place has changed its first argument
            target = next(iter(call.arguments.values()))
            self._values[target.place] = made if isinstance(made, int) else made[0]

    def _argument(self, value: Any) -> Any:
        if isinstance(value, Ref):
            return Value(self.value(value.place))
        return [self._argument(each) for each in value] if isinstance(value, list) else value

    def dtype(self, ref: Ref) -> torch.dtype:
        """Return the type of a recorded tensor."""
        return self.pair[0].tensors[ref.place].dtype

    def operand(self, value: Any) -> int:
        """Return the number of an argument that is a tensor or a plain number."""
        return int(value) if isinstance(value, Value) else self.number(value)

    def binary(self, kind: str, left: int, right: int, shape: tuple[int, ...]) -> int:
        """Add one binary operation."""
        return self.emit("binary", [left, right], shape, kind=kind)

    def scale(self, value: int, factor: float) -> int:
        """Add the product with a number, unless it is 1."""
        return value if factor == 1 else self.binary("mul", value, self.number(factor), self.graph.shape_of(value))

    def unary(self, kind: str, value: int) -> int:
        """Add one unary operation."""
        return self.emit("unary", [value], self.graph.shape_of(value), kind=kind)


class Value(int):
    """The number of a value among arguments, told apart from an argument that is a number."""


def _dimension(first: int, second: int) -> int:
    if first == second:
        return first
    if first * BATCHES[1] != second * BATCHES[0]:
        raise UsageError(
            f"A dimension of this network is {first} for {BATCHES[0]} rows and {second} for {BATCHES[1]}; the explorer "
            "needs one that is fixed or grows with the rows."
        )
    return -(first // BATCHES[0])


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule under these names, and those of the forms that write in place."""

    def register(function: Rule) -> Rule:
        RULES.update({name: function for each in names for name in (each, f"{each}_")})
        return function

    return register
