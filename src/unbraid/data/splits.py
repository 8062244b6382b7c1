"""Which rows are trained on and which are held out."""

from typing import NamedTuple

import torch
from torch import Tensor

from unbraid import noise
from unbraid.data.biased_sampling import FORM as BIAS
from unbraid.data.biased_sampling import biased_rows
from unbraid.data.factors import FactorDataset
from unbraid.data.pruning import match_rows
from unbraid.errors import UsageError

RULES = f"default, none, a fraction such as 0.1, FACTOR:VALUE,VALUE, prune:CONDITION, {BIAS}"


class RowSplit(NamedTuple):
    """Rows to train on and rows held out; `held_out` is None where scores look at all rows."""

    train: Tensor
    held_out: Tensor | None
    rule: str


def split(dataset: FactorDataset, rule: str | float | int, seed: int = 0) -> RowSplit:
    """Divide a data set into rows to train on and rows held out; computed once per data set, rule and seed.

    `default`: its own test rows if it has some, else none (complete factor grids). `none`: train and score on
    everything. A fraction such as .1: that share of the rows, at random. `posX:0,1,2`: rows with those factor values.
    `prune:digit=7 & thickness>3`: rows that fit a condition (`unbraid.data.pruning`). `bias:posX,posY:D`: hold out what
    `default` does, and of the others train on so many of each combination as a joint distribution says
    (`unbraid.data.biased_sampling`). The division depends on the data alone, not on a run's seed, so that runs can be
    compared.
    """
    known = dataset.__dict__.setdefault("_splits", {})
    if (rule, seed) not in known:
        known[rule, seed] = _split(dataset, rule, seed)
    return known[rule, seed]


def _split(dataset: FactorDataset, rule: str | float | int, seed: int) -> RowSplit:
    everything = torch.arange(len(dataset), device=dataset.device)
    if isinstance(rule, str) and rule.startswith("bias:"):
        whole = split(dataset, "default", seed)
        return RowSplit(biased_rows(dataset, rule, whole.train, seed), whole.held_out, rule)
    if rule == "none" or (rule == "default" and dataset.held_out is None):
        return RowSplit(everything, None, "none")
    held_out = _held_out(dataset, rule, seed)
    if not bool(held_out.any()) or bool(held_out.all()):
        raise UsageError(f"split={rule} holds out {int(held_out.sum())} of {len(dataset)} rows; both sides need some.")
    return RowSplit(everything[~held_out], everything[held_out], str(rule))


def _held_out(dataset: FactorDataset, rule: str | float | int, seed: int) -> Tensor:
    """Which rows a rule holds out [rows]."""
    if rule == "default":
        held_out = torch.zeros(len(dataset), dtype=torch.bool, device=dataset.device)
        held_out[dataset.held_out] = True
        return held_out
    if isinstance(rule, (int, float)):
        return _random_rows(dataset, float(rule), seed)
    if rule.startswith("prune:"):
        return match_rows(dataset, rule.removeprefix("prune:"))
    return _rows_with_values(dataset, rule)


def _random_rows(dataset: FactorDataset, fraction: float, seed: int) -> Tensor:
    if not 0 < fraction < 1:
        raise UsageError(f"split={fraction} must lie between 0 and 1.")
    order = noise.permutation(noise.seed_tensor(seed, device=dataset.device), -1, len(dataset))[0]
    held_out = torch.zeros(len(dataset), dtype=torch.bool, device=dataset.device)
    held_out[order[: round(fraction * len(dataset))]] = True
    return held_out


def _rows_with_values(dataset: FactorDataset, rule: str) -> Tensor:
    name, colon, listed = rule.partition(":")
    values = [part.strip() for part in listed.split(",")]
    if not colon or not all(value.isdecimal() for value in values):
        raise UsageError(f"split={rule} is none of: {RULES}.")
    position = dataset.factor_position(name)
    size = dataset.sizes[position]
    if max(map(int, values)) >= size:
        raise UsageError(f"split={rule}: values of {name} are from 0 to {size - 1}, not {max(map(int, values))}.")
    column = dataset.values_of(torch.arange(len(dataset), device=dataset.device))[:, position]
    return torch.isin(column, torch.tensor([int(value) for value in values], device=dataset.device))
