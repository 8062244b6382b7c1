"""Triton kernel for `spread` with few numbers per pixel: products of all kernel entries are stored, then added.

The kernels that walk down images (`last_layer_kernel.py`) compute the layers of this kind that matter most.
"""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from unbraid.kernels import launch
from unbraid.networks.conv_kernels import launch_product
from unbraid.networks.epilogue import Epilogue

MAX_NUMBERS_TO_FOLD = 64
"""With at most this many numbers per input pixel, `spread` writes products of all kernel entries, then adds them."""


@triton.jit(do_not_specialize=["pixels", "biased", "relu", "masked"])
@no_type_check
def _fold(
    products, bias, mask, out, pixels, biased, relu, masked,
    H: tl.constexpr, W: tl.constexpr, N: tl.constexpr, OUT_H: tl.constexpr, OUT_W: tl.constexpr,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Add products [batch, i, j, ky, kx, n] where they belong: out[s i + ky - p, s j + kx - p, n]."""
    TAPS: tl.constexpr = (KERNEL + STRIDE - 1) // STRIDE
    member = tl.program_id(1).to(tl.int64)
    products += member * (pixels // (OUT_H * OUT_W * N)) * (H * W * N * KERNEL * KERNEL)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    n = place % N
    z = place // N % OUT_W + PADDING
    y = place // (N * OUT_W) % OUT_H + PADDING
    image = (place // (N * OUT_W * OUT_H)).to(tl.int64)
    total = tl.load(bias + member * N + n, mask=(place < pixels) & (biased != 0), other=0.0).to(tl.float32)
    for a in tl.static_range(TAPS):
        for b in tl.static_range(TAPS):
            i = y // STRIDE - a
            j = z // STRIDE - b
            ky = y % STRIDE + STRIDE * a
            kx = z % STRIDE + STRIDE * b
            known = (i >= 0) & (i < H) & (j >= 0) & (j < W) & (ky < KERNEL) & (kx < KERNEL) & (place < pixels)
            entry = ((image * H + i) * W + j) * (KERNEL * KERNEL * N) + (ky * KERNEL + kx) * N + n
            total += tl.load(products + entry, mask=known, other=0.0)
    if relu != 0:
        total = tl.maximum(total, 0.0)
    if masked != 0:
        kept = tl.load(mask + member * pixels + place, mask=place < pixels, other=0.0)
        total = tl.where(kept > 0, total, 0.0)
    tl.store(out + member * pixels + place, total.to(out.dtype.element_ty), mask=place < pixels)


def launch_folded_product(
    x: Tensor, weight: Tensor, out: Tensor, stride: int, padding: int, compute: torch.dtype, epilogue: Epilogue
) -> None:
    """Run `spread` for few numbers per pixel: first the products of every kernel entry, then their sums."""
    members, batch, H, W, C = x.shape
    out_h, out_w, N = out.shape[2:]
    kernel = weight.shape[-1]
    entries = weight.permute(0, 1, 3, 4, 2).reshape(members, C, -1, 1, 1).transpose(1, 2)  # [member, (ky, kx, n), C]
    products = x.new_empty(members, batch, H, W, entries.shape[1], dtype=torch.float32)
    launch_product(False, x, entries, products, 1, 0, compute, Epilogue(None, False, None))
    pixels, block = batch * out_h * out_w * N, 512
    launch(
        _fold, (-(-pixels // block), members),
        products, *epilogue.pointers(out), out, pixels, *epilogue.flags,
        H=H, W=W, N=N, OUT_H=out_h, OUT_W=out_w, KERNEL=kernel, STRIDE=stride, PADDING=padding, BLOCK=block,
        writes=(out,),
    )  # fmt: skip
