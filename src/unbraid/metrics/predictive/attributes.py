r"""Accuracy of small networks that predict attributes from parts of a code (msvae2020, section 4, figure 6).

A multilayer perceptron predicts each factor from one part of the code, from the other, and from both. If both together
do best, each part knows something that the other does not. The score of a part is the mean accuracy over factors on
test rows, with the accuracy of each factor in the details. The paper does not state its network. Here it has two hidden
layers of 64 ReLU units and takes 700 Adam steps with 256 rows at a rate that falls from .005 to 0, on codes
standardised on the training rows.

The networks of all parts and factors have one shape and train as one batched product: a part is the whole code with the
other columns at 0, and a factor with fewer values has outputs that never win.

**Ceiling.** 1: a perfect code of sprites reaches it.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from unbraid.density.small_fit import descend
from unbraid.errors import SettingError, UsageError
from unbraid.metrics.arrays import check_at_least, find_device, to_labels, to_matrix
from unbraid.metrics.base import Evaluation, Score, metric
from unbraid.metrics.intervals import no_interval
from unbraid.metrics.levels import share_of_most_frequent
from unbraid.metrics.predictive.logistic import standardise
from unbraid.metrics.train_test_split import split_rows
from unbraid.threads import one_thread

TRAINED_ONCE = "the networks are trained once, and training them again on other rows takes too long"

NEVER = -1e30
"""Logit of an output without a value of the factor."""


@metric("attributes/mlp", reference="msvae2020", needs=("factors",), bounds=(0, 1), perfect=1.0)
def mlp(
    evaluation: Evaluation,
    *,
    factors: tuple[str, ...] | None = None,
    train: int = 10_000,
    test: int = 5_000,
    hidden: tuple[int, ...] = (64, 64),
    steps: int = 700,
    batch: int = 256,
    lr: float = 5e-3,
) -> list[Score]:
    """Accuracy of small networks that predict each factor from each latent block, and from all of them."""
    table = evaluation.tabulate(train + test, factors)
    blocks = evaluation.space.blocks
    columns = table.codes.split([block.width for block in blocks.values()], dim=1)
    parts = dict(zip(blocks, columns, strict=True))
    codes = parts if len(parts) > 1 else table.codes
    settings = {"train": train, "test": test, "hidden": hidden, "steps": steps, "batch": batch, "lr": lr}
    return attributes(codes, table.factors, names=table.names, seed=evaluation.seed, **settings)


def attributes(
    codes: Any,
    factors: Any,
    *,
    train: int = 10_000,
    test: int = 5_000,
    hidden: Sequence[int] = (64, 64),
    steps: int = 700,
    batch: int = 256,
    lr: float = 5e-3,
    names: Sequence[str] | None = None,
    seed: int = 0,
) -> list[Score]:
    """Return the accuracy of networks that predict discrete factors [rows, factors] from codes [rows, latents].

    Codes may be a mapping of parts, `{"C": c, "Z": z}`; then each part is scored, and both together as `C+Z`. There
    is no interval: it would need networks trained on other rows.
    """
    check_at_least(1, steps=steps, batch=batch, hidden=min(hidden, default=1))
    if not lr > 0:
        raise SettingError(f"lr must be above 0, not {lr}.")
    parts = dict(codes) if isinstance(codes, Mapping) else {None: codes}
    values, masks = _join_parts(parts)
    known = to_labels(factors, len(values), names)
    split = split_rows(len(values), train, test, np.random.default_rng(seed))
    device = find_device(next(iter(parts.values())))
    x, x_test = (t.float() for t in standardise(*(torch.as_tensor(values[rows], device=device) for rows in split)))
    y = torch.as_tensor(known.values[split.train].T, device=device)  # [factors, rows]
    mask = torch.as_tensor(np.stack(list(masks.values())), dtype=x.dtype, device=device)
    with one_thread():
        networks = _Networks(mask, known.sizes, hidden, torch.Generator().manual_seed(seed))
        networks.train(x, y, steps, batch, lr, torch.Generator().manual_seed(seed + 1))
        predicted = networks.predict(x_test).cpu().numpy()  # [parts, factors, rows]
    correct = predicted == known.values[split.test].T
    scores = []
    sizes = {"train": len(split.train), "test": len(split.test)}
    chance = share_of_most_frequent(known.values[split.test])
    for part, of_part in zip(masks, correct, strict=True):
        details = {"accuracy": dict(zip(known.names, of_part.mean(1).tolist(), strict=True)), **sizes, "chance": chance}
        by_row, rows = of_part.mean(0), sum(sizes.values())
        value, covers = float(by_row.mean()), no_interval(TRAINED_ONCE)
        scores.append(Score("attributes", "mlp", value, rows, None, part, "mlp", details=details, covers=covers))
    return scores


def _join_parts(parts: Mapping[str | None, Any]) -> tuple[np.ndarray, dict[str | None, np.ndarray]]:
    """Return all codes side by side, and the columns of each part; several parts also have an entry together."""
    if not parts:
        raise UsageError("attributes needs at least one part of a code.")
    arrays = [to_matrix("codes" if name is None else f"codes {name}", array) for name, array in parts.items()]
    if len({len(array) for array in arrays}) > 1:
        raise UsageError(f"All parts of a code must have equally many rows, not {[len(array) for array in arrays]}.")
    owner = np.repeat(np.arange(len(arrays)), [array.shape[1] for array in arrays])
    masks: dict[str | None, np.ndarray] = {name: owner == i for i, name in enumerate(parts)}
    if len(arrays) > 1:
        masks["+".join(str(name) for name in parts)] = owner >= 0
    return np.concatenate(arrays, axis=1), masks


class _Networks:
    """Networks of one shape with stacked weights, one for each part and factor."""

    def __init__(self, mask: Tensor, sizes: Sequence[int], hidden: Sequence[int], generator: torch.Generator) -> None:
        parts, width = mask.shape
        self.shape = (parts, len(sizes))
        self.mask = mask.repeat_interleave(len(sizes), dim=0)[:, None, :]  # [networks, 1, inputs]
        self.never = torch.zeros(len(sizes), max(sizes), device=mask.device)
        for k, size in enumerate(sizes):
            self.never[k, size:] = NEVER
        self.never = self.never.repeat(parts, 1)[:, None, :]
        fan_in = self.mask.sum(-1, keepdim=True)
        self.weights, self.biases = [], []
        for inputs, outputs in zip([width, *hidden], [*hidden, max(sizes)], strict=True):
            bound = (1 / fan_in.sqrt()) if inputs == width and not self.weights else 1 / math.sqrt(inputs)
            shapes = (parts * len(sizes), inputs, outputs), (parts * len(sizes), 1, outputs)
            drawn = [(2 * torch.rand(shape, generator=generator) - 1).to(mask.device) * bound for shape in shapes]
            self.weights.append(drawn[0].requires_grad_())
            self.biases.append(drawn[1].requires_grad_())

    def logits(self, x: Tensor) -> Tensor:
        """Return [networks, rows, values] of codes [rows, inputs]."""
        h = x * self.mask
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            h = torch.baddbmm(bias, h.relu() if i else h, weight)
        return h + self.never

    def train(self, x: Tensor, y: Tensor, steps: int, batch: int, lr: float, generator: torch.Generator) -> None:
        """Minimise the mean log loss of each network by Adam; y is [factors, rows]."""
        parts, rows = self.shape[0], len(x)
        chosen = torch.randint(rows, (steps, min(batch, rows)), generator=generator).to(x.device)

        def loss(step: Tensor) -> Tensor:
            minibatch = chosen.index_select(0, step)[0]
            targets = y[:, minibatch].repeat(parts, 1)
            logits = self.logits(x[minibatch])
            return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum") / len(minibatch)

        descend("attributes/mlp", [*self.weights, *self.biases], loss, lr * (1 - torch.arange(steps) / steps))

    @torch.no_grad()
    def predict(self, x: Tensor) -> Tensor:
        """Return the likeliest value of each factor [parts, factors, rows]."""
        return torch.cat([self.logits(rows).argmax(-1) for rows in x.split(1024)], dim=1).view(*self.shape, -1)
