"""Convolutions of stacked members by Triton kernels that multiply matrices without ever building the columns.

Three operators, closed under differentiation:

    correlate        out[u, v, n] = bias[n] + Σ_{ky, kx, c} x[s u + ky - p, s v + kx - p, c] weight[n, ky, kx, c]
    spread           its transpose: out[s i + ky - p, s j + kx - p, n] += x[i, j, c] weight[n, ky, kx, c], plus bias[n]
    kernel_gradient  out[n, ky, kx, c] = Σ_{u, v} small[u, v, n] large[s u + ky - p, s v + kx - p, c]

Images are [member, batch, channel, row, column] in shape and channels last in memory, as the layers between keep them;
weights are [member, channel out, ky, kx, channel in] and contiguous. One member's call lacks the first axis, and under
vmap, the batching rule supplies it: no view comes between layers, which would make a compiler copy.

The columns (kx, c) of one ky are one run of memory, so a tile of the matrix of columns is a plain read with a start per
output position. `spread` treats each residue of the output's position modulo s on its own: there it is a correlation
of stride 1 with every s-th kernel entry, in reverse, and nothing is multiplied by zero.

Sums are kept in float32. Tuning chooses tiles of the output only, and rows are split by a fixed rule, so that the order
of a sum does not depend on which tile was fastest.
"""

import os
from collections.abc import Callable
from functools import partial
from typing import Any, no_type_check

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Whether the kernels below run in Triton's interpreter, on the CPU, as tests do."""

ROWS = 64
"""Rows that `kernel_gradient` adds up at a time."""

PROGRAMS = 528
"""Programs worth having at a time, four per multiprocessor of an H200: rows are split until there are so many."""

FEW = 64
"""Up to so many numbers per input pixel, `spread` writes the products of all kernel entries and then adds them up."""


def _tuned(*configs: triton.Config) -> Any:
    """The kernel with the fastest of these for each shape; tiles and pipelining only, never the order of a sum."""
    key = ["members", "rows", "H", "W", "C", "N", "KERNEL", "STRIDE", "TRANSPOSED"]
    bench = partial(triton.testing.do_bench, warmup=3, rep=12)
    return triton.autotune(list(configs[:1] if INTERPRETED else configs), key=key, do_bench=bench)


