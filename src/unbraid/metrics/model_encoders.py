"""The encoders of models on a GPU as a program of this library's kernels, for one model or for several at once."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from unbraid.models import Model
from unbraid.networks.own_modules import find_users_networks
from unbraid.noise import TRITON
from unbraid.training.group import Group, System
from unbraid.types import Inputs

MIN_ROWS_FOR_KERNELS = 2**16
"""Rows of an evaluation from which it pays to prepare kernels for the encoder of one model."""

Encode = Callable[[Inputs], dict[str, Tensor]]


def stack_encoders(models: Sequence[Model], device: torch.device, tf32: bool) -> Group:
    """Return the encoders of models with the same structure as one program."""
    # A group changes the layers of its first system, so that one is a copy.
    own = [copy.deepcopy(models[0]), *models[1:]]
    return Group([System(_Encoder(model), {}) for model in own], device, "tf32" if tf32 else "f32")


def choose_encoder(model: Model, device: torch.device, tf32: bool, rows: int, batch: int) -> Encode:
    """Return the encoder of an evaluation of `rows` rows: the model's own, or one that uses this library's kernels.

    By torch, all 737,280 sprites take .6 s of one H200, also because it computes the first layer of an encoder of grey
    images in full precision, however much TF32 is allowed. The choice must not depend on which rows a metric asks for,
    so that codes do not depend on the order of metrics. Up to `batch` rows are encoded at once, always in that shape:
    kernels are compiled for a shape.
    """
    if rows < MIN_ROWS_FOR_KERNELS or not _is_faster_by_kernels(model, device, tf32):
        return model.encode
    group = stack_encoders([model], device, tf32)

    def encode(inputs: Inputs) -> dict[str, Tensor]:
        count = len(next(iter(inputs.x.values())))
        padded = tree_map_only(Tensor, lambda x: _repeat_last(x, batch)[None], inputs)
        with group.computing():
            posterior = group.apply("model", padded)
        return {name: part[0, :count] for name, part in posterior.items()}

    return encode


def _repeat_last(x: Tensor, rows: int) -> Tensor:
    """Return x with its last row repeated until there are this many."""
    missing = rows - len(x)
    return torch.cat([x, x[-1:].expand(missing, *x.shape[1:])]) if missing > 0 else x


def _is_faster_by_kernels(model: nn.Module, device: torch.device, tf32: bool) -> bool:
    """Return whether kernels of this library, which compute in TF32, take the place of torch's convolutions."""
    return device.type == "cuda" and TRITON and tf32 and has_convolutions(model) and not find_users_networks(model)


def has_convolutions(model: nn.Module) -> bool:
    """Return whether a layer of the model is a convolution."""
    return any(isinstance(module, nn.Conv2d | nn.ConvTranspose2d) for module in model.modules())


class _Encoder(nn.Module):
    """A model whose forward is its encoder."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Any) -> dict[str, Tensor]:
        return self.model.encode(x)
