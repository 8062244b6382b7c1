"""Convolutions as matrix products on channels-last data, for members that train as one program.

`vmap` turns convolutions of stacked members into grouped ones, which are slow, and matrix products into batched ones,
which are fast. Inside, tensors are [batch, row, column, channel]. The input and output of a module are [batch, channel,
row, column] as permuted views, so that no layer copies anything.

A kernel of width k and stride s has A = ceil(k/s) *phases*: k = s a + r with a < A and r < s. Each layer is computed in
the one of two ways that moves fewer numbers:

- by columns: collect the k k C inputs of each output position, then multiply (transposed: multiply, then add each
  product where it belongs). Best when the image has few channels: the first layer, the last one.
- by phases: move the s s pixels of each cell into the channels, multiply by all A A cell weights at once, then add the
  A A shifted products (transposed: collect the A A neighbours, multiply to s s N channels, move those into pixels).
  For k = 4, s = 2 this makes a quarter of the numbers that columns make.
"""

import operator
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import reduce
from importlib.util import find_spec
from itertools import pairwise, product
from typing import Any, Literal, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unbraid.networks.conv_tiles import stores_relu_bits
from unbraid.networks.own_modules import find_users_networks, find_whole_chains

Kernels = Literal["triton", "matmul", "cpu"]
Pair = tuple[int, int]
ModuleT = TypeVar("ModuleT", bound=nn.Module)

MAX_IMAGE_CHANNELS = 4
"""Most channels of an image; layers inside a network have more. `unfold` reads the columns of an image: one load per
number, but a slow gradient of the input, which a first layer does not need."""


def use_matrix_products(module: ModuleT, kernels: Kernels | None = None) -> ModuleT:
    """Change every plain convolution inside `module` to compute by matrix products; return the same module.

    Parameters, their names, hooks and results (up to rounding) do not change. Convolutions with groups, dilation or
    padding other than zeros stay as they are, and so do subclasses of torch's layers.

    `kernels="triton"` uses the kernels of this library, `"matmul"` plain matrix products. The default is `triton` on
    CUDA with Triton installed, in bfloat16 or in float32 with TF32 allowed, else `matmul`. `"cpu"` keeps torch's
    convolutions unless a product is faster on a CPU: in layers whose kernel covers the whole image, and in transposed
    ones with few output channels. It also adds the bias of a transposed convolution separately, because its gradient
    takes up to half of the backward pass otherwise. `"triton"` and `"cpu"` also compute a ReLU that follows in an
    `nn.Sequential`, without memory of its own, unless a user's module owns the `nn.Sequential`.
    """
    if kernels == "triton" or (kernels is None and torch.cuda.is_available() and find_spec("triton") is not None):
        from unbraid.networks import conv_ops as _registered  # noqa: F401  registers torch.ops.unbraid.*
    elif kernels is None:
        kernels = "matmul"
    users = find_users_networks(module)
    for layer in module.modules():
        # Change the class, not the submodule: the parent may hold the layer under any name, or twice.
        if type(layer) is nn.Conv2d and _is_plain(layer):
            layer.__class__ = ProductConv2d
        elif type(layer) is nn.ConvTranspose2d and _is_plain(layer):
            layer.__class__ = ProductConvTranspose2d
        if isinstance(layer, ProductLayer):
            layer.kernels, layer.given, layer.contiguous = kernels, None, id(layer) in users
            layer.register_buffer("half_weight", None, persistent=False)
    if kernels != "matmul":
        _fuse_relus(module)
    return module


def _is_plain(layer: nn.Conv2d | nn.ConvTranspose2d) -> bool:
    ungrouped = layer.groups == 1 and layer.dilation == (1, 1)
    patched = "forward" in layer.__dict__ or "_conv_forward" in layer.__dict__
    return ungrouped and layer.padding_mode == "zeros" and not isinstance(layer.padding, str) and not patched


