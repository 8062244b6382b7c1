"""A network as a list of a dozen operations: what the page's interpreter runs (`page/interpreter.js`).

Every value has a number. A dimension of -k is k times the batch. Constants hold weights; they carry values alone, and
every operation that depends on constants only is computed once, when the page opens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

OPERATIONS = (
    "matmul",  # [..., m, k] by [..., k, n], and a bias [n] that may be missing
    "convolution",  # images, kernels and a bias that may be missing; transposed or not
    "unary",  # one function of every number
    "binary",  # one function of two numbers, broadcast
    "where",  # a where a condition holds, b elsewhere, broadcast
    "reduce",  # sum, mean, max, min, argmax or argmin over some axes
    "softmax",  # over one axis; or its logarithm
    "reshape",
    "permute",
    "expand",
    "slice",  # every step-th from start to end along one axis
    "concat",  # along one axis
    "take",  # the places that are listed along one axis
)
"""Everything that the interpreter knows."""


@dataclass(frozen=True)
class Node:
    """One operation on earlier values; `shape` is that of its result."""

    operation: str
    inputs: tuple[int, ...]
    shape: tuple[int, ...]
    settings: dict[str, Any]


@dataclass
class Graph:
    """Inputs, constants and nodes by the number of their value, and the numbers of the results."""

    inputs: dict[int, tuple[int, ...]] = field(default_factory=dict)
    constants: dict[int, Tensor] = field(default_factory=dict)
    nodes: dict[int, Node] = field(default_factory=dict)
    outputs: list[int] = field(default_factory=list)

    @property
    def weights(self) -> int:
        """How many numbers the constants hold."""
        return sum(value.numel() for value in self.constants.values())

    def shape_of(self, value: int) -> tuple[int, ...]:
        if value in self.constants:
            return tuple(self.constants[value].shape)
        return self.inputs[value] if value in self.inputs else self.nodes[value].shape

    def without_unused(self) -> "Graph":
        """Return the graph with what its outputs need, and its inputs."""
        needed = set(self.outputs)
        for value, node in reversed(self.nodes.items()):
            if value in needed:
                needed.update(node.inputs)
        constants = {value: tensor for value, tensor in self.constants.items() if value in needed}
        nodes = {value: node for value, node in self.nodes.items() if value in needed}
        return Graph(self.inputs, constants, nodes, self.outputs)

    def as_record(self, places: Sequence[int]) -> dict[str, Any]:
        """Return the graph for JSON; `places` are those of the constants among the weights of the page."""
        constants = zip(self.constants, places, strict=True)
        return {
            "inputs": [[value, list(shape)] for value, shape in self.inputs.items()],
            "constants": [[value, list(self.shape_of(value)), place] for value, place in constants],
            "nodes": [
                [value, node.operation, list(node.inputs), list(node.shape), node.settings]
                for value, node in self.nodes.items()
            ],
            "outputs": self.outputs,
        }
