"""Forward and backward of normalisation layers for stacked members: fused kernels beside torch's operations.

    python benchmarks/normalisation.py --device cuda --out results/benchmarks/normalisation-cuda.json
    python benchmarks/normalisation.py --device cuda --steps
    TRITON_INTERPRET=1 python benchmarks/normalisation.py --device cpu --members 1 --batch 2 --only batchnorm

The maps are those of `ms-vae` (AdaIN and ReLU) and of `conv-chen` (BatchNorm and ReLU) on 64x64 images, in bfloat16.
The largest relative distance of outputs, gradients and statistics is checked first. Then both sides, each recorded as a
CUDA graph, are replayed in turns, and the median of the rounds counts. TB/s are those of the fused side by the numbers
that it has to read and write. `--steps` measures whole training steps of both recipes instead, as
`benchmarks/recipes.py` makes them. On a CPU only the check runs.
"""

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import measure
import torch
from recipes import SPRITES, make_configs
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from unbraid.networks.fused_norm import fuse_normalisations
from unbraid.networks.norm_blocks import Groups
from unbraid.networks.refiners import AdaIN, Modulated
from unbraid.networks.stackable_batchnorm import make_stackable
from unbraid.training.prepare import prepare

CODE = 5
"""Width of the code z that modulates."""

TOLERANCE = 2e-2
"""Largest |fused - plain| / |plain| of a result, in Euclidean norm; rounding to bfloat16 is 4e-3 of it."""


class Case(NamedTuple):
    """A layer on square maps, and how many of them a step has."""

    kind: str
    channels: int
    side: int
    count: int


CASES = (
    Case("adain", 64, 64, 1),
    Case("adain", 64, 32, 2),
    Case("adain", 128, 16, 2),
    Case("adain", 256, 8, 2),
    Case("adain", 512, 4, 0),
    Case("batchnorm", 32, 32, 2),
    Case("batchnorm", 32, 16, 2),
    Case("batchnorm", 64, 8, 2),
    Case("batchnorm", 64, 4, 2),
    Case("batchnorm", 512, 1, 2),
)


class Program:
    """A layer of all members, forward and backward, with inputs and results at fixed addresses."""

    def __init__(self, case: Case, fused: bool, given: argparse.Namespace) -> None:
        torch.manual_seed(0)
        members = [make_layer(case).to(given.device) for _ in range(given.members)]
        self.layer, self.state = fuse_normalisations(members[0], fused), stack_module_state(members)
        maps = (given.members, given.batch, case.side, case.side, case.channels)
        self.x, slopes = (torch.randn(maps, device=given.device).bfloat16().movedim(-1, -3) for _ in range(2))
        self.inputs = [self.x.requires_grad_()]
        if case.kind == "adain":
            self.inputs.append(torch.randn(*maps[:2], CODE, device=given.device, requires_grad=True))
        self.slopes = slopes.to(self._forward().dtype)  # the next layer returns the type that it was given

    def _forward(self) -> Tensor:
        with torch.autocast(self.x.device.type, torch.bfloat16):
            return vmap(lambda state, *inputs: functional_call(self.layer, state, inputs))(
                {**self.state[0], **self.state[1]}, *self.inputs
            )

    def run(self) -> list[Tensor]:
        """Return the output and all gradients."""
        out = self._forward()
        return [out, *torch.autograd.grad(out, [*self.inputs, *self.state[0].values()], self.slopes)]


def make_layer(case: Case) -> nn.Module:
    if case.kind == "adain":
        return Modulated(nn.Identity(), AdaIN(CODE, case.channels, case.side))
    return make_stackable(nn.Sequential(nn.BatchNorm2d(case.channels), nn.ReLU()))


def count_bytes(case: Case, given: argparse.Namespace) -> int:
    """Return the bytes of maps that the kernels have to read and write in both directions."""
    shape = (given.members, given.batch, case.side, case.side, case.channels)
    passes = 5 if Groups(shape, case.kind == "adain").whole else 8
    return 2 * passes * torch.Size(shape).numel()


def find_distance(fused: Program, plain: Program) -> float:
    """Return the largest relative distance of a result, after one call of each side."""
    pairs = [*zip(fused.run(), plain.run(), strict=True)]
    pairs += [(fused.state[1][name], buffer) for name, buffer in plain.state[1].items()]
    each = [(a.detach().float() - b.detach().float()).norm() / b.detach().float().norm() for a, b in pairs]
    return max(map(float, each))


