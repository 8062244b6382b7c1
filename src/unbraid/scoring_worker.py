"""A process of a `ScoringPool`: python -m unbraid.scoring_worker FILE_DESCRIPTOR DEVICE [shared].

With `shared`, the GPU runs kernels of several such processes at once, so codes stay there, however few they are.
"""

import gc
import os
import signal
import sys
import threading
import time
import warnings
from multiprocessing.connection import Connection

import torch

from unbraid.data import keep_loaded
from unbraid.errors import UnbraidError
from unbraid.metrics import Evaluation, metric
from unbraid.metrics.code_metrics import keep_codes_on_gpu
from unbraid.plugins import load_files
from unbraid.run import Run
from unbraid.scoring import Job, Result, Subject
from unbraid.store import RunFolder
from unbraid.threads import blas_threads

SECONDS_BETWEEN_LOOKS = 1.0
"""How often a process looks whether its parent is still there."""


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    os.nice(5)  # a training beside it goes first
    warnings.simplefilter("ignore")
    connection, device = Connection(int(sys.argv[1])), torch.device(sys.argv[2])
    scorer, shared = _Scorer(device), "shared" in sys.argv[3:]
    torch.set_num_threads(1)
    connection.send(_can_use(device))
    load_files(())  # those that the environment names
    gc.freeze()  # modules stay, so no collection needs to look at them
    with keep_loaded(), blas_threads(1), keep_codes_on_gpu(shared):
        while True:
            try:
                job = connection.recv()
            except EOFError:  # the parent is done
                return
            connection.send(scorer.score(job))


def _end_with_parent(parent: int) -> None:
    """End this process if its parent was killed: a new one may score the same runs."""
    while os.getppid() == parent:
        time.sleep(SECONDS_BETWEEN_LOOKS)
    os._exit(1)


def _can_use(device: torch.device) -> bool:
    try:
        torch.zeros(1, device=device).sum().item()
    except RuntimeError:
        return False
    return True


class _Scorer:
    """Scores one run after the other; runs on the same rows share what does not depend on the model."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.last: Evaluation | None = None

    def score(self, job: Job) -> list[Result] | UnbraidError | None:
        """Score a run; return the error that refuses a request, or None if the parent should score it."""
        if any(name not in metric for requests in job.requests for name in requests):
            return None  # a metric that only the parent knows
        try:
            subject = self._load(job)
        except Exception:
            return None  # data that only the parent has, or no memory
        try:
            results = job.score(subject)
        except UnbraidError as error:
            return error
        except Exception:
            if not _can_use(self.device):
                sys.exit(1)  # a fault of the device stays with the process
            return None
        finally:
            subject.evaluation.forget()
            if self.device.type == "cuda":
                torch.cuda.empty_cache()  # for the other processes
        return None if any(result.memory_was_full for result in results) else results

    def _load(self, job: Job) -> Subject:
        subject = Run(RunFolder(job.folder, job.root), device=self.device).subject(job.rows)
        evaluation, last = subject.evaluation, self.last
        if last is not None and last.dataset is evaluation.dataset and torch.equal(last.rows, evaluation.rows):
            evaluation.shared = last.shared
        self.last = evaluation
        return subject


if __name__ == "__main__":
    main()
