"""From what a user typed to a full config: a recipe's defaults, the data's defaults, then the overrides."""

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from unbraid.config import Choice, Config, Training
from unbraid.data.biased_sampling import inline_weights
from unbraid.data.factors import FactorDataset
from unbraid.data.splits import split
from unbraid.errors import UsageError, unknown
from unbraid.latents import Space, parse_latents, prior as priors, refuse_two_sizes
from unbraid.methods import objective
from unbraid.models import CUSTOM, model as models
from unbraid.models.base import select_model_settings
from unbraid.networks import encoder as encoders, likelihood as likelihoods
from unbraid.objectives import bind
from unbraid.registry import Registry
from unbraid.store import select_prefix
from unbraid.training.modality_config import SIZES, Sections, check_modalities, check_units, choose_sections
from unbraid.types import Shape

PLENTY = 64
"""Batches in data that are certainly large enough for one, whatever is held out."""

SECTIONS = ("data", "encoder", "decoder", "likelihood", "latents", "prior")


def configure(
    recipe: str,
    data: Choice,
    dataset: FactorDataset,
    overrides: Mapping[str, Any],
    encoder: nn.Module | None = None,
    decoder: nn.Module | None = None,
    parent: Mapping[str, Any] | None = None,
) -> Config:
    """Return the config of a recipe on a data set; `parent` (see `parent_of`) is the run that it refines, if it does.

    Overrides are flat: an objective's settings and those of `Training` by name; `z` for the number of latents, or
    `latents` for several blocks (see `parse_latents`) and `groups` for their groups; `network`, `encoder`, `decoder`,
    `likelihood` and a learned `prior` by name, and their own settings with a dot (`encoder.width=600`).
    """
    entry = objective[recipe]
    if parent is None and entry.facts.stage:
        raise UsageError(f"{recipe} refines a finished run: unbraid refine RUN --with {entry.facts.stage}.")
    given = {**entry.facts.defaults, **overrides}
    check_settings(recipe, given)
    refuse_two_sizes(overrides)
    _refuse_of_own(overrides, encoder=encoder, decoder=decoder)
    if given.get("latents", "") is None and entry.facts.defaults.get("latents", "") is not None:
        raise UsageError(f"{recipe} needs at least one latent block, as latents=normal:10.")
    if isinstance(given.get("split"), str):
        given["split"] = inline_weights(given["split"])
    if "batch" not in overrides:
        given["batch"] = _batch_within(dataset, given)
    model, chosen = entry.facts.model, entry.resolve(_only(given, entry.settings))
    check_modalities(recipe, models[model].make, dataset)
    parts = choose_sections(recipe, dataset, given) if dataset.multimodal else _single_sections(recipe, dataset, given)
    groups, learned = given.get("groups"), _prior(recipe, given)
    bound, space = bind(recipe, chosen), Space.from_config(parts.latents, groups, learned)
    bound.check(dataset, space)
    models[model].make.check(space, select_model_settings(model, chosen))
    if parent is not None:
        bound.check_parent(dataset, parent["config"])
    return Config(
        objective=Choice(recipe, chosen),
        model=model,
        data=data,
        encoder=_own(encoder) or parts.encoder,
        decoder=_own(decoder) or parts.decoder,
        likelihood=parts.likelihood,
        latents=parts.latents,
        training=_reached(parts.latents, Training.from_settings(_only(given, Training.fields()))),
        groups=groups,
        prior=learned,
        parent=parent,
    )


def _single_sections(recipe: str, dataset: FactorDataset, given: Mapping[str, Any]) -> Sections:
    """Return networks, likelihood and latents of a recipe for one modality."""
    facts = objective[recipe].facts
    network, decoders = given.get("network"), models[facts.model].make.decoders
    if network is not None and network not in encoders and network not in decoders:
        raise unknown("network", str(network), {*encoders, *decoders})
    usual = (facts.network or choose_network)(dataset.shape)
    usual = {"encoder": usual, "decoder": usual} if isinstance(usual, str) else usual
    names = {side: given.get(side, network) or usual[side] for side in ("encoder", "decoder")}
    for side, registry, other in (("encoder", encoders, decoders), ("decoder", decoders, encoders)):
        if names[side] not in registry and names[side] in other:
            raise UsageError(f"'{names[side]}' has no {side}; choose one with {side}=NAME (unbraid list networks).")
    likelihood = given.get("likelihood") or ("bernoulli" if len(dataset.shape) == 3 else "gaussian")
    _refuse_out_of_range(likelihood, dataset)
    return Sections(
        _choice(encoders, names["encoder"], select_prefix("encoder.", given)),
        _choice(decoders, names["decoder"], select_prefix("decoder.", given)),
        _choice(likelihoods, likelihood, select_prefix("likelihood.", given)),
        parse_latents(given),
    )


