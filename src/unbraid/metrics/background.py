"""Scores of codes in other processes, a core each, beside the rest: those of a suite, and those of several models.

Most scores of codes are many small operations. One thread computes them fastest: several wait for each other and for
Python's lock, which also feeds a GPU. So whole scores run side by side.

The processes are forked: they start in milliseconds, with all codes in memory, and only scores travel back. They run
one thread of torch, as a forked process has no other threads of OpenMP, and never use a GPU. Where processes cannot be
forked, or one of them fails, the scores are computed here.
"""

import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

import torch

from unbraid.memory import is_out_of_memory
from unbraid.metrics.base import Evaluation, Score, add_notes, evaluate, metric, prepare
from unbraid.metrics.own_metrics import check_own_scores
from unbraid.threads import blas_threads, set_python_threads, some_threads

Requests = Mapping[str, Mapping[str, Any]]
"""Settings of each metric, by its full name."""

Measure = Callable[[str], list[Score]]

MIN_CORE_SECONDS = 2.0
"""Expected seconds of a core, over all scores that could run beside the rest, from which processes are started."""


class Schedule(NamedTuple):
    """How to measure a model's metrics: which to measure here, which processes measure, and the function for both."""

    here: list[str]
    elsewhere: list[str]
    """Names of metrics that processes measure, those that should be done first coming first."""
    measure: Measure

    @property
    def order(self) -> list[str]:
        """The names of all metrics, in the best order to measure them."""
        return self.here + self.elsewhere


@contextmanager
def schedule_metrics(
    asked: Sequence[tuple[Evaluation, Requests]], background: bool | None = None
) -> Iterator[list[Schedule]]:
    """Yield the schedules of several models, to be measured in this order.

    With `background`, metrics with `core_seconds` start at once in other processes and come last, the quickest first:
    the processes begin with the slowest of the first model, and a score that none of them has begun is measured here.
    The default is to do so if there are several scores, they take seconds, and torch has several threads or the data
    are on a GPU. What is not done at the end of the block is left undone.
    """
    schedules, crew = _make_schedules(asked, background)
    try:
        yield schedules
    finally:
        if crew:
            crew.dismiss()


def _make_schedules(
    asked: Sequence[tuple[Evaluation, Requests]], background: bool | None
) -> tuple[list[Schedule], "_Crew | None"]:
    seconds = {name: metric[name].facts.core_seconds for _, requests in asked for name in requests}
    on_gpu = any(evaluation.dataset.device.type == "cuda" for evaluation, _ in asked)
    spare = max(torch.get_num_threads() - 1, int(on_gpu))
    if background is None:
        every = [seconds[name] for _, requests in asked for name in requests]
        background = len(every) > 1 and spare > 0 and sum(every) >= MIN_CORE_SECONDS
    jobs: list[partial[Any]] = []
    prepared = []
    for evaluation, requests in asked:
        slow = sorted((name for name in requests if seconds[name]), key=lambda name: -seconds[name])
        made, notes, full = _prepare(evaluation, {name: requests[name] for name in slow if background})
        background = background and not full
        prepared.append(({name: len(jobs) + place for place, name in enumerate(made)}, notes))
        jobs += made.values()
    crew = _Crew(jobs, max(1, spare)) if jobs and _can_fork() else None
    return [_schedule(*one, *own, crew) for one, own in zip(asked, prepared, strict=True)], crew


def _schedule(
    evaluation: Evaluation, requests: Requests, jobs: Mapping[str, int], notes: Mapping[str, Any], crew: "_Crew | None"
) -> Schedule:
    """Return the schedule of one model, some of whose metrics are `jobs` of a crew."""
    places = jobs if crew else {}

    def measure(name: str) -> list[Score]:
        found = crew.collect(places[name]) if crew and name in places else None
        if found:
            return add_notes(check_own_scores(name, found[0]), notes[name], found[1])
        threads = max(1, torch.get_num_threads() - (crew.count_busy() if crew else 0))
        with some_threads(threads), blas_threads(threads):
            return evaluate(evaluation, [name], **requests[name])

    return Schedule([name for name in requests if name not in places], list(places)[::-1], measure)


