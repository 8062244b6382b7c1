"""Time from a command to its result: one run and a scored sweep, with empty and with filled caches.

    python benchmarks/whole.py --device cuda --out results/benchmarks/whole-h200.json

Every command runs in a process of its own, as a user starts it. "cold" has empty caches of Triton, Inductor and
matplotlib; "warm" is the same command again under another root. Python's own bytecode cache is filled beforehand, as
`pip install` does. The time of pythae for the same steps is measured by `benchmarks/train.py`, where it is installed.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

SETTINGS = ["data=sprites", "network=conv-daunhawer", "batch=64", "precision=bf16"]


def run_command(arguments: list[str], environment: dict[str, str]) -> dict[str, object]:
    """Run `unbraid …` and return its seconds; a failure ends the benchmark with what the command printed."""
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "unbraid", *arguments], env=environment, capture_output=True, text=True
    )
    seconds = time.perf_counter() - start
    if done.returncode:
        sys.exit(f"unbraid {' '.join(arguments)} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return {"command": "unbraid " + " ".join(arguments[:-2]), "seconds": round(seconds, 2)}  # without --root


def main() -> None:
    """Time the commands, print a table and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--seeds", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3, help="warm repetitions of the single run")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    rows: list[dict[str, object]] = []
    facts = {"device": given.device, "torch": torch.__version__, "python": platform.python_version()}
    if given.device == "cuda":
        facts["card"] = torch.cuda.get_device_name()
    with tempfile.TemporaryDirectory() as folder:
        caches = {"TRITON_CACHE_DIR": "triton", "TORCHINDUCTOR_CACHE_DIR": "inductor", "MPLCONFIGDIR": "matplotlib"}
        environment = {**os.environ, **{name: f"{folder}/{place}" for name, place in caches.items()}}
        environment["PYTHONPYCACHEPREFIX"] = f"{folder}/bytecode"
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        modules = "unbraid.api, unbraid.cli, unbraid.metrics, torch._dynamo, sklearn.linear_model, scipy.stats"
        subprocess.run([sys.executable, "-c", f"import {modules}"], env=environment, check=True)
        single = ["train", "beta-tcvae", *SETTINGS, f"steps={given.steps}", "--device", given.device]
        swept = ["sweep", "beta-tcvae", *SETTINGS, f"steps={given.steps}", f"seed=0:{given.seeds}"]
        swept += ["--device", given.device]
        jobs = [("one run, cold", single)] + [("one run, warm", single)] * given.repeats
        jobs += [("sweep, scored, cold", swept), ("sweep, scored, warm", swept)]
        for number, (what, arguments) in enumerate(jobs):
            rows.append({"what": what, **run_command([*arguments, "--root", f"{folder}/runs{number}"], environment)})
            print(f"{what:<22} {rows[-1]['seconds']:>8} s", flush=True)
            if given.out:  # after each command, so that an interruption keeps what was measured
                given.out.write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