@_tuned(
    triton.Config({"BLOCK_M": 128}, num_warps=4, num_stages=3),
    triton.Config({"BLOCK_M": 128}, num_warps=8, num_stages=3),
    triton.Config({"BLOCK_M": 64}, num_warps=4, num_stages=4),
    triton.Config({"BLOCK_M": 256}, num_warps=8, num_stages=3),
)
@triton.jit(do_not_specialize=["members", "rows", "biases"])
@no_type_check
def _product(
    x, weight, bias, out, members, rows, biases,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, N: tl.constexpr, U: tl.constexpr, V: tl.constexpr,
    OUT_H: tl.constexpr, OUT_W: tl.constexpr, KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr,
    TRANSPOSED: tl.constexpr, PRECISION: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    BLOCK_M: tl.constexpr,
):  # fmt: skip
    """`correlate`, or `spread` (TRANSPOSED): one tile [BLOCK_M positions, BLOCK_N channels] of one residue class.

    `rows` counts the positions (batch, u, v) of a class, U by V in an image; without a bias, `biases` is 0.
    """
    CLASSES: tl.constexpr = STRIDE * STRIDE if TRANSPOSED else 1
    TAPS: tl.constexpr = (KERNEL + STRIDE - 1) // STRIDE if TRANSPOSED else KERNEL
    RUN: tl.constexpr = TAPS * C  # numbers of one row of the kernel, contiguous in x
    WHOLE: tl.constexpr = RUN % BLOCK_K == 0  # one row of the kernel per step: its bounds are checked per position
    TILES_N: tl.constexpr = (N + BLOCK_N - 1) // BLOCK_N
    # The classes and channels of one tile of positions come after each other, to find its inputs in the cache.
    tile = tl.program_id(0) // (CLASSES * TILES_N)
    residue = tl.program_id(0) // TILES_N % CLASSES
    n = tl.program_id(0) % TILES_N * BLOCK_N + tl.arange(0, BLOCK_N)
    member = tl.program_id(1).to(tl.int64)
    x += member * (rows // (U * V)) * (H * W * C)
    weight += member * (N * KERNEL * KERNEL * C)
    out += member * (rows // (U * V)) * (OUT_H * OUT_W * N)

    row = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    image = (row // (U * V)).to(tl.int64)  # inside an image 32 bits suffice, across large batches they do not
    u = row // V % U
    v = row % V
    if TRANSPOSED:
        # Position y = s u + r takes kernel entries ky = phase + s a from input rows u + (r + p) // s - a.
        ry, rx = residue // STRIDE, residue % STRIDE
        first_y = u + (ry + PADDING) // STRIDE - (TAPS - 1)
        first_x = v + (rx + PADDING) // STRIDE - (TAPS - 1)
        y, z = u * STRIDE + ry, v * STRIDE + rx
    else:
        first_y = u * STRIDE - PADDING
        first_x = v * STRIDE - PADDING
        y, z = u, v
    start = first_x * C
    pictures = x + image * (H * W * C)

    total = tl.full((BLOCK_M, BLOCK_N), 0.0, tl.float32)
    for step in range((TAPS * RUN + BLOCK_K - 1) // BLOCK_K):
        k = step * BLOCK_K + tl.arange(0, BLOCK_K)
        tap = step * BLOCK_K // RUN if WHOLE else k // RUN
        j = k - tap * RUN
        line = first_y[:, None] + (tap if WHOLE else tap[None, :])
        place = start[:, None] + j[None, :]
        inside = (line >= 0) & (line < H) & (row < rows)[:, None] & (place >= 0) & (place < W * C)
        if TAPS * RUN % BLOCK_K != 0:
            inside = inside & (k < TAPS * RUN)[None, :]
        column = tl.load(pictures[:, None] + (line * (W * C) + place), mask=inside, other=0.0)
        known = (k < TAPS * RUN)[:, None] & (n < N)[None, :]
        entry = k
        if TRANSPOSED:
            ky = (ry + PADDING) % STRIDE + STRIDE * (TAPS - 1 - tap)
            kx = (rx + PADDING) % STRIDE + STRIDE * (TAPS - 1 - j // C)
            entry = (ky * KERNEL + kx) * C + j % C
            if KERNEL % STRIDE != 0:
                known = known & ((kx < KERNEL) & (ky < KERNEL))[:, None]
        matrix = tl.load(weight + n[None, :] * (KERNEL * KERNEL * C) + entry[:, None], mask=known, other=0.0)
        total = tl.dot(column, matrix, total, input_precision=PRECISION)

    total += tl.load(bias + member * N + n, mask=n < biases, other=0.0).to(tl.float32)[None, :]
    pixel = out + image * (OUT_H * OUT_W * N) + (y * OUT_W + z) * N
    wanted = ((row < rows) & (y < OUT_H) & (z < OUT_W))[:, None] & (n < N)[None, :]
    tl.store(pixel[:, None] + n[None, :], total.to(out.dtype.element_ty), mask=wanted)


@_tuned(
    triton.Config({}, num_warps=4, num_stages=3),
    triton.Config({}, num_warps=4, num_stages=2),
    triton.Config({}, num_warps=8, num_stages=3),
    triton.Config({}, num_warps=8, num_stages=2),
)
@triton.jit(do_not_specialize=["members", "rows", "chunk"])
@no_type_check
def _gradient(
    large, small, sums, members, rows, chunk,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, N: tl.constexpr, U: tl.constexpr, V: tl.constexpr,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """One tile [BLOCK_K, BLOCK_N] of `kernel_gradient` over `chunk` of the rows (batch, u, v)."""
    RUN: tl.constexpr = KERNEL * C
    TILES_N: tl.constexpr = (N + BLOCK_N - 1) // BLOCK_N
    n = tl.program_id(0) % TILES_N * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.program_id(0) // TILES_N * BLOCK_K + tl.arange(0, BLOCK_K)
    split = tl.program_id(1)
    member = tl.program_id(2).to(tl.int64)
    large += member * (rows // (U * V)) * (H * W * C)
    small += member * rows * N
    sums += (split * members + member) * (N * KERNEL * RUN)
    tap = tl.program_id(0) // TILES_N * BLOCK_K // RUN if RUN % BLOCK_K == 0 else (k // RUN)[None, :]
    j = k % RUN

    total = tl.full((BLOCK_K, BLOCK_N), 0.0, tl.float32)
    for begin in range(split * chunk, tl.minimum(split * chunk + chunk, rows), BLOCK_R):
        row = begin + tl.arange(0, BLOCK_R)
        line = (row // V % U * STRIDE - PADDING)[:, None] + tap
        place = ((row % V * STRIDE - PADDING) * C)[:, None] + j[None, :]
        inside = (line >= 0) & (line < H) & (row < rows)[:, None] & (place >= 0) & (place < W * C)
        if KERNEL * RUN % BLOCK_K != 0:
            inside = inside & (k < KERNEL * RUN)[None, :]
        pictures = large + (row // (U * V)).to(tl.int64) * (H * W * C)
        column = tl.load(pictures[:, None] + (line * (W * C) + place), mask=inside, other=0.0)
        known = (row < rows)[:, None] & (n < N)[None, :]
        signal = tl.load(small + row.to(tl.int64)[:, None] * N + n[None, :], mask=known, other=0.0)
        total = tl.dot(tl.trans(column), signal, total, input_precision=PRECISION)

    wanted = (k < KERNEL * RUN)[:, None] & (n < N)[None, :]
    tl.store(sums + n[None, :] * (KERNEL * RUN) + k[:, None], total, mask=wanted)


@triton.jit(do_not_specialize=["pixels", "biases"])
@no_type_check
def _fold(
    products, bias, out, pixels, biases,
    H: tl.constexpr, W: tl.constexpr, N: tl.constexpr, OUT_H: tl.constexpr, OUT_W: tl.constexpr,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Adds products [batch, i, j, n, ky, kx] where they belong: out[s i + ky - p, s j + kx - p, n]."""
    TAPS: tl.constexpr = (KERNEL + STRIDE - 1) // STRIDE
    member = tl.program_id(1).to(tl.int64)
    products += member * (pixels // (OUT_H * OUT_W * N)) * (H * W * N * KERNEL * KERNEL)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    n = place % N
    z = place // N % OUT_W + PADDING
    y = place // (N * OUT_W) % OUT_H + PADDING
    image = (place // (N * OUT_W * OUT_H)).to(tl.int64)
    total = tl.load(bias + member * N + n, mask=n < biases, other=0.0).to(tl.float32)
    for a in tl.static_range(TAPS):
        for b in tl.static_range(TAPS):
            i = y // STRIDE - a
            j = z // STRIDE - b
            ky = y % STRIDE + STRIDE * a
            kx = z % STRIDE + STRIDE * b
            known = (i >= 0) & (i < H) & (j >= 0) & (j < W) & (ky < KERNEL) & (kx < KERNEL) & (place < pixels)
            entry = (((image * H + i) * W + j) * N + n) * (KERNEL * KERNEL) + ky * KERNEL + kx
            total += tl.load(products + entry, mask=known, other=0.0)
    tl.store(out + member * pixels + place, total.to(out.dtype.element_ty), mask=place < pixels)


def _launch_product(
    x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, stride: int, padding: int, transposed: bool
) -> None:
    """All channels last in shape, too, with a member axis, contiguous."""
    members, batch, H, W, C = x.shape
    N, kernel = weight.shape[1:3]
    classes = stride if transposed else 1
    U, V = -(-out.shape[2] // classes), -(-out.shape[3] // classes)
    block_n = _tile(N, 64)
    parts = classes * classes * -(-N // block_n)
    run = C * (-(-kernel // stride) if transposed else kernel)
    line = 128 // x.element_size()  # a tile's row is one line of the cache where the run allows it
    block_k = next((b for b in (line, 32) if run % b == 0), 16)
    shape = {"H": H, "W": W, "C": C, "N": N, "U": U, "V": V, "OUT_H": out.shape[2], "OUT_W": out.shape[3]}
    geometry = {"KERNEL": kernel, "STRIDE": stride, "PADDING": padding, "TRANSPOSED": transposed}
    settings = shape | geometry | {"PRECISION": _precision(), "BLOCK_N": block_n, "BLOCK_K": block_k}
    numbers = (members, batch * U * V, 0 if bias is None else N)
    with torch.cuda.device_of(x):
        grid = lambda meta: (-(-batch * U * V // meta["BLOCK_M"]) * parts, members)  # noqa: E731
        _product[grid](x, weight, weight if bias is None else bias, out, *numbers, **settings)


def _launch_gradient(large: Tensor, small: Tensor, kernel: int, stride: int, padding: int) -> Tensor:
    members, batch, H, W, C = large.shape
    U, V, N = small.shape[2:]
    rows, entries = batch * U * V, kernel * kernel * C
    block_n, block_k = _tile(N, 64), _tile(entries, 128)
    tiles = -(-N // block_n) * -(-entries // block_k)
    splits = max(1, min(-(-PROGRAMS // (tiles * members)), rows // (4 * ROWS)))
    chunk = -(-rows // (splits * ROWS)) * ROWS
    splits = -(-rows // chunk)
    sums = large.new_empty(splits, members, N, kernel, kernel, C, dtype=torch.float32)
    shape = {"H": H, "W": W, "C": C, "N": N, "U": U, "V": V, "KERNEL": kernel, "STRIDE": stride, "PADDING": padding}
    settings = shape | {"PRECISION": _precision(), "BLOCK_N": block_n, "BLOCK_K": block_k, "BLOCK_R": ROWS}
    with torch.cuda.device_of(large):
        _gradient[(tiles, splits, members)](large, small, sums, members, rows, chunk, **settings)
    return (sums.sum(0) if splits > 1 else sums[0]).to(large.dtype)


def _launch_fold(products: Tensor, bias: Tensor | None, out: Tensor, stride: int, padding: int, kernel: int) -> None:
    members, batch, H, W, _ = products.shape
    out_h, out_w, N = out.shape[2:]
    pixels, block = batch * out_h * out_w * N, 512
    shape = {"H": H, "W": W, "N": N, "OUT_H": out_h, "OUT_W": out_w}
    settings = shape | {"KERNEL": kernel, "STRIDE": stride, "PADDING": padding, "BLOCK": block}
    biases = 0 if bias is None else N
    with torch.cuda.device_of(out):
        _fold[(-(-pixels // block), members)](products, bias if biases else out, out, pixels, biases, **settings)


def _tile(count: int, most: int) -> int:
    """A power of two that a matrix unit takes (at least 16)."""
    return max(16, min(most, 1 << (count - 1).bit_length()))


def _precision() -> str:
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"


def _runs_kernels(x: Tensor) -> bool:
    """Else the operators go through torch, member by member. (Triton's interpreter cannot multiply bfloat16.)"""
    return x.is_cuda or (INTERPRETED and x.dtype != torch.bfloat16)


def _stacked(x: Tensor, rank: int) -> Tensor:
    return x if x.ndim == rank else x[None]


def _lines(x: Tensor) -> Tensor:
    """[member, batch, row, column, channel], contiguous: a view, if the memory is as it should be."""
    return _stacked(x, 5).permute(0, 1, 3, 4, 2).contiguous()


def _images(like: Tensor, rows: int, columns: int, channels: int) -> Tensor:
    """Empty images in that number, channels last in memory."""
    return like.new_empty(*like.shape[:-3], rows, columns, channels).movedim(-1, -3)


@torch.library.custom_op("unbraid::correlate", mutates_args=())
def correlate(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int) -> Tensor:
    """The convolution of networks: [(member,) batch, C, H, W] to [(member,) batch, N, U, V]."""
    out = _correlate_shape(x, weight, bias, stride, padding)
    weights, biases = _stacked(weight, 5).contiguous(), None if bias is None else _stacked(bias, 2).contiguous()
    if _runs_kernels(x):
        _launch_product(_lines(x), weights, biases, _lines(out), stride, padding, transposed=False)
        return out
    for one, image, matrix in zip(_stacked(out, 5), _stacked(x, 5), weights, strict=True):
        one[:] = F.conv2d(image, matrix.permute(0, 3, 1, 2), None, stride, padding)
    return out if bias is None else out.add_(bias[..., None, :, None, None])


@correlate.register_fake
def _correlate_shape(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int) -> Tensor:
    U, V = ((side + 2 * padding - weight.shape[-2]) // stride + 1 for side in x.shape[-2:])
    return _images(x, U, V, weight.shape[-4])


@torch.library.custom_op("unbraid::spread", mutates_args=())
def spread(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int, rows: int, columns: int
) -> Tensor:
    """The transpose of `correlate`: [(member,) batch, C, H, W] to [(member,) batch, N, rows, columns]."""
    out = _spread_shape(x, weight, bias, stride, padding, rows, columns)
    weights, biases = _stacked(weight, 5).contiguous(), None if bias is None else _stacked(bias, 2).contiguous()
    members, N, kernel, _, C = weights.shape
    if _runs_kernels(x) and N * kernel * kernel > FEW:
        _launch_product(_lines(x), weights, biases, _lines(out), stride, padding, transposed=True)
        return out
    if _runs_kernels(x):
        products = x.new_empty(*_lines(x).shape[:4], N * kernel * kernel, dtype=torch.float32)
        _launch_product(_lines(x), weights.view(members, -1, 1, 1, C), None, products, 1, 0, transposed=False)
        _launch_fold(products, biases, _lines(out), stride, padding, kernel)
        return out
    more = [n - (m - 1) * stride + 2 * padding - kernel for n, m in zip((rows, columns), x.shape[-2:], strict=True)]
    for one, image, matrix in zip(_stacked(out, 5), _stacked(x, 5), weights, strict=True):
        one[:] = F.conv_transpose2d(image, matrix.permute(3, 0, 1, 2), None, stride, padding, more)
    return out if bias is None else out.add_(bias[..., None, :, None, None])


@spread.register_fake
def _spread_shape(x: Tensor, weight: Tensor, bias: Tensor | None, _s: int, _p: int, rows: int, columns: int) -> Tensor:
    return _images(x, rows, columns, weight.shape[-4])


@torch.library.custom_op("unbraid::kernel_gradient", mutates_args=())
def kernel_gradient(large: Tensor, small: Tensor, kernel: int, stride: int, padding: int) -> Tensor:
    """Gradient of `correlate` for its weight, of large images and the gradients of small ones."""
    if _runs_kernels(large):
        out = _launch_gradient(_lines(large), _lines(small), kernel, stride, padding)
        return out if large.ndim == 5 else out[0]
    out = _kernel_gradient_shape(large, small, kernel, stride, padding)
    shape = (small.shape[-3], large.shape[-3], kernel, kernel)
    for one, image, signal in zip(_stacked(out, 5), _stacked(large, 5), _stacked(small, 5), strict=True):
        made = torch.nn.grad.conv2d_weight(image.contiguous(), shape, signal.contiguous(), stride, padding)
        one[:] = made.permute(0, 2, 3, 1)
    return out


@kernel_gradient.register_fake
def _kernel_gradient_shape(large: Tensor, small: Tensor, kernel: int, stride: int, padding: int) -> Tensor:
    return large.new_empty(*large.shape[:-4], small.shape[-3], kernel, kernel, large.shape[-3])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0], inputs[1])
    ctx.settings = inputs[2:]


def _swapped(weight: Tensor) -> Tensor:
    """Channels in and out exchanged, as the transpose takes them."""
    return weight.transpose(-4, -1).contiguous()


def _correlate_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    (x, weight), (_, stride, padding), needs = ctx.saved_tensors, ctx.settings, ctx.needs_input_grad
    dx = spread(grad, _swapped(weight), None, stride, padding, *x.shape[-2:]) if needs[0] else None
    dw = kernel_gradient(x, grad, weight.shape[-2], stride, padding) if needs[1] else None
    return dx, dw, grad.sum((-4, -2, -1)) if needs[2] else None, None, None


def _spread_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    (x, weight), (_, stride, padding, *_), needs = ctx.saved_tensors, ctx.settings, ctx.needs_input_grad
    dx = correlate(grad, _swapped(weight), None, stride, padding) if needs[0] else None
    dw = _swapped(kernel_gradient(grad, x, weight.shape[-2], stride, padding)) if needs[1] else None
    return dx, dw, grad.sum((-4, -2, -1)) if needs[2] else None, None, None, None, None


def _kernel_gradient_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    (large, small), (_, stride, padding), needs = ctx.saved_tensors, ctx.settings, ctx.needs_input_grad
    dlarge = spread(small, _swapped(grad), None, stride, padding, *large.shape[-2:]) if needs[0] else None
    dsmall = correlate(large, grad, None, stride, padding) if needs[1] else None
    return dlarge, dsmall, None, None, None


def _batched(operator: Any) -> Callable[..., tuple[Tensor, int]]:
    """Batching rule: vmap's axis becomes the member axis, or one with it."""

    def rule(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Tensor, int]:
        def led(value: Any, axis: int | None) -> Any:
            if not isinstance(value, Tensor) or axis == 0:
                return value
            return value.movedim(axis, 0) if axis is not None else value.expand(info.batch_size, *value.shape)

        values = [led(value, axis) for value, axis in zip(arguments, in_dims, strict=True)]
        if values[0].ndim == 5:
            return operator(*values), 0
        merged = (value.flatten(0, 1) if isinstance(value, Tensor) else value for value in values)
        return operator(*merged).unflatten(0, (info.batch_size, -1)), 0

    return rule


correlate.register_autograd(_correlate_backward, setup_context=_keep)
spread.register_autograd(_spread_backward, setup_context=_keep)
kernel_gradient.register_autograd(_kernel_gradient_backward, setup_context=_keep)
for _operator in (correlate, spread, kernel_gradient):
    _operator.register_vmap(_batched(_operator))
