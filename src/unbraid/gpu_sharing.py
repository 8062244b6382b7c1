"""NVIDIA's Multi-Process Service (MPS), through which several processes use one GPU at the same time.

Without it, a GPU gives each process turns of a few milliseconds. Processes that mostly start small kernels then wait
for each other: 16 of them score only 1.6 times as many models as one does.
"""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Self

PROGRAM = "nvidia-cuda-mps-control"
PIPES, LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"

MAX_SECONDS = 10.0
"""How long the service may take to start and to end."""


class SharedGpu:
    """A service for the processes that this program starts with its `environment`, until `stop`."""

    def __init__(self, program: str, folder: Path) -> None:
        self.program, self.folder = program, folder
        self.environment = {PIPES: str(folder), LOGS: str(folder)}

    @classmethod
    def start(cls) -> Self | None:
        """Start a service; None if this machine has none, if it fails, or if the user's own is running."""
        program = shutil.which(PROGRAM)
        if program is None or PIPES in os.environ:
            return None
        service = cls(program, Path(tempfile.mkdtemp(prefix="unbraid-mps-")))
        try:
            service._call(["-d"], "")
        except (OSError, subprocess.SubprocessError):
            service.stop()
            return None
        return service

    def stop(self) -> None:
        """End the service; its processes must have ended before."""
        try:
            self._call([], "quit\n")
        except (OSError, subprocess.SubprocessError):
            pass  # it never started, or is gone
        shutil.rmtree(self.folder, ignore_errors=True)

    def _call(self, arguments: list[str], text: str) -> None:
        subprocess.run(
            [self.program, *arguments],
            input=text,
            text=True,
            env={**os.environ, **self.environment},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=MAX_SECONDS,
            check=True,
        )
