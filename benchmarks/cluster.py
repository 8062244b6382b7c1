"""A simulated Ray cluster: several nodes on this machine, some of which die, stall or fill their disk during a sweep.

    python benchmarks/cluster.py --groups 500 --nodes 3 --out results/scale/cluster.json

Three parts, each with its own sweep of tiny runs, one run per group:

- `steady`: nothing happens to the nodes. Its seconds per group beyond the work are what a sweep on Ray costs.
- `faults`: every few seconds a node is killed and another one added, and one worker is stopped for a while, as on a
  machine that swaps.
- `disk`: the sweep's folder is on a file system that fills up; space is freed, and the same command continues. It
  needs the right to mount a tmpfs, and says so where that is missing.

After each part: every run is finished, no finished group was trained a second time, and the weights of a sample of runs
are those of the same runs trained in this process, bit for bit.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import measure
import ray
from ray.cluster_utils import Cluster

import unbraid as ub
from unbraid.errors import RunError
from unbraid.sweeps import run as sweep_module
from unbraid.sweeps.worker import run_group
from unbraid.training import Cadence

SETTINGS: dict[str, Any] = {
    "data": "sprites-small", "z": 4, "batch": 16, "encoder": "mlp", "decoder": "mlp", "encoder_hidden": (16,),
    "decoder_hidden": (16,), "metrics": [], "report": False,
}  # fmt: skip
STEPS = 200
CHECKPOINT_STEPS = 50
SAMPLE = 10
"""Runs whose weights are compared with those of runs in this process."""

SECONDS_BETWEEN_FAULTS = 12.0
SECONDS_OF_A_STALL = 10.0


def make_recorder(journal: Path) -> Callable[..., list[str]]:
    """Return `run_group` with a line in a journal when a group starts and when it ends."""

    def recorded(folder: str, group: str, *arguments: Any, **settings: Any) -> list[str]:
        def note(event: str) -> None:
            line = {"event": event, "group": group, "node": os.environ.get("RAY_NODE_ID", ""), "time": time.time()}
            with journal.open("a") as handle:
                handle.write(json.dumps(line) + "\n")

        note("start")
        notes = run_group(folder, group, *arguments, **settings)
        note("end")
        return notes

    return recorded


@contextmanager
def simulated_cluster(nodes: int) -> Iterator[Cluster]:
    """Start a head without workers and some nodes of one processor each, and connect to them."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        for _ in range(nodes):
            cluster.add_node(num_cpus=1)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


class Faults(threading.Thread):
    """Kills nodes, adds others, and stops one worker for a while, until `ended` is set."""

    def __init__(self, cluster: Cluster, seed: int = 0) -> None:
        super().__init__(daemon=True)
        self.cluster = cluster
        self.random = random.Random(seed)
        self.ended = threading.Event()
        self.counts: Counter[str] = Counter()

    def run(self) -> None:
        ray._private.utils.set_sigterm_handler = lambda handler: None  # a new node wants one, outside the main thread
        while not self.ended.wait(SECONDS_BETWEEN_FAULTS):
            victim = self.random.choice(sorted(self.cluster.worker_nodes, key=lambda node: node.node_id))
            self.cluster.remove_node(victim, allow_graceful=False)
            self.cluster.add_node(num_cpus=1)
            self.counts["nodes killed"] += 1
            self.counts["nodes added"] += 1
            workers = find_workers()
            if workers:
                stalled = self.random.choice(workers)
                os.kill(stalled, signal.SIGSTOP)
                self.ended.wait(SECONDS_OF_A_STALL)
                try:
                    os.kill(stalled, signal.SIGCONT)
                except ProcessLookupError:
                    continue
                self.counts["workers stopped for a while"] += 1


