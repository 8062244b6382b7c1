"""Random draws from an own generator inside a block, so that threads cannot change each other's weights.

Constructors of modules draw from torch's global generator. Inside `seeded` every such draw on the CPU gets a generator
of the block instead, with the numbers that `torch.manual_seed` would give; the global one is neither read nor changed.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import TorchDispatchMode

_global_generator = threading.Lock()
"""Held while an operation that takes no generator draws from the global one."""


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw initial weights on the CPU from this seed; leave the caller's generators unchanged."""
    with _OwnGenerator(torch.Generator().manual_seed(seed)), _CreateOnCPU():
        yield


class _OwnGenerator(TorchDispatchMode):
    """A mode of this thread that passes a generator to every random operation on the CPU that has none."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.generator = generator


def _dispatch(self: _OwnGenerator, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
    kwargs = dict(kwargs or {})
    if torch.Tag.nondeterministic_seeded not in func.tags or not _runs_on_cpu(args, kwargs):
        return func(*args, **kwargs)
    names = [argument.name for argument in func._schema.arguments]
    if "generator" in names:
        position = names.index("generator")
        if position >= len(args):
            kwargs["generator"] = kwargs.get("generator") or self.generator
        elif args[position] is None:
            args = (*args[:position], self.generator, *args[position + 1 :])
        return func(*args, **kwargs)
    variant = "generator" if func._overloadname == "default" else f"{func._overloadname}_generator"
    if variant in func.overloadpacket.overloads():
        return getattr(func.overloadpacket, variant)(*args, generator=self.generator, **kwargs)
    with _global_generator, torch.random.fork_rng(devices=[]):
        torch.default_generator.set_state(self.generator.get_state())
        result = func(*args, **kwargs)
        self.generator.set_state(torch.default_generator.get_state())
    return result


# Set after the class is made: a method in its body would be wrapped in a call that imports torch's compiler.
_OwnGenerator.__torch_dispatch__ = _dispatch


class _CreateOnCPU(TorchFunctionMode):
    """A mode of this thread that creates tensors on the CPU, also if the user's default is another device.

    `torch.device("cpu")` as a context does the same, but also changes a variable that all threads share.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _device_constructors() and kwargs.get("device") is None:
            kwargs = {**kwargs, "device": torch.device("cpu")}
        return func(*args, **kwargs)


def _runs_on_cpu(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    first = args[0] if args else None
    device = first.device if isinstance(first, Tensor) else kwargs.get("device")
    return device is None or torch.device(device).type == "cpu"
