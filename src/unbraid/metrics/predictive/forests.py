"""Random forests of scikit-learn, grown here or in a process of their own.

Trees grow on the processor, and Python's lock, which every tree asks for now and then, is also what feeds a GPU: grown
in threads beside it, forests made scores on a GPU several times slower. So `grow`, where `APART` says so, hands them to
a process of their own. That process runs this file by its path, so it imports nothing but NumPy and scikit-learn.
"""

import math
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextvars import ContextVar
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

PARTS = 8
"""Sums into which the votes of a forest are divided."""

APART: ContextVar[bool] = ContextVar("APART", default=False)
"""Whether forests grow in a process of their own."""


class Forest(NamedTuple):
    """How important each code was [codes], and what was predicted for the test rows [rows]."""

    importance: np.ndarray
    predicted: np.ndarray


class Plot(NamedTuple):
    """Where forests grow: codes [rows, codes], for each forest the training rows' values, real ones or classes."""

    train: np.ndarray
    test: np.ndarray
    targets: Sequence[np.ndarray]
    real: Sequence[bool]
    trees: int = 100
    seed: int = 0
    threads: int = 1
    weights: np.ndarray | None = None


def grow(plot: Plot, grown: Callable[[], None] = lambda: None) -> list[Forest]:
    """One forest for each target; the same ones wherever they grow. `grown` is called after each that grows here."""
    return _grow_apart([plot])[0] if APART.get() else _grow_here(plot, grown)


def grow_each(plots: Sequence[Plot]) -> Iterator[list[Forest]]:
    """The forests of several plots, one after the other; in a process of their own all of them, which starts once."""
    yield from _grow_apart(plots) if APART.get() else map(_grow_here, plots)


def forest_predictions(forest: Any, codes: np.ndarray, threads: int = 1) -> np.ndarray:
    """What scikit-learn's forest predicts, however many threads ask its trees.

    Votes are added up in the same order whatever happens, so that equal ones end the same. The trees themselves are
    asked, since the checks of the input that they make, one by one, take longer than their answers.
    """
    rows = np.ascontiguousarray(codes, dtype=np.float32)
    trees = [tree.tree_ for tree in forest.estimators_]
    parts = [trees[first :: min(PARTS, len(trees))] for first in range(min(PARTS, len(trees)))]
    with ThreadPoolExecutor(threads) as pool:
        sums = pool.map(lambda part: reduce(np.add, (tree.predict(rows) for tree in part)), parts)
        total = reduce(np.add, sums)
    if not hasattr(forest, "classes_"):
        return total[:, 0] / len(trees)
    return forest.classes_[np.argmax(total, axis=1)]


def _grow_here(plot: Plot, grown: Callable[[], None] = lambda: None) -> list[Forest]:
    """Where there are more threads than targets, trees are shared out among them, too; else the largest come first."""
    from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

    share = math.ceil(plot.threads / len(plot.targets))

    def one(values: np.ndarray, real: bool) -> Forest:
        make = RandomForestRegressor if real else RandomForestClassifier
        forest = make(plot.trees, random_state=plot.seed, n_jobs=share)
        forest.fit(plot.train, values, sample_weight=plot.weights)
        return Forest(forest.feature_importances_, forest_predictions(forest, plot.test, share))

    order = sorted(range(len(plot.targets)), key=lambda k: -len(np.unique(plot.targets[k])))
    with ThreadPoolExecutor(min(plot.threads, len(plot.targets))) as pool:
        jobs = {k: pool.submit(one, plot.targets[k], plot.real[k]) for k in order}
        try:
            for job in as_completed(jobs.values()):
                job.result()
                grown()
        finally:
            for job in jobs.values():
                job.cancel()
    return [jobs[k].result() for k in range(len(order))]


def _grow_apart(plots: Sequence[Plot]) -> list[list[Forest]]:
    """In another process; here after all, with a warning, if that one fails."""
    with tempfile.TemporaryDirectory(prefix="unbraid-forests-") as name:
        folder = Path(name)
        for place, plot in enumerate(plots):
            _write(folder / f"plot-{place}.npz", plot)
        command = [sys.executable, str(Path(__file__).resolve()), name, str(len(plots))]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        if ended.returncode == 0:
            return [_grown(folder / f"forests-{place}.npz") for place in range(len(plots))]
    told = ended.stderr.strip().splitlines()[-1:] or [f"it ended with {ended.returncode}"]
    warnings.warn(f"Forests grow beside the GPU, and slow it down: a process for them failed, {told[0]}", stacklevel=2)
    return [_grow_here(plot) for plot in plots]


def _grown(path: Path) -> list[Forest]:
    with np.load(path) as made:
        return [Forest(made[f"i{k}"], made[f"p{k}"]) for k in range(len(made) // 2)]


def _write(path: Path, plot: Plot) -> None:
    own = {f"t{k}": values for k, values in enumerate(plot.targets)}
    own |= {} if plot.weights is None else {"weights": plot.weights}
    counts = np.array([plot.trees, plot.seed, plot.threads])
    own |= {"train": plot.train, "test": plot.test, "real": np.array(plot.real, dtype=bool), "counts": counts}
    np.savez(path, allow_pickle=False, **own)


def _read(path: Path) -> Plot:
    with np.load(path) as found:
        real = found["real"].tolist()
        targets = [found[f"t{k}"] for k in range(len(real))]
        trees, seed, threads = (int(count) for count in found["counts"])
        return Plot(found["train"], found["test"], targets, real, trees, seed, threads, found.get("weights"))


def _main(folder: Path, plots: int) -> None:
    """Grow what a folder asks for."""
    for place in range(plots):
        made = _grow_here(_read(folder / f"plot-{place}.npz"))
        found = {f"i{k}": forest.importance for k, forest in enumerate(made)}
        found |= {f"p{k}": forest.predicted for k, forest in enumerate(made)}
        np.savez(folder / f"forests-{place}.npz", allow_pickle=False, **found)


if __name__ == "__main__":
    _main(Path(sys.argv[1]), int(sys.argv[2]))