def find_workers() -> list[int]:
    """Return the processes that run a group at this moment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if b"ray::unbraid-" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def run_sweep(root: Path, name: str, groups: int, on: str = "ray") -> Any:
    """Train the runs of a part, one run per group."""
    cadence = Cadence(checkpoint_steps=CHECKPOINT_STEPS)
    return ub.sweep(
        "vae", root=root, name=name, on=on, members=1, device="cpu", many=True, cadence=cadence, steps=STEPS,
        seed=range(groups), **SETTINGS,
    )  # fmt: skip


def read_weights(run: Any) -> bytes:
    return run.folder.model_path.read_bytes()


def check(sweep: Any, journal: Path, groups: int, workers: int, seconds: float, root: Path) -> dict[str, Any]:
    """Return what a part lost, repeated and cost."""
    events = [json.loads(line) for line in journal.read_text().splitlines()]
    starts = Counter(event["group"] for event in events if event["event"] == "start")
    ends = Counter(event["group"] for event in events if event["event"] == "end")
    states = Counter(member.state for member in sweep.members)
    began = {}
    busy = 0.0
    for event in events:
        if event["event"] == "start":
            began[event["group"]] = event["time"]
        else:
            busy += event["time"] - began[event["group"]]
    chosen = sorted(sweep.runs, key=lambda run: run.config.training.seed)[:: max(1, groups // SAMPLE)][:SAMPLE]
    alone = {
        run.path.name: run
        for run in ub.sweep(
            "vae", root=root, name="alone", members=1, device="cpu", steps=STEPS,
            seed=[run.config.training.seed for run in chosen], **SETTINGS,
        ).runs
    }  # fmt: skip
    same = sum(read_weights(run) == read_weights(alone[run.path.name]) for run in chosen)
    return {
        "groups": groups,
        "workers": workers,
        "seconds": round(seconds, 1),
        "runs finished": states["finished"],
        "runs lost": groups - states["finished"],
        "groups that ended twice": sum(count > 1 for count in ends.values()),
        "groups begun again after a fault": sum(count - 1 for count in starts.values()),
        "weights compared": len(chosen),
        "weights equal bit for bit": same,
        "seconds of work per group": round(busy / max(1, sum(ends.values())), 3),
        "seconds per group beyond the work": round((seconds * workers - busy) / groups, 3),
    }


def part(name: str, root: Path, groups: int, nodes: int, faults: bool) -> dict[str, Any]:
    """Run one sweep on a new cluster, with or without faults."""
    journal = root / f"{name}.journal"
    journal.touch()
    sweep_module.run_group = make_recorder(journal)
    with simulated_cluster(nodes) as cluster:
        happening = Faults(cluster)
        if faults:
            happening.start()
        began = time.perf_counter()
        try:
            sweep = run_sweep(root, name, groups)
        finally:
            happening.ended.set()
        seconds = time.perf_counter() - began
        if faults:
            happening.join()
    sweep_module.run_group = run_group
    return {**check(sweep, journal, groups, nodes, seconds, root), **happening.counts}


def fill_disk(root: Path, groups: int, nodes: int, megabytes: int = 64) -> dict[str, Any]:
    """Run a sweep on a file system that others fill while it runs, then make room and run it again."""
    folder = root / "small-disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", folder], capture_output=True, text=True
    )
    if mounted.returncode:
        return {"skipped": f"a tmpfs cannot be mounted: {mounted.stderr.strip()}"}
    try:
        journal = root / "disk.journal"
        journal.touch()
        ballast = folder / "ballast"
        sweep_module.run_group = make_recorder(journal)
        with simulated_cluster(nodes):
            began = time.perf_counter()
            threading.Thread(target=fill_after, args=(journal, groups // 4, ballast), daemon=True).start()
            try:
                run_sweep(folder, "disk", groups)
                message = "the disk did not fill"
            except RunError as error:
                message = str(error).replace(str(root), "…")
            finished = sum(member.state == "finished" for member in ub.Sweep(folder / "disk").members)
            ballast.unlink()
            sweep = run_sweep(folder, "disk", groups)
            seconds = time.perf_counter() - began
        facts = check(sweep, journal, groups, nodes, seconds, root)
        return {"message": message, "finished before it was full": finished, **facts}
    finally:
        sweep_module.run_group = run_group
        subprocess.run(["umount", folder], check=False)


def fill_after(journal: Path, groups: int, ballast: Path) -> None:
    """Wait until some groups have ended, then fill the file system of `ballast`, and keep it full."""
    while journal.read_text().count('"end"') < groups:
        time.sleep(0.2)
    with ballast.open("wb", buffering=0) as handle:
        while ballast.exists():
            try:
                handle.write(bytes(4096))
            except OSError:
                time.sleep(0.02)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--groups", type=int, default=500)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--parts", nargs="+", default=["steady", "faults", "disk"])
    parser.add_argument("--out", type=Path, help="JSON file, to which the parts are added")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    parts = json.loads(options.out.read_text())["parts"] if options.out and options.out.exists() else {}
    with tempfile.TemporaryDirectory() as scratch:
        for name in options.parts:
            root = Path(scratch) / name
            root.mkdir()
            if name == "disk":
                parts[name] = fill_disk(root, min(options.groups, 60), options.nodes)
            else:
                parts[name] = part(name, root, options.groups, options.nodes, faults=name == "faults")
            print(name, json.dumps(parts[name], indent=2), flush=True)
            if options.out is not None:
                measure.write(options.out, {**measure.facts("cluster.py", "cpu", ["ray"]), "parts": parts})


if __name__ == "__main__":
    main()
