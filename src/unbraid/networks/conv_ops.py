"""The convolution kernels as operators for autograd, vmap and the compiler (see `conv_kernels.py`)."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from unbraid.networks import conv_kernels as kernels
from unbraid.networks.conv_choice import computes_both_gradients, launch_convolution, launch_kernel_gradient
from unbraid.networks.epilogue import BITS, Epilogue, channels_last, pack, unpack
from unbraid.networks.picture_kernels import Gradient, Product, differentiate_windows
from unbraid.operators import Operator, join_member_axis

SUMS_OF_SMALL, SUMS_OF_LARGE = 1, 2
"""Sums of `kernel_gradient` for the gradient of a bias: of `small` over its rows, or of each entry of the columns."""


@Operator
def convolve(
    x: Tensor, weight: Tensor, bias: Tensor | None, mask: Tensor | None, half_weight: Tensor | None,
    x_bits: Tensor | None, transposed: bool, stride: int, padding: int, rows: int, columns: int, relu: bool,
    premasked: bool, mask_input: bool, store_bits: bool, compute: torch.dtype, out: torch.dtype,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Convolve [(member,) batch, C, H, W] to [(member,) batch, N, rows, columns]; `transposed` means `spread`.

    `premasked`: the incoming gradient is masked by this layer's ReLU already. `mask_input`: this layer masks the
    gradient of x by x > 0. `half_weight` is the weight in bfloat16; without it, a product in bfloat16 casts the weight.
    The second result holds the bits of the output (see `epilogue.py`), of no channels unless `store_bits`. A mask may
    be such bits; `x_bits` are those of x, if they exist.
    """
    size = (transposed, stride, padding, rows, columns, relu, premasked, mask_input, store_bits, compute, out)
    result, bits = _allocate_images(x, weight, bias, mask, half_weight, x_bits, *size)
    weights, kernel = _stacked(_in_type(compute, weight, half_weight)), weight.shape[-1]
    if kernels.runs_kernels(x, compute):
        how = (stride, padding, compute, Epilogue(bias, relu, mask, bits if store_bits else None))
        launch_convolution(transposed, channels_last(x), weights, channels_last(result), *how)
        return result, bits
    settings: list[Any] = [None, stride, padding]
    if transposed:  # the output's padding
        sides = zip((rows, columns), x.shape[-2:], strict=True)
        settings.append([n - (m - 1) * stride + 2 * padding - kernel for n, m in sides])
    for one, image, matrix in zip(_stacked(result), _stacked(x), weights, strict=True):
        one[:] = (F.conv_transpose2d if transposed else F.conv2d)(image.to(compute), matrix.to(compute), *settings)
    if bias is not None:
        result += bias[..., None, :, None, None].to(result.dtype)
    if relu:
        result.clamp_(min=0)
    if mask is not None:
        result.mul_(unpack(mask) if mask.dtype == torch.int32 else mask > 0)
    return result, bits.copy_(pack(result)) if store_bits else bits


