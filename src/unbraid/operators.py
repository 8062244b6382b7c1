"""Operators of our own that autograd, vmap and the compiler know.

They are what `torch.library.custom_op` makes, without its cost: each of those imports the compiler when it is first
called, which takes seconds that a run without compilation does not need.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any
from zlib import crc32

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

_LIBRARY = torch.library.Library("unbraid", "DEF")


class Operator:
    """A function as an operator of torch: `@Operator` under a function with a full signature, then its rules."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.name = function, f"unbraid::{function.__name__}"
        self.__doc__, self.__name__ = function.__doc__, function.__name__
        schema = torch.library.infer_schema(function, mutates_args=())
        _LIBRARY.define(function.__name__ + schema, tags=(torch.Tag.pt2_compliant_tag,))
        _LIBRARY.impl(function.__name__, function, "CompositeExplicitAutograd")
        self.call = getattr(torch.ops.unbraid, function.__name__).default

    def __call__(self, *inputs: Any) -> Any:
        return self.call(*inputs)

    def register_fake(self, shape: Callable[..., Any]) -> Callable[..., Any]:
        """Register the function that allocates the result without computing it."""
        return torch.library.register_fake(self.name, shape, lib=_LIBRARY)

    def register_autograd(self, backward: Callable[..., Any], setup_context: Callable[..., Any]) -> None:
        """Register the gradient: `setup_context(ctx, inputs, output)` keeps what `backward(ctx, gradient)` needs."""
        torch.library.register_autograd(self.name, backward, setup_context=setup_context, lib=_LIBRARY)

    def register_vmap(self, rule: Callable[..., Any]) -> None:
        """Register the rule by which vmap maps the operator: `rule(info, in_dims, *inputs) -> (result, axis)`."""
        torch.library.register_vmap(self.name, rule, lib=_LIBRARY)


@cache
def hash_code() -> str:
    """Return a number that changes with the code of the operators.

    The compiler stores programs that call them with the shapes that they returned, and knows them by name alone.
    """
    total = 0
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        code = path.read_bytes()
        if b"@Operator" in code:
            total = crc32(code, total)
    return f"{total:08x}"


def join_member_axis(operator: Operator) -> Callable[..., tuple[Any, Any]]:
    """Return the rule of vmap for an operator on maps: vmap's axis becomes the leading member axis, or joins it.

    The first input is [batch, channel, row, column] or [member, batch, channel, row, column]. An operator that has a
    member axis already sees both axes as one.
    """

    def rule(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Any, Any]:
        def lead(value: Any, axis: int | None) -> Any:
            if not isinstance(value, Tensor) or axis == 0:
                return value
            return value.movedim(axis, 0) if axis is not None else value.expand(info.batch_size, *value.shape)

        values = [lead(value, axis) for value, axis in zip(arguments, in_dims, strict=True)]
        nested = values[0].ndim > 5
        if nested:
            values = [value.flatten(0, 1) if isinstance(value, Tensor) else value for value in values]
        result = operator(*values)
        if nested:
            result = tree_map(lambda part: part.unflatten(0, (info.batch_size, -1)), result)
        return result, tree_map(lambda _: 0, result)

    return rule
