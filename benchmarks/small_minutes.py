"""Estimate how long every paper takes at scale `small` on 2 cores, from a few timed steps of each sweep.

python benchmarks/small_minutes.py [PAPER…]

CPU seconds of a member's step (after two steps to warm up) times members and steps, halved for two cores. Stages and
models matched in size are estimated by a multiple of the first stage that they follow. Scoring is not included; it adds
about a third where scores are exact.
"""

import sys
import time
from math import prod

import torch

from unbraid.config import Choice
from unbraid.data import load
from unbraid.errors import UnbraidError
from unbraid.experiments import StandIn, experiment
from unbraid.experiments.base import AS_LARGE_AS, REFINES
from unbraid.papers import chen2018 as chen2018
from unbraid.training import configure
from unbraid.training.prepare import prepare

STEPS, CORES, STAGE_SHARE = 3, 2, 2.0


def seconds_per_step(settings: dict) -> float:
    """Return the CPU seconds of one member's step."""
    data = settings["data"]
    settings = data.adapt(settings) if isinstance(data, StandIn) else settings
    single = {k: (v[0] if isinstance(v, (list, range)) else v) for k, v in settings.items()}
    name = single.pop("data")
    options = {k.removeprefix("data."): v for k, v in single.items() if k.startswith("data.")}
    rest = {k: v for k, v in single.items() if not k.startswith("data.")}
    dataset = load(name, options)
    state = prepare([configure(rest.pop("recipe"), Choice(name, options), dataset, rest)], dataset)
    for _ in range(2):
        state.advance()
    started = time.process_time()
    for _ in range(STEPS):
        state.advance()
    return (time.process_time() - started) / STEPS


def main() -> None:
    torch.set_num_threads(1)
    papers = sys.argv[1:] or list(dict.fromkeys(name.partition("/")[0] for name in experiment))
    for paper in papers:
        known: dict[str, float] = {}
        for name in [name for name in experiment if name.startswith(f"{paper}/")]:
            sizes, steps = {}, {}
            for series, settings in experiment[name].facts.build_sweeps("small").items():
                count = prod(len(v) for v in settings.values() if isinstance(v, (list, range)))
                parent = settings.get(REFINES)
                sizes[series] = count * (sizes[parent] if parent else 1)
                key = str((steps.get(parent), sorted((k, str(v)) for k, v in settings.items())))
                steps[series] = key
                if key in known:
                    continue
                try:
                    if parent or AS_LARGE_AS in settings:
                        each = STAGE_SHARE * 0.05
                    else:
                        each = seconds_per_step(dict(settings))
                except UnbraidError as error:
                    print(f"{name}, {series}: {error}", file=sys.stderr)
                    each = 0.02
                known[key] = each * sizes[series] * settings.get("steps", 0) / CORES / 60
                print(f"  {name}, {series}: {1e3 * each:.1f} ms, {known[key]:.1f} minutes", flush=True)
        print(f"{paper}: {sum(known.values()):.0f} minutes", flush=True)


if __name__ == "__main__":
    main()
