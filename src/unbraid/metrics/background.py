"""A suite of metrics; those that never use a GPU are computed by other processes while it is busy.

Trees grow in Python threads, and Python's lock also feeds the GPU: beside other scores, only processes save time.
They are joblib's, which do not import the user's script again as those of the standard library do.
"""

import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

from unbraid.errors import UnbraidError
from unbraid.metrics.base import Evaluation, Score, add_notes, evaluate, metric, prepare

Asked = Mapping[str, Mapping[str, Any]]
"""Settings of each metric by its full name."""

Measure = Callable[[str], list[Score]]


@contextmanager
def schedule_metrics(
    evaluation: Evaluation, asked: Asked, background: bool | None = None
) -> Iterator[tuple[list[str], Measure]]:
    """Yield names in the order in which they are best asked for, and the function that measures one of them.

    If `background`, metrics that are `cpu_only` start at once in other processes and come last. Otherwise the order
    stays. By default they do where the data are on a GPU and there are other metrics to measure.
    """
    if background is None:
        background = evaluation.dataset.device.type == "cuda" and len(asked) > 1
    apart = [name for name in asked if background and metric[name].facts.cpu_only]
    wait = _start(evaluation, {name: asked[name] for name in apart}) if apart else None

    def measure(name: str) -> list[Score]:
        return wait(name) if wait and name in apart else evaluate(evaluation, [name], **asked[name])

    yield [name for name in asked if name not in apart] + apart, measure


def _start(evaluation: Evaluation, asked: Asked) -> Measure:
    """Read codes here, start the work on them in other processes, and return the function that waits for scores."""
    from joblib import Parallel, delayed

    begun, failed = {}, {}
    for name, settings in asked.items():
        try:
            begun[name] = prepare(evaluation, name, settings)
        except UnbraidError as error:
            failed[name] = error  # raised when the score is asked for
    pool = Parallel(max(2, len(begun)), return_as="generator", max_nbytes=None)  # one job would run in this process
    results = pool(delayed(_quiet)(work) for work, _ in begun.values())

    @cache
    def collect() -> dict[str, Any]:
        try:
            return dict(zip(begun, results, strict=True))
        except Exception as error:  # a machine has many ways to refuse processes
            warnings.warn(f"Processes for scores failed, so they are computed here: {error}", stacklevel=2)
            return {name: _timed(work) for name, (work, _) in begun.items()}

    def wait(name: str) -> list[Score]:
        found = failed.get(name) or collect()[name]
        if isinstance(found, UnbraidError):
            raise found
        return add_notes(found[0], begun[name][1], found[1])

    return wait


def _quiet(work: partial[Any]) -> Any:
    os.environ["UNBRAID_QUIET"] = "1"  # a progress bar would be drawn over that of the first process
    return _timed(work)


def _timed(work: partial[Any]) -> Any:
    """Return scores and seconds, or the error that says why there are no scores."""
    start = time.perf_counter()
    try:
        return work(), time.perf_counter() - start
    except UnbraidError as error:
        return error
