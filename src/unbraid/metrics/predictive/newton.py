"""Minima of many small convex problems at once, by Newton steps that reuse a factorised Hessian while it helps.

Problems whose Hessian costs too much are left to L-BFGS. Float64, on the device of the problem.
"""

import math
from collections.abc import Callable
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from unbraid.errors import DataError

Evaluate = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Return loss [problems] and gradient [problems, parameters] at [problems, parameters]."""


def minimise(
    theta: Tensor,
    evaluate: Evaluate,
    hessian: Callable[[Tensor], Tensor],
    precision: float,
    keep: float,
    factor: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Return the minimum of each row of theta [problems, parameters], and the last factorised Hessian.

    A Hessian is reused while each step leaves less than the share `keep` of the expected gain.
    """
    value, gradient = evaluate(theta)
    expected = math.inf
    for _ in range(200):
        fresh = factor is None
        factor = _factorise(hessian(theta)) if factor is None else factor
        step = -torch.cholesky_solve(gradient[..., None], factor)[..., 0]
        decrement = -(gradient * step).sum(1)  # twice what a full step should gain
        worst = float(decrement.max())
        if worst <= precision:
            break
        if not fresh and worst > keep * expected:
            factor = None
            continue
        expected = worst
        theta, value, gradient, full = _take_step(theta, step, value, decrement, evaluate)
        factor = factor if full else None
    return theta, factor


def _take_step(
    theta: Tensor, step: Tensor, value: Tensor, decrement: Tensor, evaluate: Evaluate
) -> tuple[Tensor, Tensor, Tensor, bool]:
    """Take the step, halved where it would not lower the loss; the last result says whether all were full steps."""
    size = torch.ones_like(value)
    for _ in range(40):
        trial = theta + size[:, None] * step
        loss, gradient = evaluate(trial)
        worse = ~(loss <= value - 1e-4 * size * decrement + 1e-14 * (1 + value.abs()))
        if not worse.any():
            return trial, loss, gradient, bool((size == 1).all())
        size = torch.where(worse, size / 2, size)
    trial = torch.where(worse[:, None], theta, trial)
    return trial, *evaluate(trial), False


def _factorise(matrices: Tensor) -> Tensor:
    """Return lower Cholesky factors, with as much added to the diagonal as rounding needs."""
    extra = 1e-13 * matrices.diagonal(dim1=-2, dim2=-1).amax(-1)
    for _ in range(30):
        factor, failed = torch.linalg.cholesky_ex(
            matrices + torch.diag_embed(extra[:, None].expand(matrices.shape[:2]))
        )
        if not failed.any():
            return factor
        extra = torch.where(failed > 0, 10 * extra, extra)
    raise DataError("A classifier could not be fitted: these codes span too many orders of magnitude.")


def minimise_without_hessian(theta: Tensor, evaluate: Evaluate, precision: float) -> Tensor:
    """Return the minimum for wide problems, without a Hessian."""
    from scipy.optimize import minimize

    def evaluate_flat(flat: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = evaluate(torch.as_tensor(flat, device=theta.device).view_as(theta))
        return float(value.sum()), gradient.cpu().numpy().ravel()

    options = {"maxiter": 5_000, "maxfun": 10_000, "maxcor": 30, "ftol": precision, "gtol": 1e-9}
    result = minimize(evaluate_flat, theta.cpu().numpy().ravel(), jac=True, method="L-BFGS-B", options=options)
    return torch.as_tensor(result.x, device=theta.device).view_as(theta)


class InputPairs:
    """Products of every two inputs [..., rows, inputs]: second moments under any row weights are one product with them.

    A step needs no exact sums, so they are float32 unless the ridge is small.
    """

    def __init__(self, inputs: Tensor, ridge: float, weights: Tensor | None = None) -> None:
        self.inputs, self.weights = inputs, weights
        coarse, width = ridge >= 1e-6 * float(inputs.square().mean(-2).max()), inputs.shape[-1]
        self.dtype = torch.float32 if coarse else torch.float64
        self.first, self.second = torch.triu_indices(width, width, device=inputs.device)
        index = torch.zeros(width, width, dtype=torch.long, device=inputs.device)
        index[self.first, self.second] = torch.arange(len(self.first), device=inputs.device)
        self.index = index.maximum(index.T)

    @cached_property
    def products(self) -> Tensor:
        """Weighted products [..., rows, pairs of inputs]."""
        products = self.inputs[..., self.first] * self.inputs[..., self.second]
        return (products if self.weights is None else products * self.weights[..., None]).to(self.dtype)

    def moments(self, weights: Tensor) -> Tensor:
        """Return second moments [..., sets, inputs, inputs] under several sets of row weights [..., sets, rows]."""
        return (weights.to(self.dtype) @ self.products).double()[..., self.index]

    def affordable(self, others: int) -> bool:
        """Return whether second moments under `others` row weights cost less than the many steps of L-BFGS."""
        return len(self.first) <= 2**13 and others * len(self.first) <= (2**22 if self.inputs.is_cuda else 2**18)
