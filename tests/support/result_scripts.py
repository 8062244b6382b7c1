"""Committed results, and the scripts below `benchmarks/` that write, add to and plan them."""

import importlib
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"

sys.path.insert(0, str(ROOT / "benchmarks"))  # scripts that import each other
run_papers, verdicts, judge_again, add_seeds, share_runs = map(
    importlib.import_module, ("run_papers", "verdicts", "judge_again", "add_seeds", "share_runs")
)
