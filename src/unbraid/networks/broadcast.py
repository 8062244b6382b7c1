"""Spatial broadcast decoders (watters2019): every pixel sees the code and its own coordinates.

The first layer is linear in (code, coordinates). It is computed as a linear map of the code plus a linear map of the
coordinates, so the tiled tensor is never built.
"""

import torch
from torch import Tensor, nn

from unbraid.errors import UsageError
from unbraid.networks.base import decoder
from unbraid.types import Shape


class Broadcast(nn.Module):
    """First layer of a broadcast decoder: [batch, width] -> [batch, channels, height, width of image]."""

    def __init__(self, width: int, channels: int, height: int, columns: int) -> None:
        super().__init__()
        self.code = nn.Linear(width, channels)
        self.position = nn.Linear(2, channels, bias=False)
        y, x = torch.meshgrid(torch.linspace(-1, 1, height), torch.linspace(-1, 1, columns), indexing="ij")
        self.register_buffer("coordinates", torch.stack([x, y], dim=-1), persistent=False)

    def forward(self, code: Tensor) -> Tensor:
        position = self.position(self.coordinates).permute(2, 0, 1)  # [channels, height, columns]
        return self.code(code)[..., None, None] + position


@decoder("broadcast", reference="watters2019")
def broadcast(code: int, shape: Shape, *, channels: int = 64, layers: int = 4, kernel: int = 3) -> nn.Module:
    """Broadcast, then 3x3 convolutions at full resolution, ReLU."""
    return _build("broadcast", code, shape, channels, layers, kernel)


class Patches(nn.Module):
    """Pixels of patches: [batch, colours * side^2, height, width] -> [batch, colours, height * side, width * side]."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side

    def forward(self, x: Tensor) -> Tensor:
        whole = x.unflatten(1, (-1, self.side, self.side))  # [batch, colours, row, column, height, width]
        return whole.permute(0, 1, 4, 2, 5, 3).flatten(4, 5).flatten(2, 3)


@decoder("broadcast-pixel", reference="watters2019", later=("patch",))
def broadcast_pixel(code: int, shape: Shape, *, channels: int = 64, layers: int = 3, patch: int = 1) -> nn.Module:
    """Broadcast with 1x1 convolutions: the same MLP at every pixel, or at every patch of `patch` x `patch` pixels."""
    if patch < 1 or (len(shape) == 3 and (shape[1] % patch or shape[2] % patch)):
        raise UsageError(
            f"Decoder 'broadcast-pixel': images of shape {tuple(shape)} have no patches of {patch}x{patch}."
        )
    if patch == 1 or len(shape) != 3:
        return _build("broadcast-pixel", code, shape, channels, layers, kernel=1)
    coarse = (shape[0] * patch**2, shape[1] // patch, shape[2] // patch)
    return nn.Sequential(*_build("broadcast-pixel", code, coarse, channels, layers, kernel=1), Patches(patch))


def _build(name: str, code: int, shape: Shape, channels: int, layers: int, kernel: int) -> nn.Sequential:
    if len(shape) != 3:
        raise UsageError(f"Decoder '{name}' makes images, not observations of shape {tuple(shape)}.")
    if layers < 2:
        raise UsageError(f"Decoder '{name}' needs at least 2 layers, not {layers}.")
    parts: list[nn.Module] = [Broadcast(code, channels, shape[1], shape[2]), nn.ReLU()]
    for _ in range(layers - 2):
        parts += [nn.Conv2d(channels, channels, kernel, padding=kernel // 2), nn.ReLU()]
    return nn.Sequential(*parts, nn.Conv2d(channels, shape[0], kernel, padding=kernel // 2))