def record(program: Program) -> Callable[[], None]:
    """Return a function that replays the program as a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            program.run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        program.run()
    return graph.replay


def take_turns(replays: list[Callable[[], None]], seconds: float, rounds: int) -> list[float]:
    """Return the median milliseconds of each side; a round measures each of them once."""
    counts = [max(3, int(1e3 * seconds / rounds / measure.gpu_milliseconds(replay, 3))) for replay in replays]
    times = [
        [measure.gpu_milliseconds(replay, count) for replay, count in zip(replays, counts, strict=True)]
        for _ in range(rounds)
    ]
    return [statistics.median(side) for side in zip(*times, strict=True)]


def measure_case(case: Case, given: argparse.Namespace) -> dict[str, Any]:
    """Measure one row of the table."""
    fused, plain = (Program(case, side, given) for side in (True, False))
    row: dict[str, Any] = {**case._asdict(), "distance": find_distance(fused, plain)}
    row["agrees"] = row["distance"] <= TOLERANCE
    if given.device == "cuda":
        row["fused_ms"], row["plain_ms"] = take_turns([record(fused), record(plain)], given.seconds, given.rounds)
        row["terabytes_per_second"] = count_bytes(case, given) / row["fused_ms"] / 1e9
        torch.cuda.empty_cache()
    return row


def describe(row: dict[str, Any]) -> str:
    name = f"{row['kind']:9} {row['channels']:3} channels {row['side']:2}x{row['side']:<2}"
    line = f"{name}  distance {row['distance']:.1e} {'agrees' if row['agrees'] else 'DISAGREES'}"
    if "fused_ms" in row:
        ratio = row["plain_ms"] / row["fused_ms"]
        line += f"  plain {row['plain_ms']:8.3f} ms  fused {row['fused_ms']:7.3f} ms  {ratio:5.1f} x"
        line += f"  {row['terabytes_per_second']:.2f} TB/s"
    return line


def measure_steps(variant: str, given: argparse.Namespace) -> dict[str, Any]:
    """Return images per second of a recipe with fused and with plain normalisation, measured in turns."""
    common = {"batch": given.batch, "precision": "bf16", "steps": 15_000}
    configs, dataset = make_configs(variant, torch.device(given.device), common, given.members, SPRITES)
    states = [prepare(configs, dataset) for _ in range(2)]
    for state, fused in zip(states, (True, False), strict=True):
        fuse_normalisations(state.group.skeleton, fused)
        for _ in range(measure.WARM_UP):
            state.advance()
    setting = measure.Setting(given.device, batch=given.batch, members=given.members)
    rates = [[measure.pace(state.advance, setting, given.seconds) for state in states] for _ in range(given.rounds)]
    fused, plain = (statistics.median(side) for side in zip(*rates, strict=True))
    print(f"{variant:24} plain {plain:9,.0f} images/s  fused {fused:9,.0f} images/s  {fused / plain:.2f} x", flush=True)
    return {"variant": variant, "plain_images_per_second": plain, "fused_images_per_second": fused}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--members", type=int, default=16)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--only", choices=["adain", "batchnorm"])
    parser.add_argument("--seconds", type=float, default=0.5, help="of all rounds of one side, of one round of --steps")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", action="store_true", help="whole training steps instead of single layers")
    parser.add_argument("--out", type=Path, help="JSON file for the rows")
    given = parser.parse_args()
    if given.steps and given.device != "cuda":
        parser.error("--steps needs --device cuda: nothing is fused on a CPU")
    rows = []
    if given.steps:
        rows = [measure_steps(variant, given) for variant in ("ms-vae", "beta-tcvae, conv-chen")]
    for case in CASES if not given.steps else ():
        if given.only in (None, case.kind):
            rows.append(measure_case(case, given))
            print(describe(rows[-1]), flush=True)
    for kind in ("adain", "batchnorm") if given.device == "cuda" and not given.steps else ():
        sides = [
            sum(row[side] * row["count"] for row in rows if row["kind"] == kind) for side in ("plain_ms", "fused_ms")
        ]
        print(f"{kind:9} of one step: plain {sides[0]:.2f} ms, fused {sides[1]:.2f} ms")
    if given.out:
        measure.write(given.out, {**measure.facts("normalisation.py", given.device), "rows": rows})
    if not all(row.get("agrees", True) for row in rows):
        raise SystemExit("The fused kernels disagree with torch's operations.")


if __name__ == "__main__":
    main()