def _fuse_relus(module: nn.Module) -> None:
    """Let convolutions compute the ReLU after them, and differentiate the one before them."""
    for layer, relu, after in find_relus(module):
        if isinstance(layer, ProductLayer):
            layer.relu, relu.__class__ = True, PassedReLU
            if isinstance(after, ProductLayer):
                layer.successor, after.masks_input = (after,), True


def find_relus(module: nn.Module) -> Iterator[tuple[nn.Module, nn.Module, nn.Module | None]]:
    """Yield every ReLU of an `nn.Sequential` between the layer before it and the one after it.

    Layers that occur twice are left out, because their two uses may differ, and so are chains inside a user's own
    modules: these may use what a single layer makes, before or after its ReLU.
    """
    chains = [list(part) for part in find_whole_chains(module)]
    uses = Counter(id(child) for part in module.modules() for child in part._modules.values())
    for chain in chains:
        for position, (layer, relu) in enumerate(pairwise(chain)):
            if type(relu) in (nn.ReLU, PassedReLU) and uses[id(layer)] == uses[id(relu)] == 1:
                after = chain[position + 2] if position + 2 < len(chain) else None
                yield layer, relu, after if uses[id(after)] == 1 else None


class PassedReLU(nn.ReLU):
    """A ReLU that the layer before it computes; `use_matrix_products` makes it."""

    def forward(self, input: Tensor) -> Tensor:
        return input


class ProductLayer(nn.modules.conv._ConvNd):
    """Base class of both convolutions: their choice of kernels, and the ReLUs around them."""

    kernels: Kernels | None
    half_weight: Tensor | None  # a copy of the weight in bfloat16, if the trainer keeps one
    relu: bool = False  # the layer computes the ReLU after it
    masks_input: bool = False  # its kernels differentiate the ReLU before it by masking the gradient of their input
    successor: tuple["ProductLayer", ...] = ()  # the layer after its ReLU; in a tuple, it is no submodule
    contiguous: bool = False  # its output lies in memory as torch's does, channels first
    given: tuple[Tensor, Tensor] | None  # the output of the layer before and its bits, until this layer runs

    def __getstate__(self) -> dict[str, Any]:
        """Return the layer for a copy, without an activation that waits for this layer, which cannot be copied."""
        return {**self.__dict__, "given": None}

    def runs_kernels(self, size: Sequence[int], dtype: torch.dtype, on_cuda: bool) -> bool:
        """Return whether the library's kernels compute this layer for images of this size and type."""
        raise NotImplementedError

    @property
    def is_dense(self) -> bool:
        """True if the kernel, without stride and padding, is meant to cover the whole image or to make all of it."""
        return _pair(self.stride) == (1, 1) and _pair(self.padding) == (0, 0)

    def _supports_kernels(self, dtype: torch.dtype, on_cuda: bool) -> bool:
        """Return whether the library's kernels support this layer; 1x1 and dense layers are plain matrix products."""
        (height, width), (s, t), (p, q) = self.weight.shape[2:], _pair(self.stride), _pair(self.padding)
        if self.kernels in ("matmul", "cpu") or not (height == width > 1 and s == t and p == q):
            return False
        if dtype == torch.float64:
            return False
        half = dtype in (torch.bfloat16, torch.float16)
        # Members of a strict float32 group must equal single runs, so TF32 needs the run's consent.
        return self.kernels == "triton" or (on_cuda and (half or bool(torch.backends.cuda.matmul.allow_tf32)))

    def _run_kernels(self, x: Tensor, size: Pair, dtype: torch.dtype, out: torch.dtype) -> Tensor:
        """Return the layer's output of this size, computed in `dtype` and stored as `out`."""
        premasked = any(layer.runs_kernels(size, dtype, x.is_cuda) for layer in self.successor)
        # A layer that draws grey pictures reads its input anyway, for both gradients at once.
        masks = premasked and torch.is_grad_enabled() and self.successor[0].out_channels > 1
        store_bits = masks and stores_relu_bits(self.out_channels)
        shape = (self.transposed, _pair(self.stride)[0], _pair(self.padding)[0], *size)
        settings = (self.relu, premasked, self.masks_input, store_bits, dtype, out)
        weights, x_bits = (self.weight, self.bias, None, self.half_weight), self._take_bits(x)
        result, bits = torch.ops.unbraid.convolve(x, *weights, x_bits, *shape, *settings)
        if store_bits:
            self.successor[0].given = (result, bits)
        return result

    def _take_bits(self, x: Tensor) -> Tensor | None:
        """Return the bits of x from the layer before, if that made x, and keep neither."""
        given, self.given = self.given, None
        return given[1] if given is not None and given[0] is x else None

    def _lay_out(self, out: Tensor) -> Tensor:
        return out.contiguous() if self.contiguous else out

    def _activate(self, out: Tensor) -> Tensor:
        if not self.relu:
            return out
        return F.relu_(out) if self.kernels == "cpu" else F.relu(out)


