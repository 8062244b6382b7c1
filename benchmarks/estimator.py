"""Time the fused estimator of log q(z) against the chunked one, forward and backward, and write one table.

    python benchmarks/estimator.py --out results/estimator.json
    python benchmarks/estimator.py --tune

Every row is the median over interleaved repeats, in milliseconds of GPU time (CUDA events around the call): `eager` as
called from Python, `graph` as replayed from a CUDA graph, which is how training runs it. Needs a CUDA device.

`--tune` times candidates for the constants of `unbraid.density.fused_estimator` instead, in microseconds per kernel.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import torch
from measure import gpu_milliseconds
from torch import Tensor

from unbraid.density import Aggregate, batch_aggregate, estimators, exact_aggregate
from unbraid.latents import Concrete, Normal, Space

LEAVES = 10
SIZE = 737_280
BOTH = [(1, 64), (64, 64), (1, 256), (1, 2048), (1, 8192)]
FUSED_ONLY = [(1, 32_768), (1, 65_536)]
SPACE = Space({"z": Normal(size=LEAVES)})
MIXED = [(1, 512), (10, 512), (1, 2048)]
MIXED_SPACE = Space({"z": Normal(size=LEAVES), "c": Concrete(classes=10)}, (tuple(range(LEAVES)), (LEAVES,)))
"""The latents of HFVAE on MNIST."""

TUNED_JOBS = [
    ("stratified", 1, 2048), ("mws", 1, 2048), ("stratified", 20, 2048), ("mws", 1, 64), ("mws", 64, 64),
    ("stratified", 1, 8192),
]  # fmt: skip
TUNED_TILES = [
    ((2, 64), (8, 64), 128), ((2, 64), (8, 64), 168), ((4, 32), (8, 64), 128), ((2, 64), (8, 128), 168),
    ((4, 32), (8, 128), 168), ((4, 64), (8, 64), 255), ((4, 64), (8, 128), 255), ((4, 64), (4, 128), 255),
]  # fmt: skip
"""Stream and block of groups, the same for single leaves, and registers; for the forward and the backward kernel."""

SHARED_TILES = [(2, 64, 1056, 255), (2, 64, 1584, 168), (4, 64, 1056, 255), (4, 32, 1584, 168), (1, 64, 1584, 168)]
"""Stream, block, programs and registers of the shared form; for both kernels, too."""

TUNED_PROGRAMS = [512, 768, 1536, 2112, 4224]
SMALL = ("pack", "combine", "backward_rows", "collect")


@contextmanager
def form(fused: bool):
    """Force the fused or the chunked form."""
    before = estimators.TRITON
    estimators.TRITON = fused
    try:
        yield
    finally:
        estimators.TRITON = before


def inputs(members: int, count: int) -> tuple[Tensor, Tensor]:
    """Return posteriors and a sample of each."""
    generator = torch.Generator("cuda").manual_seed(0)
    mean = torch.randn(members, count, LEAVES, device="cuda", generator=generator)
    log_variance = torch.randn(mean.shape, device="cuda", generator=generator) - 3
    z = mean + (log_variance / 2).exp() * torch.randn(mean.shape, device="cuda", generator=generator)
    return torch.cat([mean, log_variance], dim=-1).requires_grad_(), z.requires_grad_()


def loss(made: Aggregate) -> Tensor:
    """Return a total correlation, so that every output has a gradient."""
    return (made.joint - made.leaves.sum(-1)).mean()


def step(members: int, count: int, fused: bool, estimator: str = "mss") -> Callable[[], tuple[Tensor, ...]]:
    """Run forward and backward of one batch."""
    parameters, z = inputs(members, count)

    def call() -> tuple[Tensor, ...]:
        with form(fused):
            made = batch_aggregate(SPACE, {"z": parameters}, {"z": z}, estimator, SIZE)
            return torch.autograd.grad(loss(made), (parameters, z))

    return call


def mixed_step(members: int, count: int, fused: bool) -> Callable[[], tuple[Tensor, ...]]:
    """Run forward and backward of one batch with Normal and Concrete latents; `fused` means the mixed form."""
    parameters, z = inputs(members, count)
    logits = (3 * torch.randn(members, count, 10, device=z.device)).requires_grad_()
    uniform = torch.rand(members, count, 10, device=z.device).clamp(1e-6, 1 - 1e-6)

    def call() -> tuple[Tensor, ...]:
        with form(fused):
            posterior = {"z": parameters, "c": MIXED_SPACE.blocks["c"].complete(logits, None)}
            sample = {"z": z, "c": MIXED_SPACE.blocks["c"].sample(posterior["c"], uniform)}
            made = batch_aggregate(MIXED_SPACE, posterior, sample, "stratified", SIZE)
            return torch.autograd.grad(loss(made), (parameters, z, logits))

    return call


def exact(fused: bool, rows: int = 1024) -> Callable[[], Tensor]:
    """Compute the densities of some samples under the posteriors of a whole data set, without gradients."""
    parameters, z = (tensor[0].detach() for tensor in inputs(1, SIZE))

    def call() -> Tensor:
        with form(fused), torch.no_grad():
            return exact_aggregate(SPACE, {"z": parameters}, {"z": z[:rows]}).joint

    return call


def captured(call: Callable[[], object]) -> Callable[[], None]:
    """Return the function as one CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def medians(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the median time of each call over interleaved rounds of about 20 ms."""
    for call in calls.values():
        call()
    repeats = {name: max(1, min(50, round(20 / max(gpu_milliseconds(call, 1), 1e-3)))) for name, call in calls.items()}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            times[name].append(gpu_milliseconds(call, repeats[name]))
    return {name: statistics.median(values) for name, values in times.items()}


def evaluated(members: int, count: int, estimator: str, dtype: torch.dtype) -> list[Tensor]:
    """Return densities and gradients; float64 uses the chunked form."""
    tensors = tuple(tensor.detach().to(dtype).requires_grad_() for tensor in inputs(members, count))
    made = batch_aggregate(SPACE, {"z": tensors[0]}, {"z": tensors[1]}, estimator, SIZE)
    return [torch.cat(made.levels, -1).detach(), *torch.autograd.grad(loss(made), tensors)]


def differences(found: list[Tensor], reference: list[Tensor]) -> dict[str, float]:
    """Return the largest relative difference of densities and gradients, or raise if it is too large."""
    names = ("density", "gradient of the posterior", "gradient of the sample")
    off = {n: float((a - b).abs().max() / b.abs().max()) for n, a, b in zip(names, found, reference, strict=True)}
    assert off["density"] < 1e-5, off
    assert max(off.values()) < 1e-4, off
    return off


def assert_agreement(members: int = 2, count: int = 500) -> dict[str, float]:
    """Compare fused float32 with chunked float64."""
    return differences(*(evaluated(members, count, "mss", dtype) for dtype in (torch.float32, torch.float64)))


def compared(name: str, make: Callable[[bool], Callable[[], object]], forms: list[str], rounds: int) -> dict:
    """Measure one row of the table."""
    eager = {kind: make(kind == "fused") for kind in forms}
    calls = {f"{kind} eager": call for kind, call in eager.items()}
    for kind, call in eager.items():
        try:
            calls[f"{kind} graph"] = captured(call)
        except RuntimeError as error:  # the other columns are worth having
            print(f"{name}: the {kind} form cannot be captured: {error}", flush=True)
            torch.cuda.synchronize()
    row = {"what": name} | {key: round(value, 4) for key, value in medians(calls, rounds).items()}
    for how in ("eager", "graph"):
        if f"fused {how}" in row and f"chunked {how}" in row:
            row[f"ratio {how}"] = round(row[f"chunked {how}"] / row[f"fused {how}"], 2)
    torch.cuda.empty_cache()
    return row


def candidates() -> dict[str, dict[str, object]]:
    """Return named settings of `unbraid.density.fused_estimator`, the current ones first."""
    from unbraid.density.fused_estimator import KernelTiles, SharedTiles, WarpTile

    named: dict[str, dict[str, object]] = {"as is": {}, "shared": {"prefers_shared": lambda: True}}
    for stream, block, programs, registers in SHARED_TILES:
        tiles = SharedTiles(WarpTile(stream, block), programs, registers)
        name = f"shared {stream}x{block} p{programs} r{registers}"
        named[name] = named["shared"] | {"SHARED_FORWARD": tiles, "SHARED_BACKWARD": tiles}
    for group, leaf, registers in TUNED_TILES:
        tiles = KernelTiles(WarpTile(*group), WarpTile(*leaf), registers)
        name = f"{group[0]}x{group[1]} {leaf[0]}x{leaf[1]} r{registers}"
        named[name] = {"FORWARD": tiles, "BACKWARD": tiles}
    return named | {f"PROGRAMS_TO_FILL_GPU {count}": {"PROGRAMS_TO_FILL_GPU": count} for count in TUNED_PROGRAMS}


@contextmanager
def settings(values: dict[str, object]):
    """Set constants of the fused form inside the block."""
    from unbraid.density import fused_estimator as fused

    before = {name: getattr(fused, name) for name in values}
    try:
        for name, value in values.items():
            setattr(fused, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(fused, name, value)


def kernel_times(replay: Callable[[], None], repeats: int) -> dict[str, float]:
    """Return the microseconds of each family of kernels in one replay of a graph."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(repeats):
            replay()
        torch.cuda.synchronize()
    families = dict.fromkeys(("forward", "backward", *SMALL, "others"), 0.0)
    for event in profile.key_averages():
        name = event.key.removesuffix("_shared")
        family = name if name in families else "others"
        families[family] += event.self_device_time_total / repeats
    return families


def timed(members: int, count: int, estimator: str) -> dict[str, object]:
    """Measure one row of the table of `tune`."""
    replay = captured(step(members, count, True, estimator))
    replay()
    once = max(gpu_milliseconds(replay, 3), 1e-3)
    row: dict[str, object] = {"graph": 1e3 * min(gpu_milliseconds(replay, max(1, round(8 / once))) for _ in range(5))}
    try:
        row |= kernel_times(replay, max(1, min(20, round(8 / once))))
    except Exception as error:  # the time of the whole is worth having
        row["error"] = f"no profile: {error!r}"[:90]
    return {key: round(value, 1) if isinstance(value, float) else value for key, value in row.items()}


def warm(name: str) -> None:
    """Compile a candidate's kernels into the cache on disk."""
    with settings(candidates()[name]):
        for estimator in ("stratified", "mws"):
            step(1, 64, True, estimator)()
    torch.cuda.synchronize()


def tune(seconds: float) -> None:
    """Time all candidates at all sizes until the time is up, and print one table."""
    start = time.monotonic()
    named = candidates()
    compiled_apart = [name for name, values in named.items() if values and "PROGRAMS_TO_FILL_GPU" not in values]
    workers = [subprocess.Popen([sys.executable, __file__, "--warm", name]) for name in compiled_apart]
    references = {estimator: evaluated(1, 2048, estimator, torch.float64) for estimator in ("stratified", "mws")}
    failed = []
    for name, worker in zip(compiled_apart, workers, strict=True):
        try:
            if worker.wait(max(0.1, seconds / 2 - (time.monotonic() - start))):
                failed.append(name)
        except subprocess.TimeoutExpired:
            worker.kill()
            failed.append(name)
    print(f"compiled after {time.monotonic() - start:.0f} s; failed: {failed or 'none'}", flush=True)
    rows: list[dict] = []
    for estimator, members, count in TUNED_JOBS:
        for name in (name for name in named if name not in failed):
            if time.monotonic() - start > seconds:
                break
            row: dict[str, object] = {"job": f"{estimator} M={members} B={count}", "candidate": name}
            try:
                with settings(named[name]):
                    row |= timed(members, count, estimator)
                    if (members, count) == (1, 2048):
                        off = differences(evaluated(1, 2048, estimator, torch.float32), references[estimator])
                        row["off"] = f"{max(off.values()):.0e}"
            except Exception as error:  # one candidate that does not run must not cost the others
                row["error"] = repr(error)[:90]
            rows.append(row)
            print(row, flush=True)
    print(table(rows))


def table(rows: list[dict]) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = ["| " + " | ".join(names) + " |", "|---" * len(names) + "|"]
    lines += ["| " + " | ".join(str(row.get(name, "")) for name in names) + " |" for row in rows]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results/estimator.json"))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tune", action="store_true", help="time candidates for the kernels' constants instead")
    parser.add_argument("--seconds", type=float, default=42.0, help="how long to tune")
    parser.add_argument("--warm", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.warm:
        warm(arguments.warm)
    if arguments.tune:
        tune(arguments.seconds)
    agreement = assert_agreement()
    print("agreement:", agreement, flush=True)
    rows = []
    jobs = [(f"M = {m}, B = {b}", lambda fused, m=m, b=b: step(m, b, fused), ["fused", "chunked"]) for m, b in BOTH]
    jobs += [(f"M = {m}, B = {b}", lambda fused, m=m, b=b: step(m, b, fused), ["fused"]) for m, b in FUSED_ONLY]
    both = ["fused", "chunked"]
    jobs += [(f"mixed, M = {m}, B = {b}", lambda fused, m=m, b=b: mixed_step(m, b, fused), both) for m, b in MIXED]
    jobs += [(f"exact, 1024 of {SIZE}", exact, ["fused", "chunked"])]
    for name, make, forms in jobs:
        rows.append(compared(name, make, forms, arguments.rounds))
        print(rows[-1], flush=True)
        facts = {
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "leaves": LEAVES,
            "rounds": arguments.rounds,
            "agreement": agreement,
            "rows": rows,
        }
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(facts, indent=2) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
