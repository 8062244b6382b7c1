"""Forward and backward of the conv-daunhawer autoencoder for stacked members, by three ways to convolve.

    python benchmarks/convolutions.py --out results/convolutions.json
    python benchmarks/convolutions.py --only triton matmul 64 bf16 --profile

`grouped` is `nn.Conv2d` as it stands (vmap makes grouped convolutions of it), `matmul` and `triton` are those of
`unbraid.networks.conv_as_matmul`. Each program is vmapped, compiled and captured as one CUDA graph, as in training; its
gradients are compared with strict float32 ones of `grouped` first. Images per second are over all members.
"""

import argparse
import json
import statistics
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.nn.functional as F
from measure import gpu_milliseconds
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from unbraid.networks import decoder, encoder
from unbraid.networks.conv_as_matmul import use_matrix_products

VARIANTS = ("triton", "matmul", "grouped")
MEMBERS = (64, 1, 16)
PRECISIONS = ("bf16", "tf32")
TOLERANCE = {"bf16": 0.1, "tf32": 2e-2}
"""Largest |gradient - reference| / |reference| over the parameters, in Euclidean norm. At a batch of 64, plain
convolutions in bfloat16 are themselves 0.05 away; TF32 has three bits more."""


def network() -> nn.Module:
    """Build encoder and decoder, with the mean as the code."""
    ends = encoder["conv-daunhawer"].make((1, 64, 64), {"z": 10}), decoder["conv-daunhawer"].make(10, (1, 64, 64))
    return nn.Sequential(*ends)


def squares(members: int, batch: int, device: str, side: int = 64) -> Tensor:
    """Draw white squares at random places; the gradients of pure noise cancel and leave mostly rounding errors."""
    corners = torch.rand(2, members, batch, 1, 1, 1) * side / 2
    y, x = torch.arange(side).view(side, 1), torch.arange(side)
    inside = (y - corners[0] - side / 4).abs().maximum((x - corners[1] - side / 4).abs()) < side / 5
    return inside.float().to(device)


class Program:
    """The loss of all members and its gradients, with inputs and outputs at fixed addresses."""

    def __init__(self, variant: str, members: int, precision: str, batch: int, device: str) -> None:
        torch.manual_seed(0)
        networks = [network().to(device) for _ in range(members)]
        self.parameters = {n: p.detach().requires_grad_() for n, p in stack_module_state(networks)[0].items()}
        self.images = squares(members, batch, device)
        self.module = networks[0]
        if variant != "grouped":
            use_matrix_products(self.module, "triton" if variant == "triton" else "matmul")
        self.members, self.precision, self.device = members, precision, device

    def loss(self, parameters: dict[str, Tensor], images: Tensor) -> Tensor:
        with torch.autocast(self.device, torch.bfloat16, enabled=self.precision == "bf16"):
            logits = self._logits(parameters, images)
        return F.binary_cross_entropy_with_logits(logits.float(), images, reduction="sum")

    def _logits(self, parameters: dict[str, Tensor], images: Tensor) -> Tensor:
        if self.members > 1:
            return vmap(lambda p, x: functional_call(self.module, p, (x,)))(parameters, images)
        return functional_call(self.module, {n: p.squeeze(0) for n, p in parameters.items()}, (images.squeeze(0),))[
            None
        ]

    def gradients(self, loss: Callable[..., Tensor] | None = None) -> list[Tensor]:
        value = (loss or self.loss)(self.parameters, self.images)
        return list(torch.autograd.grad(value, list(self.parameters.values())))


@contextmanager
def tf32(allowed: bool) -> Iterator[None]:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False


def capture(program: Program) -> tuple[Callable[[], None], list[Tensor]]:
    """Return a function that replays the program, and the tensors that receive its gradients."""
    if program.device == "cpu":
        return lambda: None, program.gradients()
    compiled = torch.compile(program.loss, dynamic=False, fullgraph=True)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            program.gradients(compiled)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gradients = program.gradients(compiled)
    graph.replay()
    torch.cuda.synchronize()
    return graph.replay, gradients


def milliseconds(repeat: Callable[[], None], seconds: float = 0.4, rounds: int = 5) -> float:
    """Return the median time of a replay over some rounds, by CUDA events."""

    gpu_milliseconds(repeat, 3)
    count = max(3, int(1e3 * seconds / rounds / gpu_milliseconds(repeat, 5)))
    return statistics.median(gpu_milliseconds(repeat, count) for _ in range(rounds))


def disagreement(gradients: list[Tensor], reference: list[Tensor]) -> float:
    """Return the largest relative distance over the parameters."""
    pairs = zip(gradients, reference, strict=True)
    return max(float((g.float() - r).norm() / r.norm().clamp(min=1e-12)) for g, r in pairs)