class ProductConv2d(ProductLayer, nn.Conv2d):
    """A convolution that multiplies matrices; `use_matrix_products` makes it."""

    def runs_kernels(self, size: Sequence[int], dtype: torch.dtype, on_cuda: bool) -> bool:
        dense = tuple(size) == tuple(self.weight.shape[2:]) and _pair(self.padding) == (0, 0)
        return not dense and self._supports_kernels(dtype, on_cuda)

    def forward(self, input: Tensor) -> Tensor:
        if input.ndim != 4:
            return self._activate(super().forward(input))
        stride, padding, dtype = _pair(self.stride), _pair(self.padding), compute_type(input)
        if self.runs_kernels(input.shape[2:], dtype, input.is_cuda):
            size = convolved_size((input.shape[2], input.shape[3]), _kernel(self.weight), stride, padding)
            return self._lay_out(self._run_kernels(input, size, dtype, dtype))
        x, weight, bias = cast_as_convolution(input, self.weight, self.bias)
        dense = x.shape[2:] == weight.shape[2:] and padding == (0, 0)
        if not dense and self.kernels == "cpu":
            return self._activate(super().forward(input))
        out = convolve(x.permute(0, 2, 3, 1), weight, bias, stride, padding).permute(0, 3, 1, 2)
        return self._lay_out(self._activate(out))


