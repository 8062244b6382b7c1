"""What a model of several modalities makes of some of them: codes, the missing ones, and swaps of c and s."""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from unbraid import noise
from unbraid.data.modalities import PRESENT, MultimodalDataset
from unbraid.errors import UsageError, unknown
from unbraid.models.base import Model
from unbraid.models.multimodal import SHARED, Multimodal, private
from unbraid.noise import Need
from unbraid.types import Shape

CHOICE = "expert"
ROWS = 4096


def several(model: Model) -> Multimodal:
    """The model, if it is one of several modalities."""
    if not isinstance(model, Multimodal):
        raise UsageError("This needs a run on several modalities, and this one has a single one (x).")
    return model


def as_given(model: Multimodal, given: Mapping[str, Any]) -> dict[str, Tensor]:
    """Arrays by modality as a model takes them: bytes become [0, 1], classes [n] one-hot rows, None is left out."""
    device, made = next(model.parameters()).device, {}
    for name, array in given.items():
        if name not in model.names:
            raise unknown("modality", name, model.names)
        if array is not None:
            made[name] = _tensor(name, array, model.shapes[name]).to(device)
    counts = {name: len(rows) for name, rows in made.items()}
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{name} has {count}" for name, count in counts.items())
        raise UsageError(f"Modalities of the same things must have equally many rows: {told}.")
    return made


def _tensor(name: str, array: Any, shape: Shape) -> Tensor:
    rows = torch.as_tensor(array if isinstance(array, Tensor) else np.asarray(array))
    if len(shape) == 1 and rows.ndim == 1 and not rows.is_floating_point():
        if not bool(((rows >= 0) & (rows < shape[0])).all()):
            raise UsageError(f"Classes of {name} are from 0 to {shape[0] - 1}, not {rows.tolist()}.")
        rows = torch.nn.functional.one_hot(rows.long(), shape[0])
    elif rows.dtype == torch.uint8:
        rows = rows / 255
    if tuple(rows.shape[1:]) != tuple(shape):
        raise UsageError(f"{name} takes observations of shape {tuple(shape)}, not {tuple(rows.shape[1:])}.")
    return rows.to(torch.float32)


@torch.no_grad()
def codes(model: Multimodal, given: Any) -> Tensor:
    """Deterministic codes [n, width], c and then each s_m, of arrays by modality or of a data set.

    What is not given has the middle of its prior.
    """
    if isinstance(given, MultimodalDataset):
        data = given.to(_device(model))
        rows = torch.arange(len(data), device=data.device).split(ROWS)
        return torch.cat([model.space.center(model.encode(data.inputs(part))) for part in rows])
    if not isinstance(given, Mapping):
        raise UsageError(f"Give observations by modality, as {{'{model.names[0]}': …}}, since there are several.")
    return model.space.center(model.encode(as_given(model, given)))


@torch.no_grad()
def generate(
    model: Multimodal,
    given: Mapping[str, Any] | None = None,
    *,
    count: int = 1,
    seed: int = 0,
    shared: Literal["drawn", "mean"] = "drawn",
    own: Literal["encoded", "prior"] = "encoded",
) -> dict[str, Tensor]:
    """Expected observations of every modality [n, count, *shape] for n given rows, or [count, *shape] for none.

    c is drawn from q(c|what is given), or is its mean; each s_m from q(s_m|x_m) where x_m is given, unless `own` asks
    for the prior, and from the prior elsewhere.
    """
    if count < 1:
        raise UsageError(f"At least 1 sample can be drawn, not {count}.")
    x = as_given(model, given or {})
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
    model: Multimodal, x: Mapping[str, Tensor], given: tuple[str, ...], draws: int, seed: int
) -> Tensor:
    r"""log p(x_A) of each row [rows] by importance sampling, A the modalities in `x`.

        log 1/K sum_k p(c_k) prod_A p(s_mk) p(x_m|c_k, s_mk) / [q(c_k|x_given) prod_A q(s_mk|x_m)]

    It is a lower bound in expectation and rises to the truth with the number of draws (burda2016). `given` names the
    modalities, some of A, whose posterior proposes c.
    """
    there = {name: value for name, value in x.items() if name.removeprefix(PRESENT) in given}
    beliefs, every = model.beliefs(there), model.beliefs(x)
    rows, blocks = beliefs.rows, model.space.blocks
    needs = {name: Need("normal", (rows, draws, block.width)) for name, block in blocks.items()}
    needs[CHOICE] = Need("uniform", (rows, draws))
    drawn = {k: v[0] for k, v in noise.draw(needs, noise.seed_tensor(seed, device=_device(model)), 0).items()}
    c = model.drawn(beliefs, drawn[CHOICE], drawn[SHARED])
    standard = blocks[SHARED].standard(c)
    total = blocks[SHARED].log_density(standard, c).sum(-1) - model.log_posterior(beliefs, c)  # [rows, draws]
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