def reference(members: int, batch: int, device: str, known: dict[int, list[Tensor]]) -> list[Tensor]:
    """Return the strict float32 gradients of plain convolutions."""
    if members not in known:
        with tf32(False):
            known[members] = [g.cpu() for g in Program("grouped", members, "f32", batch, device).gradients()]
    return known[members]


def measure(cell: tuple[str, int, str], arguments: argparse.Namespace, known: dict[int, list[Tensor]]) -> dict:
    """Measure one row of the table."""
    variant, members, precision = cell
    expected = reference(members, arguments.batch, arguments.device, known)
    start = time.perf_counter()
    if arguments.device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    with tf32(precision == "tf32"):
        program = Program(variant, members, precision, arguments.batch, arguments.device)
        repeat, gradients = capture(program)
        prepared = time.perf_counter() - start
        error = disagreement([g.cpu() for g in gradients], expected)
        row = {"variant": variant, "members": members, "precision": precision, "error": error}
        row |= {"agrees": error <= TOLERANCE[precision], "seconds_to_prepare": round(prepared, 1)}
        if arguments.device == "cuda":
            row["ms"] = round(milliseconds(repeat), 4)
            row["images_per_second"] = round(1e3 * members * arguments.batch / row["ms"])
            row["gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
            if arguments.profile:
                profile(repeat)
    return row


def profile(repeat: Callable[[], None], replays: int = 5, lines: int = 15) -> None:
    """Print the kernels that take most of a replay."""
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        for _ in range(replays):
            repeat()
        torch.cuda.synchronize()
    events = sorted(profiler.key_averages(), key=lambda e: e.self_device_time_total, reverse=True)
    total = sum(e.self_device_time_total for e in events)
    for e in events[:lines]:
        share, each = e.self_device_time_total / total, e.self_device_time_total / replays
        print(f"  {100 * share:5.1f}%  {each:9.1f} us  {e.count / replays:5.1f} x  {e.key[:110]}", flush=True)
    print(f"  total  {total / replays:9.1f} us a replay", flush=True)


def describe(row: dict) -> str:
    name = f"{row['variant']:8} {row['members']:3} {row['precision']}"
    if "failed" in row:
        return f"{name}  failed: {row['failed']}"
    verdict = "agrees" if row["agrees"] else "DISAGREES"
    speed = f"{row['images_per_second']:>10,} images/s  {row['ms']:9.3f} ms" if "ms" in row else ""
    return f"{name}  {speed}  error {row['error']:.1e} ({verdict})  prepared in {row['seconds_to_prepare']} s"


def choose_cells(only: list[str]) -> list[tuple[str, int, str]]:
    """Return the cells to measure; the words of `only` restrict the axes that they belong to."""
    unknown = set(only) - {*VARIANTS, *PRECISIONS, *map(str, MEMBERS)}
    if unknown:
        raise SystemExit(f"--only takes {VARIANTS}, {MEMBERS} and {PRECISIONS}, not {sorted(unknown)}.")
    variants = [v for v in VARIANTS if v in only] or VARIANTS
    members = [m for m in MEMBERS if str(m) in only] or MEMBERS
    precisions = [p for p in PRECISIONS if p in only] or PRECISIONS
    return [(v, m, p) for m in members for p in precisions for v in variants]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=[], help="variants, numbers of members, precisions")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: gradients only, no times")
    parser.add_argument("--profile", action="store_true", help="print the 15 longest kernels of each program")
    parser.add_argument("--budget", type=float, default=140, help="seconds after which no further program is begun")
    parser.add_argument("--out", type=Path, help="JSON file for the rows")
    arguments = parser.parse_args()
    start, known, rows = time.perf_counter(), {}, []
    device_name = torch.cuda.get_device_name() if arguments.device == "cuda" else "cpu"
    for cell in choose_cells(arguments.only):
        variant, members, precision = cell
        if time.perf_counter() - start > arguments.budget:
            rows.append({"variant": variant, "members": members, "precision": precision, "failed": "no time left"})
        else:
            try:
                rows.append(measure(cell, arguments, known))
            except Exception as error:
                traceback.print_exc()
                reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
                rows.append({"variant": variant, "members": members, "precision": precision, "failed": reason})
            torch._dynamo.reset()
        print(describe(rows[-1]), flush=True)
        if arguments.out:
            arguments.out.parent.mkdir(parents=True, exist_ok=True)
            record = {"device": device_name, "torch": torch.__version__, "batch": arguments.batch, "rows": rows}
            arguments.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
