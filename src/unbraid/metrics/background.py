"""A suite of metrics that computes scores without a GPU in other processes while the GPU is busy.

Trees grow in Python threads, and Python's lock also feeds the GPU, so only processes save time. joblib's processes do
not import the user's script again, unlike those of the standard library.
"""

import os
import time
import warnings
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

from unbraid.errors import UnbraidError
from unbraid.metrics.base import Evaluation, Score, add_notes, evaluate, metric, prepare

Requests = Mapping[str, Mapping[str, Any]]
"""Settings of each metric, by its full name."""

Measure = Callable[[str], list[Score]]


def schedule_metrics(
    evaluation: Evaluation, requests: Requests, background: bool | None = None
) -> tuple[list[str], Measure]:
    """Return the names in the best order to measure them, and the function that measures one of them.

    With `background`, metrics that are `cpu_only` start at once in other processes and come last. The default is to do
    so if the data are on a GPU and there are several metrics.
    """
    if background is None:
        background = evaluation.dataset.device.type == "cuda" and len(requests) > 1
    started = [name for name in requests if background and metric[name].facts.cpu_only]
    wait = _start(evaluation, {name: requests[name] for name in started}) if started else None

    def measure(name: str) -> list[Score]:
        return wait(name) if wait and name in started else evaluate(evaluation, [name], **requests[name])

    return [name for name in requests if name not in started] + started, measure


def _start(evaluation: Evaluation, requests: Requests) -> Measure:
    """Encode here, start the rest in other processes, and return the function that waits for the scores of a metric."""
    from joblib import Parallel, delayed

    prepared, errors = {}, {}
    for name, settings in requests.items():
        try:
            prepared[name] = prepare(evaluation, name, settings)
        except UnbraidError as error:
            errors[name] = error  # raised by `wait`
    pool = Parallel(max(2, len(prepared)), return_as="generator", max_nbytes=None)  # one job would run in this process
    results = pool(delayed(_run_quietly)(job) for job, _ in prepared.values())

    @cache
    def collect() -> dict[str, Any]:
        try:
            return dict(zip(prepared, results, strict=True))
        except Exception as error:  # a machine has many ways to refuse processes
            warnings.warn(f"Processes for scores failed, so they are computed here: {error}", stacklevel=2)
            return {name: _run(job) for name, (job, _) in prepared.items()}

    def wait(name: str) -> list[Score]:
        result = errors.get(name) or collect()[name]
        if isinstance(result, UnbraidError):
            raise result
        return add_notes(result[0], prepared[name][1], result[1])

    return wait


def _run_quietly(job: partial[Any]) -> Any:
    os.environ["UNBRAID_QUIET"] = "1"  # its progress bar would overwrite that of the first process
    return _run(job)


def _run(job: partial[Any]) -> Any:
    """Return scores and seconds, or the error."""
    start = time.perf_counter()
    try:
        return job(), time.perf_counter() - start
    except UnbraidError as error:
        return error
