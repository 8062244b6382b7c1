"""Rows that a predictor learns from, rows that it is tested on, and rows that a bootstrap draws."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from unbraid.errors import DataError, SettingError, unknown
from unbraid.metrics.base import CodeTable, Evaluation

Compat = Literal["disentanglement_lib"]

MAX_SEEN_SHARE = 0.05
"""Share of test rows that may also be training rows before scores say so."""

REPEATED = "repeated"
"""Key in a score's details: the rows that training and test rows were drawn from, if many are both."""


def is_published(compat: str | None) -> bool:
    """Return whether a score follows disentanglement_lib, the only value that `compat` may have."""
    if compat not in (None, "disentanglement_lib"):
        raise unknown("compat", compat, ["disentanglement_lib"])
    return compat is not None


class TrainTestRows(NamedTuple):
    """Row numbers to train on and to test on."""

    train: np.ndarray
    test: np.ndarray


def split_rows(rows: int, train: int, test: int, rng: np.random.Generator) -> TrainTestRows:
    """Return disjoint random rows; if there are too few, divide them in the proportion of `train` to `test`."""
    _check_sizes(rows, train, test)
    order = rng.permutation(rows)
    if rows < train + test:
        train = min(max(2, round(rows * train / (train + test))), rows - 1)
    return TrainTestRows(order[:train], order[train : train + test])


def draw_rows(rows: int, train: int, test: int, rng: np.random.Generator) -> TrainTestRows:
    """Draw both sets with replacement, as disentanglement_lib does."""
    _check_sizes(rows, train, test)
    return TrainTestRows(rng.integers(rows, size=train), rng.integers(rows, size=test))


def describe_repeated_rows(rows: int, train: int) -> dict[str, Any]:
    """Return details of a score whose `train` rows, and test rows, are drawn with repetition; none if few are both."""
    share = 1 - (1 - 1 / rows) ** train
    return {REPEATED: {"rows": rows, "seen_in_training": share}} if share > MAX_SEEN_SHARE else {}


def draw_table(
    evaluation: Evaluation, train: int, test: int, factors: Sequence[str] | None
) -> tuple[CodeTable, TrainTestRows]:
    """Draw rows as `draw_rows` does and return their codes and factors; other rows are not encoded."""
    split = draw_rows(len(evaluation), train, test, np.random.default_rng(evaluation.seed))
    positions = torch.as_tensor(np.concatenate(split), device=evaluation.rows.device)
    values, names = evaluation.choose_factors(factors)
    codes = evaluation.encode_means(positions)
    table = CodeTable(codes, values[positions], names, evaluation.code_names, evaluation.seed, evaluation.shared)
    return table, TrainTestRows(np.arange(train), np.arange(train, train + test))


def _check_sizes(rows: int, train: int, test: int) -> None:
    if train < 2 or test < 1:
        raise SettingError(f"train must be at least 2 and test at least 1, not {train} and {test}.")
    if rows < 3:
        raise DataError(f"Training and testing need at least 3 rows, not {rows}.")
