"""Convolutions as matrix products on channels-last data, for members that are trained as one program.

`vmap` turns the convolutions of stacked members into grouped ones, which are slow; it turns matrix products into
batched ones, which are not. Inside, tensors are [batch, row, column, channel]; a module's input and output keep the
shape [batch, channel, row, column] as a permuted view, so that from layer to layer nothing is copied.

A kernel of width k and stride s is seen as A = ceil(k/s) *phases*: k = s a + r with a < A and r < s. Each layer can be
computed in two ways, and takes the one that moves fewer numbers:

- by columns: collect the k k C inputs of each output position, then multiply (transposed: multiply, then add each
  product where it belongs). Best when the image has few channels: the first layer, the last one.
- by phases: move the s s pixels of each cell into the channels, multiply by all A A cell weights at once, then add the
  A A shifted products (transposed: collect the A A neighbours, multiply to s s N channels, move those into pixels).
  For k = 4, s = 2 this makes a quarter of the numbers that columns make.
"""

import itertools
from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import product
from typing import Literal, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Kernels = Literal["triton", "matmul", "cpu"]
Pair = tuple[int, int]
ModuleT = TypeVar("ModuleT", bound=nn.Module)

NARROW = 4
"""Channels of an image, as opposed to those inside a network. Columns of so few input channels are read by `unfold`:
one load per number, but a slow gradient of the input, which a first layer does not need."""


def use_matrix_products(module: ModuleT, kernels: Kernels | None = None) -> ModuleT:
    """Let every plain convolution inside `module` compute by matrix products, and return the same module, changed.

    Parameters, their names, hooks and the results up to rounding stay as they are. Convolutions with groups, dilation,
    or padding other than zeros stay untouched, and so do subclasses of torch's own, whose forward is their author's.

    `kernels="triton"` uses the kernels of this library, `"matmul"` plain matrix products. The default is the former
    where they may be used: on CUDA with Triton installed, in bfloat16, or in float32 where TF32 is allowed. There a
    ReLU that follows a convolution in an `nn.Sequential` is computed by the convolution's kernel. `"cpu"` keeps torch's
    convolutions except where a CPU takes longer for them than for a product: layers that see or make the whole image
    at once, and transposed ones that make few channels. It also adds a transposed one's bias separately, since the
    gradient of a bias inside takes up to half of the backward pass.
    """
    if kernels == "triton" or (kernels is None and torch.cuda.is_available() and find_spec("triton") is not None):
        from unbraid.networks import conv_ops as _registered  # noqa: F401  registers torch.ops.unbraid.*
    elif kernels is None:
        kernels = "matmul"
    for layer in module.modules():
        # A class may be exchanged where a submodule may not: the parent can hold the layer under any name, or twice.
        if type(layer) is nn.Conv2d and _is_plain(layer):
            layer.__class__ = ProductConv2d
        elif type(layer) is nn.ConvTranspose2d and _is_plain(layer):
            layer.__class__ = ProductConvTranspose2d
        if isinstance(layer, ProductLayer):
            layer.kernels = kernels
    if kernels in (None, "triton"):
        _fuse_relus(module)
    return module


def _is_plain(layer: nn.Conv2d | nn.ConvTranspose2d) -> bool:
    ungrouped = layer.groups == 1 and layer.dilation == (1, 1)
    return ungrouped and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)


def _fuse_relus(module: nn.Module) -> None:
    """Let convolutions compute the ReLU behind them, and differentiate the one in front of them.

    Only layers that stand in one place are fused: the others could be used in different ways.
    """
    chains = [list(part) for part in module.modules() if type(part) is nn.Sequential]
    places = Counter(id(child) for part in module.modules() for child in part._modules.values())
    for chain in chains:
        for place, (layer, relu) in enumerate(itertools.pairwise(chain)):
            if not isinstance(layer, ProductLayer) or type(relu) not in (nn.ReLU, PassedReLU):
                continue
            if places[id(layer)] > 1 or places[id(relu)] > 1:
                continue
            after = chain[place + 2] if place + 2 < len(chain) else None
            layer.relu, relu.__class__ = True, PassedReLU
            if isinstance(after, ProductLayer) and places[id(after)] == 1:
                layer.successor, after.masks_input = (after,), True


class PassedReLU(nn.ReLU):
    """A ReLU that the layer before it has computed already. Made by `use_matrix_products`, not by hand."""

    def forward(self, input: Tensor) -> Tensor:
        return input


