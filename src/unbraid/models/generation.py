"""What a model of several modalities makes of some of them: codes, the missing ones, and swaps of c and s."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unbraid import noise
from unbraid.data.array_modalities import filled, without_nan
from unbraid.data.factors import FactorDataset
from unbraid.data.images import in_range
from unbraid.data.modalities import PRESENT, Labels, MultimodalDataset, masks
from unbraid.errors import UsageError, unknown
from unbraid.models.base import Model
from unbraid.models.multimodal import SHARED, Multimodal, private
from unbraid.networks.likelihoods import Categorical
from unbraid.noise import Need

Data = Callable[[], FactorDataset]
"""Where the names of classes come from, loaded only if words are given."""

CHOICE = "expert"
ROWS = 4096


def several(model: Model) -> Multimodal:
    """The model, if it is one of several modalities."""
    if not isinstance(model, Multimodal):
        raise UsageError("This needs a run on several modalities, and this one has a single one (x).")
    return model


def as_given(model: Multimodal, given: Any, data: Data | None = None) -> dict[str, Tensor]:
    """Arrays by modality as a model takes them: bytes become [0, 1], classes [n] one-hot rows, None is left out.

    Rows may be missing as in `unbraid.data.from_arrays`; classes may be words where `data` know them, and a single
    word is one row.
    """
    if not isinstance(given, Mapping):
        raise UsageError(f"Give observations by modality, as {{'{model.names[0]}': …}}, since there are several.")
    made, present = {}, {}
    for name, array in given.items():
        if name not in model.names:
            raise unknown("modality", name, model.names)
        if array is not None:
            made[name], present[name] = (part.to(_device(model)) for part in _rows(model, name, array, data))
    if given and not made:
        raise UsageError(f"Nothing is given of {', '.join(given)}; leave them out for draws of the prior.")
    counts = {name: len(rows) for name, rows in made.items()}
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{name} has {count}" for name, count in counts.items())
        raise UsageError(f"Modalities of the same things must have equally many rows: {told}.")
    if all(bool(there.all()) for there in present.values()):
        return made
    blank = ~torch.stack([*present.values()]).any(0)
    if bool(blank.any()):
        raise UsageError(f"Row {int(blank.nonzero()[0])} is missing in every modality that is given; leave it out.")
    return {**made, **masks(present)}


def _rows(model: Multimodal, name: str, given: Any, data: Data | None) -> tuple[Tensor, Tensor]:
    """Observations [n, *shape] of a modality, and which rows [n] have one."""
    shape, (array, there) = model.shapes[name], filled(name, [given] if isinstance(given, str) else given)
    if array.dtype.kind == "U":
        there, array = there & (array != ""), _numbers(name, array, data)
    if array.ndim == len(shape) == 1 and array.dtype.kind in "iu" and isinstance(model.densities[name], Categorical):
        array = array.astype(np.int64)
        wrong = array[(array < -1) | (array >= shape[0])]
        if len(wrong):
            raise UsageError(f"Classes of {name} are from 0 to {shape[0] - 1}, or -1 for none, not {wrong[0]}.")
        there, rows = there & (array >= 0), torch.from_numpy(array).unsqueeze(-1) == torch.arange(shape[0])
    else:
        array = array.astype(np.float32) if array.dtype.kind in "iu" and len(shape) == 1 else array
        array, there = without_nan(name, array[:, None] if array.ndim == len(shape) == 1 else array, there)
        rows = torch.from_numpy(array) / (255 if array.dtype == np.uint8 else 1)
    if tuple(rows.shape[1:]) != tuple(shape):
        raise UsageError(f"{name} takes observations of shape {tuple(shape)}, not {tuple(rows.shape[1:])}.")
    rows = rows.to(torch.float32)
    if not bool(rows.isfinite().all()):
        raise UsageError(f"{name} holds infinite numbers.")
    return in_range(rows, name) if len(shape) == 3 else rows, torch.from_numpy(there)


def _numbers(name: str, words: np.ndarray, data: Data | None) -> np.ndarray:
    """Classes by their names in the data, -1 for an empty word."""
    if data is None:
        raise UsageError(f"{name} takes numbers; the names of classes are known where a run has its data.")
    dataset = data()
    values = dataset.modalities[name].values if isinstance(dataset, MultimodalDataset) else None
    if not isinstance(values, Labels):
        raise UsageError(f"{name} takes numbers, not words: it has no classes.")
    places = {"": -1, **{word: place for place, word in enumerate(values.classes)}}
    for word in words.tolist():
        if word not in places:
            raise unknown("class", word, values.classes, of=name)
    return np.array([places[word] for word in words.tolist()])


@torch.no_grad()
def codes(model: Multimodal, given: Any, data: Data | None = None) -> Tensor:
    """Deterministic codes [n, width], c and then each s_m, of arrays by modality or of a data set.

    What is not given has the middle of its prior.
    """
    if isinstance(given, MultimodalDataset):
        moved = given.to(_device(model))
        rows = torch.arange(len(moved), device=moved.device).split(ROWS)
        return torch.cat([model.space.center(model.encode(moved.inputs(part))) for part in rows])
    return model.space.center(model.encode(as_given(model, given, data)))


@torch.no_grad()
def generate(
    model: Multimodal,
    given: Any = None,
    *,
    count: int = 1,
    seed: int = 0,
    shared: str = "drawn",
    own: str = "encoded",
    data: Data | None = None,
) -> dict[str, Tensor]:
    """Expected observations of every modality [n, count, *shape] for n given rows, or [count, *shape] for none.

    c is `drawn` from q(c|what is given), or is its `mean`; each s_m, where x_m is given, is drawn from q(s_m|x_m)
    (`encoded`) or from the `prior`, and from the prior elsewhere.
    """
    if count < 1:
        raise UsageError(f"At least 1 sample can be drawn, not {count}.")
    for setting, value, known in (("shared", shared, ("drawn", "mean")), ("own", own, ("encoded", "prior"))):
        if value not in known:
            raise unknown(f"value of {setting}", value, known)
    x = as_given(model, {} if given is None else given, data)
    rows = len(next(iter(x.values()))) if x else 1
    blocks = {name: block.width for name, block in model.space.blocks.items()}
    needs = {name: Need("normal", (rows, count, width)) for name, width in blocks.items()}
    needs[CHOICE] = Need("uniform", (rows, count))
    drawn = {k: v[0] for k, v in noise.draw(needs, noise.seed_tensor(seed, device=_device(model)), 0).items()}
    values = {name: drawn[name] for name in blocks}
    if x:
        beliefs = model.beliefs(x)
        mean = model.fused(beliefs).mean.unsqueeze(1).expand_as(values[SHARED])
        values[SHARED] = mean if shared == "mean" else model.drawn(beliefs, drawn[CHOICE], drawn[SHARED])
        for name, flat in beliefs.private.items() if own == "encoded" else ():
            values[name] = model.space.blocks[name].sample(flat.unsqueeze(1), drawn[name])
    flat = {name: value.flatten(0, 1) for name, value in values.items()}
    made = {n: model.expected_of(n, flat[SHARED], flat.get(private(n))) for n in model.names}
    return {n: images.unflatten(0, (rows, count)) if x else images for n, images in made.items()}


@torch.no_grad()
def crossed(model: Multimodal, name: str, c: Tensor, s: Tensor | None) -> Tensor:
    """Expected observations [rows of s, rows of c, *shape] of one modality for every s_m with every c."""
    if name not in model.names:
        raise unknown("modality", name, model.names)
    own = 1 if s is None else len(s)
    codes = c.unsqueeze(0).expand(own, -1, -1).flatten(0, 1)
    private_codes = None if s is None else s.unsqueeze(1).expand(-1, len(c), -1).flatten(0, 1)
    return model.expected_of(name, codes, private_codes).unflatten(0, (own, len(c)))


@torch.no_grad()
def log_likelihoods(
    model: Multimodal, x: Mapping[str, Tensor], given: tuple[str, ...], draws: int, seed: int, part: int = 0
) -> Tensor:
    r"""log p(x_A) of each row [rows] by importance sampling, A the modalities in `x`.

        log 1/K sum_k p(c_k) prod_A p(s_mk) p(x_m|c_k, s_mk) / [q(c_k|x_given) prod_A q(s_mk|x_m)]

    It is a lower bound in expectation and rises to the truth with the number of draws (burda2016). `given` names the
    modalities, some of A, whose posterior proposes c. Each `part` of the rows has draws of its own.
    """
    there = {name: value for name, value in x.items() if name.removeprefix(PRESENT) in given}
    beliefs, every = model.beliefs(there), model.beliefs(x)
    rows, blocks = beliefs.rows, model.space.blocks
    needs = {name: Need("normal", (rows, draws, block.width)) for name, block in blocks.items()}
    needs[CHOICE] = Need("uniform", (rows, draws))
    drawn = {k: v[0] for k, v in noise.draw(needs, noise.seed_tensor(seed, device=_device(model)), part).items()}
    proposal = model.proposal(beliefs).repeated(draws)
    c = proposal.drawn(drawn[CHOICE], drawn[SHARED])
    standard = blocks[SHARED].standard(c)
    total = blocks[SHARED].log_density(standard, c).sum(-1) - proposal.log_density(c)  # [rows, draws]
    for name in (name for name in model.names if name in x):
        block, flat = blocks.get(private(name)), every.private.get(private(name))
        s = None
        if block is not None and flat is not None:
            s = block.sample(flat.unsqueeze(1), drawn[private(name)])
            total = total + (block.log_density(block.standard(s), s) - block.log_density(flat.unsqueeze(1), s)).sum(-1)
        decoded = model.decoded(name, c.flatten(0, 1), None if s is None else s.flatten(0, 1))
        seen = x[name].unsqueeze(1).expand(-1, draws, *x[name].shape[1:]).flatten(0, 1)
        likelihood = model.likelihoods[name].log_prob(decoded, seen, seen.ndim - 1).unflatten(0, (rows, draws))
        mask = x.get(PRESENT + name)
        total = total + (likelihood if mask is None else torch.where(mask.unsqueeze(-1), likelihood, 0.0))
    return total.logsumexp(-1) - np.log(draws)


def _device(model: Multimodal) -> torch.device:
    return next(model.parameters()).device
