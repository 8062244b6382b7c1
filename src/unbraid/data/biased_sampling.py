r"""Biased factor sampling: a joint distribution of factors that is not uniform (chen2018, section 6.2 and figure 5).

The figure has four distributions of two factors, in all of which the most likely combination is 4 times as likely as
the least likely one. With u and v the two factors' values, spread evenly over [0, 1], and a mean that is taken over
values,

| case | weight                                            | what it breaks, and that alone                       |
|------|---------------------------------------------------|------------------------------------------------------|
| `A`  | 1                                                 | nothing: uniform and independent                     |
| `B`  | (1 + u) (1 + v)                                   | uniform marginals; the factors stay independent      |
| `C`  | 1 + s a(u) a(v),  a(u) = (2u - 1)^2 - its mean    | independence; marginals uniform, correlation 0       |
| `D`  | 1 + s (2u - 1) (2v - 1),  s = 3/5                 | correlation 0; marginals uniform, correlation above 0 |

where s makes the ratio 4. The paper says which of these properties each of its cases has, and not the formulas. `A` and
`B` take any number of factors (each ramp of `B` then rises to 4^(1/factors)), `C` and `D` two. Any other table of
weights, one per combination, may be given instead.

Rows are **thinned without repeating one**: each cell keeps round(k w) of its rows, with the largest k that the cells
allow. To draw rows with replacement, or with weights, would put one image into a batch twice, and then every minibatch
estimate of q(z) would be wrong, which takes the rows of a batch for different ones with probability 1/N each. Equal
weights keep equal numbers of rows (of cells that have enough), so a symmetric table leaves a symmetric remainder.
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from unbraid import noise
from unbraid.data.factors import FactorDataset
from unbraid.errors import UsageError

RATIO = 4.0
"""Most likely combination over the least likely one, in all cases but A."""

CASES = ("A", "B", "C", "D")
FORM = "bias:FACTOR,FACTOR:TABLE, with TABLE one of A, B, C, D, a .csv or .json file of weights, or [[1, 2], [3, 4]]"


def joint_weights(case: str, sizes: Sequence[int]) -> np.ndarray:
    """Weights [*sizes] of one of the cases A to D for factors of any sizes."""
    if case not in CASES:
        raise UsageError(f"There is no case {case} of sampling bias; the cases are {', '.join(CASES)}.")
    if len(sizes) != 2 and case in "CD":
        raise UsageError(f"Case {case} of sampling bias takes 2 factors, not {len(sizes)}.")
    if min(sizes) < (3 if case == "C" else 2):
        least = 3 if case == "C" else 2
        raise UsageError(f"Case {case} of sampling bias needs factors of at least {least} values, not {min(sizes)}.")
    ramps = [np.linspace(0, 1, size) for size in sizes]
    if case == "A":
        return np.ones(tuple(sizes))
    if case == "B":
        return _product([1 + (RATIO ** (1 / len(sizes)) - 1) * ramp for ramp in ramps])
    centred = [2 * ramp - 1 for ramp in ramps]
    if case == "C":
        centred = [ramp**2 - (ramp**2).mean() for ramp in centred]
    together = _product(centred)
    # (1 + s max) / (1 + s min) = RATIO
    return 1 + (RATIO - 1) / (together.max() - RATIO * together.min()) * together


def inline_weights(rule: str) -> str:
    """A `bias` rule whose table of weights lies in a file, with the weights in its place: a run must not depend on it.

    Every other rule comes back as it is.
    """
    if not rule.startswith("bias:") or rule.count(":") < 2:
        return rule
    head, factors, table = rule.split(":", 2)
    if table in CASES or table.lstrip().startswith("["):
        return rule
    return f"{head}:{factors}:{json.dumps(_read(Path(table).expanduser()), separators=(',', ':'))}"


def biased_rows(dataset: FactorDataset, rule: str, among: Tensor, seed: int = 0) -> Tensor:
    """Rows out of `among`, in order, that a `bias` rule keeps; those without a label of its factors are not kept."""
    names, weights = _parsed(dataset, rule)
    columns = [dataset.factor_position(name) for name in names]
    values = dataset.values_of(among)[:, columns].cpu()
    labelled = (values >= 0).all(1)
    cells = torch.from_numpy(np.ravel_multi_index(tuple(values[labelled].T.numpy()), weights.shape))
    rows = among[labelled.to(among.device)]
    keep = torch.from_numpy(_quota(rule, names, weights, np.bincount(cells, minlength=weights.size)))
    keys = noise.bits(noise.seed_tensor(seed), -1, "bias", (len(dataset),))[0][rows.cpu()]
    order = keys.argsort(stable=True)
    order = order[cells[order].argsort(stable=True)]  # by cell, and in random order inside each
    start = torch.bincount(cells, minlength=weights.size).cumsum(0).roll(1)
    start[0] = 0
    rank = torch.arange(len(order)) - start[cells[order]]
    chosen = order[rank < keep[cells[order]]].sort().values
    return rows[chosen.to(rows.device)]


def _quota(rule: str, names: Sequence[str], weights: np.ndarray, present: np.ndarray) -> np.ndarray:
    """How many rows each cell keeps [cells]."""
    flat = weights.ravel()
    wanted = flat > 0
    scale = (present[wanted] / flat[wanted]).min()
    keep = np.minimum(np.floor(scale * flat + 0.5 + 1e-9).astype(np.int64), present)
    empty = np.flatnonzero(wanted & (keep == 0))
    if len(empty):
        place = np.unravel_index(empty[0], weights.shape)
        cell = ", ".join(f"{name}:{int(k)}" for name, k in zip(names, place, strict=True))
        scarcest = int(present[wanted].min())
        raise UsageError(
            f"split={_short(rule)} would leave no row with {cell}: the scarcest combination has {scarcest} rows, which "
            "do not suffice for these weights; take other factors or other weights."
        )
    return keep


def _parsed(dataset: FactorDataset, rule: str) -> tuple[list[str], np.ndarray]:
    parts = inline_weights(rule).split(":", 2)
    names = [name.strip() for name in parts[1].split(",")] if len(parts) == 3 else []
    if len(parts) != 3 or not all(names) or len(set(names)) < len(names):
        raise UsageError(f"split={_short(rule)} is not of the form {FORM}.")
    sizes = tuple(dataset.sizes[dataset.factor_position(name)] for name in names)
    if parts[2] in CASES:
        return names, joint_weights(parts[2], sizes)
    return names, _table(rule, parts[2], sizes)


def _table(rule: str, text: str, sizes: tuple[int, ...]) -> np.ndarray:
    try:
        weights = np.array(json.loads(text), dtype=np.float64)
    except (ValueError, TypeError) as error:  # of JSON and of numpy
        raise UsageError(f"split={_short(rule)} has no table of numbers; write {FORM}.") from error
    if weights.shape != sizes:
        given, needed = (" x ".join(map(str, shape)) for shape in (weights.shape, sizes))
        raise UsageError(f"split={_short(rule)} has {given} weights, but its factors have {needed} combinations.")
    if not np.isfinite(weights).all() or weights.min() < 0 or weights.max() == 0:
        raise UsageError(f"split={_short(rule)}: weights must be finite, at least 0, and not all 0.")
    return weights


def _read(path: Path) -> list:
    """The weights in a CSV file (two factors: a line per value of the first) or a JSON file (nested lists)."""
    try:
        if path.suffix.lower() == ".json":
            return np.array(json.loads(path.read_text(encoding="utf-8")), dtype=np.float64).tolist()
        return np.loadtxt(path, delimiter=",", ndmin=2, encoding="utf-8").tolist()
    except OSError as error:
        cases = ", ".join(CASES)
        raise UsageError(
            f"'{path}' is neither a case of sampling bias ({cases}) nor a file that can be read."
        ) from error
    except (ValueError, TypeError) as error:
        raise UsageError(f"{path} is not a table of numbers ({str(error).splitlines()[0]}).") from error


def _product(columns: Sequence[np.ndarray]) -> np.ndarray:
    """Outer product of vectors."""
    return math.prod(np.ix_(*columns))  # type: ignore[return-value]


def _short(rule: str) -> str:
    """A rule as messages show it: a long table is cut."""
    return rule if len(rule) <= 60 else f"{rule[:57]}…"
