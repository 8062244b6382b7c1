"""What a convolution does with its sums before it stores them: bias, ReLU, mask, and the signs of what it stores.

A mask says where activations are above 0, so it needs one bit for each. A layer with a ReLU may store these bits beside
its activations, and the layer after it reads them for the gradient of its input, instead of all activations. Bits are
[member, batch, row, column, channel / 32] of int32, contiguous; bit i of word w belongs to channel 32 w + i.
"""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

BITS = 32
"""Bits of a word, and so channels."""


@triton.jit
@no_type_check
def pack_signs(numbers, ROWS: tl.constexpr, WORDS: tl.constexpr):
    """Return the words [ROWS, WORDS] that say which of the numbers [ROWS, 32 WORDS] are above 0."""
    bit = tl.full((1, 1, 32), 1, tl.int32) << tl.arange(0, 32)[None, None, :]
    return tl.sum(tl.where(tl.reshape(numbers, (ROWS, WORDS, 32)) > 0, bit, 0), 2)


@triton.jit
@no_type_check
def keep_signed(numbers, words, ROWS: tl.constexpr, WORDS: tl.constexpr):
    """Return numbers [ROWS, 32 WORDS], with zeros where the words [ROWS, WORDS] have no bit."""
    kept = (words[:, :, None] >> tl.arange(0, 32)[None, None, :]) & 1
    numbers = tl.where(kept != 0, tl.reshape(numbers, (ROWS, WORDS, 32)), 0.0)
    return tl.reshape(numbers, (ROWS, 32 * WORDS))


def pack(x: Tensor) -> Tensor:
    """Return the bits [(member,) batch, channel / 32, row, column] of images, as the kernels store them."""
    positive = (x > 0).unflatten(-3, (-1, BITS)).long()
    values = (positive << torch.arange(BITS, device=x.device)[:, None, None]).sum(-3)
    return torch.where(values < 2**31, values, values - 2**32).to(torch.int32)


def unpack(bits: Tensor) -> Tensor:
    """Return the images [(member,) batch, channel, row, column] of booleans that were packed."""
    places = torch.arange(BITS, device=bits.device)[:, None, None]
    return ((bits.unsqueeze(-3) >> places) & 1).flatten(-4, -3) != 0


class Epilogue:
    """Operations of a layer on its sums before it stores them.

    The mask may be images or their bits, [(member,) batch, channel, row, column]. `bits` are where to store those of
    the output.
    """

    def __init__(
        self, bias: Tensor | None, relu: bool, mask: Tensor | None, bits: Tensor | None = None
    ) -> None:  # fmt: skip
        self.bias = None if bias is None else stacked(bias, 2).contiguous()
        self.mask = None if mask is None else channels_last(mask)
        self.bits = None if bits is None else channels_last(bits)
        self.relu = relu

    def pointers(self, otherwise: Tensor) -> tuple[Tensor, Tensor]:
        """Return bias and mask; `otherwise` replaces a missing one, which the kernel does not read."""
        return otherwise if self.bias is None else self.bias, otherwise if self.mask is None else self.mask

    def target(self, out: Tensor) -> Tensor:
        """Return where to store bits, or `out` if nowhere; it has another type, by which the kernel knows."""
        return out if self.bits is None else self.bits

    @property
    def reads_activations(self) -> bool:
        """True if the mask consists of images, not of bits."""
        return self.mask is not None and self.mask.dtype != torch.int32

    @property
    def flags(self) -> tuple[int, int, int]:
        """1 or 0 for bias, ReLU and mask."""
        return int(self.bias is not None), int(self.relu), int(self.mask is not None)


def stacked(x: Tensor, rank: int) -> Tensor:
    """Return a tensor with a member axis, which makes it one of this rank."""
    return x if x.ndim == rank else x[None]


def channels_last(x: Tensor) -> Tensor:
    """Return images as [member, batch, row, column, channel], contiguous; a view if they are channels last."""
    return stacked(x, 5).permute(0, 1, 3, 4, 2).contiguous()
