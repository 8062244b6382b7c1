"""`kill -9` at ten random moments of one run: it ends with the weights of an unbroken one, bit for bit."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from unbraid.store import RunFolder, load_tensors

ROOT = Path(__file__).parents[2]


@pytest.mark.slow  # tests/training/test_faults.py kills a few times, quickly
def test_killed_ten_times_ends_like_the_unbroken_run(tmp_path):
    command = [sys.executable, str(Path(__file__).with_name("killed.py")), str(tmp_path), "0"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src"), "UNBRAID_QUIET": "1"}
    told = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert told.returncode == 0, told.stderr
    facts = json.loads(told.stdout)
    assert facts["status"] == [0, 0]
    assert facts["early"] is False, "the run must not finish before it was killed ten times"
    assert len(facts["starts"]) == 10
    assert len(set(facts["starts"])) >= 5, f"resumes started from {facts['starts']}"
    assert facts["inside"] >= 2, "some kills must fall into a checkpoint write"
    whole, broken = RunFolder.open(tmp_path / "whole"), RunFolder.open(tmp_path / "broken")
    expected, made = (load_tensors(folder.model_path)[0] for folder in (whole, broken))
    assert expected.keys() == made.keys()
    assert all(torch.equal(expected[name], made[name]) for name in expected)

    def terms(folder):
        return [{k: v for k, v in line.items() if k != "images_per_second"} for line in folder.read_lines("history")]

    assert terms(whole) == terms(broken)
    leftovers = [path.name for path in broken.path.rglob("*.part")]
    assert leftovers == []
