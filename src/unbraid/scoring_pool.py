"""Processes that score runs side by side, each with a core of its own; they share the GPU.

To score a model on a GPU is mostly to start small kernels, which keeps one core busy and the GPU idle. So several
processes load runs from their folders and score them at once, through MPS if the machine has it (`gpu_sharing`). They
are started as programs (`scoring_worker`), not forked, because a forked process cannot use a GPU; and without the main
module of this process, which may be a user's script that would run again.

A process stores scores in the run's folder as soon as it has them. What a process could not do, for any reason, is
left to whoever waits for it.
"""

import os
import queue
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Self

import torch

from unbraid.errors import UnbraidError
from unbraid.gpu_sharing import SharedGpu
from unbraid.metrics.background import Requests
from unbraid.metrics.base import metric
from unbraid.progress import track
from unbraid.scoring import Job, Result, check_not_stopped
from unbraid.training.interrupt import Stop

BYTES_OF_A_PROCESS = 3 * 2**30
"""Memory of the GPU that a process may take: its context, a data set, and the codes of one model."""

MIN_RUNS = 4
MIN_CORE_SECONDS = 60.0
"""Expected seconds of a core from which processes are started to score runs; they take about 8 seconds to start."""

SECONDS_BETWEEN_STOPS = 0.2
"""How often a wait for processes looks whether the user wants to stop."""

MAX_SECONDS_TO_START = 120.0
"""How long a process may take until it can use the device; a service that shares a GPU may let it wait for ever."""

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def count_processes(device: torch.device, jobs: int, cores: int | None = None) -> int:
    """Return how many processes can score at once: one per core, as many as there are jobs and as the GPU has room."""
    most = min(jobs, torch.get_num_threads() if cores is None else cores)
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        most = min(most, free // BYTES_OF_A_PROCESS)
    return max(1, most)


def need_processes(device: torch.device, requests: Sequence[Requests]) -> bool:
    """Return whether runs on a GPU ask for so much that it pays to start processes; some metrics need all runs here."""
    asked = [name for own in requests for name in own]
    many = sum(map(bool, requests)) >= MIN_RUNS
    costly = sum(metric[name].facts.core_seconds for name in asked) >= MIN_CORE_SECONDS
    compares = any("peers" in metric[name].facts.needs for name in set(asked))
    can_start = sys.platform == "linux" and torch.get_num_threads() > 1
    return device.type == "cuda" and many and costly and not compares and can_start


def score_in_processes(
    jobs: Sequence[Job], device: torch.device, stop: Stop | None = None
) -> Iterator[list[Result] | None]:
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


class ScoringPool:
    """Up to `processes` processes that score runs on a device; each is started when there is work for it."""

    def __init__(self, device: torch.device, processes: int) -> None:
        self.device = device
        self._threads = ThreadPoolExecutor(processes, "scoring")  # each waits for one process
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        self._workers: list[_Worker] = []
        self._shared = SharedGpu.start() if device.type == "cuda" and processes > 1 else None

    def submit(self, job: Job) -> "Future[list[Result] | UnbraidError | None]":
        """Begin to score a run; the result is one per request, the error that refused it, or None if that failed."""
        return self._threads.submit(self._score, job)

    def _score(self, job: Job) -> list[Result] | UnbraidError | None:
        try:
            try:
                worker = self._idle.get_nowait()
            except queue.Empty:
                worker = self._start_worker()
            found = worker.score(job)
        except (EOFError, OSError):  # the process is gone, or was refused, for which a machine has many reasons
            return None
        self._idle.put(worker)
        return found

    def _start_worker(self) -> "_Worker":
        """Start a process, through the service that shares the GPU if that works."""
        for shared in (self._shared, None) if self._shared else (None,):
            worker = _Worker(self.device, shared)
            self._workers.append(worker)
            if worker.is_ready():
                return worker
        raise EOFError

    def close(self) -> None:
        """End all processes, whatever they are at; scores that they have stored stay."""
        for worker in self._workers:
            worker.process.terminate()
        self._threads.shutdown(cancel_futures=True)
        for worker in self._workers:
            worker.process.terminate()  # one that was started meanwhile
            worker.process.wait()
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
            command = [sys.executable, "-m", "unbraid.scoring_worker", str(theirs.fileno()), str(device)]
            source = str(Path(__file__).parents[1])  # where this package is, also if only this process knows
            known = [path for path in (source, os.environ.get("PYTHONPATH")) if path]
            environment = {**os.environ, **ONE_THREAD, "PYTHONPATH": os.pathsep.join(known), "UNBRAID_QUIET": "1"}
            self.process = subprocess.Popen(
                [*command, "shared"] if shared else command,
                env=environment | (shared.environment if shared else {}),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # an error comes back as a result, or is met again by whoever waits
            )
        self.connection = Connection(ours.detach())

    def is_ready(self) -> bool:
        """Wait until the process can use the device, and return whether it can; end one that cannot."""
        try:
            if self.connection.poll(MAX_SECONDS_TO_START) and self.connection.recv():
                return True
        except (EOFError, OSError):
            pass
        self.process.kill()
        return False

    def score(self, job: Job) -> list[Result] | UnbraidError | None:
        self.connection.send(job)
        return self.connection.recv()
