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
"""Rows from which it pays to prepare kernels for the encoder of one model."""

Encode = Callable[[Inputs], dict[str, Tensor]]


def stack_encoders(models: Sequence[Model], device: torch.device, tf32: bool) -> Group:
    """Return the encoders of models with the same structure as one program."""
    # A group changes the layers of its first system, so that one is a copy.
    own = [copy.deepcopy(models[0]), *models[1:]]
    return Group([System(_Encoder(model), {}) for model in own], device, "tf32" if tf32 else "f32")


def choose_encoder(model: Model, device: torch.device, tf32: bool, rows: int) -> Encode:
    """Return the encoder for this many rows: the model's own, or one that uses this library's kernels.

    Torch computes the first layers of an encoder of grey images in full precision, however much TF32 is allowed; all
    737,280 sprites took .6 s on one H200.
    """
    if rows < MIN_ROWS_FOR_KERNELS or not _gain_from_kernels(model, device, tf32):
        return model.encode
    group = stack_encoders([model], device, tf32)

    def encode(inputs: Inputs) -> dict[str, Tensor]:
        with group.computing():
            made = group.apply("model", tree_map_only(Tensor, lambda x: x[None], inputs))
        return {name: part[0] for name, part in made.items()}

    return encode


def _gain_from_kernels(model: nn.Module, device: torch.device, tf32: bool) -> bool:
    """Return whether kernels of this library, which compute in TF32, take the place of torch's convolutions."""
    return device.type == "cuda" and TRITON and tf32 and has_convolutions(model) and not find_users_networks(model)


def has_convolutions(model: nn.Module) -> bool:
    return any(isinstance(module, nn.Conv2d | nn.ConvTranspose2d) for module in model.modules())


class _Encoder(nn.Module):
    """A model whose forward is its encoder."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Any) -> dict[str, Tensor]:
        return self.model.encode(x)