class ProductLayer(nn.modules.conv._ConvNd):
    """What the convolutions below share: which kernels they use, and what they do for the ReLUs around them."""

    kernels: Kernels | None
    relu: bool = False
    """Whether the layer computes the ReLU behind it."""
    masks_input: bool = False
    """Whether its kernels differentiate the ReLU in front of it, by masking the gradient of their input."""
    successor: tuple["ProductLayer", ...] = ()
    """The layer behind that ReLU, in a tuple so that it is no submodule of this one."""

    def runs_kernels(self, size: Sequence[int], dtype: torch.dtype, on_cuda: bool) -> bool:
        """Return whether the library's kernels compute this layer on images of a size, in a type."""
        raise NotImplementedError

    def _by_triton(self, dtype: torch.dtype, on_cuda: bool) -> bool:
        """Return whether the library's kernels may be used; 1x1 and dense layers are matrix products as they stand."""
        (height, width), (s, t), (p, q) = self.weight.shape[2:], _pair(self.stride), _pair(self.padding)
        if self.kernels in ("matmul", "cpu") or not (height == width > 1 and s == t and p == q):
            return False
        if dtype == torch.float64:
            return False
        half = dtype in (torch.bfloat16, torch.float16)
        # Members of a strict float32 group have to equal single runs, so TF32 is used only where the run asks for it.
        return self.kernels == "triton" or (on_cuda and (half or bool(torch.backends.cuda.matmul.allow_tf32)))

    def _settings(self, x: Tensor, dtype: torch.dtype, size: Sequence[int]) -> tuple[bool, bool, bool, torch.dtype]:
        """Return ReLU, premasked, mask of the input, and the type of products, as the operators take them."""
        premasked = any(layer.runs_kernels(size, dtype, x.is_cuda) for layer in self.successor)
        return self.relu, premasked, self.masks_input, dtype

    def _activated(self, out: Tensor) -> Tensor:
        return F.relu(out) if self.relu else out


class ProductConv2d(ProductLayer, nn.Conv2d):
    """A convolution that multiplies matrices. Made by `use_matrix_products`, not by hand."""

    def runs_kernels(self, size: Sequence[int], dtype: torch.dtype, on_cuda: bool) -> bool:
        dense = tuple(size) == tuple(self.weight.shape[2:]) and _pair(self.padding) == (0, 0)
        return not dense and self._by_triton(dtype, on_cuda)

    def forward(self, input: Tensor) -> Tensor:
        """[batch, channels, rows, columns] to the same, channels last in memory."""
        if input.ndim != 4:
            return self._activated(super().forward(input))
        stride, padding, dtype = _pair(self.stride), _pair(self.padding), _compute_type(input)
        if self.runs_kernels(input.shape[2:], dtype, input.is_cuda):
            size = convolved_size((input.shape[2], input.shape[3]), _kernel(self.weight), stride, padding)
            how = self._settings(input, dtype, size)
            return torch.ops.unbraid.correlate(input, self.weight, self.bias, None, stride[0], padding[0], *how, dtype)
        x, weight, bias = cast_as_convolution(input, self.weight, self.bias)
        dense = x.shape[2:] == weight.shape[2:] and padding == (0, 0)
        if not dense and self.kernels == "cpu":
            return self._activated(super().forward(input))
        return self._activated(convolve(x.permute(0, 2, 3, 1), weight, bias, stride, padding).permute(0, 3, 1, 2))


