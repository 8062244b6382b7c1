"""Hostile calls through Python: each returns, or raises one sentence of ours."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command import SOURCE

QUICK = ["own", "channels", "factors", "factor_names", "from_", "load_data", "seed", "train np", "train Str"]
QUICK += ["train bytes", "train torch", "train data", "train track", "train cadence", "train recipe", "train device"]
"""Beginnings of the names of cases that take milliseconds, or that must succeed."""


def run_cases(template, *only):
    """Run cases in a process without the type checks of the tests, and return what each did."""
    script = str(Path(__file__).with_name("python_cases.py"))
    environment = {**os.environ, "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1", "UNBRAID_QUIET": "1"}
    done = subprocess.run(
        [sys.executable, script, str(template), *only], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("only", [QUICK, pytest.param([], marks=pytest.mark.slow)], ids=["quick", "all"])
def test_python_raises_only_errors_of_ours(template, record_property, only):
    found = run_cases(template, *only)
    record_property("hostile cases", len(found))
    assert [each for each in found if not each["fine"]] == []
    assert len(found) > (300 if only else 1300)
    returned = {each["case"] for each in found if "returned" in each}
    wanted = {"train torch.device", "train np.str_", "train StrEnum", "train bytes root", "factors masked"}
    assert wanted <= returned
