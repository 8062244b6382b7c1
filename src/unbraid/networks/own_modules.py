"""What is known of modules that users write: whose they are, how they are called, and what identifies them."""

import ast
import hashlib
import inspect
import textwrap
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from unbraid.errors import UsageError

PLAIN_TYPES = (bool, int, float, complex, str, bytes, type(None))


def is_users(module: nn.Module) -> bool:
    """Return True if the class of a module belongs neither to torch nor to this library."""
    return _package_of(module) not in ("torch", "unbraid")


def find_users_networks(module: nn.Module) -> set[int]:
    """Return the ids of all modules of networks in which a user's class takes part.

    Such a class may ask for the memory layout of plain torch, for example by `x.view(len(x), -1)`.
    """
    if _package_of(module) != "unbraid":
        takes_part = any(map(is_users, module.modules()))
        return {id(part) for part in module.modules()} if takes_part else set()
    return set().union(*map(find_users_networks, module.children()))


def find_whole_chains(module: nn.Module) -> list[nn.Sequential]:
    """Return every `nn.Sequential` inside `module` that is called as a whole, layer after layer.

    That is known of one that is the module itself, or that belongs to a module of this library or to another such
    chain. A hook on one of its layers may look at what that layer makes.
    """
    owners: dict[int, list[nn.Module]] = {}
    for part in module.modules():
        for child in part.children():
            owners.setdefault(id(child), []).append(part)

    def is_whole(part: nn.Module) -> bool:
        return part is module or all(map(calls_whole, owners[id(part)]))

    def calls_whole(owner: nn.Module) -> bool:
        container = type(owner) in (nn.Sequential, nn.ModuleList, nn.ModuleDict)
        return is_whole(owner) if container else _package_of(owner) == "unbraid"

    chains = [part for part in module.modules() if type(part) is nn.Sequential and is_whole(part)]
    return [chain for chain in chains if not any(map(_is_watched, chain))]


def _is_watched(layer: nn.Module) -> bool:
    """Return whether anybody sees, or changes, what a layer gets and makes."""
    hooks = layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks
    return any(hooks) or "forward" in layer.__dict__


def check_plain_tensors(modules: Sequence[nn.Module]) -> None:
    """Raise if modules of one structure, which are to be stacked, differ in a tensor that is no parameter or buffer."""
    for path, part in filter(lambda named: is_users(named[1]), modules[0].named_modules()):
        others = [vars(each.get_submodule(path)) for each in modules[1:]]
        for key, value in vars(part).items():
            if isinstance(value, Tensor) and not all(torch.equal(value.cpu(), other[key].cpu()) for other in others):
                raise UsageError(
                    f"{type(part).__name__}.{key} is a tensor that differs between members of a sweep; make it a "
                    f"buffer (self.register_buffer({key!r}, …)), so that each keeps its own."
                )


def hash_code(module: nn.Module) -> str:
    """Return a hash of a module's structure, of the code of users' classes in it, and of their plain attributes.

    Comments and layout do not count. Two modules with the same weights may compute something else in `forward`.
    """
    digest = hashlib.sha256(repr(module).encode())
    for part in filter(is_users, module.modules()):
        plain = {key: value for key, value in vars(part).items() if key != "training" and _is_plain(value)}
        digest.update(repr(sorted(plain.items())).encode())
        for kind in type(part).__mro__:
            if kind.__module__.partition(".")[0] not in ("torch", "unbraid", "builtins", "typing", "abc"):
                digest.update(_read_code(kind).encode())
    return digest.hexdigest()


def _read_code(kind: type) -> str:
    try:
        return ast.unparse(ast.parse(textwrap.dedent(inspect.getsource(kind))))
    except (OSError, TypeError, SyntaxError):  # written at a prompt: there is no source
        functions = sorted((name, each) for name, each in vars(kind).items() if inspect.isfunction(each))
        return repr([(name, each.__code__.co_code, each.__code__.co_names) for name, each in functions])


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return isinstance(value, PLAIN_TYPES)


def _package_of(module: nn.Module) -> str:
    return type(module).__module__.partition(".")[0]
