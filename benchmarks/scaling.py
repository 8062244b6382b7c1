"""The cost of a step of a beta-TCVAE against the number of members, the batch, the latents and the data points.

    python benchmarks/scaling.py --device cpu --members 1 4 --batch 64 256
    python benchmarks/scaling.py --device cuda --precision bf16

One axis varies at a time; the others stay at their base (1 member, batch 64, 10 latents, 65,536 images). The points of
an axis are measured in turns. A point that fails, for example for lack of memory, reports its reason.
"""

import argparse
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import measure
import torch
from measure import NETWORK, OURS, Contender, Setting, ours

AXES = {
    "members": [1, 4, 16, 64],
    "batch": [64, 256, 1024, 2048],
    "z": [10, 32, 64],
    "images": [16_384, 65_536, 262_144, 737_280],
}


def along(axis: str, values: list[int], base: Setting) -> list[Contender]:
    """Return one contender per point of an axis."""
    return [Contender(f"{axis} = {value}", ours, (replace(base, **{axis: value}),)) for value in values]


def point(side: Contender) -> dict[str, Any]:
    """Return the costs of a point."""
    setting: Setting = side.arguments[0]
    row = {**side.summary(), **asdict(setting)}
    row.pop("step", None)
    if side.readings:
        step = 1000 * setting.batch * setting.members / side.rate
        row["ms_per_step"] = round(step, 3)
        row["ms_per_step_and_member"] = round(step / setting.members, 4)
    return row


def show(rows: list[dict[str, Any]]) -> str:
    """Return the points of an axis as a table."""
    head = ["", "ms per step", "per member", "images/s", "peak MiB", ""]
    lines = []
    for row in rows:
        numbers = [row.get(key) for key in ("ms_per_step", "ms_per_step_and_member", "images_per_second")]
        cells = ["-" if number is None else f"{number:,.4g}" for number in numbers[:2]]
        cells.append("-" if numbers[2] is None else f"{numbers[2]:,.0f}")
        remarks = "; ".join([*row.get("warnings", []), row.get("failed", "")]).strip("; ")
        lines.append([row["name"], *cells, str(row.get("peak_mebibytes", "-")), remarks])
    return measure.table(head, lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    for axis, values in AXES.items():
        parser.add_argument(f"--{axis}", type=int, nargs="*", default=values, help="points of this axis; none: skip it")
    parser.add_argument("--precision", choices=["f32", "tf32", "bf16"], default="f32")
    parser.add_argument("--network", default=NETWORK)
    measure.add_arguments(parser, rounds=3)
    parser.add_argument("--out", type=Path, help="JSON; default: results/benchmarks/scaling-DEVICE-PRECISION.json")
    arguments = parser.parse_args()
    name = f"scaling-{arguments.device}-{arguments.precision}.json"
    path = arguments.out or Path("results/benchmarks") / name
    measure.set_threads(arguments.threads)
    base = Setting(arguments.device, precision=arguments.precision, network=arguments.network)
    result = {**measure.facts("scaling.py", arguments.device), "step": OURS, "points": []}
    print(f"`{result['command']}`\n")
    tables = []
    for axis in AXES:
        sides = along(axis, getattr(arguments, axis), base)
        if not sides:
            continue
        with measure.started(sides, arguments.at_once):
            for _ in measure.take_turns(sides, arguments.rounds, arguments.seconds):
                pass
        rows = [point(side) for side in sides]
        result["points"] += [{"axis": axis, **row} for row in rows]
        measure.write(path, result)
        tables.append(show(rows))
    print("\n\n".join(tables))


if __name__ == "__main__":
    main()
