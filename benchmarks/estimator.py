"""Time the fused estimator of log q(z) against the chunked one, forward and backward, and write one table.

    python benchmarks/estimator.py --out results/estimator.json

Every row is the median over interleaved repeats, in milliseconds of GPU time (CUDA events around the call): `eager` as
called from Python, `graph` as replayed from a CUDA graph, which is how training runs it. Needs a CUDA device.
"""

import argparse
import json
import statistics
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from unbraid.density import Aggregate, batch_aggregate, estimators, exact_aggregate
from unbraid.latents import Normal, Space

LEAVES = 10
SIZE = 737_280
BOTH = [(1, 64), (64, 64), (1, 256), (1, 2048), (1, 8192)]
FUSED_ALONE = [(1, 32_768), (1, 65_536)]
SPACE = Space({"z": Normal(size=LEAVES)})


@contextmanager
def form(fused: bool):
    """Take the fused or the chunked form, whatever would be chosen."""
    before = estimators.TRITON
    estimators.TRITON = fused
    try:
        yield
    finally:
        estimators.TRITON = before


def inputs(members: int, count: int) -> tuple[Tensor, Tensor]:
    """Posteriors and a sample of each."""
    generator = torch.Generator("cuda").manual_seed(0)
    mean = torch.randn(members, count, LEAVES, device="cuda", generator=generator)
    log_variance = torch.randn(mean.shape, device="cuda", generator=generator) - 3
    z = mean + (log_variance / 2).exp() * torch.randn(mean.shape, device="cuda", generator=generator)
    return torch.cat([mean, log_variance], dim=-1).requires_grad_(), z.requires_grad_()


def loss(made: Aggregate) -> Tensor:
    """A total correlation, so that every output has a gradient."""
    return (made.joint - made.leaves.sum(-1)).mean()


def step(members: int, count: int, fused: bool) -> Callable[[], tuple[Tensor, ...]]:
    """Forward and backward of one batch."""
    parameters, z = inputs(members, count)

    def call() -> tuple[Tensor, ...]:
        with form(fused):
            made = batch_aggregate(SPACE, {"z": parameters}, {"z": z}, "mss", SIZE)
            return torch.autograd.grad(loss(made), (parameters, z))

    return call


def exact(fused: bool, rows: int = 1024) -> Callable[[], Tensor]:
    """Densities of some samples under the posteriors of a whole data set, without gradients."""
    parameters, z = (tensor[0].detach() for tensor in inputs(1, SIZE))

    def call() -> Tensor:
        with form(fused), torch.no_grad():
            return exact_aggregate(SPACE, {"z": parameters}, {"z": z[:rows]}).joint

    return call


def captured(call: Callable[[], object]) -> Callable[[], None]:
    """The same as one CUDA graph."""
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


def milliseconds(call: Callable[[], object], repeats: int) -> float:
    """Mean GPU time of so many calls in a row."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(repeats):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / repeats


def medians(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median time of each call, the calls taking turns; a round lasts about 20 ms."""
    for call in calls.values():
        call()
    repeats = {name: max(1, min(50, round(20 / max(milliseconds(call, 1), 1e-3)))) for name, call in calls.items()}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            times[name].append(milliseconds(call, repeats[name]))
    return {name: statistics.median(values) for name, values in times.items()}


def assert_agreement(members: int = 2, count: int = 500) -> dict[str, float]:
    """Largest difference of densities and gradients between fused float32 and chunked float64, relative."""
    parameters, z = inputs(members, count)
    found = []
    for tensors in ((parameters, z), tuple(t.detach().double().requires_grad_() for t in (parameters, z))):
        made = batch_aggregate(SPACE, {"z": tensors[0]}, {"z": tensors[1]}, "mss", SIZE)
        found.append([torch.cat(made.levels, -1), *torch.autograd.grad(loss(made), tensors)])
    names = ("density", "gradient of the posterior", "gradient of the sample")
    off = {n: float((a - b).abs().max() / b.abs().max()) for n, a, b in zip(names, *found, strict=True)}
    assert off["density"] < 1e-5, off
    assert max(off.values()) < 1e-4, off
    return off


def compared(name: str, make: Callable[[bool], Callable[[], object]], forms: list[str], rounds: int) -> dict:
    """One row of the table."""
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


def table(rows: list[dict]) -> str:
    """The rows as Markdown."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = ["| " + " | ".join(names) + " |", "|---" * len(names) + "|"]
    lines += ["| " + " | ".join(str(row.get(name, "")) for name in names) + " |" for row in rows]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results/estimator.json"))
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    agreement = assert_agreement()
    print("agreement:", agreement, flush=True)
    rows = []
    jobs = [(f"M = {m}, B = {b}", lambda fused, m=m, b=b: step(m, b, fused), ["fused", "chunked"]) for m, b in BOTH]
    jobs += [(f"M = {m}, B = {b}", lambda fused, m=m, b=b: step(m, b, fused), ["fused"]) for m, b in FUSED_ALONE]
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
