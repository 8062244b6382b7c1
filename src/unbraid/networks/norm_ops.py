"""The normalisation kernels as operators for autograd, vmap and the compiler (see `norm_kernels.py`)."""

from typing import Any

import torch
from torch import Tensor

from unbraid.networks.conv_kernels import new_images
from unbraid.networks.epilogue import channels_last
from unbraid.networks.norm_kernels import launch_backward, launch_normalise
from unbraid.operators import Operator, join_member_axis


@Operator
def normalise(
    x: Tensor, scale: Tensor, shift: Tensor, epsilon: float, relu: bool, out: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return scale (x - mean) / sqrt(variance + epsilon) + shift, with or without a ReLU, and mean and variance.

    x is [(member,) batch, C, row, column]. Scale and shift in float32 are [(member,) batch, C] for statistics of each
    image, or [(member,) C] for statistics of each member's batch. Mean and biased variance are [(member,) (batch,) 2,
    C], in float32 and without a gradient. The result has the type `out` and is channels last in memory.
    """
    result, moments = _allocate(x, scale, shift, epsilon, relu, out)
    found = launch_normalise(
        channels_last(x), scale.contiguous(), shift.contiguous(), channels_last(result), _is_per_image(x, scale),
        epsilon, relu,
    )  # fmt: skip
    return result, found.view(moments.shape)


@normalise.register_fake
def _allocate(
    x: Tensor, scale: Tensor, shift: Tensor, epsilon: float, relu: bool, out: torch.dtype
) -> tuple[Tensor, Tensor]:
    result = new_images(x, x.shape[-2], x.shape[-1], x.shape[-3], dtype=out)
    return result, scale.new_empty(*scale.shape[:-1], 2, scale.shape[-1], dtype=torch.float32)


@Operator
def normalise_backward(
    grad: Tensor, x: Tensor, moments: Tensor, scale: Tensor, shift: Tensor, epsilon: float, relu: bool
) -> tuple[Tensor, Tensor]:
    """Return the gradient of x, and those of shift and scale together, [(member,) (batch,) 2, C] in float32."""
    dx = new_images(x, x.shape[-2], x.shape[-1], x.shape[-3], dtype=x.dtype)
    sums = launch_backward(
        channels_last(grad), channels_last(x), moments.contiguous(), scale.contiguous(), shift.contiguous(),
        channels_last(dx), _is_per_image(x, scale), epsilon, relu,
    )  # fmt: skip
    return dx, sums.view(moments.shape)


@normalise_backward.register_fake
def _(
    grad: Tensor, x: Tensor, moments: Tensor, scale: Tensor, shift: Tensor, epsilon: float, relu: bool
) -> tuple[Tensor, Tensor]:
    dx = new_images(x, x.shape[-2], x.shape[-1], x.shape[-3], dtype=x.dtype)
    return dx, moments.new_empty(moments.shape)


def _is_per_image(x: Tensor, scale: Tensor) -> bool:
    return x.ndim - scale.ndim == 2


def _save_inputs(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, scale, shift, ctx.epsilon, ctx.relu, _ = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(x, output[1], scale, shift)


def _differentiate(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor | None, ...]:
    dx, sums = normalise_backward(grad, *ctx.saved_tensors, ctx.epsilon, ctx.relu)
    dshift, dscale = sums.unbind(-2)
    return dx, dscale, dshift, None, None, None


def _save_backward_inputs(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    grad, x, _, scale, shift, ctx.epsilon, ctx.relu = inputs
    ctx.save_for_backward(grad, x, scale, shift)


def _differentiate_twice(ctx: Any, of_dx: Tensor, of_sums: Tensor) -> tuple[Tensor | None, ...]:
    """Differentiate the formula of the gradients, written in torch, for objectives that penalise gradients."""
    with torch.enable_grad():
        grad, x, scale, shift = leaves = [tensor.detach().requires_grad_() for tensor in ctx.saved_tensors]
        gradients = _gradients_in_torch(grad, x, scale, shift, ctx.epsilon, ctx.relu)
        dgrad, dx, dscale, dshift = torch.autograd.grad(gradients, leaves, (of_dx, of_sums), allow_unused=True)
    return dgrad, dx, None, dscale, dshift, None, None


def _gradients_in_torch(
    grad: Tensor, x: Tensor, scale: Tensor, shift: Tensor, epsilon: float, relu: bool
) -> tuple[Tensor, Tensor]:
    per_image = _is_per_image(x, scale)
    dims = (-2, -1) if per_image else (-4, -2, -1)
    scale, shift = (t[..., None, None] if per_image else t[..., None, :, None, None] for t in (scale, shift))
    wide, g = x.float(), grad.float()
    centred = wide - wide.mean(dims, keepdim=True)
    inverse = (centred.square().mean(dims, keepdim=True) + epsilon).rsqrt()
    normal = centred * inverse
    if relu:
        g = g * (scale * normal + shift > 0)
    means = g.mean(dims, keepdim=True), (g * normal).mean(dims, keepdim=True)
    dx = scale * inverse * (g - means[0] - normal * means[1])
    return dx.to(x.dtype), torch.stack([g.sum(dims), (g * normal).sum(dims)], -2)


normalise.register_autograd(_differentiate, setup_context=_save_inputs)
normalise_backward.register_autograd(_differentiate_twice, setup_context=_save_backward_inputs)
for _operator in (normalise, normalise_backward):
    _operator.register_vmap(join_member_axis(_operator))
