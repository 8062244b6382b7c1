"""Time of each kernel in one training step, for members of a beta-TCVAE or of another recipe, as shares of the step.

    python benchmarks/profile_step.py --members 1 64 --precision tf32 bf16 --execution recorded captured
    python benchmarks/profile_step.py --members 64 --precision bf16 --out results/benchmarks/profile-cuda.json
    python benchmarks/profile_step.py --device cpu --members 1 --precision f32 --execution plain
    python benchmarks/profile_step.py --variant "hfvae, mlp-esmaeili-28" --members 20 --batch 512 --precision tf32

Images per second are measured first, without the profiler. Microseconds are those of the kernels in the replayed graph,
as CUPTI reports them; a step's gaps between kernels are the time that is left. Kernels of one
name count together; `layers` lists each launch of the convolution kernels with its shape. On a CPU the times are those
of torch's operators, without the operators that they call. `--variant` takes a name from `benchmarks/recipes.py`.
"""

import argparse
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import measure
import torch
from measure import Setting, dataset
from recipes import SPRITES, list_variants, make_configs
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from unbraid.config import Choice
from unbraid.networks import (
    conv_kernels,
    doubling_kernel,
    folding_kernel,
    halving_kernels,
    last_layer_kernel,
    picture_kernels,
)
from unbraid.training.configure import configure
from unbraid.training.execution import Execution
from unbraid.training.prepare import prepare
from unbraid.training.state import State

PROFILED_STEPS = 20
LAYER_MODULES = (conv_kernels, folding_kernel, picture_kernels, last_layer_kernel, halving_kernels, doubling_kernel)
LAYER_KERNELS = ("_product", "_fold", "_gradient", "_windows", "_last_layer", "_halve", "_halve_gradient", "_double")
SHAPE = ("H", "C", "N", "U", "KERNEL", "STRIDE", "TRANSPOSED", "PRODUCT", "TOTALS")
TILE = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "BLOCK_R", "num_warps", "num_stages")


def make_state(setting: Setting, execution: Execution, variant: str = "") -> State:
    """Return a state of `setting` that has taken its first steps: a beta-TCVAE on rectangles, or a variant."""
    shared = {"batch": setting.batch, "precision": setting.precision, "steps": 10**9}
    if variant:
        configs, data = make_configs(variant, torch.device(setting.device), shared, setting.members, SPRITES)
    else:
        shared |= {"network": setting.network, "z": setting.z, "likelihood": "bernoulli"}
        data, choice = dataset(setting.images, setting.device), Choice("rectangles")
        configs = [configure("beta-tcvae", choice, data, {**shared, "seed": s}) for s in range(setting.members)]
    state = prepare(configs, data, execution=execution)
    for _ in range(measure.WARM_UP):
        state.advance()
    return state


def time_operators(state: State) -> dict[str, tuple[float, float]]:
    """Return microseconds and calls per step by the name of an operator on the CPU, the longest first."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(PROFILED_STEPS):
            state.advance()
    events = sorted(profiler.key_averages(), key=lambda event: -event.self_cpu_time_total)
    return {e.key: (e.self_cpu_time_total / PROFILED_STEPS, e.count / PROFILED_STEPS) for e in events}


@contextmanager
def note_layers() -> Iterator[list[dict[str, Any]]]:
    """Note the shape and the tile of each launch of a convolution kernel inside the block, in order."""
    noted, real = [], conv_kernels.launch

    def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
        known = {key: constants[key] for key in (*SHAPE, *TILE) if key in constants}
        noted.append({"kernel": kernel.__name__, "grid": list(grid), "constants": known})
        real(kernel, grid, *arguments, **constants)

    for module in LAYER_MODULES:
        module.launch = launch
    try:
        yield noted
    finally:
        for module in LAYER_MODULES:
            module.launch = real


def time_layers(state: State, noted: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the launches of convolution kernels in one step with their microseconds, in the order of the step."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(PROFILED_STEPS):
            state.advance()
        torch.cuda.synchronize()
    events = [e for e in profiler.events() or () if e.device_type == DeviceType.CUDA and e.name in LAYER_KERNELS]
    events.sort(key=lambda event: event.time_range.start)
    launches = len(events) // PROFILED_STEPS
    times = [sum(e.device_time_total for e in events[i::launches]) / PROFILED_STEPS for i in range(launches)]
    own = noted[len(noted) - launches :]  # those of the recording, which is what runs now
    return [{"microseconds": round(time, 1), **layer} for time, layer in zip(times, own, strict=True)]


def time_kernels(state: State) -> dict[str, tuple[float, float]]:
    """Return microseconds and launches per step by the kernel's name, the longest first."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(PROFILED_STEPS):
            state.advance()
        torch.cuda.synchronize()
    spent, launches = defaultdict(float), defaultdict(int)
    for event in profiler.events() or ():
        if event.device_type == DeviceType.CUDA:
            spent[event.name] += event.device_time_total
            launches[event.name] += 1
    longest = sorted(spent, key=lambda name: -spent[name])
    return {name: (spent[name] / PROFILED_STEPS, launches[name] / PROFILED_STEPS) for name in longest}


