"""Training speed of every recipe beside its arithmetic, and the seconds until its first 20 steps are done.

    python benchmarks/recipes.py --device cuda --out results/benchmarks/recipes-cuda.json
    python benchmarks/recipes.py --device cpu --members 2 --batch 8 --seconds 1 --only vae "vae, split"

Every recipe runs in a process of its own, one after the other, with empty caches of Triton and Inductor; `--again`
starts each one a second time with the caches that it filled. "ready after" counts from the start of the process: it
includes imports, data, preparation and 20 steps. MFLOP per image are those of a training step's convolutions and
matrix products, as `torch.utils.flop_counter` counts them in a plain step (in another process, while a GPU measures);
densities and other elementwise work are not in them. A second stage refines a first stage with random weights, which
costs the same as a trained one. A recipe that fails or exceeds `--limit` reports the reason, and the JSON is written
after each one.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import measure
import torch
from torch.utils.flop_counter import FlopCounterMode

from unbraid.config import Choice, Config
from unbraid.data import load
from unbraid.data.factors import FactorDataset
from unbraid.methods import objective
from unbraid.models import model as models
from unbraid.training import configure
from unbraid.training.prepare import prepare

FIRST_STEPS = 20
SPRITES = {"positions": 16, "orientations": 16}
"""Fewer sprites than dSprites has: rendering them takes a second, and a step costs the same."""
FEW_SPRITES = {"positions": 4, "orientations": 4}
MODALITIES = {"data": "sprites-pairs", "network": "conv-daunhawer", "c": 5}
VARIANTS: dict[str, dict[str, Any]] = {
    "vae": {},
    "vae, split": {"encoder": "split"},
    "factor-vae": {},
    "factor-vae, split": {"encoder": "split"},
    "beta-tcvae, conv-daunhawer": {"network": "conv-daunhawer"},
    "beta-tcvae, conv-chen": {"network": "conv-chen"},
    "beta-tcvae, mlp-chen": {"network": "mlp-chen"},
    "vae, broadcast-pixel": {"decoder": "broadcast-pixel"},
    "ms-vae": {},
    "ms-vae, 32 channels": {"encoder.channels": 32, "decoder.channels": 32},
    "hfvae, mlp-esmaeili-28": {"network": "mlp-esmaeili-28", "data.size": 28},
    "partitioned-mvae": {"s": 5, "alone": "m2"},
}
"""What the papers' studies train most; they are measured first."""
OF_RECIPES: dict[str, dict[str, Any]] = {
    "dmvae": {"s": 5},
    "mmvae": {"s": 0},
    "mopoe": {"s": 0},
    "mvae": {"s": 0},
    "label-decoder": {"z": 5},
    "ms-labels": {"z": 1, "factors": ("scale",)},
    "ms-flow": {"latents": "concrete:10"},
}
"""Settings without which a recipe does not run on this data."""


def list_variants() -> dict[str, dict[str, Any]]:
    """Return the settings of every variant, and of every recipe that has none."""
    recipes = {name.partition(",")[0] for name in VARIANTS}
    return {**VARIANTS, **{name: {} for name in objective if name not in recipes}}


def make_configs(
    variant: str, device: torch.device, common: Mapping[str, Any], members: int, sprites: Mapping[str, Any]
) -> tuple[list[Config], FactorDataset]:
    """Return the configs of a variant's members, which differ in their seeds, and their data."""
    recipe = variant.partition(",")[0]
    multimodal = models[objective[recipe].facts.model].make.multimodal
    settings = {**(MODALITIES if multimodal else {}), **OF_RECIPES.get(recipe, {}), **list_variants()[variant]}
    name = settings.pop("data", "sprites")
    own = [key for key in settings if key.startswith("data.")]
    of_data = {**sprites, **{key.removeprefix("data."): settings.pop(key) for key in own}}
    dataset = load(name, of_data, device)
    choice = Choice(name, of_data)
    settings = {**settings, **common}
    parent = None
    if objective[recipe].facts.stage:
        first = configure("beta-vae", choice, dataset, {"steps": common["steps"]})
        parent = {"run": first.run_id, "content": "0" * 64, "config": first.as_dict()}
    return [configure(recipe, choice, dataset, {**settings, "seed": s}, parent=parent) for s in range(members)], dataset


