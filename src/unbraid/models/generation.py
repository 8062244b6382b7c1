"""Codes, missing modalities and swaps of c and s, from arrays of some of a model's modalities."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unbraid import noise
from unbraid.data.array_modalities import blank_nan_rows, fill_missing
from unbraid.data.factors import FactorDataset
from unbraid.data.images import clamp_images
from unbraid.data.modalities import Observed
from unbraid.errors import UsageError, unknown
from unbraid.models.multimodal import SHARED, MultimodalModel, private_block
from unbraid.networks.likelihoods import CategoricalLikelihood
from unbraid.noise import Need
from unbraid.types import Inputs

Data = Callable[[], FactorDataset]
"""Function that loads the data, which know the names of classes; called only for words."""

CHOICE = "expert"
"""Name of the uniform noise that chooses a component of q(c|x)."""

ROWS_PER_CHUNK = 4096


def prepare_inputs(model: MultimodalModel, given: Any, data: Data | None = None) -> Inputs:
    """Return arrays by modality as inputs of a model: bytes become [0, 1], classes [n] one-hot rows.

    Rows may be missing as in `unbraid.data.from_arrays`, or as `dataset.observed` marks them; a modality that is None
    is left out. Classes may be words if `data` know them, and a single word is one row.
    """
    if not isinstance(given, Mapping):
        raise UsageError(f"Pass a dictionary of observations by modality, as {{'{model.modalities[0]}': …}}.")
    x: dict[str, Tensor] = {}
    present: dict[str, Tensor] = {}
    for name, array in given.items():
        if name not in model.modalities:
            raise unknown("modality", name, model.modalities)
        if array is not None:
            x[name], present[name] = (part.to(_device(model)) for part in _read_rows(model, name, array, data))
            if isinstance(given, Observed) and given.present is not None:
                present[name] = present[name] & given.present[:, list(given).index(name)].to(_device(model))
    if not x:
        if given:
            raise UsageError(f"{', '.join(given)} hold no observations; leave them out to draw from the prior.")
        return Inputs({})
    counts = {name: len(rows) for name, rows in x.items()}
    if len(set(counts.values())) > 1:
        shown = ", ".join(f"{name} has {count}" for name, count in counts.items())
        raise UsageError(f"Modalities must have equally many rows, but {shown}.")
    absent = torch.zeros_like(next(iter(present.values())))
    mask = torch.stack([present.get(name, absent) for name in model.modalities], -1)
    if bool(mask.any(-1).logical_not().any()):
        row = int(mask.any(-1).logical_not().nonzero()[0])
        raise UsageError(f"Row {row} is missing in every modality; leave it out.")
    return Inputs(x, None if all(bool(rows.all()) for rows in present.values()) else mask)


def _read_rows(model: MultimodalModel, name: str, given: Any, data: Data | None) -> tuple[Tensor, Tensor]:
    """Return observations [n, *shape] of a modality, and a mask [n] of the rows that have one."""
    shape, (array, present) = model.shapes[name], fill_missing(name, [given] if isinstance(given, str) else given)
    if array.dtype.kind == "U":
        present, array = present & (array != ""), _class_numbers(name, array, data)
    is_label = isinstance(model.densities[name], CategoricalLikelihood)
    if is_label and array.ndim == len(shape) == 1 and array.dtype.kind in "iu":
        array = array.astype(np.int64)
        wrong = array[(array < -1) | (array >= shape[0])]
        if len(wrong):
            raise UsageError(f"Classes of {name} must be from 0 to {shape[0] - 1}, or -1 for none, not {wrong[0]}.")
        present, rows = present & (array >= 0), torch.from_numpy(array).unsqueeze(-1) == torch.arange(shape[0])
    else:
        array = array.astype(np.float32) if array.dtype.kind in "iu" and len(shape) == 1 else array
        array, present = blank_nan_rows(name, array[:, None] if array.ndim == len(shape) == 1 else array, present)
        rows = torch.from_numpy(np.array(array)) / (255 if array.dtype == np.uint8 else 1)
    if tuple(rows.shape[1:]) != tuple(shape):
        raise UsageError(f"{name} takes observations of shape {tuple(shape)}, not {tuple(rows.shape[1:])}.")
    rows = rows.to(torch.float32)
    if not bool(rows.isfinite().all()):
        raise UsageError(f"{name} holds infinite numbers; remove these rows.")
    return clamp_images(rows, name) if len(shape) == 3 else rows, torch.from_numpy(present)


def _class_numbers(name: str, words: np.ndarray, data: Data | None) -> np.ndarray:
    """Return the numbers of classes by name, -1 for an empty word."""
    if data is None:
        raise UsageError(f"{name} takes numbers here; only a run with its data knows the names of classes.")
    classes = data().modalities[name].classes
    if not classes:
        raise UsageError(f"{name} has no classes; pass numbers, not words.")
    numbers = {"": -1, **{word: number for number, word in enumerate(classes)}}
    for word in words.tolist():
        if word not in numbers:
            raise unknown("class", word, classes, of=name)
    return np.array([numbers[word] for word in words.tolist()])


@torch.no_grad()
def encode_arrays(model: MultimodalModel, given: Any, data: Data | None = None) -> Tensor:
    """Return deterministic codes [n, width], c and then each s_m, of arrays by modality or of a data set.

    Latents of missing modalities are at the middle of their prior.
    """
    if isinstance(given, FactorDataset):
        moved = given.to(_device(model))
        rows = torch.arange(len(moved), device=moved.device).split(ROWS_PER_CHUNK)
        return torch.cat([model.space.center(model.encode(moved.inputs(part))) for part in rows])
    return model.space.center(model.encode(prepare_inputs(model, given, data)))


@torch.no_grad()
def generate(
    model: MultimodalModel,
    given: Any = None,
    *,
    count: int = 1,
    seed: int = 0,
    shared: str = "drawn",
    own: str = "encoded",
    data: Data | None = None,
) -> dict[str, Tensor]:
    """Return expected observations of every modality [n, count, *shape] for n given rows, or [count, *shape] for none.

    `shared` says how to choose c: `drawn` from q(c|given modalities), or its `mean`. `own` says how to draw s_m of a
    given x_m: from q(s_m|x_m) (`encoded`) or from the `prior`. The other s_m come from the prior.
    """
    if count < 1:
        raise UsageError(f"count must be at least 1, not {count}.")
    for setting, value, known in (("shared", shared, ("drawn", "mean")), ("own", own, ("encoded", "prior"))):
        if value not in known:
            raise unknown(f"value of {setting}", value, known)
    inputs = prepare_inputs(model, {} if given is None else given, data)
    rows = len(next(iter(inputs.x.values()))) if inputs.x else 1
    values, choice = _draw_standard(model, rows, count, seed)
    if inputs.x:
        posteriors = model.encode_each(inputs)
        mean = model.fuse(posteriors).mean.unsqueeze(1).expand_as(values[SHARED])
        drawn = model.draw_shared(posteriors, choice, values[SHARED])
        for name, flat in posteriors.private.items() if own == "encoded" else ():
            values[name] = model.space.blocks[name].sample(flat.unsqueeze(1), values[name])
        values[SHARED] = mean if shared == "mean" else drawn
    flat = {name: value.flatten(0, 1) for name, value in values.items()}
    expected = {n: model.expected_modality(n, flat[SHARED], flat.get(private_block(n))) for n in model.modalities}
    return {n: images.unflatten(0, (rows, count)) if inputs.x else images for n, images in expected.items()}


@torch.no_grad()
def cross_codes(model: MultimodalModel, name: str, c: Tensor, s: Tensor | None) -> Tensor:
    """Return expected observations [rows of s, rows of c, *shape] of one modality for every s_m with every c."""
    if name not in model.modalities:
        raise unknown("modality", name, model.modalities)
    rows = 1 if s is None else len(s)
    shared = c.unsqueeze(0).expand(rows, -1, -1).flatten(0, 1)
    private = None if s is None else s.unsqueeze(1).expand(-1, len(c), -1).flatten(0, 1)
    return model.expected_modality(name, shared, private).unflatten(0, (rows, len(c)))


@torch.no_grad()
def log_likelihoods(
    model: MultimodalModel, inputs: Inputs, given: tuple[str, ...], draws: int, seed: int, part: int = 0
) -> Tensor:
    r"""Estimate log p(x_A) of each row [rows] by importance sampling, A the modalities in `inputs.x`.

        log 1/K sum_k p(c_k) prod_A p(s_mk) p(x_m|c_k, s_mk) / [q(c_k|x_given) prod_A q(s_mk|x_m)]

    It is a lower bound in expectation and rises to the truth with the number of draws (burda2016). `given` names the
    modalities of A whose posterior proposes c. Each `part` of the rows has its own draws.
    """
    proposing = inputs._replace(x={name: value for name, value in inputs.x.items() if name in given})
    posteriors, every = model.encode_each(proposing), model.encode_each(inputs)
    rows, blocks = posteriors.rows, model.space.blocks
    drawn, choice = _draw_standard(model, rows, draws, seed, part)
    proposal = model.proposal(posteriors).repeat(draws)
    c = proposal.draw(choice, drawn[SHARED])
    standard = blocks[SHARED].standard(c)
    total = blocks[SHARED].log_density(standard, c).sum(-1) - proposal.log_density(c)  # [rows, draws]
    for m, name in [(m, name) for m, name in enumerate(model.modalities) if name in inputs.x]:
        x, block, flat = inputs.x[name], blocks.get(private_block(name)), every.private.get(private_block(name))
        s = None
        if block is not None and flat is not None:
            s = block.sample(flat.unsqueeze(1), drawn[private_block(name)])
            total = total + (block.log_density(block.standard(s), s) - block.log_density(flat.unsqueeze(1), s)).sum(-1)
        decoded = model.decode_modality(name, c.flatten(0, 1), None if s is None else s.flatten(0, 1))
        repeated = x.unsqueeze(1).expand(-1, draws, *x.shape[1:]).flatten(0, 1)
        likelihood = model.likelihoods[name].log_prob(decoded, repeated, x.ndim - 1).unflatten(0, (rows, draws))
        if inputs.present is not None:
            likelihood = torch.where(inputs.present[:, m, None], likelihood, 0.0)
        total = total + likelihood
    return total.logsumexp(-1) - np.log(draws)


def _draw_standard(
    model: MultimodalModel, rows: int, count: int, seed: int, step: int = 0
) -> tuple[dict[str, Tensor], Tensor]:
    """Draw standard normal noise [rows, count, width] by block, and uniform numbers [rows, count] for components."""
    needs = {name: Need("normal", (rows, count, block.width)) for name, block in model.space.blocks.items()}
    needs[CHOICE] = Need("uniform", (rows, count))
    drawn = noise.draw(needs, noise.seed_tensor(seed, device=_device(model)), step)
    return {name: drawn[name][0] for name in model.space.blocks}, drawn[CHOICE][0]


def _device(model: MultimodalModel) -> torch.device:
    return next(model.parameters()).device