@convolve.register_fake
def _allocate_images(
    x: Tensor, weight: Tensor, bias: Any, mask: Any, half_weight: Any, x_bits: Any, transposed: bool, stride: int,
    padding: int, rows: int, columns: int, *settings: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    N, store_bits = weight.shape[-3 if transposed else -4], settings[3]
    bits = kernels.new_images(x, rows, columns, N // BITS if store_bits else 0, dtype=torch.int32)
    return kernels.new_images(x, rows, columns, N, dtype=settings[-1]), bits


@Operator
def kernel_gradient(
    large: Tensor, small: Tensor, kernel: int, stride: int, padding: int, sums_of: int, compute: torch.dtype
) -> Tensor:
    """Return the gradient of a weight (n, ky, kx, c) in float32, then the sums for that of a bias, [(member,) …]."""
    if kernels.runs_kernels(large, compute):
        gradient = Gradient(channels_last(small), sums_of)
        sums = launch_kernel_gradient(channels_last(large), gradient, kernel, stride, padding, compute)
        return sums if large.ndim == 5 else sums[0]
    shape = (small.shape[-3], large.shape[-3], kernel, kernel)
    parts = []
    for image, signal in zip(_stacked(large), _stacked(small), strict=True):
        image, signal = image.to(compute).contiguous(), signal.to(compute).contiguous()
        sums = torch.nn.grad.conv2d_weight(image, shape, signal, stride, padding).float().permute(0, 2, 3, 1).flatten()
        if sums_of == SUMS_OF_SMALL:
            sums = torch.cat([sums, signal.float().sum((0, 2, 3))])
        elif sums_of == SUMS_OF_LARGE:
            columns = F.unfold(image.float(), kernel, padding=padding, stride=stride)[..., : signal[0, 0].numel()]
            each = columns.sum((0, 2)).view(-1, kernel, kernel)
            sums = torch.cat([sums, each.permute(1, 2, 0).flatten()])
        parts.append(sums)
    return torch.stack(parts) if large.ndim == 5 else parts[0]


@kernel_gradient.register_fake
def _allocate_sums(
    large: Tensor, small: Tensor, kernel: int, stride: int, padding: int, sums_of: int, compute: Any
) -> Tensor:
    N, entries = small.shape[-3], kernel * kernel * large.shape[-3]
    return large.new_empty(*large.shape[:-4], N * entries + (0, N, entries)[sums_of], dtype=torch.float32)


@Operator
def transposed_gradients(
    grad: Tensor, x: Tensor, weight: Tensor, half_weight: Tensor | None, stride: int, padding: int, sums_of: int,
    mask_input: bool, compute: torch.dtype,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the gradient of the input x of a transposed layer, and `kernel_gradient`, from one pass over both.

    It has no gradient of its own: use it where nothing is differentiated again.
    """
    dx = kernels.new_images(x, x.shape[-2], x.shape[-1], x.shape[-3], dtype=x.dtype)
    large, small, out = (channels_last(each) for each in (grad, x, dx))
    product = Product(_stacked(_in_type(compute, weight, half_weight)), out, mask_input)
    sums = differentiate_windows(large, compute, Gradient(small, sums_of), product)
    return dx, sums if grad.ndim == 5 else sums[0]


@transposed_gradients.register_fake
def _(
    grad: Tensor, x: Tensor, weight: Tensor, half_weight: Any, stride: int, padding: int, sums_of: int, *settings: Any
) -> tuple[Tensor, Tensor]:
    dx = kernels.new_images(x, x.shape[-2], x.shape[-1], x.shape[-3], dtype=x.dtype)
    return dx, _allocate_sums(grad, x, weight.shape[-1], stride, padding, sums_of, settings[-1])


def weight_gradient(
    large: Tensor, small: Tensor, kernel: int, stride: int, padding: int, sums_of: int, compute: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return the gradient of a weight [(member,) n, c, ky, kx], channels last, and the sums for that of a bias."""
    flat = kernel_gradient(large, small, kernel, stride, padding, sums_of, compute)
    return _split_gradient(flat, small.shape[-3], large.shape[-3], kernel)


def _split_gradient(flat: Tensor, N: int, C: int, kernel: int) -> tuple[Tensor, Tensor]:
    numbers = N * kernel * kernel * C
    return flat[..., :numbers].unflatten(-1, (N, kernel, kernel, C)).movedim(-1, -3), flat[..., numbers:]


def _stacked(x: Tensor) -> Tensor:
    return x if x.ndim == 5 else x[None]


def _in_type(dtype: torch.dtype, weight: Tensor, half_weight: Tensor | None) -> Tensor:
    """Return the one of two weights that has a type, or the first."""
    return weight if half_weight is None or half_weight.dtype != dtype else half_weight


def _save_convolution(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, weight, _, mask, half_weight, x_bits, *ctx.settings = inputs
    relu, premasked = ctx.settings[5:7]
    ctx.set_materialize_grads(False)  # bits have no gradient, and shall not get zeros
    ctx.save_for_backward(x, weight, half_weight, x_bits, mask, output[0] if relu and not premasked else None)


def _differentiate(ctx: Any, grad: Tensor | None, _: Any) -> tuple[Tensor | None, ...]:
    if grad is None:
        return (None,) * 17
    x, weight, half_weight, x_bits, *masks = ctx.saved_tensors
    (transposed, stride, padding), mask_input, compute = ctx.settings[:3], ctx.settings[7], ctx.settings[9]
    needs, kernel, sums_of = ctx.needs_input_grad, weight.shape[-1], 0
    for kept in masks:  # from the gradient of the output to that of the sums
        grad = grad if kept is None else grad * (kept > 0)
    if needs[1] and needs[2]:
        # If the output is s times as large as the input, the s x s entries from the padding on meet every pixel once.
        covered = tuple(stride * side for side in x.shape[-2:]) == tuple(grad.shape[-2:]) and padding + stride <= kernel
        sums_of = SUMS_OF_SMALL if not transposed else SUMS_OF_LARGE if covered else 0
    dx = dw = db = total = None
    once = transposed and needs[0] and needs[1] and not torch.is_grad_enabled()  # nothing is differentiated again
    if once and computes_both_gradients(grad, x, kernel, stride, padding, compute):
        how = (half_weight, stride, padding, sums_of, mask_input, compute)
        dx, flat = transposed_gradients(grad, x, weight, *how)
        dw, total = _split_gradient(flat, x.shape[-3], grad.shape[-3], kernel)
    elif needs[0]:
        again = torch.is_grad_enabled()  # bits are for gradients that are not differentiated again
        mask = None if not mask_input else x if x_bits is None or again else x_bits
        dx = _convolve_back(grad, weight, x, not transposed, stride, padding, compute, mask, half_weight)
    if needs[1] and dw is None:
        large, small = (grad, x) if transposed else (x, grad)
        dw, total = weight_gradient(large, small, kernel, stride, padding, sums_of, compute)
    if total is not None and sums_of == SUMS_OF_SMALL:
        db = total
    elif total is not None and sums_of == SUMS_OF_LARGE:
        part = slice(padding, padding + stride)
        db = total.unflatten(-1, (kernel, kernel, -1))[..., part, part, :].sum((-3, -2))
    elif needs[2]:
        db = grad.float().sum((-4, -2, -1))
    return dx, None if dw is None else dw.to(weight.dtype), db, *[None] * 14


def _convolve_back(
    grad: Tensor, weight: Tensor, like: Tensor, transposed: bool, stride: int, padding: int, compute: torch.dtype,
    mask: Tensor | None = None, half_weight: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Return the convolution of a gradient, with the size and type of `like`, without bias or ReLU."""
    shape, off = (transposed, stride, padding, *like.shape[-2:]), (False, False, False, False)
    return convolve(grad, weight, None, mask, half_weight, None, *shape, *off, compute, like.dtype)[0]


def _save_gradient(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0], inputs[1])
    ctx.settings = inputs[2:]


def _kernel_gradient_backward(ctx: Any, flat: Tensor) -> tuple[Tensor | None, ...]:
    (large, small), (kernel, stride, padding, sums_of, compute) = ctx.saved_tensors, ctx.settings
    N, C = small.shape[-3], large.shape[-3]
    grad, total = flat.split([N * kernel * kernel * C, flat.shape[-1] - N * kernel * kernel * C], -1)
    grad = grad.unflatten(-1, (N, kernel, kernel, C)).movedim(-1, -3)
    dlarge = _convolve_back(small, grad, large, True, stride, padding, compute)
    dsmall = _convolve_back(large, grad, small, False, stride, padding, compute)
    if sums_of == SUMS_OF_SMALL:
        dsmall = dsmall + total[..., None, :, None, None].to(dsmall.dtype)
    elif sums_of == SUMS_OF_LARGE:
        each = total.unflatten(-1, (1, kernel, kernel, C)).movedim(-1, -3)
        ones = torch.ones_like(small[..., :1, :, :])
        dlarge = dlarge + _convolve_back(ones, each, large, True, stride, padding, compute)
    return dlarge, dsmall, *[None] * 5


convolve.register_autograd(_differentiate, setup_context=_save_convolution)
kernel_gradient.register_autograd(_kernel_gradient_backward, setup_context=_save_gradient)
for _operator in (convolve, kernel_gradient, transposed_gradients):
    _operator.register_vmap(join_member_axis(_operator))
