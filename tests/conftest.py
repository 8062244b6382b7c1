"""Shape and type checks on every call, fixed seeds, and a data folder of the tests' own."""

import os
import random
from pathlib import Path

if not Path("/dev/nvidiactl").exists():  # Triton decides at its import whether its interpreter runs the kernels
    os.environ.setdefault("TRITON_INTERPRET", "1")

# The hook rewrites modules as they are imported, so it must come before the first import of unbraid.
if os.environ.get("UNBRAID_TYPECHECK") != "0":
    from jaxtyping import install_import_hook

    install_import_hook("unbraid", "beartype.beartype")

import hypothesis
import numpy as np
import pytest
import torch

torch.set_num_threads(1 if "PYTEST_XDIST_WORKER" in os.environ else min(2, os.cpu_count() or 1))
hypothesis.settings.register_profile("unbraid", deadline=None, derandomize=True)
hypothesis.settings.load_profile("unbraid")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if "gpu" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(autouse=True, scope="session")
def data_home(tmp_path_factory):
    """Where data sets are kept while tests run; the user's own cache is never touched, nor their wishes heard."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("UNBRAID_QUIET", "UNBRAID_EXECUTION", "UNBRAID_COMMIT"):
            patch.delenv(name, raising=False)
        folder = tmp_path_factory.mktemp("data")
        patch.setenv("UNBRAID_DATA", str(folder))
        yield folder


@pytest.fixture(autouse=True)
def seeds():
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
