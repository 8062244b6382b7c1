"""Compile the kernels of random forests for a card that is not here, and print the shared memory of each as JSON.

    TRITON_INTERPRET=0 python -m tests.support.forest_for_hopper

Launches are noted on small tensors in the memory of the CPU, as in `kernels_for_hopper`.
"""

import json
from typing import Any

import numpy as np

from tests.support.kernels_for_hopper import compile_launch
from unbraid.metrics.predictive import forest
from unbraid.metrics.predictive.booster import Target


def main() -> None:
    found: dict[str, int] = {}

    def launch(kernel: Any, grid: Any, *arguments: Any, **constants: Any) -> None:
        name = f"{kernel.__name__}: {'real' if constants['REAL'] else 'classes'}"
        found[name] = compile_launch(kernel, arguments, dict(constants))[0]

    forest.launch = launch
    codes = np.zeros((4, 10))
    targets = [Target(np.arange(4), 4), Target(np.zeros(4), None)]
    forest.grow_forest(codes, targets, codes, trees=2, device="cpu")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
