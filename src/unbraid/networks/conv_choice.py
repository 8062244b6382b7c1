"""Which of the convolution kernels computes a layer, by its shape (the rules are in `conv_tiles.py`).

Images are [member, batch, row, column, channel], contiguous.
"""

from functools import cache

import torch
from torch import Tensor

from unbraid.networks import conv_kernels as kernels
from unbraid.networks.conv_tiles import (
    MIN_SHARED_MEMORY,
    Layer,
    doubles_lines,
    halves_lines,
    reads_windows,
    walks_lines,
)
from unbraid.networks.doubling_kernel import launch_doubling
from unbraid.networks.epilogue import Epilogue
from unbraid.networks.folding_kernel import MAX_NUMBERS_TO_FOLD, launch_folded_product
from unbraid.networks.halving_kernels import launch_halving, launch_halving_gradient
from unbraid.networks.last_layer_kernel import launch_last_layer
from unbraid.networks.picture_kernels import Gradient, differentiate_windows


def launch_convolution(
    transposed: bool, x: Tensor, weight: Tensor, out: Tensor, stride: int, padding: int, compute: torch.dtype,
    epilogue: Epilogue,
) -> None:  # fmt: skip
    """Run the kernel of `correlate`, or of `spread` if transposed."""
    layer = _describe_layer(weight.shape[-1], stride, padding, compute, x.device)
    count, image, N = _count_images(x, compute), x.shape[2:], out.shape[-1]
    if transposed and walks_lines(image, out.shape[2:], layer, x.dtype.itemsize):
        launch_last_layer(x, weight, out, compute, epilogue)
    elif transposed and N * layer.kernel**2 <= MAX_NUMBERS_TO_FOLD:
        launch_folded_product(x, weight, out, stride, padding, compute, epilogue)
    elif transposed and doubles_lines(count, image, out.shape[2:], layer):
        launch_doubling(x, weight, out, compute, epilogue)
    elif not transposed and layer.size == 2 and halves_lines(count, image, N, layer):
        launch_halving(x, weight, out, compute, epilogue)
    else:
        kernels.launch_product(transposed, x, weight, out, stride, padding, compute, epilogue)


def launch_kernel_gradient(
    large: Tensor, gradient: Gradient, kernel: int, stride: int, padding: int, compute: torch.dtype
) -> Tensor:
    """Run the kernel of `kernel_gradient`; return sums (n, ky, kx, c), then the totals, [member, …]."""
    layer = _describe_layer(kernel, stride, padding, compute, large.device)
    small, totals = gradient
    if reads_windows(large.shape[2:], small.shape[-1], layer):
        return differentiate_windows(large, compute, gradient)
    if halves_lines(_count_images(large, compute), large.shape[2:], small.shape[-1], layer):
        return launch_halving_gradient(large, small, compute, totals)
    return kernels.launch_gradient(large, small, kernel, stride, padding, compute, totals)


def computes_both_gradients(
    grad: Tensor, x: Tensor, kernel: int, stride: int, padding: int, compute: torch.dtype
) -> bool:
    """Return whether one pass computes both gradients of a transposed layer with an input x [(member,) batch, …]."""
    layer = _describe_layer(kernel, stride, padding, compute, grad.device)
    C, H, W = grad.shape[-3:]
    return kernels.runs_kernels(x, compute) and reads_windows((H, W, C), x.shape[-3], layer)


def _count_images(x: Tensor, compute: torch.dtype) -> int:
    """Return the images of all members, or none if x has larger numbers than products: they take too much memory."""
    return 0 if x.dtype.itemsize > compute.itemsize else x.shape[0] * x.shape[1]


def _describe_layer(kernel: int, stride: int, padding: int, compute: torch.dtype, device: torch.device) -> Layer:
    """Return what the rules know of a layer; on a card with too little shared memory, none of them fits."""
    size = kernels.count_bytes(compute) if _has_enough_shared_memory(device) else 0
    return Layer(kernel, stride, padding, size)


@cache
def _has_enough_shared_memory(device: torch.device) -> bool:
    """Return whether a program on the device may take the shared memory of the kernels that walk down images."""
    if device.type != "cuda":
        return True
    properties = torch.cuda.get_device_properties(device)
    return getattr(properties, "shared_memory_per_block_optin", 0) >= MIN_SHARED_MEMORY
