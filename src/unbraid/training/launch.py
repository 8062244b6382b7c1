"""Launchers for the groups of a sweep: this process, a Ray cluster, or Slurm.

A job is a path and a group's id, so that any machine that sees the folder can run it. A Ray worker that does not see it
gets the files it needs and returns the finished ones. A job that dies runs again and resumes at its checkpoint.
"""

import hashlib
import re
import shutil
import tempfile
import time
import traceback
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from unbraid import atomic
from unbraid.errors import RunError, UnbraidError, UsageError, unknown
from unbraid.extras import import_extra
from unbraid.training.interrupt import Interrupted
from unbraid.training.memory import free_memory

PLACES = ("local", "ray", "ray://HOST:PORT", "slurm")
MAX_RETRIES = 5
"""Attempts after a worker died."""

SECONDS_TO_CHECKPOINT = 30.0
"""Time that cancelled jobs have for their checkpoints."""

POLL_SECONDS = 0.5
COMMON_OPTIONS = ("name", "timeout_min", "mem_gb", "nodes", "cpus_per_task", "gpus_per_node", "tasks_per_node")
"""Options that submitit knows for every scheduler; all others, such as partition, get the prefix slurm_."""

Work = Callable[[str, str, str], list[str]]
"""(folder, group, device) -> notes for the user."""


@dataclass(frozen=True)
class GroupJob:
    """One group of a sweep: all that a worker needs to know."""

    folder: str
    group: str
    device: str = "auto"
    needs: tuple[str, ...] = ()
    """Files, relative to the folder, for a worker that does not see it."""

    @property
    def error_path(self) -> Path:
        """The file for the traceback of an unexpected error."""
        return Path(self.folder) / "groups" / self.group / "error.txt"


class JobOutcome(NamedTuple):
    """The end of a job: notes for the user, or an error message."""

    job: GroupJob
    notes: list[str]
    error: str | None = None


def check_place(on: str) -> None:
    """Raise a `UsageError` for an unknown place, or one whose package is not installed."""
    if on.startswith("ray://") or on == "ray":
        import_extra("ray", "ray")
    elif on == "slurm":
        import_extra("submitit", "slurm")
    elif on != "local":
        raise unknown("place", on, PLACES)


def count_workers(on: str) -> int:
    """Return how many jobs a Ray cluster runs at the same time; 1 for other places."""
    if not on.startswith("ray"):
        return 1
    with connect_to_ray(on):
        resources = import_extra("ray", "ray").cluster_resources()
        return max(1, int(resources.get("GPU", 0) or resources.get("CPU", 1)))


def launch(
    work: Work, jobs: Sequence[GroupJob], on: str = "local", options: Mapping[str, Any] | None = None
) -> Generator[JobOutcome, None, None]:
    """Run every job and yield its outcome when it ends; closing the generator cancels the rest."""
    check_place(on)
    if not jobs:
        return
    if on == "local":
        for job in jobs:
            outcome = run_job(work, job)
            if outcome.error is not None:
                free_memory()  # for the next group
            yield outcome
    elif on == "slurm":
        yield from _run_on_slurm(work, jobs, dict(options or {}))
    else:
        yield from _run_on_ray(work, jobs, on)


def run_job(work: Work, job: GroupJob) -> JobOutcome:
    """Run a job in this process; every error except `Interrupted` becomes its outcome."""
    try:
        return JobOutcome(job, work(job.folder, job.group, job.device))
    except Interrupted:
        raise
    except UnbraidError as error:
        return JobOutcome(job, [], str(error))
    except Exception as error:
        with suppress(OSError):  # the disk may be what failed
            atomic.write_text(job.error_path, "".join(traceback.format_exception(error)))
        return JobOutcome(job, [], f"{_describe_error(error)} (see {job.error_path})")


def _run_on_ray(work: Work, jobs: Sequence[GroupJob], on: str) -> Iterator[JobOutcome]:
    ray = import_extra("ray", "ray")
    with connect_to_ray(on), _token(Path(jobs[0].folder)) as token:
        gpus = ray.cluster_resources().get("GPU", 0) >= 1 and jobs[0].device != "cpu"
        resources = {"num_gpus": 1} if gpus else {"num_cpus": 1}
        task = ray.remote(max_retries=MAX_RETRIES, **resources)(_run_on_ray_worker)
        running = {
            task.options(name=f"unbraid-{job.group}").remote(work, job, _read_files(job), token): job for job in jobs
        }
        try:
            while running:
                for reference in ray.wait(list(running), timeout=POLL_SECONDS)[0]:
                    job = running.pop(reference)
                    yield _ray_outcome(ray, reference, job)
        finally:
            _cancel(ray, list(running))


def _run_on_ray_worker(
    work: Work, job: GroupJob, contents: dict[str, bytes], token: str
) -> tuple[list[str], dict[str, bytes]]:
    """Run a job in the sweep's folder if this machine sees it, else in a copy; return notes and the copy's files."""
    if (Path(job.folder) / token).exists():
        return work(job.folder, job.group, job.device), {}
    copy = Path(tempfile.gettempdir()) / f"unbraid-{hashlib.sha256(job.folder.encode()).hexdigest()[:12]}"
    for name, content in contents.items():
        # Files of a run that an earlier attempt left are further trained than those that were sent.
        if not (name.startswith("runs/") and (copy / name).exists()):
            atomic.write_bytes(copy / name, content)
    notes = work(str(copy), job.group, job.device)
    runs = {(copy / name).parent for name in contents if name.startswith("runs/")}
    paths = [path for run in sorted(runs) for path in run.glob("*") if path.is_file() and path.name != "lock"]
    results = {path.relative_to(copy).as_posix(): path.read_bytes() for path in paths}
    for run in runs:
        shutil.rmtree(run, ignore_errors=True)
    return notes, results


