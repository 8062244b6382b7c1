"""Shape and type checks on every call, fixed seeds, and a data folder of the tests' own."""

import os
import random

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


TOGETHER = ("test_world", "test_sweep", "test_cli", "test_api", "test_launch", "test_features", "test_reproduce")
"""Modules whose tests share what took seconds to make, so that one worker had better run them all."""


@pytest.hookimpl(tryfirst=True)  # before xdist looks at the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.stem in TOGETHER:
            item.add_marker(pytest.mark.xdist_group(_group(item)))
    if not torch.cuda.is_available():
        for item in items:
            if "gpu" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def _group(item: pytest.Item) -> str:
    """The module, and in it the paper: experiments of one paper share runs."""
    named = getattr(item, "callspec", None)
    paper = str(named.params.get("name", "chen2018")).partition("/")[0] if named else "chen2018"
    return f"{item.path.stem} {paper}" if item.path.stem == "test_reproduce" else item.path.stem


@pytest.fixture(autouse=True, scope="session")
def data_home(tmp_path_factory):
    """Where data sets are kept while tests run; the user's own cache is never touched."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("data")
        patch.setenv("UNBRAID_DATA", str(folder))
        yield folder


@pytest.fixture(autouse=True)
def seeds():
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
