"""Scores that the processor computes while a GPU computes others.

Random forests grow on the processor. Where codes lie on a GPU, nothing that they need is in the way of other scores, so
they grow aside, in processes that threads wait for, and are asked for at the end.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from typing import Any, Literal

from unbraid.metrics.base import Evaluation, Score, Sheet, evaluate, metric
from unbraid.metrics.predictive.forests import APART

Asked = Mapping[str, Mapping[str, Any]]
"""Settings of each metric by its full name."""

Measure = Callable[[str], list[Score]]


@contextmanager
def measuring(evaluation: Evaluation, asked: Asked, aside: bool | None = None) -> Iterator[tuple[list[str], Measure]]:
    """Names in the order in which they are best asked for, and what measures them.

    Metrics that compute on the `processor` begin at once and come last if `aside` says so, or (None) if the data are on
    a GPU and others are asked for, too; otherwise the order stays.
    """
    grown = [name for name in asked if metric[name].facts.processor]
    if aside is None:
        aside = evaluation.dataset.device.type == "cuda" and len(asked) > 1
    if not (aside and grown):
        yield list(asked), lambda name: evaluate(evaluation, [name], **asked[name])
        return
    pool = ThreadPoolExecutor(len(grown), thread_name_prefix="aside")
    try:
        waiting = _begun(pool, evaluation, {name: asked[name] for name in grown})
        yield (
            [name for name in asked if name not in waiting] + grown,
            lambda name: waiting[name].result() if name in waiting else evaluate(evaluation, [name], **asked[name]),
        )
    finally:
        pool.shutdown(cancel_futures=True)


def _begun(pool: ThreadPoolExecutor, evaluation: Evaluation, asked: Asked) -> dict[str, Future[list[Score]]]:
    """Scores in the making; each has its codes, and is done with the GPU, when this returns."""
    made: dict[str, Future[list[Score]]] = {}
    for name, settings in asked.items():
        read = Event()
        made[name] = pool.submit(_evaluate, _Aside(evaluation, read), name, settings)
        made[name].add_done_callback(lambda _, read=read: read.set())  # one that was refused has read nothing
        read.wait()  # a graph that is being captured would not bear another thread's copy
    return made


def _evaluate(evaluation: Evaluation, name: str, settings: Mapping[str, Any]) -> list[Score]:
    """In a thread: forests must leave Python to the one that feeds the GPU."""
    APART.set(True)
    return evaluate(evaluation, [name], **settings)


class _Aside(Evaluation):
    """An evaluation that hands out its sheets on the processor, and says when it did."""

    def __init__(self, whole: Evaluation, read: Event) -> None:
        self.__dict__.update(whole.__dict__)
        self._read = read

    def sheet(
        self, count: int | None, factors: Sequence[str] | None = None, codes: Literal["mean", "sampled"] = "mean"
    ) -> Sheet:
        """Codes and factors of some rows, in the processor's memory."""
        found = super().sheet(count, factors, codes)
        made = found._replace(codes=found.codes.cpu(), factors=found.factors.cpu())
        self._read.set()
        return made

    def labelled(self, wanted: Sequence[str] | None = None) -> Evaluation:
        """The rows that have a label of all wanted factors."""
        part = super().labelled(wanted)
        return self if part is self else _Aside(part, self._read)
