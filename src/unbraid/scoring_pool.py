"""Processes that score runs side by side, each with a core of its own; they share the GPU.

To score a model on a GPU is mostly to start small kernels, which keeps one core busy and the GPU idle. So several
processes load runs from their folders and score them at once, through MPS if the machine has it (`gpu_sharing`). They
are started as programs (`scoring_worker`), not forked, because a forked process cannot use a GPU; and without the main
module of this process, which may be a user's script that would run again.

A process stores scores in the run's folder as soon as it has them. What a process could not do, for any reason, is
left to its caller.
"""

import itertools
import os
import queue
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing, suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Self

import torch

from unbraid.errors import UnbraidError
from unbraid.gpu_sharing import SharedGpu, is_shared_by_user
from unbraid.metrics.background import Requests
from unbraid.metrics.base import Score, metric
from unbraid.progress import track
from unbraid.scoring import Job, Result, Subject, check_not_stopped
from unbraid.store import RunFolder
from unbraid.training.grouping import free_bytes
from unbraid.training.interrupt import Stop

BYTES_OF_A_PROCESS = 3 * 2**30
"""Memory of the GPU that a process may take: its context, a data set, and the codes of one model."""

MIN_RUNS = 4
MIN_CORE_SECONDS = 60.0
"""Expected seconds of a core from which processes are started to score runs; they take several seconds to start."""

MAX_SECONDS_TO_START = 120.0
"""How long a process may take until it can use the device."""

MAX_SECONDS_OF_A_RUN = 3600.0
"""How long a process may take for one run; a driver that hangs must not hold up everything for ever."""

SECONDS_BETWEEN_STOPS = 0.2
"""How often a wait for processes looks whether the user wants to stop."""

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

Outcome = list[Result] | UnbraidError | None
"""The results of a run, one per set of metrics; the error that refused it; or None if a process could not score it."""


def need_processes(device: torch.device, requests: Sequence[Requests]) -> bool:
    """Return whether runs on a GPU ask for so much of the cores that it pays to start processes.

    A metric that compares models needs all runs in this process.
    """
    asked = [metric[name].facts for own in requests for name in own]
    many = sum(map(bool, requests)) >= MIN_RUNS
    costly = sum(facts.core_seconds for facts in asked if not facts.prefers_gpu) >= MIN_CORE_SECONDS
    compares = any("peers" in facts.needs for facts in asked)
    return device.type == "cuda" and many and costly and not compares and can_start() and torch.get_num_threads() > 1


def can_start() -> bool:
    """Return whether this system can start such processes."""
    return sys.platform == "linux"


