"""NVIDIA's Multi-Process Service (MPS), through which several processes use one GPU at the same time.

Without it, a GPU gives each process turns of a few milliseconds. Processes that mostly start small kernels then wait
for each other.

    python -m unbraid.gpu_sharing PROGRAM FOLDER

runs the service until its standard input ends, so that it never outlives the program that needs it, however that ends.
"""

import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Self

PROGRAM = "nvidia-cuda-mps-control"
PIPES, LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
SHARE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
MIN_PERCENT_OF_A_PROCESS = 30
"""Share of the GPU that each of many processes may use at a time, unless the environment sets another. Without a bound,
the large kernels of one process hold up the small ones of all others."""
READY = "ready"

MAX_SECONDS = 10.0
"""How long the service may take to start and to end."""


class SharedGpu:
    """A service for the processes that this program starts with its `environment`, until `stop`."""

    def __init__(self, program: str, processes: int) -> None:
        folder = tempfile.mkdtemp(prefix="unbraid-mps-")
        percent = max(MIN_PERCENT_OF_A_PROCESS, math.ceil(100 / processes))
        self.environment = {PIPES: folder, LOGS: folder, SHARE: os.environ.get(SHARE, str(percent))}
        source = str(Path(__file__).parents[1])
        known = [path for path in (source, os.environ.get("PYTHONPATH")) if path]
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "unbraid.gpu_sharing", program, folder],
            env={**os.environ, **self.environment, "PYTHONPATH": os.pathsep.join(known)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # signals to this program's group must not end it before the service
        )

    @classmethod
    def start(cls, processes: int) -> Self | None:
        """Start a service for this many processes.

        Return None if this machine has none, if it fails, or if the user has started one.
        """
        program = shutil.which(PROGRAM)
        if program is None or is_shared_by_user():
            return None
        try:
            service = cls(program, processes)
        except OSError:  # the system may refuse processes
            return None
        assert service._process.stdout is not None
        if service._process.stdout.readline().strip() == READY:
            return service
        service.stop()
        return None

    def stop(self) -> None:
        """End the service; the processes that use it must have ended before."""
        with suppress(BrokenPipeError):
            self._process.communicate()


def is_shared_by_user() -> bool:
    """Return whether the user has started a service, which all processes then use."""
    return PIPES in os.environ


def main() -> None:
    program, folder = sys.argv[1:]
    try:
        _call(program, "-d")
        print(READY, flush=True)
        sys.stdin.read()
        _call(program, text="quit\n")
    except (OSError, subprocess.SubprocessError):
        _kill(Path(folder) / f"{PROGRAM}.pid")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _call(program: str, *arguments: str, text: str = "") -> None:
    quiet = subprocess.DEVNULL
    command = [program, *arguments]
    subprocess.run(command, input=text, text=True, stdout=quiet, stderr=quiet, timeout=MAX_SECONDS, check=True)


def _kill(path: Path) -> None:
    with suppress(OSError, ValueError):
        os.kill(int(path.read_text("utf-8")), signal.SIGTERM)


if __name__ == "__main__":
    main()
