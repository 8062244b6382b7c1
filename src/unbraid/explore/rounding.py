r"""Rounding of an encoder's weights to few bits such that the errors cancel on the data.

A layer y = x W with weights rounded one by one, each to its nearest value, is off by x E. Its mean square on the data
is tr(E' H E) with H = mean x x'. Inputs of a layer are correlated, so H has few large eigenvalues, and E can be moved
to where H is small: after one input's weights are rounded, those of the inputs to come are changed by what best makes
up for the error (Frantar et al. 2023, GPTQ, after Hassibi and Stork 1993). At equal bits, codes of data are six to ten
times as exact, and those of pictures unlike the data about twice.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

MAX_INPUTS = 2048
"""Inputs of a layer up to which errors are cancelled; the work grows with the cube."""

MAX_SAMPLES = 50_000
"""Rows, or places of an image under a kernel, that the moments of one layer are taken from."""

DAMPING = 1e-2
"""Share of the mean eigenvalue that is added to all: it keeps weights near their own where the data say nothing."""

Moments = Mapping[bytes, np.ndarray]
"""H of each layer, by the key of its weights."""


def key_of(array: np.ndarray) -> bytes:
    """Return what tells a tensor from all others: a hash of its shape and numbers."""
    return hashlib.sha256(repr(array.shape).encode() + array.tobytes()).digest()


class InputMoments(TorchDispatchMode):
    """Collects H = mean x x' of the inputs of every matrix product and convolution that runs under it."""

    def __init__(self) -> None:
        super().__init__()
        self.moments: dict[bytes, np.ndarray] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # as in record.py

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in ("mm", "addmm"):
            self._add(args[-1], args[-2])
        elif name == "convolution" and args[1].ndim == 4 and not args[6] and args[8] == 1:
            stride, padding, dilation = args[3:6]
            if args[1][0].numel() <= MAX_INPUTS:
                step = max(1, len(args[0]) * args[0].shape[2] * args[0].shape[3] // (4 * MAX_SAMPLES))
                patches = torch.nn.functional.unfold(args[0][::step], args[1].shape[2:], dilation, padding, stride)
                self._add(args[1], patches.transpose(1, 2).reshape(-1, patches.shape[1]))
        return func(*args, **(kwargs or {}))

    def _add(self, weight: Tensor, inputs: Tensor) -> None:
        if inputs.shape[1] <= MAX_INPUTS:
            chosen = inputs[:: max(1, len(inputs) // MAX_SAMPLES)].float()
            key = key_of(np.ascontiguousarray(weight.detach().float().numpy()))
            self.moments[key] = (chosen.T @ chosen / len(chosen)).numpy()


def round_on_data(array: np.ndarray, scale: np.ndarray, top: int, moments: np.ndarray) -> np.ndarray:
    """Return whole numbers [size], at most `top`, that times the scale of their row replace a layer's weights.

    Weights are [inputs, outputs] of a product or [outputs, channels, height, width] of a convolution.
    """
    product = array.ndim == 2
    weights = (array if product else array.reshape(len(array), -1).T).astype(np.float64)  # [inputs, outputs]
    steps = np.broadcast_to(scale[:, None] if product else scale[None], weights.shape)
    order = np.argsort(-moments.diagonal(), kind="stable")
    damped = moments[np.ix_(order, order)] + np.eye(len(order)) * (DAMPING * moments.diagonal().mean() + 1e-30)
    factor = np.linalg.cholesky(np.linalg.inv(damped.astype(np.float64))).T  # upper: row j says how the rest follows j
    left, whole = weights[order], np.empty(weights.shape)
    for place, row in enumerate(order):
        whole[row] = np.clip(np.rint(left[place] / steps[row]), -top, top)
        error = (left[place] - whole[row] * steps[row]) / factor[place, place]
        left[place + 1 :] -= np.outer(factor[place, place + 1 :], error)
    return (whole if product else whole.T).astype(np.int64).ravel()