class ProductConvTranspose2d(ProductLayer, nn.ConvTranspose2d):
    """A transposed convolution that multiplies matrices. Made by `use_matrix_products`, not by hand."""

    def runs_kernels(self, size: Sequence[int], dtype: torch.dtype, on_cuda: bool) -> bool:
        return tuple(size) != (1, 1) and self._by_triton(dtype, on_cuda)

    def forward(self, input: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        """[batch, channels, rows, columns] to the same, channels last in memory."""
        if input.ndim != 4 or output_size is not None:
            return self._activated(super().forward(input, None if output_size is None else list(output_size)))
        stride, padding, more = _pair(self.stride), _pair(self.padding), _pair(self.output_padding)
        dtype = _compute_type(input)
        if self.runs_kernels(input.shape[2:], dtype, input.is_cuda):
            size = transposed_size((input.shape[2], input.shape[3]), _kernel(self.weight), stride, padding, more)
            how = self._settings(input, dtype, size)
            out = torch.float32 if self.out_channels <= NARROW else dtype  # observations, which losses take in float32
            return torch.ops.unbraid.spread(
                input, self.weight, self.bias, None, stride[0], padding[0], *size, *how, out
            )
        x, weight, bias = cast_as_convolution(input, self.weight, self.bias)
        if x.shape[2:] != (1, 1) and self.kernels == "cpu" and self.out_channels > NARROW:
            # autocast leaves this one as it is on a CPU, and a layer before it may have cast its input
            out = F.conv_transpose2d(input.to(self.weight.dtype), self.weight, None, stride, padding, more)
            return self._activated(out if bias is None else out + bias.to(out.dtype)[:, None, None])
        out = convolve_transposed(x.permute(0, 2, 3, 1), weight, bias, stride, padding, more)
        return self._activated(out.permute(0, 3, 1, 2))


def _compute_type(x: Tensor) -> torch.dtype:
    """Return the type that a convolution of x computes in: that of autocast, or its own."""
    device = x.device.type
    if not torch.is_autocast_enabled(device) or x.dtype == torch.float64:
        return x.dtype
    return torch.get_autocast_dtype(device)


def cast_as_convolution(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Under autocast, the tensors in its type, as a convolution would take them; else unchanged."""
    device = x.device.type
    if not torch.is_autocast_enabled(device) or x.dtype == torch.float64:
        return x, weight, bias
    dtype = torch.get_autocast_dtype(device)
    return x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair, padding: Pair) -> Tensor:
    """out[u, v] = bias + Σ_{ky, kx} weight[ky, kx] x[s u + ky - p, s v + kx - p], by matrix products.

    x is [batch, row, column, C], weight [N, C, k, k] as in `nn.Conv2d`; the result is [batch, row, column, N].
    """
    N, C = weight.shape[:2]
    kernel = _kernel(weight)
    size = convolved_size(_spatial(x), kernel, stride, padding)
    if kernel == _spatial(x) and padding == (0, 0):
        out = _times(x.flatten(1)[:, None, None], weight.permute(2, 3, 1, 0).reshape(-1, N))
    else:
        A, B = _phases(kernel, stride)
        by_columns = kernel[0] * kernel[1] * C
        by_phases = stride[0] * stride[1] * C + A * B * N
        way = _convolve_by_columns if by_columns <= by_phases else _convolve_by_phases
        out = way(x, weight, stride, padding, size)
    return out if bias is None else out + bias


def _convolve_by_columns(x: Tensor, weight: Tensor, stride: Pair, padding: Pair, size: Pair) -> Tensor:
    N, C, height, width = weight.shape
    if padding != (0, 0):
        x = _pad(x, padding, padding)
    if C <= NARROW:
        windows = x.unfold(1, height, stride[0]).unfold(2, width, stride[1])  # [batch, row, column, C, ky, kx]
        columns = windows.permute(0, 1, 2, 4, 5, 3).flatten(3)
    else:
        # First along columns, then along rows: `cat` of up to eight parts is one kernel, of more it is many.
        (s, t), (U, V) = stride, size
        wide = torch.cat([x[:, :, k : k + t * (V - 1) + 1 : t] for k in range(width)], dim=-1)
        columns = torch.cat([wide[:, k : k + s * (U - 1) + 1 : s] for k in range(height)], dim=-1)
    return _times(columns, weight.permute(2, 3, 1, 0).reshape(-1, N))


def _convolve_by_phases(x: Tensor, weight: Tensor, stride: Pair, padding: Pair, size: Pair) -> Tensor:
    """out[u] = Σ_a y[u + a, a] with y[i, a] = Σ_r x[s i + r - p] weight[s a + r], in both directions."""
    N, C = weight.shape[:2]
    (s, t), (A, B), (U, V) = stride, _phases(_kernel(weight), stride), size
    cells = (U + A - 1, V + B - 1)
    ends = (s * cells[0] - x.shape[1] - padding[0], t * cells[1] - x.shape[2] - padding[1])
    x = _pad(x, padding, ends).unflatten(2, (cells[1], t)).unflatten(1, (cells[0], s))
    x = x.permute(0, 1, 3, 2, 4, 5).flatten(3)  # [batch, cell row, cell column, s t C]
    matrix = _in_phases(weight, stride).permute(3, 5, 1, 2, 4, 0).reshape(s * t * C, A * B * N)
    shifted = _times(x, matrix).unflatten(-1, (A * B, N)).unbind(-2)
    parts = [y[:, a : a + U, b : b + V] for y, (a, b) in zip(shifted, product(range(A), range(B)), strict=True)]
    return _added(parts)


def convolve_transposed(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair, padding: Pair, output_padding: Pair = (0, 0)
) -> Tensor:
    """out[s i + ky - p, s j + kx - p] += weight[ky, kx] x[i, j], over all i, j, ky, kx, plus bias, by matrix products.

    x is [batch, row, column, C], weight [C, N, k, k] as in `nn.ConvTranspose2d`; the result is [batch, row, column, N].
    """
    C, N = weight.shape[:2]
    kernel = _kernel(weight)
    if _spatial(x) == (1, 1) and padding == output_padding == (0, 0):
        out = _times(x, weight.permute(0, 2, 3, 1).reshape(C, -1)).reshape(-1, *kernel, N)
        return out if bias is None else out + bias
    A, B = _phases(kernel, stride)
    by_columns = kernel[0] * kernel[1] * N
    by_phases = A * B * C + stride[0] * stride[1] * N
    way = _transposed_by_columns if by_columns <= by_phases else _transposed_by_phases
    out = way(x, weight, stride).permute(0, 1, 3, 2, 4, 5).flatten(3, 4).flatten(1, 2)  # cells into pixels
    size = transposed_size(_spatial(x), kernel, stride, padding, output_padding)
    ends = (size[0] + padding[0] - out.shape[1], size[1] + padding[1] - out.shape[2])
    out = _pad(out, (-padding[0], -padding[1]), ends)
    return out if bias is None else out + bias


def _transposed_by_columns(x: Tensor, weight: Tensor, stride: Pair) -> Tensor:
    """out[j, r] = Σ_a y[j - a, a, r], y[i, a, r] = x[i] weight[s a + r]; [batch, cell row, cell column, s, t, N]."""
    C, N = weight.shape[:2]
    (s, t), (A, B) = stride, _phases(_kernel(weight), stride)
    matrix = _in_phases(weight, stride).permute(0, 2, 4, 3, 5, 1).reshape(C, A * B * s * t * N)
    products = _times(x, matrix).unflatten(-1, (A * B, s * t * N)).unbind(-2)
    shifts = product(range(A), range(B))
    parts = [_pad(y, (a, b), (A - 1 - a, B - 1 - b)) for y, (a, b) in zip(products, shifts, strict=True)]
    return _added(parts).unflatten(-1, (s, t, N))


def _transposed_by_phases(x: Tensor, weight: Tensor, stride: Pair) -> Tensor:
    """out[j, r] = Σ_a x[j - a] weight[s a + r]: [batch, cell row, cell column, s, t, N]."""
    C, N = weight.shape[:2]
    (s, t), (A, B) = stride, _phases(_kernel(weight), stride)
    shifts = product(range(A), range(B))
    neighbours = torch.cat([_pad(x, (a, b), (A - 1 - a, B - 1 - b)) for a, b in shifts], dim=-1)
    matrix = _in_phases(weight, stride).permute(2, 4, 0, 3, 5, 1).reshape(A * B * C, s * t * N)
    return _times(neighbours, matrix).unflatten(-1, (s, t, N))


def convolved_size(size: Pair, kernel: Pair, stride: Pair, padding: Pair) -> Pair:
    """Rows and columns that a convolution gives."""
    height, width = ((n + 2 * p - k) // s + 1 for n, k, s, p in zip(size, kernel, stride, padding, strict=True))
    return height, width


def transposed_size(size: Pair, kernel: Pair, stride: Pair, padding: Pair, output_padding: Pair) -> Pair:
    """Rows and columns that a transposed convolution gives."""
    axes = zip(size, kernel, stride, padding, output_padding, strict=True)
    height, width = ((n - 1) * s + k - 2 * p + more for n, k, s, p, more in axes)
    return height, width


def _phases(kernel: Pair, stride: Pair) -> Pair:
    return -(-kernel[0] // stride[0]), -(-kernel[1] // stride[1])


def _in_phases(weight: Tensor, stride: Pair) -> Tensor:
    """[·, ·, k, k] to [·, ·, A, s, B, t], the kernel filled up with zeros to whole phases."""
    (s, t), (A, B) = stride, _phases(_kernel(weight), stride)
    missing = (A * s - weight.shape[2], B * t - weight.shape[3])
    if missing != (0, 0):
        weight = F.pad(weight, (0, missing[1], 0, missing[0]))
    return weight.unflatten(3, (B, t)).unflatten(2, (A, s))


def _times(x: Tensor, matrix: Tensor) -> Tensor:
    """x [batch, row, column, K] times [K, N] as one product of two matrices: `vmap` makes one batched product of it."""
    return (x.reshape(-1, x.shape[-1]) @ matrix).reshape(*x.shape[:3], -1)


def _added(parts: Sequence[Tensor]) -> Tensor:
    out = parts[0]
    for part in parts[1:]:
        out = out + part
    return out


def _pad(x: Tensor, starts: Pair, ends: Pair) -> Tensor:
    """Zeros around rows and columns; less than none takes rows and columns away."""
    return F.pad(x, (0, 0, starts[1], ends[1], starts[0], ends[0]))


def _spatial(x: Tensor) -> Pair:
    return x.shape[1], x.shape[2]


def _kernel(weight: Tensor) -> Pair:
    return weight.shape[2], weight.shape[3]


def _pair(value: int | str | Sequence[int]) -> Pair:
    """Torch annotates these loosely; a made layer holds two numbers."""
    height, width = (int(v) for v in value) if not isinstance(value, int) else (value, value)
    return height, width
