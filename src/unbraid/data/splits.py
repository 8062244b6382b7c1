"""Splits of a data set into rows to train on and held-out rows."""

from typing import NamedTuple

import torch
from torch import Tensor

from unbraid import noise
from unbraid.data.biased_sampling import FORM as BIAS, choose_biased_rows
from unbraid.data.factors import FactorDataset
from unbraid.data.pruning import match_rows
from unbraid.errors import UsageError

RULES = f"default, none, train, a fraction such as 0.1, FACTOR:VALUE,VALUE, prune:CONDITION, {BIAS}"


class RowSplit(NamedTuple):
    """Rows to train on and rows held out; `held_out` is None if scores use all rows."""

    train: Tensor
    held_out: Tensor | None
    rule: str


def split(dataset: FactorDataset, rule: str | float | int | None, seed: int = 0) -> RowSplit:
    """Split a data set into rows to train on and held-out rows, once per data set, rule and seed.

    - `default` holds out the data set's own test rows, if it has some. Complete factor grids have none.
    - `none`, or None, holds out nothing: scores use the training rows, which are all rows.
    - `train` trains as `default` does, and scores use the training rows: those that q(x) of an objective is about.
    - A fraction such as .1 holds out that share of the rows, at random.
    - `posX:0,1,2` holds out rows with those factor values.
    - `prune:digit=7 & thickness>3` holds out rows that fit a condition (`unbraid.data.pruning`).
    - `bias:posX,posY:D` holds out what `default` does, and thins the other rows so that each combination of factors
      is as frequent as a joint distribution says (`unbraid.data.biased_sampling`).

    The split depends on the data and not on a run's seed, so that runs can be compared.
    """
    rule = "none" if rule is None else rule  # as the command line reads that word
    splits = dataset.__dict__.setdefault("_splits", {})
    if (rule, seed) not in splits:
        splits[rule, seed] = _split(dataset, rule, seed)
    return splits[rule, seed]


def _split(dataset: FactorDataset, rule: str | float | int, seed: int) -> RowSplit:
    rows = torch.arange(len(dataset), device=dataset.device)
    if isinstance(rule, str) and rule.startswith("bias:"):
        whole = split(dataset, "default", seed)
        return RowSplit(choose_biased_rows(dataset, rule, whole.train, seed), whole.held_out, rule)
    if rule == "train":
        whole = split(dataset, "default", seed)
        return RowSplit(whole.train, whole.train, "train")
    if rule == "none" or (rule == "default" and dataset.held_out is None):
        return RowSplit(rows, None, "none")
    if rule == "default":
        held_out = torch.zeros(len(dataset), dtype=torch.bool, device=dataset.device)
        held_out[dataset.held_out] = True
    elif isinstance(rule, (int, float)):
        held_out = _draw_rows(dataset, float(rule), seed)
    elif rule.startswith("prune:"):
        held_out = match_rows(dataset, rule.removeprefix("prune:"))
    else:
        held_out = _match_values(dataset, rule)
    if not bool(held_out.any()) or bool(held_out.all()):
        raise UsageError(f"split={rule} holds out {int(held_out.sum())} of {len(dataset)} rows; both sides need some.")
    return RowSplit(rows[~held_out], rows[held_out], str(rule))


def _draw_rows(dataset: FactorDataset, fraction: float, seed: int) -> Tensor:
    if not 0 < fraction < 1:
        raise UsageError(f"split={fraction} must lie between 0 and 1.")
    order = noise.permutation(noise.seed_tensor(seed, device=dataset.device), -1, len(dataset))[0]
    held_out = torch.zeros(len(dataset), dtype=torch.bool, device=dataset.device)
    held_out[order[: round(fraction * len(dataset))]] = True
    return held_out


def _match_values(dataset: FactorDataset, rule: str) -> Tensor:
    name, colon, listed = rule.partition(":")
    parts = [part.strip() for part in listed.split(",")]
    if not colon or not all(part.isdecimal() for part in parts):
        raise UsageError(f"split={rule} is none of: {RULES}.")
    values = list(map(int, parts))
    position = dataset.factor_position(name)
    size = dataset.sizes[position]
    if max(values) >= size:
        raise UsageError(f"split={rule}: values of {name} are from 0 to {size - 1}, not {max(values)}.")
    column = dataset.values_of(torch.arange(len(dataset), device=dataset.device))[:, position]
    return torch.isin(column, torch.tensor(values, device=dataset.device))
