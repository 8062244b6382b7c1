"""What two processes do in test_distributed.py, which runs `ranks.py FOLDER DEVICE` with the variables of torchrun.

One start of the interpreter serves all ranks and tests: it forks them before any computation, and each `part` leaves
its results in FOLDER.
"""

import json
import os
import signal
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

from tests.support.training import train
from tests.support.two_players import registered
from unbraid.api import train as train_run
from unbraid.config import Choice, Config
from unbraid.data import from_arrays, load
from unbraid.data.factors import FactorDataset
from unbraid.errors import UnbraidError
from unbraid.store import RunFolder, save_tensors
from unbraid.training import Cadence, configure
from unbraid.training.collectives import stack_over_ranks
from unbraid.training.distributed import BACKENDS, World, join_world
from unbraid.training.prepare import prepare
from unbraid.training.state import State
from unbraid.training.sync_batchnorm import WorldBatchNorm
from unbraid.types import Modules, Output

SMALL = {"encoder.hidden": (16,), "decoder.hidden": (16,), "network": "mlp", "z": 3, "batch": 32, "steps": 40}
STEPS = 6

OWN_NETWORKS = {"z": None, "network": None, "decoder.hidden": None}
"""Settings that a flow has not, or has in another form."""

CASES: dict[str, tuple[str, dict[str, object]]] = {
    "beta-tcvae": ("beta-tcvae", {}),
    "clipped": ("beta-tcvae", {"clip": 1.0, "decay": "linear"}),
    "two-players": ("two-players", {}),
    "info-gan": ("info-gan", {"instance_noise_steps": 30}),
    "batchnorm": ("beta-tcvae", {}),
    "batchnorm-f64": ("two-players", {"precision": "f64"}),
    "convolutions-f64": ("beta-tcvae", {"precision": "f64"}),
    "pairs": ("jacobian-student", {"precision": "f64"}),
    "densities": ("ms-coupling", {"precision": "f64", "features": 8, "decoder.couplings": 2, **OWN_NETWORKS}),
    "subsets-f64": ("mvae", {"precision": "f64", "z": None, "c": 3, "s": 2, "subsets": 2}),
    "experts-f64": ("mmvae", {"precision": "f64", "z": None, "c": 3, "samples": 2, "gradient": "dreg"}),
    "penalty-f64": (
        "partitioned-mvae",
        {"precision": "f64", "z": None, "c": 3, "s": 2, "penalty": "ratio", "width": 16, "depth": 2},
    ),
}
MULTIMODAL = ("subsets-f64", "experts-f64", "penalty-f64")
STAGES = ("jacobian-student", "ms-coupling")


def data_of(case: str, data: FactorDataset) -> FactorDataset:
    """The data of a case: three modalities of which rows lack some, or the given ones."""
    if case not in MULTIMODAL:
        return data
    draw = torch.Generator().manual_seed(0)
    modalities = {f"m{m}": torch.randn(200, 2 + m, generator=draw) for m in range(3)}
    present = torch.rand(200, 3, generator=draw) < 0.7
    present[~present.any(-1)] = True
    return from_arrays(modalities, present={f"m{m}": present[:, m] for m in range(3)})


def own_modules(case: str) -> dict[str, nn.Module]:
    """Networks of a case with BatchNorm on both sides of the gather; none where the recipe's own will do.

    No bias in front of a BatchNorm: its gradient is 0 and rounding, which Adam would blow up.
    """
    torch.manual_seed(0)
    if case.startswith("batchnorm"):
        encoder = [nn.Flatten(), nn.Linear(1024, 16, bias=False), nn.BatchNorm1d(16, momentum=None)]
        decoder = [nn.Linear(3, 16, bias=False), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1024)]
        decoder += [nn.Unflatten(1, (1, 32, 32))]
    elif case.startswith("convolutions"):
        encoder = [nn.Conv2d(1, 4, 8, 8, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 16)]
        decoder = [nn.Linear(3, 64, bias=False), nn.Unflatten(1, (4, 4, 4)), nn.BatchNorm2d(4), nn.ReLU()]
        decoder += [nn.ConvTranspose2d(4, 1, 8, 8)]
    else:
        return {}
    return {"encoder": nn.Sequential(*encoder, nn.ReLU(), nn.Linear(16, 6)), "decoder": nn.Sequential(*decoder)}


def config_of(case: str, data: FactorDataset, **overrides: object) -> Config:
    recipe, settings = CASES[case]
    modules = own_modules(case)
    sizes = {key: value for key, value in SMALL.items() if key.partition(".")[0] not in modules}
    given = {key: value for key, value in {**sizes, **settings, **overrides}.items() if value is not None}
    chosen, parent = Choice("sprites-small", {}), None
    if recipe in STAGES:
        first = configure("beta-vae", chosen, data, {**SMALL, "precision": "f64"})
        parent = {"run": "first", "content": "", "config": first.as_dict()}
    return configure(recipe, chosen, data, given, Modules(**modules), parent)


def advanced(case: str, data: FactorDataset, world: World | None = None) -> State:
    """A case after some steps."""
    data = data_of(case, data)
    state = prepare(config_of(case, data), data, Modules(**own_modules(case)), world=world)
    for _ in range(STEPS):
        state.advance()
    return state


def outcome(state: State) -> dict[str, Tensor]:
    """Everything that a step changes, optimizers and sums of the history included."""
    return state.tensors()