def count_processes(device: torch.device, jobs: int, cores: int | None = None, share: float = 1.0) -> int:
    """Return how many processes can score at once: one per core and job, in a share of the free memory of a GPU."""
    most = min(jobs, torch.get_num_threads() if cores is None else cores)
    if device.type == "cuda":
        most = min(most, int(share * free_bytes(device)) // BYTES_OF_A_PROCESS)
    return max(1, most)


def score_in_processes(
    jobs: Sequence[Job], device: torch.device, stop: Stop | None = None
) -> Generator[list[Result] | None, None, None]:
    """Score runs side by side, and yield the results of each, in order; None if a process could not score it."""
    check_not_stopped(stop)
    with ScoringPool(device, count_processes(device, len(jobs))) as pool:
        begun = [pool.submit(job) for job in jobs]
        for future in track("scoring runs", begun):
            check_not_stopped(stop)
            while not wait([future], SECONDS_BETWEEN_STOPS).done:
                check_not_stopped(stop)
            found = future.result()
            if isinstance(found, UnbraidError):
                raise found
            yield found


def score_all(
    jobs: Sequence[Job], device: torch.device, open_subject: Callable[[int], Subject]
) -> Generator[Result, None, None]:
    """Score runs in processes, and yield the result of each job, in order.

    What the processes left is measured here when they have ended; `open_subject` opens the run of a job.
    """
    before = [len(_read_scores(job)) for job in jobs]
    waiting: list[tuple[int, list[Result] | None]] = []  # the first job that was left, and those after it
    with closing(score_in_processes(jobs, device)) as found:
        for place, results in enumerate(found):
            if results is None or waiting:
                waiting.append((place, results))
            else:
                yield results[0]
    for place, results in waiting:
        yield results[0] if results is not None else _score_rest(jobs[place], before[place], open_subject(place))


def _score_rest(job: Job, stored: int, subject: Subject) -> Result:
    """Measure what a process did not before it ended; it had stored the scores after the first `stored` ones."""
    done: dict[str, list[Score]] = {}
    for score in _read_scores(job)[stored:]:
        done.setdefault(f"{score.metric}/{score.protocol}", []).append(score)
    if done:
        done.popitem()  # it may have stored only a part of the last one
    (requests,) = job.requests
    rest = {name: settings for name, settings in requests.items() if name not in done}
    (result,) = job._replace(requests=(rest,)).score(subject, background=None)
    scores = done | result.scores
    return replace(result, scores={name: scores[name] for name in requests if name in scores})


def _read_scores(job: Job) -> list[Score]:
    return [Score.from_record(line) for line in RunFolder(job.folder, job.root).read_lines("scores")]


class ScoringPool:
    """Up to `processes` processes that score runs on a device; each is started when there is work for it."""

    def __init__(self, device: torch.device, processes: int) -> None:
        self.device = device
        self._threads = ThreadPoolExecutor(processes, "scoring")  # each waits for one process
        self._processes = processes
        self._jobs = itertools.count()
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        self._workers: list[_Worker] = []
        self._lock = threading.Lock()  # of the list of workers, and of what follows
        self._ended = False  # closed, or unable to start processes
        self._shared = SharedGpu.start(processes) if device.type == "cuda" and processes > 1 else None
        self._uses_shared = self._shared is not None

    def submit(self, job: Job) -> "Future[Outcome]":
        """Begin to score a run.

        On a GPU, jobs that run at the same time begin with different metrics. In step, all processes would wait for the
        GPU in one metric and leave it idle in the next.
        """
        if self.device.type == "cuda":
            job = job._replace(begin_at=next(self._jobs) % self._processes / self._processes)
        return self._threads.submit(self._score, job)

    def _score(self, job: Job) -> Outcome:
        try:
            worker = self._idle.get_nowait()
        except queue.Empty:
            worker = self._start_worker()
        if worker is None:
            return None
        try:
            found = worker.score(job)
        except (EOFError, OSError):  # the process is gone
            return None
        except Exception:  # the job, or what came back, cannot be sent between processes
            found = None
        self._idle.put(worker)
        return found

    def _start_worker(self) -> "_Worker | None":
        """Start a process, through the service that shares the GPU if that works; None if no process works."""
        while not self._ended:
            shared = self._shared if self._uses_shared else None
            worker = self._add_worker(shared)
            if worker is None or worker.is_ready():
                return worker
            worker.end()
            with self._lock:
                if shared is None and not self._ended:
                    self._ended = True
                    warnings.warn("Processes for scores failed, so this one computes them.", stacklevel=2)
                self._uses_shared = False
        return None

    def _add_worker(self, shared: SharedGpu | None) -> "_Worker | None":
        with self._lock:
            if self._ended:
                return None
            with suppress(OSError):  # the system may refuse processes
                self._workers.append(_Worker(self.device, shared))
                return self._workers[-1]
            self._ended = True
            return None

    def close(self) -> None:
        """End all processes at once; scores that they have stored stay."""
        with self._lock:
            self._ended = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        for worker in self._workers:
            worker.end()
        self._threads.shutdown()
        if self._shared is not None:
            self._shared.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class _Worker:
    """A process that scores one run at a time."""

    def __init__(self, device: torch.device, shared: SharedGpu | None) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            # -P: a file of the working folder, such as random.py, must not be imported
            command = [sys.executable, "-P", "-m", "unbraid.scoring_worker", str(theirs.fileno()), str(device)]
            source = str(Path(__file__).parents[1])  # where this package is, also if only this process knows
            known = [path for path in (source, os.environ.get("PYTHONPATH")) if path]
            environment = {**os.environ, **ONE_THREAD, "PYTHONPATH": os.pathsep.join(known), "UNBRAID_QUIET": "1"}
            self.process = subprocess.Popen(
                [*command, "shared"] if shared or is_shared_by_user() else command,
                env=environment | (shared.environment if shared else {}),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # an error comes back as a result, or is met again by the caller
            )
        self.connection = Connection(ours.detach())

    def is_ready(self) -> bool:
        """Wait until the process can use the device, and return whether it can."""
        with suppress(EOFError, OSError):
            return self.connection.poll(MAX_SECONDS_TO_START) and self.connection.recv()
        return False

    def score(self, job: Job) -> Outcome:
        self.connection.send(job)
        if not self.connection.poll(MAX_SECONDS_OF_A_RUN):
            self.end()
        return self.connection.recv()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
