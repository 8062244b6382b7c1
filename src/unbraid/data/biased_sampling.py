r"""Biased factor sampling: a joint distribution of factors that is not uniform (chen2018, section 6.2 and figure 5).

The figure has four distributions of two factors, in all of which the most likely combination is 4 times as likely as
the least likely one. With u and v the two factors' values, spread evenly over [0, 1], and a mean that is taken over
values,

| case | weight                                            | the only property that it breaks                     |
|------|---------------------------------------------------|------------------------------------------------------|
| `A`  | 1                                                 | nothing: uniform and independent                     |
| `B`  | (1 + u) (1 + v)                                   | uniform marginals; the factors stay independent      |
| `C`  | 1 + s a(u) a(v),  a(u) = (2u - 1)^2 - its mean    | independence; marginals uniform, correlation 0       |
| `D`  | 1 + s (2u - 1) (2v - 1),  s = 3/5                 | correlation 0; marginals uniform, correlation above 0 |

where s makes the ratio 4. The paper states which of these properties each of its cases has, but no formulas. `A` and
`B` take any number of factors (each ramp of `B` then rises to 4^(1/factors)), `C` and `D` two. A user may give any
other table of weights, one per combination.

Rows are **thinned and never repeated**: each cell keeps round(k w) of its rows, with the largest possible k.
Drawing rows with replacement, or with weights, would put one image into a batch twice and bias every minibatch estimate
of q(z), which assumes different rows with probability 1/N each. Equal weights keep equal numbers of rows (in cells that
have enough), so a symmetric table leaves a symmetric remainder. The cases keep different numbers of rows (`A` all of
them, `C` about half). `bias:posX,posY:C:9216` keeps about 9,216, each cell round(k w) of a smaller k, so that
comparisons of cases do not also compare amounts of data.
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from unbraid import noise
from unbraid.data.base import expand_user
from unbraid.data.factors import FactorDataset
from unbraid.errors import UsageError

RATIO = 4.0
"""Probability of the most likely combination over that of the least likely one, in all cases but A."""

CASES = ("A", "B", "C", "D")
FORM = (
    "bias:FACTOR,FACTOR:TABLE, with TABLE one of A, B, C, D, a .csv or .json file of weights, or [[1, 2], [3, 4]], and "
    "with :ROWS after one of A, B, C, D to keep about that many rows"
)


def joint_weights(case: str, sizes: Sequence[int]) -> np.ndarray:
    """Return the weights [*sizes] of one of the cases A to D."""
    if case not in CASES:
        raise UsageError(f"There is no case {case} of sampling bias; the cases are {', '.join(CASES)}.")
    if len(sizes) != 2 and case in "CD":
        raise UsageError(f"Case {case} of sampling bias takes 2 factors, not {len(sizes)}.")
    least = 3 if case == "C" else 2
    if min(sizes) < least:
        raise UsageError(f"Case {case} of sampling bias needs factors of at least {least} values, not {min(sizes)}.")
    ramps = [np.linspace(0, 1, size) for size in sizes]
    if case == "A":
        return np.ones(tuple(sizes))
    if case == "B":
        return _outer_product([1 + (RATIO ** (1 / len(sizes)) - 1) * ramp for ramp in ramps])
    centred = [2 * ramp - 1 for ramp in ramps]
    if case == "C":
        centred = [ramp**2 - (ramp**2).mean() for ramp in centred]
    together = _outer_product(centred)
    # (1 + s max) / (1 + s min) = RATIO
    return 1 + (RATIO - 1) / (together.max() - RATIO * together.min()) * together


def inline_weights(rule: str) -> str:
    """Replace the file name in a `bias` rule by the weights in the file, so that a run does not depend on the file.

    Every other rule is returned unchanged.
    """
    if not rule.startswith("bias:") or rule.count(":") < 2:
        return rule
    head, factors, table = rule.split(":", 2)
    if table.partition(":")[0] in CASES or table.lstrip().startswith("["):
        return rule
    return f"{head}:{factors}:{json.dumps(_read_weights(expand_user(table)), separators=(',', ':'))}"


def choose_biased_rows(dataset: FactorDataset, rule: str, candidates: Tensor, seed: int = 0) -> Tensor:
    """Return the candidates that a `bias` rule keeps, in order; rows without a label of its factors are left out."""
    names, weights, wanted = _parse_rule(dataset, rule)
    columns = [dataset.factor_position(name) for name in names]
    values = dataset.values_of(candidates)[:, columns].cpu()
    labelled = (values >= 0).all(1)
    cells = torch.from_numpy(np.ravel_multi_index(tuple(values[labelled].T.numpy()), weights.shape))
    rows = candidates[labelled.to(candidates.device)]
    present = np.bincount(cells, minlength=weights.size)
    keep = torch.from_numpy(_count_kept(rule, names, weights, present, wanted))
    keys = noise.bits(noise.seed_tensor(seed), -1, "bias", (len(dataset),))[0][rows.cpu()]
    order = keys.argsort(stable=True)
    order = order[cells[order].argsort(stable=True)]  # by cell, and in random order inside each
    start = torch.bincount(cells, minlength=weights.size).cumsum(0).roll(1)
    start[0] = 0
    rank = torch.arange(len(order)) - start[cells[order]]
    chosen = order[rank < keep[cells[order]]].sort().values
    return rows[chosen.to(rows.device)]


def _count_kept(
    rule: str, names: Sequence[str], weights: np.ndarray, present: np.ndarray, rows: int | None
) -> np.ndarray:
    """Return the number of rows that each cell keeps [cells], out of those `present` in it; about `rows` in all."""
    flat = weights.ravel()
    wanted = flat > 0
    scale = (present[wanted] / flat[wanted]).min()
    if rows is not None:
        if rows > scale * flat.sum():
            raise UsageError(f"split={_shorten(rule)} can keep {int(scale * flat.sum())} rows at most, not {rows}.")
        scale = rows / flat.sum()
    keep = np.minimum(np.floor(scale * flat + 0.5 + 1e-9).astype(np.int64), present)
    empty = np.flatnonzero(wanted & (keep == 0))
    if len(empty):
        place = np.unravel_index(empty[0], weights.shape)
        cell = ", ".join(f"{name}:{int(k)}" for name, k in zip(names, place, strict=True))
        scarcest = int(present[wanted].min())
        raise UsageError(
            f"split={_shorten(rule)} would leave no row with {cell}: the rarest combination has {scarcest} rows, "
            "too few for these weights; choose other factors or other weights."
        )
    return keep


def _parse_rule(dataset: FactorDataset, rule: str) -> tuple[list[str], np.ndarray, int | None]:
    parts = inline_weights(rule).split(":", 2)
    names = [name.strip() for name in parts[1].split(",")] if len(parts) == 3 else []
    if len(parts) != 3 or not all(names) or len(set(names)) < len(names):
        raise UsageError(f"split={_shorten(rule)} is not of the form {FORM}.")
    sizes = tuple(dataset.sizes[dataset.factor_position(name)] for name in names)
    case, colon, rows = parts[2].partition(":")
    if case not in CASES:
        return names, _parse_weights(rule, parts[2], sizes), None
    if colon and not (rows.isdecimal() and int(rows) > 0):
        raise UsageError(f"split={_shorten(rule)} is not of the form {FORM}.")
    return names, joint_weights(case, sizes), int(rows) if colon else None


def _parse_weights(rule: str, text: str, sizes: tuple[int, ...]) -> np.ndarray:
    try:
        weights = np.array(json.loads(text), dtype=np.float64)
    except (ValueError, TypeError) as error:
        raise UsageError(f"split={_shorten(rule)} has no table of numbers; write {FORM}.") from error
    if weights.shape != sizes:
        found, needed = (" x ".join(map(str, shape)) for shape in (weights.shape, sizes))
        raise UsageError(f"split={_shorten(rule)} has {found} weights, but its factors have {needed} combinations.")
    if not np.isfinite(weights).all() or weights.min() < 0 or weights.max() == 0:
        raise UsageError(f"split={_shorten(rule)}: weights must be finite, at least 0, and not all 0.")
    return weights


def _read_weights(path: Path) -> list:
    """Return the weights in a CSV file (two factors: a line per value of the first) or a JSON file (nested lists)."""
    try:
        if path.suffix.lower() == ".json":
            return np.array(json.loads(path.read_text(encoding="utf-8")), dtype=np.float64).tolist()
        return np.loadtxt(path, delimiter=",", ndmin=2, encoding="utf-8").tolist()
    except OSError as error:
        cases = ", ".join(CASES)
        message = f"'{path}' is neither a case of sampling bias ({cases}) nor a readable file."
        raise UsageError(message) from error
    except (ValueError, TypeError) as error:
        raise UsageError(f"{path} is not a table of numbers ({str(error).splitlines()[0]}).") from error


def _outer_product(columns: Sequence[np.ndarray]) -> np.ndarray:
    return math.prod(np.ix_(*columns))  # type: ignore[return-value]


def _shorten(rule: str) -> str:
    return rule if len(rule) <= 60 else f"{rule[:57]}…"
