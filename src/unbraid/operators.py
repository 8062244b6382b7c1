"""Operators of our own that autograd, vmap and the compiler know.

They are what `torch.library.custom_op` makes, without its cost: each of those imports the compiler when it is first
called, which takes seconds that a run without compilation does not need.
"""

from collections.abc import Callable
from typing import Any

import torch

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
