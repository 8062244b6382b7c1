"""Time from a command to its result: one run and a scored sweep, with empty and with filled caches, beside pythae's.

    python benchmarks/whole.py --device cuda --out results/benchmarks/whole-cuda.json

Every command runs in a process of its own, as a user starts it. "cold" has empty caches of Triton, Inductor,
matplotlib and rendered data; "warm" is the same command again under another root. Python's own bytecode cache is filled
beforehand, as `pip install` does. pythae (`pip install pythae==0.1.2`; without it, no rows of it) takes the same
number of steps with the same networks and batch, in a process of its own, too, on 65,536 images in memory; it scores
and writes nothing. Its first row also loads CUDA's libraries from disk, which would otherwise count for us.
"""

import argparse
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch

SETTINGS = ["data=sprites", "network=conv-daunhawer", "batch=64", "precision=bf16"]
CACHES = {
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "MPLCONFIGDIR": "matplotlib",
    "UNBRAID_DATA": "data",
}
IMPORTED = "unbraid.api, unbraid.cli, unbraid.metrics, torch._dynamo, sklearn.linear_model, scipy.stats"
Job = tuple[str, list[str], str]
"""What is timed, the arguments of Python, and the folder of its caches."""


def train_pythae(device: str, steps: int) -> None:
    """Train pythae's model in this process."""
    from measure import Setting, StepLimit
    from train import Enough, make_pythae

    trainer, clock = make_pythae(Setting(device), workers=4)
    clock.watch = StepLimit(steps)
    while clock.watch.left > 0:
        try:
            trainer.train()
        except Enough:
            return


def time_command(arguments: list[str], environment: dict[str, str]) -> dict[str, object]:
    """Run `python …` and return its seconds; a failure ends the benchmark with what the command printed."""
    start = time.perf_counter()
    done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True)
    seconds = time.perf_counter() - start
    if done.returncode:
        sys.exit(f"python {' '.join(arguments)} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    shown = [Path(part).name if part == __file__ else part for part in arguments]
    return {"command": "python " + " ".join(shown), "seconds": round(seconds, 2)}


def list_jobs(device: str, lengths: list[int], seeds: int, repeats: int) -> Iterator[Job]:
    """Yield the commands in their order; those of one length take turns with pythae's."""
    peer = importlib.util.find_spec("pythae") is not None
    for steps in lengths:
        train = ["-m", "unbraid", "train", "beta-tcvae", *SETTINGS, f"steps={steps}", "--device", device]
        if peer:
            yield f"pythae, {steps} steps", [__file__, "--device", device, "--pythae", str(steps)], ""
        yield f"one run, {steps} steps, cold", train, str(steps)
        for _ in range(repeats):
            yield f"one run, {steps} steps, warm", train, str(steps)
    if seeds:
        sweep = ["-m", "unbraid", "sweep", "beta-tcvae", *SETTINGS, f"steps={lengths[-1]}", f"seed=0:{seeds}"]
        for state in ("cold", "warm"):
            yield f"{seeds} seeds, scored, {state}", [*sweep, "--device", device], "sweep"


def main() -> None:
    """Time the commands, print a table and write it after each row, so that an interruption keeps what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, nargs="+", default=[500, 5000])
    parser.add_argument("--seeds", type=int, default=64, help="of the sweep; 0: no sweep")
    parser.add_argument("--repeats", type=int, default=2, help="warm repetitions of a single run")
    parser.add_argument("--pythae", type=int, metavar="STEPS", help="only train pythae's model, in this process")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.pythae:
        return train_pythae(given.device, given.pythae)
    rows: list[dict[str, object]] = []
    facts = {"device": given.device, "torch": torch.__version__, "python": platform.python_version()}
    if given.device == "cuda":
        facts["card"] = torch.cuda.get_device_name()
    with tempfile.TemporaryDirectory() as folder:
        common = {**os.environ, "PYTHONPYCACHEPREFIX": f"{folder}/bytecode"}
        common.pop("PYTHONDONTWRITEBYTECODE", None)
        subprocess.run([sys.executable, "-c", f"import {IMPORTED}"], env=common, check=True)
        jobs = list_jobs(given.device, given.steps, given.seeds, given.repeats)
        for number, (what, arguments, place) in enumerate(jobs):
            caches = {name: f"{folder}/{place}/{cache}" for name, cache in CACHES.items()} if place else {}
            root = ["--root", f"{folder}/runs{number}"] if place else []
            row = time_command([*arguments, *root], {**common, **caches})
            rows.append({"what": what, **row, "command": str(row["command"]).partition(" --root")[0]})
            print(f"{what:<30} {row['seconds']:>8} s", flush=True)
            if given.out:
                given.out.write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")
    return None


if __name__ == "__main__":
    main()
