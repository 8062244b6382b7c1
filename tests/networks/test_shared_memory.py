"""The shared memory that the kernels need on a Hopper card, which the interpreter does not limit."""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")


@pytest.mark.slow
def test_no_kernel_needs_more_shared_memory_than_a_card_has_or_the_rules_say():
    command = [sys.executable, "-m", "tests.support.kernels_for_hopper"]
    ran = subprocess.run(command, env={**os.environ, "TRITON_INTERPRET": "0"}, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-2000:]
    needed = json.loads(ran.stdout)
    from unbraid.networks.conv_tiles import MIN_SHARED_MEMORY

    assert {name.partition(":")[0] for name in needed} >= {
        "_product",
        "_gradient",
        "_windows",
        "_last_layer",
        "_double",
    }
    assert {name: size for name, size in needed.items() if size > MIN_SHARED_MEMORY} == {}
