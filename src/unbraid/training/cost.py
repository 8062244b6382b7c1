"""The cost of training by arithmetic, before the first step: a rule that gives the same number on every machine.

A forward and a backward pass count as three forward passes. An operation and a value that is written have the
times of one ordinary core; they were fitted to runs of `conv-locatello` and `broadcast-pixel`.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from unbraid.data.factors import FactorDataset
from unbraid.networks import decoder as decoders, encoder as encoders
from unbraid.registry import Registry
from unbraid.store import select_prefix
from unbraid.types import Shape

SECONDS_ALLOWED = 1_800
"""Seconds of training, by this estimate, that may begin although nobody asked for so many steps."""

CORES = 2
SECONDS_PER_OPERATION = 1 / 3e10
SECONDS_PER_VALUE = 1.2e-9
PASSES = 3
ROWS = 2  # BatchNorm needs two
OUTPUTS = 20
"""Outputs of an encoder that is only counted; their number hardly matters."""


def estimate_seconds(dataset: FactorDataset, known: Mapping[str, Any], steps: int) -> float:
    """Return about how many seconds two ordinary cores need for so many steps of the chosen networks.

    `known` holds the settings: `encoder`, `decoder`, `batch`, or `encoder.NAME` for each modality. A module of the
    user's own counts as nothing.
    """
    per_row = 0.0
    if dataset.multimodal:
        for name, modality in dataset.modalities.items():
            for side in ("encoder", "decoder"):
                network = known.get(f"{side}.{name}", known.get(side, known.get("network")))
                passes = 1 if side == "encoder" else 2  # a modality is drawn from all modalities, and from others
                per_row += passes * _count_seconds(
                    side, network, select_prefix(f"{side}.{name}.", known), modality.shape
                )
    else:
        for side in ("encoder", "decoder"):
            network = known.get(side, known.get("network"))
            per_row += _count_seconds(side, network, select_prefix(f"{side}.", known), dataset.shape)
    return per_row * PASSES * known["batch"] * steps / CORES


def _count_seconds(side: str, name: Any, settings: Mapping[str, Any], shape: Shape) -> float:
    """Return the seconds of one core for a row's forward pass through a network."""
    from torch.utils.flop_counter import FlopCounterMode  # imports Triton, which takes 0.2 s

    registry: Registry[Any, Any] = encoders if side == "encoder" else decoders
    if not isinstance(name, str) or name not in registry:
        return 0.0
    with torch.device("meta"), torch.no_grad():  # counted, never computed
        resolved = registry[name].resolve(settings)
        network = registry[name].make(
            *((shape, {"z": OUTPUTS}) if side == "encoder" else (OUTPUTS // 2, shape)), **resolved
        )
        given = torch.empty(ROWS, *(shape if side == "encoder" else (OUTPUTS // 2,)))
        written = 0

        def count(module: nn.Module, inputs: Any, output: Any) -> None:
            nonlocal written
            written += output.numel()

        for module in network.modules():
            if not list(module.children()):
                module.register_forward_hook(count)
        with FlopCounterMode(display=False) as counter:
            network(given)
    operations = counter.get_total_flops()
    return (operations * SECONDS_PER_OPERATION + written * SECONDS_PER_VALUE) / ROWS