def rows_of(rank: int) -> Tensor:
    """One rank's input to the tests of single operations."""
    return torch.randn(4, 3, 2, generator=torch.Generator().manual_seed(rank), dtype=torch.float64)


def judged(rank: int, stacked: Tensor) -> Tensor:
    """A loss that every rank computes in its own way."""
    return (stacked * torch.arange(1.0, 1 + stacked.numel()).view_as(stacked) * (rank + 1)).sin().sum()


def part_gather(folder: Path, world: World, data: FactorDataset) -> None:
    rows = rows_of(world.rank).requires_grad_()
    (gradient,) = torch.autograd.grad(judged(world.rank, stack_over_ranks(rows, world.size)), rows)
    save_tensors(folder / f"gather-{world.rank}", {"gradient": gradient})
    out = Output({"z": rows[None, :, 0]}, {"z": torch.zeros(1, 1, 2)}, {"z": rows[None, :, 1]}, {"x": {"x": rows}})
    whole = world.gather(out)
    assert whole.prior["z"].shape == (1, 1, 2)
    save_tensors(folder / f"rows-{world.rank}", {"posterior": whole.posterior["z"], "sample": whole.sample["z"]})


def part_norm(folder: Path, world: World, data: FactorDataset) -> None:
    """A gradient and the buffers of one layer, and eval mode."""
    layer = WorldBatchNorm(nn.BatchNorm1d(3, affine=False), world.size).double()
    rows = rows_of(world.rank).requires_grad_()
    made = layer(rows)
    (gradient,) = torch.autograd.grad(made.square().mul(made.exp()).sum(), rows)
    later = layer.eval()(rows)
    save_tensors(folder / f"norm-{world.rank}", {"gradient": gradient, "later": later, **layer.state_dict()})


def part_states(folder: Path, world: World, data: FactorDataset) -> None:
    for case in CASES:
        save_tensors(folder / f"{case}-{world.rank}", outcome(advanced(case, data, world)))


def part_resume(folder: Path, world: World, data: FactorDataset) -> None:
    """A stop that only the last rank was asked for, and the rest of the run; with history and checkpoints."""
    config, advance = config_of("beta-tcvae", data), State.advance
    run = RunFolder.create(folder / "run", config)

    def asked_on_the_last_rank(self: State) -> None:
        advance(self)
        if self.step == 13 and world.rank == world.size - 1:
            os.kill(os.getpid(), signal.SIGTERM)

    State.advance = asked_on_the_last_rank  # type: ignore[method-assign]
    tell(folder, world, "stopped", lambda: train(run, data, Cadence(log_steps=4), world=world))
    State.advance = advance  # type: ignore[method-assign]
    (folder / f"status-{world.rank}").write_text(str(run.read_json("status")))
    train(run, data, Cadence(log_steps=4), world=world)
    assert run.finished


def part_refusals(folder: Path, world: World, data: FactorDataset) -> None:
    tell(folder, world, "indivisible", lambda: prepare(config_of("beta-tcvae", data, batch=33), data, world=world))
    pair = [config_of("beta-tcvae", data, seed=seed) for seed in (0, 1)]
    tell(folder, world, "members", lambda: prepare(pair, data, world=world))
    busy = RunFolder.create(folder / "busy", config_of("beta-tcvae", data))
    if world.leads:
        with busy.locked():
            tell(folder, world, "locked", lambda: train(busy, data, world=world))
    else:
        tell(folder, world, "locked", lambda: train(busy, data, world=world))


def part_api(folder: Path, world: World, data: FactorDataset) -> None:
    """Own modules that every process has drawn for itself; a second run of the same processes."""
    torch.manual_seed(world.rank)
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(1024, 6))
    settings = {"data": "sprites-small", "root": folder / "api", "device": "cpu", "z": 3, "steps": 4}
    run = train_run("vae", encoder=encoder, batch=16, **settings)
    (folder / f"api-{world.rank}").write_text(run.path.name)
    tell(folder, world, "api-indivisible", lambda: train_run("vae", batch=15, **settings))


def tell(folder: Path, world: World, name: str, act) -> None:
    """Note which error an action ends with."""
    try:
        act()
        told = ["", "", 0]
    except UnbraidError as error:
        told = [type(error).__name__, str(error), error.exit_code]
    (folder / f"{name}-{world.rank}.json").write_text(json.dumps(told))


def main(folder: Path, device: str) -> None:
    BACKENDS["cuda"] = "gloo"  # nccl wants a GPU for each process, and the machine that tests may have one in all
    data = load("sprites-small", device=device)
    with registered():
        with join_world(data.device) as world:
            for part in (part_gather, part_norm, part_states, part_resume, part_refusals):
                part(folder, world, data)
        if device == "cpu":
            part_api(folder, world, data)  # connects once more, by itself


def fork_ranks(size: int) -> None:
    """Return in one child per rank; the first process exits with 1 if one of them fails."""
    children = []
    for rank in range(size):
        children.append(os.fork())
        if children[-1] == 0:
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            return
    ended = [os.wait()]
    if ended[0][1]:  # the others would wait for it
        for child in set(children) - {ended[0][0]}:
            os.kill(child, signal.SIGKILL)
    ended += [os.wait() for _ in children[1:]]
    sys.exit(any(status for _, status in ended))


if __name__ == "__main__":
    fork_ranks(int(os.environ["WORLD_SIZE"]))
    main(Path(sys.argv[1]), sys.argv[2])