def count_mflop(variant: str, common: Mapping[str, Any]) -> float:
    """Return the MFLOP per image of a plain training step in float32 on the CPU, averaged over its players' turns."""
    rows = 8
    settings = {**common, "batch": rows, "precision": "f32"}
    configs, dataset = make_configs(variant, torch.device("cpu"), settings, 1, FEW_SPRITES)
    state = prepare(configs, dataset, execution="plain")
    steps = max(optimizer.player.every for optimizer in state.players)
    with FlopCounterMode(display=False) as counter:
        for _ in range(steps):
            state.advance()
    return counter.get_total_flops() / steps / rows / 1e6


def measure_variant(variant: str, given: argparse.Namespace) -> None:
    """Measure one variant in this process, and print each fact as a line of JSON once it is known."""
    device = torch.device(given.device)
    common = {"batch": given.batch, "precision": given.precision, "steps": given.steps}
    if given.count:
        tell(mflop_per_image=round(count_mflop(variant, common), 3))
        return
    if "mlp-chen" in variant and given.batch == 64:
        common["batch"] = 2048  # chen2018's
    start = time.time()
    configs, dataset = make_configs(variant, device, common, given.members, SPRITES)
    measure.synchronise(given.device)
    loaded = time.time()
    state = prepare(configs, dataset)
    for _ in range(FIRST_STEPS):
        state.advance()
    measure.synchronise(given.device)
    ready = time.time()
    parameters = sum(p[0].numel() for p in state.group.parameters.values())
    tell(
        execution=state.execution,
        members=given.members,
        batch=common["batch"],
        precision=configs[0].training.precision,
        parameters=parameters,
        ready_after=round(ready - given.started, 2),
        of_which={
            "imports": round(start - given.started, 2),
            "data": round(loaded - start, 2),
            "preparation and 20 steps": round(ready - loaded, 2),
        },
    )
    if not given.rounds:
        return
    setting = measure.Setting(given.device, batch=common["batch"], members=given.members)
    rates = sorted(measure.pace(state.advance, setting, given.seconds) for _ in range(given.rounds))
    tell(images_per_second=round(rates[len(rates) // 2], 1), rounds=[round(rate, 1) for rate in rates])
    diverged = state.find_divergences()
    if diverged:
        tell(warning=f"member {diverged[0].member} diverged at step {diverged[0].step} ({diverged[0].term})")
    tell(peak_mebibytes=round(measure.peak_mebibytes()))


def tell(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def start_counting(command: list[str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def start_process(variant: str, given: argparse.Namespace, caches: str, measured: bool = True) -> dict[str, Any]:
    """Run one variant in a process of its own, and return the facts that it printed before its end or the limit."""
    options = [f"--{key}={getattr(given, key)}" for key in ("device", "members", "batch", "precision", "steps")]
    options += [f"--seconds={given.seconds}", f"--rounds={given.rounds if measured else 0}"]
    environment = {
        **os.environ,
        "TRITON_CACHE_DIR": f"{caches}/triton",
        "TORCHINDUCTOR_CACHE_DIR": f"{caches}/inductor",
    }
    command = [sys.executable, __file__, "--variant", variant, *options, f"--started={time.time()}"]
    facts: dict[str, Any] = {"name": variant}
    count = [[*command, "--count"]] if measured else []
    meanwhile = [start_counting(each) for each in count if given.device == "cuda"]  # on a CPU it would take its cores
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=given.limit)
        printed, failed = done.stdout, done.returncode
        if failed:
            lines = done.stderr.strip().splitlines()
            facts["failed"] = lines[-1][:300] if lines else f"its process ended with {failed}"
    except subprocess.TimeoutExpired as expired:
        printed = (expired.stdout or b"").decode() if isinstance(expired.stdout, bytes) else expired.stdout or ""
        facts["failed"] = f"stopped after {given.limit:.0f} s"
    counting = meanwhile or [start_counting(each) for each in count]
    for line in [*printed.splitlines(), *(line for each in counting for line in each.communicate()[0].splitlines())]:
        if line.startswith("{"):
            facts |= json.loads(line)
    return facts


def show(row: Mapping[str, Any]) -> list[str]:
    """Return the cells of a variant's line."""
    rate, arithmetic = row.get("images_per_second"), row.get("mflop_per_image")
    both = rate is not None and arithmetic is not None
    return [
        row["name"],
        f"{row['members']} x {row['batch']}" if "members" in row else "-",
        row.get("precision", "-"),
        "-" if "parameters" not in row else f"{row['parameters']:,}",
        "-" if rate is None else f"{rate:,.0f}",
        "-" if arithmetic is None else f"{arithmetic:,.1f}",
        f"{rate * arithmetic / 1e6:.3g}" if both else "-",
        "-" if "ready_after" not in row else f"{row['ready_after']:.1f} s",
        f"{row['ready_again']:.1f} s" if row.get("ready_again") else "-",
        "; ".join(row[key] for key in ("warning", "failed") if key in row),
    ]


HEAD = ["recipe", "members x batch", "precision", "parameters", "images/s", "MFLOP/image", "TFLOP/s"]
HEAD += ["ready after", "again", ""]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--members", type=int, help="default: 16 on CUDA, 2 on a CPU")
    parser.add_argument("--batch", type=int, help="default: 64 on CUDA (mlp-chen: 2048), 8 on a CPU")
    parser.add_argument("--precision", help="default: bf16 on CUDA, f32 on a CPU")
    parser.add_argument("--steps", type=int, default=15_000, help="length of the run; it decides how a step executes")
    parser.add_argument("--seconds", type=float, default=1.0, help="of one measurement")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of a recipe; the median counts")
    parser.add_argument("--only", nargs="+", help="names of variants, or a part of them after *, as *split")
    parser.add_argument("--limit", type=float, default=180.0, help="seconds for one recipe")
    parser.add_argument("--budget", type=float, default=float("inf"), help="seconds after which no recipe is started")
    parser.add_argument("--again", action="store_true", help="also measure `ready after` with filled caches")
    parser.add_argument("--list", action="store_true", help="print the names and exit")
    parser.add_argument("--out", type=Path, help="JSON; default: none")
    parser.add_argument("--variant", help=argparse.SUPPRESS)
    parser.add_argument("--count", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--started", type=float, default=time.time(), help=argparse.SUPPRESS)
    given = parser.parse_args()
    cuda = given.device == "cuda"
    given.members = given.members or (16 if cuda else 2)
    given.batch = given.batch or (64 if cuda else 8)
    given.precision = given.precision or ("bf16" if cuda else "f32")
    return given


def choose_variants(only: list[str] | None) -> list[str]:
    """Return the names that `--only` selects, or exit with the known ones."""
    names = list(list_variants())
    if not only:
        return names
    chosen = [n for n in names if any(n == o or (o.startswith("*") and o[1:] in n) for o in only)]
    missing = [o for o in only if not o.startswith("*") and o not in names]
    if missing or not chosen:
        sys.exit(f"No recipe is named {', '.join(missing or only)}. Known: {'; '.join(names)}.")
    return chosen


def main() -> None:
    given = parse()
    if given.variant:
        measure_variant(given.variant, given)
        return
    variants = choose_variants(given.only)
    if given.list:
        print("\n".join(variants))
        return
    result = {**measure.facts("recipes.py", given.device), "first_steps": FIRST_STEPS, "recipes": []}
    begun = time.time()
    for variant in variants:
        if time.time() - begun > given.budget:
            break
        with tempfile.TemporaryDirectory() as caches:
            row = start_process(variant, given, caches)
            if given.again and "ready_after" in row:
                row["ready_again"] = start_process(variant, given, caches, measured=False).get("ready_after")
        result["recipes"].append(row)
        if given.out:
            measure.write(given.out, result)
        print(" | ".join(cell for cell in show(row) if cell), flush=True)
    print(f"\n`{result['command']}`\n\n{measure.table(HEAD, [show(row) for row in result['recipes']])}")


if __name__ == "__main__":
    main()