def _refuse_of_own(overrides: Mapping[str, Any], **modules: nn.Module | None) -> None:
    """Settings of networks that were passed in."""
    for side, module in modules.items():
        settings = select_prefix(f"{side}.", overrides)
        if module is not None and settings:
            raise UsageError(f"{side} is a module of your own, in which {side}_{next(iter(settings))} sets nothing.")


def _reached(latents: Mapping[str, Mapping[str, Any]], training: Training) -> Training:
    """The training, if it is as long as every temperature takes to become the one that scores see."""
    for name, block in latents.items():
        if block.get("anneal", 0) > training.steps:
            raise UsageError(
                f"latents.{name}.anneal={block['anneal']} is longer than the {training.steps} steps of the training: "
                "scores would see a temperature that the decoder never saw."
            )
    return training


def _batch_within(dataset: FactorDataset, given: Mapping[str, Any]) -> int:
    """The usual batch, or all rows where there are fewer to train on."""
    usual = given.get("batch", Training.batch)
    if len(dataset) >= PLENTY * usual:
        return usual
    return max(1, min(usual, len(split(dataset, given.get("split", Training.split)).train)))


def _prior(recipe: str, given: Mapping[str, Any]) -> Choice | None:
    """The learned prior, if one is asked for."""
    name, settings = given.get("prior"), select_prefix("prior.", given)
    if name is None or name == "standard":
        if settings:
            raise UsageError(f"prior.{next(iter(settings))} is a setting of a learned prior; choose one with prior=….")
        return None
    if objective[recipe].facts.model != "vae":
        raise UsageError(f"{recipe} learns no prior; leave prior={name} out.")
    if name in objective[recipe].facts.untrained:
        raise UsageError(f"Nothing in {recipe}'s loss would train prior={name}; leave it out.")
    return _choice(priors, name, settings)


def _refuse_out_of_range(likelihood: str, dataset: FactorDataset) -> None:
    stored = dataset.pixels.stored
    if likelihood == "bernoulli" and stored.is_floating_point() and not (stored.min() >= 0 and stored.max() <= 1):
        raise UsageError(
            f"likelihood=bernoulli needs values in [0, 1], but {dataset.name} has some from {float(stored.min()):g} to "
            f"{float(stored.max()):g}; use likelihood=gaussian."
        )


def choose_network(shape: Shape) -> str:
    """A network that takes these observations."""
    if len(shape) == 3 and shape[1] == shape[2] == 64:
        return "conv-locatello"
    if len(shape) == 3 and shape[1] == shape[2] and shape[1] in (28, 32):
        return "conv-small"
    return "mlp"


def list_settings(recipe: str) -> list[str]:
    """Every key that `configure` takes for a recipe, besides the dotted ones."""
    return [
        *objective[recipe].settings,
        *Training.fields(),
        "z",
        "latents",
        "groups",
        "prior",
        "network",
        "encoder",
        "decoder",
        "likelihood",
        *(SIZES if models[objective[recipe].facts.model].make.multimodal else ()),
    ]


def to_dotted(recipe: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Python keywords cannot hold a dot: `encoder_width` stands for `encoder.width`."""
    dotted, known = {}, list_settings(recipe)
    for key, value in overrides.items():
        head, underscore, tail = key.partition("_")
        dotted[f"{head}.{tail}" if underscore and head in SECTIONS and key not in known else key] = value
    return dotted


def check_settings(recipe: str, given: Mapping[str, Any]) -> None:
    """A `UsageError` for the first key that no part of the recipe takes."""
    known = list_settings(recipe)
    for key in given:
        section = key.partition(".")[0]
        if key not in known and not (section != key and section in SECTIONS):
            raise unknown("setting", key, ["data", *known, *(f"{s}.…" for s in SECTIONS)], of=f"recipe '{recipe}'")


def _choice(registry: Registry[Any, Any], name: Any, settings: Mapping[str, Any]) -> Choice:
    if not isinstance(name, str):
        raise UsageError(f"{registry.kind} must be a registered name, not {name!r}.")
    choice = Choice(name, registry[name].resolve(settings))
    check_units(choice)
    return choice


def _own(module: nn.Module | None) -> Choice | None:
    """How a config records a module that the user passed in: by its class, its structure and its first weights."""
    if module is None:
        return None
    for part in module.modules():
        if isinstance(part, nn.modules.dropout._DropoutNd):
            raise UsageError(
                f"Your module has a {type(part).__name__} layer, whose random draws no checkpoint holds; a resumed run "
                "would differ. Take it out: the noise of a VAE's code already regularises."
            )
    digest = hashlib.sha256(repr(module).encode())
    for name, tensor in module.state_dict().items():
        digest.update(name.encode() + tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return Choice(CUSTOM, {"module": type(module).__qualname__, "content": digest.hexdigest()})


def _only(given: Mapping[str, Any], names: Any) -> dict[str, Any]:
    return {key: value for key, value in given.items() if key in names}
