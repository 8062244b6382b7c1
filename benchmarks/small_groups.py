"""Members of small networks on a CPU: one after the other against one group, and the operations of a forward pass.

    python benchmarks/small_groups.py

`unbraid.training.grouping` decides by these operations how many members train together. Both sides take turns in one
process with one thread; the smallest of six times counts, in processor time, per member and step.
"""

import time
from typing import Any

import measure
import torch

from unbraid.config import Choice
from unbraid.data import load
from unbraid.training import configure
from unbraid.training.grouping import MAX_OPERATIONS_TOGETHER, count_operations
from unbraid.training.prepare import prepare
from unbraid.training.state import State

MEMBERS, ROUNDS, WARM_UP = 8, 6, 3


def mlp(width: int, batch: int) -> dict[str, Any]:
    hidden = (width, width)
    return {"network": "mlp", "encoder.hidden": hidden, "decoder.hidden": hidden, "batch": batch}


def conv(width: int, batch: int) -> dict[str, Any]:
    return {"network": "conv-small", "encoder.width": width, "decoder.width": width, "batch": batch}


CASES = {
    **{
        f"conv-small, {width} channels, batch {batch}": conv(width, batch) for width, batch in ((2, 8), (4, 8), (8, 16))
    },
    **{f"mlp {w}-{w}, batch {b}": mlp(w, b) for w, b in ((64, 64), (128, 64), (192, 64), (32, 256), (128, 256))},
}


def time_steps(state: State, steps: int) -> float:
    """Return the processor seconds of some steps."""
    start = time.process_time()
    for _ in range(steps):
        state.advance()
    return time.process_time() - start


def main() -> None:
    torch.set_num_threads(1)
    data, rows = load("sprites-small"), []
    for name, settings in CASES.items():
        configs = [
            configure("beta-tcvae", Choice("sprites-small"), data, {**settings, "seed": seed, "steps": 1_000})
            for seed in range(MEMBERS)
        ]
        alone, group = prepare(configs[0], data), prepare(configs, data)
        operations = count_operations(alone)
        for state in (alone, group):
            time_steps(state, WARM_UP)
        pairs = [(time_steps(alone, 2 * MEMBERS), time_steps(group, 2)) for _ in range(ROUNDS)]
        one, together = (1e3 * min(side) / (2 * MEMBERS) for side in zip(*pairs, strict=True))
        chosen = "group" if operations <= MAX_OPERATIONS_TOGETHER else "one after the other"
        cells = [name, f"{operations / 1e6:.1f}", f"{one:.2f} ms", f"{together:.2f} ms", chosen]
        rows.append((operations, cells))
    ordered = [cells for _, cells in sorted(rows, key=lambda row: row[0])]
    print(measure.table(["network", "MFLOP forward", "one after the other", "as a group", "chosen"], ordered))


if __name__ == "__main__":
    main()