def _ray_outcome(ray: ModuleType, reference: Any, job: GroupJob) -> JobOutcome:
    try:
        notes, files = ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        return JobOutcome(job, [], str(cause) if isinstance(cause, UnbraidError) else _describe_error(cause))
    except ray.exceptions.RayError as error:
        lost = f"The worker was lost {MAX_RETRIES + 1} times or could not start: {_last_line(error)}"
        return JobOutcome(job, [], lost)
    for name, content in files.items():
        atomic.write_bytes(Path(job.folder) / name, content)
    return JobOutcome(job, notes)


def _cancel(ray: ModuleType, references: list[Any]) -> None:
    """Stop tasks as Ctrl-C does, and give them time for a checkpoint."""
    for reference in references:
        ray.cancel(reference)
    if references:
        ray.wait(references, num_returns=len(references), timeout=SECONDS_TO_CHECKPOINT)


@contextmanager
def connect_to_ray(on: str) -> Iterator[None]:
    """Connect to the named Ray cluster, to a running one, or to a new one on this machine."""
    if not on.startswith("ray"):
        yield
        return
    ray = import_extra("ray", "ray")
    ours = not ray.is_initialized()
    if ours:
        try:
            ray.init(address=on if on.startswith("ray://") else None, log_to_driver=False, logging_level="error")
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise RunError(f"The Ray cluster {on} cannot be reached: {_last_line(error)}") from error
    try:
        yield
    finally:
        if ours:
            ray.shutdown()


@contextmanager
def _token(folder: Path) -> Iterator[str]:
    """Create a file by which a worker recognises this folder, and yield its name."""
    name = f".seen-{uuid.uuid4().hex}"
    (folder / name).touch()
    try:
        yield name
    finally:
        (folder / name).unlink(missing_ok=True)


def _read_files(job: GroupJob) -> dict[str, bytes]:
    return {name: (Path(job.folder) / name).read_bytes() for name in job.needs}


def _run_on_slurm(work: Work, jobs: Sequence[GroupJob], options: dict[str, Any]) -> Iterator[JobOutcome]:
    executor = _executor(Path(jobs[0].folder) / "slurm", jobs[0].device, options)
    with executor.batch():  # one array job, so that the queue sees one entry
        submitted = [executor.submit(Requeued(work), job) for job in jobs]
    running = dict(zip(submitted, jobs, strict=True))
    try:
        while running:
            for handle in [handle for handle in running if handle.done()]:
                job, failure = running.pop(handle), handle.exception()
                lost = failure and JobOutcome(job, [], _describe_slurm_failure(failure, handle))
                yield lost or handle.result()
            time.sleep(POLL_SECONDS if running else 0)
    finally:
        for handle in running:
            handle.cancel()


def _executor(logs: Path, device: str, options: dict[str, Any]) -> Any:
    submitit = import_extra("submitit", "slurm")
    defaults = {"name": "unbraid", "timeout_min": 24 * 60, "gpus_per_node": 0 if device == "cpu" else 1}
    options = {**defaults, **options}
    cluster = options.pop("cluster", "slurm")
    named = {key if key in COMMON_OPTIONS else f"slurm_{key}": value for key, value in options.items()}
    try:
        executor = submitit.AutoExecutor(folder=logs, cluster=cluster)
        executor.update_parameters(**named)
    except (NameError, ValueError, AssertionError, RuntimeError) as error:
        raise UsageError(f"Slurm jobs cannot be set up: {str(error).splitlines()[0]}") from error
    return executor


class Requeued:
    """A job that submitit submits again when Slurm ends it early; it then resumes."""

    def __init__(self, work: Work) -> None:
        self.work = work

    def __call__(self, job: GroupJob) -> JobOutcome:
        """Run the job and return errors, which submitit would wrap in long tracebacks."""
        try:
            return run_job(self.work, job)
        except Interrupted as stopped:
            return JobOutcome(job, [], str(stopped))

    def checkpoint(self, job: GroupJob) -> Any:
        """Return the job for submitit to submit again."""
        return import_extra("submitit", "slurm").helpers.DelayedSubmission(self, job)


def _describe_slurm_failure(failure: BaseException, handle: Any) -> str:
    """Return the last line of submitit's traceback or log, which stands between two rulers."""
    parts = re.split(r"^-{5,}$", str(failure), flags=re.MULTILINE)
    lines = parts[1 if len(parts) > 1 else 0].strip().splitlines() or [f"no reason was given (state {handle.state})"]
    return f"Slurm job {handle.job_id}: {lines[-1].strip()} (log: {handle.paths.stderr})"


def _describe_error(error: BaseException) -> str:
    name, line = type(error).__name__, _last_line(error)
    return name if line == name else f"{name}: {line}"


def _last_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1].strip() if lines else type(error).__name__
