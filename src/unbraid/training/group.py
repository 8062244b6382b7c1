"""A group of runs as one program: parameters and buffers stacked along a leading member axis.

One run is a group of one; it takes the same path, without the cost of `vmap`.
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.utils._pytree import tree_map

from unbraid.errors import RunError
from unbraid.kernels import without_kernels
from unbraid.networks.conv_as_matmul import ProductConv2d, ProductLayer, use_matrix_products
from unbraid.networks.fused_norm import fuse_normalisations
from unbraid.networks.own_modules import check_plain_tensors, find_users_networks
from unbraid.networks.stackable_batchnorm import make_stackable
from unbraid.noise import TRITON
from unbraid.store import select_prefix


class System(nn.Module):
    """The model of a run and the networks of its objective; where models are only encoded, an encoder and nothing."""

    def __init__(self, model: nn.Module, networks: dict[str, nn.Module]) -> None:
        super().__init__()
        self.model: Any = model
        self.objective = nn.ModuleDict(networks)


class Group:
    """Systems of one structure, whose submodules run on tensors [member, …].

    With `own_kernels=False` torch's operations compute on CUDA what kernels of this library would.
    """

    def __init__(
        self, systems: Sequence[System], device: torch.device, precision: str = "f32", own_kernels: bool = True
    ) -> None:
        self.dtype = torch.float64 if precision == "f64" else torch.float32
        self.skeleton = systems[0].to(device, self.dtype)
        self.device = device
        self.precision, self.own_kernels = precision, own_kernels
        self.members = len(systems)
        if device.type in ("cpu", "cuda"):
            use_matrix_products(self.skeleton, "cpu" if device.type == "cpu" else None if own_kernels else "matmul")
        if self.members > 1:
            check_plain_tensors(systems)
            make_stackable(self.skeleton)
        if device.type == "cuda" and TRITON and own_kernels:
            fuse_normalisations(self.skeleton)
        self._aliases = _find_aliases(self.skeleton)
        self.of_users = _list_tensors_of_users(self.skeleton)
        if self.members == 1:
            named = [dict(self.skeleton.named_parameters()), dict(self.skeleton.named_buffers())]
            stacked = [{name: t.detach().unsqueeze(0) for name, t in tensors.items()} for tensors in named]
        else:
            stacked = list(stack_module_state([system.to(device, self.dtype) for system in systems]))
        if device.type == "cuda":
            stacked[0] = {n: t if n in self.of_users else _channels_last(t) for n, t in stacked[0].items()}
            if self.members > 1:
                self._lay_out_as_gradients(stacked[0])
        wanted = {name: parameter.requires_grad for name, parameter in self.skeleton.named_parameters()}
        self.parameters: dict[str, Tensor] = {n: t.detach().requires_grad_(wanted[n]) for n, t in stacked[0].items()}
        self.buffers: dict[str, Tensor] = {name: tensor.detach() for name, tensor in stacked[1].items()}
        self._buffers_of_users = self.of_users & self.buffers.keys()
        self.half_leaves: dict[str, Tensor] = {}
        self.half_kernels: dict[str, Tensor] = {}

    def keep_half_copies(self) -> None:
        """Keep weights in bfloat16, too, so that no step has to cast them; the optimizer updates both.

        A plain matrix product, as in a linear layer, computes with the copy, which gets the gradient. The convolution
        kernels take the weight and the copy, and their gradient is in float32. The frozen weights of a first stage get
        no copy: it computes in full precision.
        """
        trained = {name: parameter for name, parameter in self.parameters.items() if parameter.requires_grad}
        halves = {name: parameter.detach().to(torch.bfloat16).requires_grad_() for name, parameter in trained.items()}
        for path, layer in self.skeleton.named_modules():
            weight, bias = f"{path}.weight", f"{path}.bias"
            if isinstance(layer, ProductLayer) and not layer.is_dense:
                self.half_kernels |= {name: halves[name].detach() for name in (weight,) if name in halves}
            elif isinstance(layer, ProductLayer) or type(layer) is nn.Linear:
                self.half_leaves |= {name: halves[name] for name in (weight, bias) if name in halves}

    @property
    def half_copies(self) -> dict[str, Tensor]:
        """The copies in bfloat16 by the name of their parameter."""
        return {**self.half_leaves, **self.half_kernels}

    @property
    def leaves(self) -> dict[str, Tensor]:
        """The tensors that get gradients, by the name of their parameter."""
        return {**self.parameters, **self.half_leaves}

    def _lay_out_as_gradients(self, parameters: dict[str, Tensor]) -> None:
        """Store weights of plain products with the outputs last, as vmap makes their gradients."""
        for path, layer in self.skeleton.named_modules():
            weight = parameters.get(f"{path}.weight")
            if weight is None:
                continue
            if type(layer) is nn.Linear:
                parameters[f"{path}.weight"] = weight.mT.contiguous().mT
            elif type(layer) is ProductConv2d and layer.is_dense:
                parameters[f"{path}.weight"] = weight.permute(0, 3, 4, 2, 1).contiguous().permute(0, 4, 3, 1, 2)

    def apply(self, path: str, *inputs: Any) -> Any:
        """Run the submodule at `path` ("model", "objective.discriminator") on trees of tensors [member, …]."""
        module = self.skeleton.get_submodule(path)
        kernels = {name.removesuffix("weight") + "half_weight": copy for name, copy in self.half_kernels.items()}
        tensors = {**self.leaves, **self.buffers, **kernels}
        state = select_prefix(f"{path}.", {**tensors, **{name: tensors[of] for name, of in self._aliases.items()}})
        watched = [name for name in state if f"{path}.{name}" in self._buffers_of_users]

        def call(state: dict[str, Tensor], *inputs: Any) -> tuple[Any, dict[str, Tensor]]:
            own = dict(state)  # gets the buffers that the module sets to new tensors
            # torch ties weights by name, and would leave ours in a module that has two names
            out = functional_call(module, own, inputs, tie_weights=False)
            return out, {name: own[name] for name in watched if own[name] is not state[name]}

        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16"):
            if self.members > 1:
                dims = tree_map(lambda leaf: 0 if isinstance(leaf, Tensor) else None, inputs)
                out, changed = vmap(call, in_dims=(0, *dims))(state, *inputs)
            else:
                made = call(tree_map(_only_member, state), *tree_map(_only_member, inputs))
                out, changed = tree_map(lambda tensor: tensor.unsqueeze(0), made)
        for name, buffer in changed.items():
            self.buffers[f"{path}.{name}"].copy_(buffer.detach())
        return out

    def with_new_leaves(self) -> "Group":
        """Return this group with new leaves on the same memory.

        A forward binds autograd's nodes of its leaves to the current stream, and a step could not be captured on
        another one while they live.
        """
        other = copy.copy(self)
        other.parameters = {n: p.detach().requires_grad_(p.requires_grad) for n, p in self.parameters.items()}
        other.half_leaves = {n: p.detach().requires_grad_(p.requires_grad) for n, p in self.half_leaves.items()}
        return other

    def member_tensors(self, index: int) -> dict[str, Tensor]:
        """Return the state dict of one member."""
        tensors = {**self.parameters, **self.buffers}
        first: dict[int, str] = {}
        names = {}
        for name, tensor in _list_tensors(self.skeleton, remove_duplicate=False):
            names[name] = first.setdefault(id(tensor), name)
        saved = self.skeleton.state_dict().keys()  # without non-persistent buffers, with both names of a tied weight
        return {name: tensors[names.get(name, name)][index].clone() for name in saved}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Overwrite parameters and buffers [member, …] in place, keeping each one's memory layout."""
        current = {**self.parameters, **self.buffers}
        if {n: t.shape for n, t in current.items()} != {n: t.shape for n, t in tensors.items()}:
            raise RunError("The checkpoint does not fit this model: other tensors, or other shapes.")
        with torch.no_grad():
            for name, tensor in current.items():
                tensor.copy_(tensors[name])
            for name, half in self.half_copies.items():
                half.copy_(self.parameters[name])

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Allow TF32 inside the block if the run's precision is tf32, and our kernels if the group uses them.

        The block includes the backward pass.
        """
        with allow_tf32(self.precision == "tf32"), without_kernels(not self.own_kernels):
            yield


@contextmanager
def allow_tf32(allowed: bool) -> Iterator[None]:
    """Allow or forbid TF32 in the matrix products and convolutions of a block."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    try:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def _list_tensors(module: nn.Module, remove_duplicate: bool) -> list[tuple[str, Tensor]]:
    """Return parameters and buffers by name; a module that has two names has both, unless duplicates are removed."""
    named: list[tuple[str, Tensor]] = []
    for path, part in module.named_modules(remove_duplicate=remove_duplicate):
        own = (*part._parameters.items(), *part._buffers.items())
        named += [(f"{path}.{name}" if path else name, tensor) for name, tensor in own if tensor is not None]
    return named


def _find_aliases(module: nn.Module) -> dict[str, str]:
    """Return the first name of every tensor that another module has, too, by its other names."""
    first: dict[int, str] = {}
    names = {name: first.setdefault(id(tensor), name) for name, tensor in _list_tensors(module, True)}
    return {name: of for name, of in names.items() if name != of}


def _list_tensors_of_users(module: nn.Module) -> set[str]:
    """Return the names of tensors inside networks in which a user's class takes part."""
    users = find_users_networks(module)
    parts = ((path, part) for path, part in module.named_modules() if id(part) in users)
    return {f"{path}.{name}" for path, part in parts for name in (*part._parameters, *part._buffers)}


def _channels_last(tensor: Tensor) -> Tensor:
    """Return convolution weights [member, out, in, k, k] with the channels last in memory, as our kernels read them."""
    return tensor if tensor.ndim != 5 else tensor.movedim(2, -1).contiguous().movedim(-1, 2)


def _only_member(value: Any) -> Any:
    """Return a view of a group's only member, so that in-place updates of buffers reach the group."""
    return value.squeeze(0) if isinstance(value, Tensor) else value
