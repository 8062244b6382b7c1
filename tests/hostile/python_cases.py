"""Hostile calls of the Python functions, run as a program without the type checks of the tests.

Prints a line of JSON for each case: its name, and what it raised. `python python_cases.py RUN` needs a finished run.
"""

import contextlib
import enum
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import unbraid as ub
from unbraid.data import from_array, from_arrays, from_csv, from_folder, load as load_data
from unbraid.errors import UnbraidError

Choice = enum.StrEnum("Choice", {"VAE": "beta-vae", "SMALL": "sprites-small"})
TINY: dict[str, Any] = {"data": "sprites-small", "steps": 2, "batch": 16, "z": 4, "encoder": "mlp", "decoder": "mlp"}
TINY |= {"encoder_hidden": (8,), "decoder_hidden": (8,), "device": "cpu"}
IMAGES = np.random.default_rng(0).integers(0, 255, (40, 8, 8), dtype=np.uint8)
TENSOR = torch.from_numpy(IMAGES)

ODD: list[Any] = [None, True, -1, 0, 10**30, 1.5, float("nan"), float("inf"), "", "x", "\0", "\udce9", b"x", [], (), {}]
ODD += [[[]], {"a": 1}, object(), type, print, np.float32(3), np.array(3), np.array([]), torch.tensor(2), 1j, range(3)]
ODD += [Path("x"), enum.Enum("E", "A").A, np.str_("x"), "x" * 5000, [1] * 5, {1, 2}, lambda: 0, Ellipsis, slice(1)]


class NoneEncoder(nn.Module):
    def forward(self, x):
        return None


class Raising(nn.Module):
    def forward(self, x):
        raise KeyError("surprise")


class WrongWidth(nn.Module):
    def forward(self, x):
        return x.flatten(1)[:, :3]


class Table:
    """What a data frame looks like from outside."""

    columns = ("a", "b")

    def __len__(self):
        return 3

    def __getitem__(self, key):
        raise KeyError(key)


class Broken:
    def __len__(self):
        return 3

    def __getitem__(self, position):
        raise TypeError("no items here")