class ProductConvTranspose2d(ProductLayer, nn.ConvTranspose2d):
    """A transposed convolution that multiplies matrices; `use_matrix_products` makes it."""

    def runs_kernels(self, size: Sequence[int], dtype: torch.dtype, on_cuda: bool) -> bool:
        return tuple(size) != (1, 1) and self._supports_kernels(dtype, on_cuda)

    def forward(self, input: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        if input.ndim != 4 or output_size is not None:
            return self._activate(super().forward(input, None if output_size is None else list(output_size)))
        stride, padding, more = _pair(self.stride), _pair(self.padding), _pair(self.output_padding)
        dtype = compute_type(input)
        if self.runs_kernels(input.shape[2:], dtype, input.is_cuda):
            size = transposed_size((input.shape[2], input.shape[3]), _kernel(self.weight), stride, padding, more)
            # losses take observations in float32
            out = torch.float32 if self.out_channels <= MAX_IMAGE_CHANNELS else dtype
            return self._lay_out(self._run_kernels(input, size, dtype, out))
        x, weight, bias = cast_as_convolution(input, self.weight, self.bias)
        if x.shape[2:] != (1, 1) and self.kernels == "cpu" and self.out_channels > MAX_IMAGE_CHANNELS:
            # Autocast ignores this layer on a CPU, but an earlier layer may have cast its input.
            out = F.conv_transpose2d(input.to(self.weight.dtype), self.weight, None, stride, padding, more)
            return self._activate(out if bias is None else out + bias.to(out.dtype)[:, None, None])
        out = convolve_transposed(x.permute(0, 2, 3, 1), weight, bias, stride, padding, more)
        return self._lay_out(self._activate(out.permute(0, 3, 1, 2)))


def compute_type(x: Tensor) -> torch.dtype:
    """Return the type in which a convolution of x computes: that of autocast, or that of x."""
    device = x.device.type
    if not torch.is_autocast_enabled(device) or x.dtype == torch.float64:
        return x.dtype
    return torch.get_autocast_dtype(device)


def cast_as_convolution(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Cast tensors as autocast does for a convolution; without autocast, return them unchanged."""
    if not torch.is_autocast_enabled(x.device.type) or x.dtype == torch.float64:
        return x, weight, bias
    dtype = compute_type(x)
    return x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair, padding: Pair) -> Tensor:
    """Return out[u, v] = bias + Σ_{ky, kx} weight[ky, kx] x[s u + ky - p, s v + kx - p], by matrix products.

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
        compute = _convolve_by_columns if by_columns <= by_phases else _convolve_by_phases
        out = compute(x, weight, stride, padding, size)
    return out if bias is None else out + bias


def _convolve_by_columns(x: Tensor, weight: Tensor, stride: Pair, padding: Pair, size: Pair) -> Tensor:
    N, C, height, width = weight.shape
    if padding != (0, 0):
        x = _pad(x, padding, padding)
    if C <= MAX_IMAGE_CHANNELS:
        windows = x.unfold(1, height, stride[0]).unfold(2, width, stride[1])  # [batch, row, column, C, ky, kx]
        columns = windows.permute(0, 1, 2, 4, 5, 3).flatten(3)
    else:
        # First along columns, then along rows: `cat` of more than eight parts needs several kernels.
        (s, t), (U, V) = stride, size
        wide = torch.cat([x[:, :, k : k + t * (V - 1) + 1 : t] for k in range(width)], dim=-1)
        columns = torch.cat([wide[:, k : k + s * (U - 1) + 1 : s] for k in range(height)], dim=-1)
    return _times(columns, weight.permute(2, 3, 1, 0).reshape(-1, N))


def _convolve_by_phases(x: Tensor, weight: Tensor, stride: Pair, padding: Pair, size: Pair) -> Tensor:
    """Return out[u] = Σ_a y[u + a, a] with y[i, a] = Σ_r x[s i + r - p] weight[s a + r], in both directions."""
    N, C = weight.shape[:2]
    (s, t), (A, B), (U, V) = stride, _phases(_kernel(weight), stride), size
    cells = (U + A - 1, V + B - 1)
    ends = (s * cells[0] - x.shape[1] - padding[0], t * cells[1] - x.shape[2] - padding[1])
    x = _pad(x, padding, ends).unflatten(2, (cells[1], t)).unflatten(1, (cells[0], s))
    x = x.permute(0, 1, 3, 2, 4, 5).flatten(3)  # [batch, cell row, cell column, s t C]
    matrix = _in_phases(weight, stride).permute(3, 5, 1, 2, 4, 0).reshape(s * t * C, A * B * N)
    shifted = _times(x, matrix).unflatten(-1, (A * B, N)).unbind(-2)
    parts = [y[:, a : a + U, b : b + V] for y, (a, b) in zip(shifted, product(range(A), range(B)), strict=True)]
    return reduce(operator.add, parts)


def convolve_transposed(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair, padding: Pair, output_padding: Pair = (0, 0)
) -> Tensor:
    """Add weight[ky, kx] x[i, j] to out[s i + ky - p, s j + kx - p] for all i, j, ky, kx, by matrix products.

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
    compute = _transposed_by_columns if by_columns <= by_phases else _transposed_by_phases
    out = compute(x, weight, stride).permute(0, 1, 3, 2, 4, 5).flatten(3, 4).flatten(1, 2)  # cells into pixels
    size = transposed_size(_spatial(x), kernel, stride, padding, output_padding)
    ends = (size[0] + padding[0] - out.shape[1], size[1] + padding[1] - out.shape[2])
    out = _pad(out, (-padding[0], -padding[1]), ends)
    return out if bias is None else out.add_(bias)


def _transposed_by_columns(x: Tensor, weight: Tensor, stride: Pair) -> Tensor:
    """Return out[j, r] = Σ_a y[j - a, a, r], y[i, a, r] = x[i] weight[s a + r]: [batch, row, column, s, t, N]."""
    C, N = weight.shape[:2]
    (s, t), (A, B) = stride, _phases(_kernel(weight), stride)
    matrix = _in_phases(weight, stride).permute(0, 2, 4, 3, 5, 1).reshape(C, A * B * s * t * N)
    products = _times(x, matrix).unflatten(-1, (A * B, s * t * N)).unbind(-2)
    shifts = product(range(A), range(B))
    padded = (_pad(y, (a, b), (A - 1 - a, B - 1 - b)) for y, (a, b) in zip(products, shifts, strict=True))
    return reduce(operator.iadd, padded).unflatten(-1, (s, t, N))  # one at a time: all of them would be a step's peak


def _transposed_by_phases(x: Tensor, weight: Tensor, stride: Pair) -> Tensor:
    """Return out[j, r] = Σ_a x[j - a] weight[s a + r] [batch, cell row, cell column, s, t, N]."""
    C, N = weight.shape[:2]
    (s, t), (A, B) = stride, _phases(_kernel(weight), stride)
    shifts = product(range(A), range(B))
    neighbours = torch.cat([_pad(x, (a, b), (A - 1 - a, B - 1 - b)) for a, b in shifts], dim=-1)
    matrix = _in_phases(weight, stride).permute(2, 4, 0, 3, 5, 1).reshape(A * B * C, s * t * N)
    return _times(neighbours, matrix).unflatten(-1, (s, t, N))


def convolved_size(size: Pair, kernel: Pair, stride: Pair, padding: Pair) -> Pair:
    height, width = ((n + 2 * p - k) // s + 1 for n, k, s, p in zip(size, kernel, stride, padding, strict=True))
    return height, width


def transposed_size(size: Pair, kernel: Pair, stride: Pair, padding: Pair, output_padding: Pair) -> Pair:
    axes = zip(size, kernel, stride, padding, output_padding, strict=True)
    height, width = ((n - 1) * s + k - 2 * p + more for n, k, s, p, more in axes)
    return height, width


def _phases(kernel: Pair, stride: Pair) -> Pair:
    return -(-kernel[0] // stride[0]), -(-kernel[1] // stride[1])


def _in_phases(weight: Tensor, stride: Pair) -> Tensor:
    """Split a kernel [·, ·, k, k] into phases [·, ·, A, s, B, t]; pad it with zeros to whole phases."""
    (s, t), (A, B) = stride, _phases(_kernel(weight), stride)
    missing = (A * s - weight.shape[2], B * t - weight.shape[3])
    if missing != (0, 0):
        weight = F.pad(weight, (0, missing[1], 0, missing[0]))
    return weight.unflatten(3, (B, t)).unflatten(2, (A, s))


def _times(x: Tensor, matrix: Tensor) -> Tensor:
    """Multiply x [batch, row, column, K] by [K, N] as two matrices, so that `vmap` makes one batched product."""
    return (x.reshape(-1, x.shape[-1]) @ matrix).reshape(*x.shape[:3], -1)


def _pad(x: Tensor, starts: Pair, ends: Pair) -> Tensor:
    """Pad rows and columns with zeros; negative numbers crop."""
    return F.pad(x, (0, 0, starts[1], ends[1], starts[0], ends[0]))


def _spatial(x: Tensor) -> Pair:
    return x.shape[1], x.shape[2]


def _kernel(weight: Tensor) -> Pair:
    return weight.shape[2], weight.shape[3]


def _pair(value: int | str | Sequence[int]) -> Pair:
    # torch annotates these loosely; layers hold two numbers
    height, width = (int(v) for v in value) if not isinstance(value, int) else (value, value)
    return height, width