def profile_setting(setting: Setting, execution: Execution, seconds: float, variant: str = "") -> dict[str, Any]:
    """Measure one setting."""
    with note_layers() as noted:
        state = make_state(setting, execution, variant)
    rate = measure.pace(state.advance, setting, seconds)
    step = setting.batch * setting.members / rate * 1e6
    kernels = [
        {"kernel": name, "microseconds": round(time, 1), "launches": round(launches, 2), "share": round(time / step, 4)}
        for name, (time, launches) in (time_operators if setting.device == "cpu" else time_kernels)(state).items()
    ]
    row = {
        "members": setting.members,
        "precision": setting.precision,
        "execution": state.execution,
        "network": "" if variant else setting.network,
        "variant": variant,
        "images_per_second": round(rate),
        "microseconds_per_step": round(step, 1),
        "kernels": kernels,
    }
    return row | {"layers": time_layers(state, noted)} if setting.device != "cpu" else row


def show(row: dict[str, Any], most: int) -> str:
    """Return a setting's kernels as a table."""
    kernels = row["kernels"]
    head = f"{row['members']} x {row['precision']}, {row['variant'] or row['network']}, {row['execution']}: "
    head += f"{row['images_per_second']:,} images/s, {row['microseconds_per_step']:,.0f} us per step, in kernels "
    head += f"{sum(kernel['microseconds'] for kernel in kernels):,.0f}"
    rows = [
        [k["kernel"][:90], f"{k['launches']:g}", f"{k['microseconds']:,.0f}", f"{k['share']:.1%}"]
        for k in kernels[:most]
    ]
    return f"{head}\n\n{measure.table(['kernel', 'launches', 'us per step', 'share'], rows)}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--members", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--precision", nargs="+", default=["bf16"])
    parser.add_argument("--execution", nargs="+", default=["recorded"])
    parser.add_argument("--network", default=measure.NETWORK)
    parser.add_argument("--variant", default="", choices=list_variants(), help="a recipe instead of a beta-TCVAE")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--most", type=int, default=24, help="kernels to print; all are stored")
    parser.add_argument("--out", type=Path, help="JSON; default: none")
    given = parser.parse_args()
    if given.variant and given.network != measure.NETWORK:
        parser.error("a variant has networks of its own; give either --variant or --network")
    result = {**measure.facts("profile_step.py", given.device), "settings": []}
    for execution in given.execution:
        for members in given.members:
            for precision in given.precision:
                shape = {"batch": given.batch, "network": given.network}
                setting = Setting(given.device, members=members, precision=precision, **shape)
                row = profile_setting(setting, cast(Execution, execution), given.seconds, given.variant)
                result["settings"].append(row)
                if given.out:
                    measure.write(given.out, result)
                print(show(row, given.most), flush=True)


if __name__ == "__main__":
    main()