def list_cases(root: Path, run: Path) -> dict[str, Any]:
    """Return calls by name."""
    cases: dict[str, Any] = {}

    def train(case: str, /, **settings: Any) -> None:
        given = {**TINY, "root": root / "made", **settings}
        recipe = given.pop("recipe", "beta-vae")
        cases[f"train {case}"] = lambda: ub.train(recipe, **given)

    train("torch.device", device=torch.device("cpu"))
    train("np.str_", recipe=np.str_("beta-vae"), data=np.str_("sprites-small"), encoder=np.str_("mlp"))
    train("StrEnum", recipe=Choice.VAE, data=Choice.SMALL, decay=np.str_("cosine"))
    train("bytes root", root=bytes(root / "bytes"))
    train("bytes data", data=bytes(root))
    train("numpy numbers", beta=np.float32(2), z=np.int64(3), steps=np.uint8(2))
    for name, module in {"None": NoneEncoder(), "raising": Raising(), "width": WrongWidth()}.items():
        train(f"encoder {name}", encoder=module, encoder_hidden=None)
        train(f"own encoder {name}", encoder=module, encoder_hidden=...)
    for name, data in {"table": Table(), "broken": Broken(), "masked": np.ma.masked_array(IMAGES, IMAGES > 9)}.items():
        train(f"data {name}", data=data)
    keys = ("recipe", "data", "encoder", "decoder", "device", "root", "name", "cadence", "track", "steps", "batch")
    keys += ("lr", "seed", "z", "split", "clip", "beta", "likelihood", "prior", "latents", "groups", "resume", "fresh")
    for key in keys:
        for number, value in enumerate(ODD):
            train(f"{key} odd {number}", **{key: value})
    arrays = {"complex": IMAGES + 1j, "text": np.array(["a"]), "object": np.array([object()]), "ragged": [[1], [1, 2]]}
    arrays |= {"nan": np.full((4, 4), np.nan), "five": np.zeros((1, 1, 1, 1, 1)), "empty": np.empty((0, 8, 8))}
    arrays |= {"zero-size": np.zeros((4, 0)), "scalar": 3, "dates": np.array(["2020-01-01"], "M8[D]"), "none": None}
    arrays |= {"masked": np.ma.masked_array(IMAGES, IMAGES > 9), "sparse": torch.eye(4).to_sparse(), "dict": {}}
    arrays |= {"meta": torch.empty(4, 8, 8, device="meta"), "record": np.zeros(3, [("a", int)]), "half": TENSOR.half()}
    arrays |= {"huge": np.full((4, 4), 1e300), "void": np.zeros(3, "V8"), "bool": IMAGES > 9, "j": TENSOR + 1j}
    arrays |= {"int64": IMAGES.astype(int)}
    for name, array in arrays.items():
        cases[f"from_array {name}"] = lambda array=array: from_array(array)
        cases[f"from_arrays {name}"] = lambda array=array: from_arrays({"a": array, "b": array})
        cases[f"encode {name}"] = lambda array=array: ub.load(run, device="cpu").encode(array)
        cases[f"decode {name}"] = lambda array=array: ub.load(run, device="cpu").decode(array)
        cases[f"factors {name}"] = lambda array=array: from_array(IMAGES, factors=array)
    for number, value in enumerate(ODD):
        cases[f"channels {number}"] = lambda v=value: from_array(IMAGES[..., None].repeat(3, -1), channels=v)
        cases[f"factors {number}"] = lambda v=value: from_array(IMAGES, factors=v)
        cases[f"factor_names {number}"] = lambda v=value: from_array(IMAGES, factors=[1] * 40, factor_names=v)
        cases[f"load {number}"] = lambda v=value: ub.load(v, device="cpu")
        cases[f"load device {number}"] = lambda v=value: ub.load(run, device=v)
        cases[f"sample {number}"] = lambda v=value: ub.load(run, device="cpu").sample(v)
        cases[f"score {number}"] = lambda v=value: ub.load(run, device="cpu").score(v)
        cases[f"score rows {number}"] = lambda v=value: ub.load(run, device="cpu").score("units", rows=v)
        cases[f"from_folder {number}"] = lambda v=value: from_folder(v)
        cases[f"from_csv {number}"] = lambda v=value: from_csv(v)
        cases[f"load_data {number}"] = lambda v=value: load_data(v)
        cases[f"refine {number}"] = lambda v=value: ub.refine(run, v, root=root / "refined", device="cpu", steps=1)
    cases["factors large"] = lambda: from_array(IMAGES, factors=[1e30] * 40)
    cases["factors masked"] = lambda: from_array(
        IMAGES, factors=np.ma.masked_array([1] * 40, [True] * 20 + [False] * 20)
    )
    cases["seed range"] = lambda: ub.sweep("beta-vae", root=root / "swept", **{**TINY, "seed": range(10**9)})
    cases["seed endless"] = lambda: ub.sweep("beta-vae", root=root / "swept", **{**TINY, "seed": range(10**30)})
    cases["seed array"] = lambda: ub.sweep("beta-vae", root=root / "swept", **{**TINY, "seed": np.zeros((2, 2))})
    return cases


def main() -> None:
    run, only = Path(sys.argv[1]), sys.argv[2:]
    run = run.resolve()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for name, call in list_cases(Path(folder), run).items():
            if only and not any(name.startswith(each) for each in only):
                continue
            try:
                found = call()
                outcome = {"returned": type(found).__name__, "fine": True}
            except UnbraidError as error:
                outcome = {
                    "raised": type(error).__name__,
                    "fine": len(str(error).splitlines()) == 1,
                    "text": str(error),
                }
            except BaseException as error:
                outcome = {"raised": type(error).__name__, "fine": False, "text": str(error)}
            print(json.dumps({"case": name, **outcome}), flush=True)


if __name__ == "__main__":
    main()
