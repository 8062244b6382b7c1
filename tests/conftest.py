"""Type checks on every call, fixed seeds, a data folder of the tests' own, and an order that keeps workers busy."""

import gc
import os
import random
import re
import sys
from pathlib import Path
from typing import Any

import pytest

if not Path("/dev/nvidiactl").exists():  # Triton decides at its import whether its interpreter runs the kernels
    os.environ.setdefault("TRITON_INTERPRET", "1")

IS_WORKER = "PYTEST_XDIST_WORKER" in os.environ
RUNS_TESTS = IS_WORKER or not re.search(r" (-n ?|--numprocesses[ =])[1-9a-z]", " ".join(sys.argv))
"""False in the process that only hands tests to workers, which need not wait until it has imported torch."""

# The hook rewrites modules as they are imported, so it must come before the first import of unbraid.
if RUNS_TESTS and os.environ.get("UNBRAID_TYPECHECK") != "0":
    from beartype import BeartypeConf, BeartypeDecorPlace, FrozenDict
    from beartype.claw import beartype_package
    from torch import Tensor

    checks = {
        "claw_decor_place_func": BeartypeDecorPlace.FIRST,  # what other decorators return may be no function
        "claw_is_pep526": False,
        "is_pep484_tower": True,
    }
    # A nested function with hints is checked by code that is compiled at each call of the outer one, which takes a
    # millisecond; those that a step or a fit makes have no hints.
    # torch.vmap fills the named tuples of these modules with numbers of dimensions where they hold tensors
    through_vmap = ["types", "models.multimodal", "latents.fusion"]
    through_vmap += [f"methods.{name}" for name in ("info_gan", "ms_gan", "ms_flow", "ms_coupling", "jacobian_student")]
    numbers = FrozenDict({Tensor: Tensor | int | None})
    for name in through_vmap:
        beartype_package(f"unbraid.{name}", conf=BeartypeConf(**checks, hint_overrides=numbers))
    beartype_package("unbraid", conf=BeartypeConf(**checks))

if RUNS_TESTS:
    import hypothesis

    hypothesis.settings.register_profile("unbraid", deadline=None, derandomize=True)
    hypothesis.settings.load_profile("unbraid")

gc.disable()  # until all tests are collected: imports make much that stays
THREADS = 1 if IS_WORKER else min(2, os.cpu_count() or 1)

LONGEST_FIRST = (
    "tests/experiments/test_smoke.py",
    "tests/test_contracts.py",
    "tests/training/test_distributed.py",
    "tests/metrics/test_promises.py",
    "tests/metrics/test_dci.py",
    "tests/explore/test_browser.py",
    "tests/sweeps/test_sweep.py",
    "tests/training/test_faults.py",
    "tests/training/test_training.py",
    "tests/training/test_refine.py",
    "tests/objectives/test_learned_priors.py",
    "tests/cli/test_run_folders.py",
)
"""Test files that take longest: they start first, so that no worker is left with one of them at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    import torch

    ranks = {name: rank for rank, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: ranks.get(item.nodeid.partition("::")[0], len(ranks)))
    if not torch.cuda.is_available():
        for item in items:
            if "gpu" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def pytest_collection_finish() -> None:
    # What is imported by now stays; without it the many collections that sweeps ask for are several times faster.
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print how many hostile cases ran (`tests/hostile`); workers send their counts with their reports."""
    reports = [
        each for group in terminalreporter.stats.values() for each in group if isinstance(each, pytest.TestReport)
    ]
    called = [each for each in reports if each.when == "call"]
    cases = sum(value for each in called for name, value in each.user_properties if name == "hostile cases")
    failed = {each.nodeid for each in reports if each.failed and each.nodeid.startswith("tests/hostile/")}
    if cases or failed:
        terminalreporter.write_line(f"{cases:,} hostile cases, {len(failed)} tests of them failed")


@pytest.fixture(autouse=True, scope="session")
def data_home(tmp_path_factory):
    """Folder of data sets while tests run, shared by all workers: the user's own cache and settings stay out of it."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("UNBRAID_QUIET", "UNBRAID_EXECUTION", "UNBRAID_COMMIT"):
            patch.delenv(name, raising=False)
        base = tmp_path_factory.getbasetemp()
        folder = (base.parent if IS_WORKER else base) / "data"
        folder.mkdir(exist_ok=True)
        patch.setenv("UNBRAID_DATA", str(folder))
        yield folder


@pytest.fixture(autouse=True, scope="session")
def quick_writes():
    """Leave out fsync, which takes longer than most training here: no file of a test has to outlive a power cut."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(autouse=True)
def same_start():
    """Let no test depend on what another one drew or on the threads that it left."""
    import numpy as np
    import torch

    torch.set_num_threads(THREADS)
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
