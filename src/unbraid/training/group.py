"""A group of runs as one program: parameters and buffers stacked along a leading member axis.

One run is a group of one; it takes the same path, without the cost of `vmap`.
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.utils._pytree import tree_map

from unbraid.errors import RunError
from unbraid.networks.conv_as_matmul import ProductConv2d, ProductLayer, use_matrix_products
from unbraid.networks.fused_norm import fuse_normalisations
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
    """Systems of one structure, whose submodules run on tensors [member, …]."""

    def __init__(self, systems: Sequence[System], device: torch.device, precision: str = "f32") -> None:
        self.dtype = torch.float64 if precision == "f64" else torch.float32
        self.skeleton = systems[0].to(device, self.dtype)
        self.device = device
        self.precision = precision
        self.members = len(systems)
        if device.type in ("cpu", "cuda"):
            use_matrix_products(self.skeleton, "cpu" if device.type == "cpu" else None)
        if self.members > 1:
            make_stackable(self.skeleton)
        if device.type == "cuda" and TRITON:
            fuse_normalisations(self.skeleton)
        if self.members == 1:
            named = [dict(self.skeleton.named_parameters()), dict(self.skeleton.named_buffers())]
            stacked = [{name: t.detach().unsqueeze(0) for name, t in tensors.items()} for tensors in named]
        else:
            stacked = list(stack_module_state([system.to(device, self.dtype) for system in systems]))
        if device.type == "cuda":
            stacked[0] = {name: _channels_last(tensor) for name, tensor in stacked[0].items()}
            if self.members > 1:
                self._lay_out_as_gradients(stacked[0])
        wanted = {name: parameter.requires_grad for name, parameter in self.skeleton.named_parameters()}
        self.parameters: dict[str, Tensor] = {n: t.detach().requires_grad_(wanted[n]) for n, t in stacked[0].items()}
        self.buffers: dict[str, Tensor] = {name: tensor.detach() for name, tensor in stacked[1].items()}
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
        state = select_prefix(f"{path}.", {**self.leaves, **self.buffers, **kernels})
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16"):
            if self.members > 1:
                dims = tree_map(lambda leaf: 0 if isinstance(leaf, Tensor) else None, inputs)
                stacked = vmap(lambda state, *inputs: functional_call(module, state, inputs), in_dims=(0, *dims))
                return stacked(state, *inputs)
            out = functional_call(module, tree_map(_only_member, state), tree_map(_only_member, inputs))
            return tree_map(lambda tensor: tensor.unsqueeze(0), out)

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
        first = {id(t): name for name, t in reversed(list(self.skeleton.named_parameters(remove_duplicate=False)))}
        names = {name: first.get(id(t), name) for name, t in self.skeleton.named_parameters(remove_duplicate=False)}
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

    def set_tf32(self) -> AbstractContextManager[None]:
        """Allow TF32 inside the block if the run's precision is tf32; the block includes the backward pass."""
        return allow_tf32(self.precision == "tf32")


@contextmanager
def allow_tf32(allowed: bool) -> Iterator[None]:
    """Allow or forbid TF32 in the matrix products and convolutions of a block."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    try:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def _channels_last(tensor: Tensor) -> Tensor:
    """Return convolution weights [member, out, in, k, k] with the channels last in memory, as our kernels read them."""
    return tensor if tensor.ndim != 5 else tensor.movedim(2, -1).contiguous().movedim(-1, 2)


def _only_member(value: Any) -> Any:
    """Return a view of a group's only member, so that in-place updates of buffers reach the group."""
    return value.squeeze(0) if isinstance(value, Tensor) else value
