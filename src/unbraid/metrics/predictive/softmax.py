r"""Softmax regression of each factor from codes, as exact as that of scikit-learn.

    C sum_i c_i log-loss_i + 1/2 |W|^2,    intercepts free,

by Newton steps (`newton`). Fits to several sets of rows, such as the halves that an interval needs, are one stack on a
GPU: each of these problems alone is a chain of small kernels, which take as long for ten problems as for one.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from unbraid.metrics.predictive.logistic import (
    MIN_ROWS_FOR_FIRST_FIT,
    Classifiers,
    add_intercept,
    build_penalty,
    choose_eighth,
    stack_classifiers,
)
from unbraid.metrics.predictive.newton import InputPairs, minimise, minimise_without_hessian
from unbraid.threads import one_thread

PAIRS_OF_VALUES = 32
"""Pairs of values whose products are summed at once, in the cache of a core."""

MAX_NUMBERS_ON_GPU = 2**26
"""Products, pairs of values x rows, that are summed at once on a GPU, where fewer and larger kernels are faster."""

MAX_NUMBERS_OF_A_STACK = 2**25
"""Largest tensor of a stack of problems, products of inputs or Hessians, in numbers of 8 bytes."""

NEVER = -1e30
"""Logit of a value that the rows of a problem do not have."""


def fit_softmax(
    x: Tensor,
    labels: np.ndarray,
    *,
    C: float = 1.0,
    balanced: bool = False,
    precision: float = 1e-12,
    start: Classifiers | None = None,
) -> Classifiers:
    """Fit a softmax regression of each column of labels [rows, factors] from codes x [rows, inputs].

    `balanced` weighs each row by n / (K n_k). With two values the penalty is on the difference of their weights, as in
    scikit-learn. `precision` bounds the distance of the loss from its minimum, in nats per row. A `start` that was
    fitted to similar rows saves most of the time: its Hessian serves these rows, too.
    """
    (model,) = fit_softmax_each([x], [labels], C=C, balanced=balanced, precision=precision, start=start)
    return model


@one_thread()
def fit_softmax_each(
    codes: Sequence[Tensor],
    labels: Sequence[np.ndarray],
    *,
    C: float = 1.0,
    balanced: bool = False,
    precision: float = 1e-12,
    start: Classifiers | None = None,
) -> list[Classifiers]:
    """Fit as `fit_softmax` does to each of several sets of equally many rows, as many at once as memory should hold."""
    settings = {"C": C, "balanced": balanced, "precision": precision, "start": start}
    at_once = max(1, MAX_NUMBERS_OF_A_STACK // _count_numbers(codes[0], labels))
    if len(codes) > at_once:
        parts = [slice(first, first + at_once) for first in range(0, len(codes), at_once)]
        return [model for part in parts for model in fit_softmax_each(codes[part], labels[part], **settings)]
    inputs = torch.stack([add_intercept(x) for x in codes])  # [problems, rows, inputs]
    solved = [
        _fit_factor(inputs, np.stack([table[:, k] for table in labels]), C, balanced, precision, start, k)
        for k in range(labels[0].shape[1])
    ]
    models = []
    for of_problem in zip(*solved, strict=True):  # a fit of each factor
        weights, values, hessians = zip(*of_problem, strict=True)
        models.append(stack_classifiers(weights, values)._replace(hessians=hessians))
    return models


def _count_numbers(x: Tensor, labels: Sequence[np.ndarray]) -> int:
    """Return the numbers in the largest tensor of one problem: products of two inputs of each row, or a Hessian."""
    rows, width = len(x), x.shape[1] + 1
    values = max(len(np.unique(column)) for column in np.concatenate(labels).T)
    return max(rows * width * (width + 1) // 2, (values * width) ** 2)


class _Fit(NamedTuple):
    """Weights [values, inputs] of the values of a factor, and the last factorised Hessian if there was one."""

    weights: Tensor
    values: np.ndarray
    hessian: Tensor | None


def _fit_factor(
    inputs: Tensor,
    labels: np.ndarray,
    C: float,
    balanced: bool,
    precision: float,
    start: Classifiers | None,
    factor: int,
) -> list[_Fit]:
    """Fit one factor, with labels [problems, rows], in every problem."""
    values, coded = np.unique(labels, return_inverse=True)
    coded = coded.reshape(labels.shape)
    counts = np.stack([np.bincount(row, minlength=len(values)) for row in coded])  # [problems, values]
    present, target = counts > 0, torch.as_tensor(coded, device=inputs.device)
    share = inputs.new_ones(target.shape)
    if balanced:
        share = torch.as_tensor(1 / np.maximum(counts, 1), device=inputs.device).gather(1, target)
    kinds = present.sum(1)
    ridge = np.where(kinds == 2, 2.0, 1.0) / (C * labels.shape[1])
    problems = _Problems(inputs, target, share, ridge, present)
    first = known = None
    if start is not None:
        kept = torch.as_tensor(present, device=inputs.device)[..., None]
        first = start.choose(factor, values) * kept  # [problems, values, inputs]
        known = start.choose_hessian(factor, values) if present.all() else None
        known = None if known is None else known.expand(len(inputs), -1, -1)
    weights, hessian = _solve(problems, precision, first, known)
    fits = []
    for b, own in enumerate(present):
        last = hessian[b : b + 1] if hessian is not None and own.all() else None
        fits.append(_Fit(weights[b][torch.as_tensor(own, device=inputs.device)], values[own], last))
    return fits


class _Problems:
    """Problems of one factor, as functions of their weights [problems, values * inputs].

    `inputs` are [problems, rows, inputs], `target` the position of each row's value, and `share` its share of the loss.
    `ridge` [problems] is the penalty per row, and `present` [problems, values] says which values the rows have.
    """

    def __init__(self, inputs: Tensor, target: Tensor, share: Tensor, ridge: np.ndarray, present: np.ndarray) -> None:
        self.inputs, self.target, self.ridge, self.present = inputs, target, ridge, present
        self.share = share / share.sum(1, keepdim=True)
        self.shape = (*present.shape, inputs.shape[2])  # problems, values, inputs
        self.columns = inputs.transpose(1, 2).contiguous()
        self.penalty = torch.stack([build_penalty(inputs[0], each) for each in ridge.tolist()])[:, None]
        self.pairs = InputPairs(inputs, float(ridge.min()), self.share)
        self.known = torch.as_tensor(present, dtype=inputs.dtype, device=inputs.device)
        self.never = None if present.all() else ((1 - self.known) * NEVER)[..., None]

    @property
    def affordable(self) -> bool:
        """True if a Hessian costs less than the many steps without one."""
        values = self.shape[1]
        return self.pairs.affordable(values * (values + 1) // 2)

    def take_problem(self, b: int) -> "_Problems":
        """Return one of the problems."""
        own = slice(b, b + 1)
        return _Problems(self.inputs[own], self.target[own], self.share[own], self.ridge[own], self.present[own])

    def take_rows(self, rows: Tensor) -> "_Problems":
        """Return all problems on some of their rows."""
        return _Problems(self.inputs[:, rows], self.target[:, rows], self.share[:, rows], self.ridge, self.present)

    def compute_logits(self, theta: Tensor) -> Tensor:
        """Return [problems, values, rows], which is twice as fast as [problems, rows, values]."""
        logits = theta.view(self.shape) @ self.columns
        return logits if self.never is None else logits.add_(self.never)

    def evaluate(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss of each problem and its gradient."""
        logits, weights, target, share = self.compute_logits(theta), theta.view(self.shape), self.target, self.share
        top, own = logits.amax(1), logits.gather(1, target[:, None])[:, 0]
        weighed = logits.sub_(top[:, None]).exp_()
        total = weighed.sum(1)
        loss = (share * (total.log() + top - own)).sum(1) + 0.5 * (self.penalty * weights * weights).sum((1, 2))
        error = weighed.mul_((share / total)[:, None]).scatter_add_(1, target[:, None], -share[:, None])
        return loss, (error @ self.inputs + self.penalty * weights).flatten(1)

    def compute_hessian(self, theta: Tensor) -> Tensor:
        """Return the Hessian of each problem."""
        problems, values, width = self.shape
        p = self.compute_logits(theta).softmax(1).to(self.pairs.dtype)
        whole = self.inputs.new_empty(problems, values, values, width, width)
        on_gpu = max(PAIRS_OF_VALUES, MAX_NUMBERS_ON_GPU // self.share.numel())
        for first, last in _pair_values(values, on_gpu if p.is_cuda else PAIRS_OF_VALUES):
            k, other = torch.triu_indices(last - first, values - first, device=p.device) + first
            each = range(first, last)
            joint = p[:, k] * p[:, other] if p.is_cuda else torch.cat([p[:, i:] * p[:, i : i + 1] for i in each], dim=1)
            whole[:, k, other] = whole[:, other, k] = -self.pairs.moments(joint)
        whole[:, range(values), range(values)] += self.pairs.moments(p) + torch.diag_embed(self.penalty)
        whole += _fix_shifts(self.known)[..., None, None] * torch.eye(width, device=p.device, dtype=whole.dtype)
        return whole.transpose(2, 3).reshape(problems, values * width, values * width)


def _solve(
    problems: _Problems, precision: float, start: Tensor | None = None, factor: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """Return weights [problems, values, inputs], and the last factorised Hessians; `factor` are some to begin with."""
    count, values, width = problems.shape
    if values == 1:
        return problems.inputs.new_zeros(problems.shape), None
    theta = problems.inputs.new_zeros(count, values * width) if start is None else start.flatten(1)
    if not problems.affordable:
        each = [
            minimise_without_hessian(theta[b : b + 1], problems.take_problem(b).evaluate, precision)
            for b in range(count)
        ]
        return torch.cat(each).view(problems.shape), None
    if start is None and problems.inputs.shape[1] >= MIN_ROWS_FOR_FIRST_FIT:
        theta = _start_from_few_rows(problems)
    theta, last = minimise(theta, problems.evaluate, problems.compute_hessian, precision, keep=0.2, factor=factor)
    return theta.view(problems.shape), last


def _start_from_few_rows(problems: _Problems) -> Tensor:
    """Return the optimum for an eighth of the rows, shrunk as far as that lowers the loss of all rows."""
    few = _solve(problems.take_rows(choose_eighth(problems.inputs[0])), 1e-4)[0].flatten(1)
    shrunk = torch.stack([part * few for part in (1.0, 0.5, 0.2, 0.0)])  # [parts, problems, values * inputs]
    best = torch.stack([problems.evaluate(each)[0] for each in shrunk]).argmin(0)
    return shrunk[best, torch.arange(len(few), device=best.device)]


def _fix_shifts(present: Tensor) -> Tensor:
    """Return [problems, values, values]: equal shifts of all values change nothing, and neither do absent values."""
    both = present[:, :, None] * present[:, None]
    return both / present.sum(1)[:, None, None] + torch.diag_embed(1 - present)


def _pair_values(values: int, enough: int) -> Iterator[tuple[int, int]]:
    """Yield the first and last of the values that are paired with all later ones at once: `enough` pairs or more."""
    first = 0
    while first < values:
        last, pairs = first, 0
        while last < values and pairs < enough:
            pairs, last = pairs + values - last, last + 1
        yield first, last
        first = last
