"""From configs to a training state: build each member's system, stack them, bind the objective."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from unbraid.config import Config
from unbraid.data.factors import FactorDataset
from unbraid.data.splits import split
from unbraid.errors import UsageError
from unbraid.methods import objective as objectives
from unbraid.models import build, seeded
from unbraid.networks.own_modules import find_users_networks
from unbraid.objectives import Objective, bind
from unbraid.training.distributed import World
from unbraid.training.execution import Execution, choose_execution, uses_own_kernels
from unbraid.training.first_stage import load_first_stage
from unbraid.training.group import Group, System
from unbraid.training.memory import keep_freed_memory
from unbraid.training.state import State
from unbraid.training.sync_batchnorm import synchronise_batchnorm
from unbraid.types import NO_MODULES, Modules


def prepare(
    configs: Config | Sequence[Config],
    dataset: FactorDataset,
    modules: Modules = NO_MODULES,
    execution: Execution | None = None,
    world: World | None = None,
    first_weights: Sequence[Mapping[str, Tensor]] = (),
    built: System | None = None,
) -> State:
    """Return a fresh training state of one run, or of a group of one structure, on the data set's device.

    `first_weights` are the weights of each run's first stage; without them a first stage stays random. `built` is the
    system of the first config if it has been built already.
    """
    configs = [configs] if isinstance(configs, Config) else list(configs)
    objective = bind(configs[0].objective.name, stack_settings(configs, dataset.device))
    training = configs[0].training
    rows = split(dataset, training.split).train
    systems = [built] if built is not None else []
    for number in range(len(systems), len(configs)):
        config = configs[number]
        system = _build_system(config, objective, dataset, modules)
        if config.parent is not None and number < len(first_weights):
            load_first_stage(system.model, first_weights[number], config.parent["run"])
        if training.batch == 1 and any(isinstance(m, _BatchNorm) and m.training for m in system.modules()):
            raise UsageError("These networks have BatchNorm, which needs a batch of at least 2.")
        system.model.begin(dataset, rows, config.training.seed)
        synchronise_batchnorm(system, 1 if world is None else world.size)
        systems.append(system)
    ranks = 1 if world is None else world.size
    execution = execution or choose_execution(dataset.device, training.steps, ranks)
    own_kernels = uses_own_kernels(training, execution, len(configs), ranks)
    group = Group(systems, dataset.device, training.precision, own_kernels)
    return State(group, objective, configs, dataset, rows, execution, world)


def stack_settings(configs: Sequence[Config], device: torch.device) -> dict[str, Any]:
    """Return the objective's settings; a `Weight` in which members differ becomes a tensor [member]."""
    settings = dict(configs[0].objective.settings)
    dtype = torch.float64 if configs[0].training.precision == "f64" else torch.float32
    for name in objectives[configs[0].objective.name].sweepable:
        values = [config.objective.settings[name] for config in configs]
        if len(set(values)) > 1:
            settings[name] = torch.tensor(values, device=device, dtype=dtype)
    return settings


def _build_system(config: Config, objective: Objective, dataset: FactorDataset, modules: Modules) -> System:
    model = build(config, dataset.layout, *modules)
    with seeded(config.training.seed + 1):
        system = System(model, objective.networks(model.space)).train()
    if dataset.device.type == "cpu":
        keep_freed_memory()
        users = find_users_networks(system)
        for part in system.modules():
            for parameter in () if id(part) in users else part.parameters(recurse=False):
                if parameter.ndim == 4:
                    parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
    return system