def _can_fork() -> bool:
    """Return whether processes may be forked: beside another thread, which may hold locks, it would be a risk."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    return sys.platform == "linux" and in_main_thread and not multiprocessing.current_process().daemon


def _prepare(evaluation: Evaluation, requests: Requests) -> tuple[dict[str, partial[Any]], dict[str, Any], bool]:
    """Return the calls, on codes that are not on a GPU, that compute the metrics, notes, and whether memory is full."""
    jobs, notes = {}, {}
    for name, settings in requests.items():
        try:
            job, notes[name] = prepare(evaluation, name, settings)
        except Exception as error:  # raised again when the metric is measured
            if is_out_of_memory(error):
                evaluation.forget()
                return jobs, notes, True
            continue
        if isinstance(job, partial) and not job.args[0].codes.is_cuda:
            jobs[name] = job
    return jobs, notes, False


class _Crew:
    """Forked processes that take jobs in their order, and this process, which may take any job that is left."""

    def __init__(self, jobs: list[partial[Any]], threads: int) -> None:
        self.found: dict[int, tuple[Any, float] | None] = {}
        self.own: set[int] = set()  # jobs that this process took
        self.pipes: dict[Connection, BaseProcess] = {}
        fork = multiprocessing.get_context("fork")
        try:
            self.taken = fork.Array("b", len(jobs))
            for _ in range(min(len(jobs), threads)):
                pipe, other = fork.Pipe(duplex=False)
                process = fork.Process(target=self._work, args=(jobs, threads, pipe, other), daemon=True)
                with warnings.catch_warnings():  # Python warns of threads that hold locks; here all of them rest
                    warnings.simplefilter("ignore", DeprecationWarning)
                    process.start()
                other.close()
                self.pipes[pipe] = process
        except OSError as error:  # a machine has many ways to refuse processes
            warnings.warn(f"Processes for scores failed, so they are computed here: {error}", stacklevel=3)

    def take(self, place: int) -> bool:
        """Return whether nobody had taken this job before."""
        with self.taken.get_lock():
            free, self.taken[place] = not self.taken[place], 1
        return free

    def collect(self, place: int) -> tuple[Any, float] | None:
        """Wait for the scores and the seconds of a job; None if it is left to this process."""
        while place not in self.found and place not in self.own and self.pipes:
            if self.take(place):
                self.own.add(place)
            else:
                self._receive(None)
        return self.found.get(place)

    def dismiss(self) -> None:
        """End the processes, whatever they are at."""
        for process in self.pipes.values():
            process.terminate()
        while self.pipes:
            self._receive(None)

    def count_busy(self) -> int:
        """Return the number of processes that still have work."""
        self._receive_all()
        return len(self.pipes)

    def _receive_all(self) -> None:
        """Receive all that has been sent, without waiting for more."""
        while self._receive(0):
            pass

    def _receive(self, timeout: float | None) -> bool:
        """Receive one message of each process that has sent some, and return whether any had."""
        ready = wait(list(self.pipes), timeout)
        for pipe in ready:
            assert isinstance(pipe, Connection)
            try:
                place, self.found[place] = pipe.recv()
            except (EOFError, OSError):  # all jobs are taken, or the process is gone
                self.pipes.pop(pipe).join()
        return bool(ready)

    def _work(self, jobs: list[partial[Any]], threads: int, unused: Connection, pipe: Connection) -> None:
        """Compute jobs until none is left, or nobody listens."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process decides
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # which may have handlers of its own
        os.nice(5)  # a training beside it goes first
        os.environ["UNBRAID_QUIET"] = "1"  # progress here would overwrite that of the first process
        gc.freeze()  # what the first process has on a GPU must not be freed here
        for inherited in (unused, *self.pipes):
            inherited.close()
        torch.set_num_threads(1)
        set_python_threads(threads)
        with blas_threads(1):
            for place in filter(self.take, range(len(jobs))):
                start = time.perf_counter()
                try:
                    result = jobs[place](), time.perf_counter() - start
                except Exception:
                    result = None  # the first process meets the error when it computes the job itself
                try:
                    pipe.send((place, result))
                except OSError:
                    return
