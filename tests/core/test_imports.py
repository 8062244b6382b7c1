"""Slow packages are imported where they are used: a training waits neither for the compiler nor for scikit-learn."""

import subprocess
import sys

TRAINING = """
import sys
import unbraid as ub
ub.train("vae", data="sprites-small", network="mlp", steps=1, batch=4, root=sys.argv[1], device="cpu")
print(*(name for name in ("torch._dynamo", "sklearn", "scipy.stats", "scipy.io", "matplotlib") if name in sys.modules))
"""


def test_training_imports_no_slow_package(tmp_path):
    found = subprocess.run(
        [sys.executable, "-c", TRAINING, str(tmp_path)], capture_output=True, text=True, check=True, timeout=300
    )
    assert found.stdout.split() == []
