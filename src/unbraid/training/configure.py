"""From the settings that a user gives to a full config: defaults of the recipe and the data, then overrides."""

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from unbraid.config import MODEL_SETTINGS, Choice, Config, Training, check_names
from unbraid.data.biased_sampling import inline_weights
from unbraid.data.factors import FactorDataset
from unbraid.data.modality import Kind
from unbraid.data.splits import split
from unbraid.data.tables import columns_of
from unbraid.errors import UsageError, unknown
from unbraid.latents import Space, parse_latents, prior as priors, refuse_two_sizes
from unbraid.methods import objective
from unbraid.models import CUSTOM, model as models
from unbraid.models.base import select_model_settings
from unbraid.networks import encoder as encoders, likelihood as likelihoods
from unbraid.networks.own_modules import hash_code
from unbraid.objectives import bind
from unbraid.printable import shorten
from unbraid.store import select_prefix
from unbraid.training.modality_config import (
    SIZES,
    Sections,
    check_modalities,
    choose_sections,
    make_choice,
    refuse_out_of_range,
    refuse_wrong_widths,
)
from unbraid.types import NO_MODULES, Modules, Shape

MAX_BATCHES_TO_COUNT = 64
"""Data with more batches than this have a full one, whatever is held out."""

MAX_WHOLE_NUMBER = 2**62
"""Whole numbers of torch have 64 bits."""

SECTIONS = ("data", "encoder", "decoder", "likelihood", "latents", "prior")


def configure(
    recipe: str,
    data: Choice,
    dataset: FactorDataset,
    overrides: Mapping[str, Any],
    modules: Modules = NO_MODULES,
    parent: Mapping[str, Any] | None = None,
) -> Config:
    """Return the config of a recipe on a data set.

    Overrides are flat: settings of the objective and of `Training` by name; `z`, the number of latents, or `latents`
    for several blocks and `groups` for their groups; `network`, `encoder`, `decoder`, `likelihood` and a learned
    `prior` by name, and their settings with a dot (`encoder.width=600`). `parent` describes the run that this one
    refines (see `describe_first_stage`).
    """
    entry = objective[recipe]
    if parent is None and entry.facts.stage:
        raise UsageError(f"{recipe} refines a finished run: unbraid refine RUN --with {entry.facts.stage}.")
    given = {**entry.facts.defaults, **overrides}
    check_settings(recipe, given)
    refuse_two_sizes(overrides)
    _refuse_module_settings(overrides, modules)
    if given.get("latents", "") is None and entry.facts.defaults.get("latents", "") is not None:
        raise UsageError(f"{recipe} needs at least one latent block, as latents=normal:10.")
    if isinstance(given.get("split"), str):
        given["split"] = inline_weights(given["split"])
    if "batch" not in overrides:
        given["batch"] = _choose_batch(dataset, given)
    model, chosen = entry.facts.model, entry.resolve(_only(given, entry.settings))
    check_modalities(recipe, models[model].make, dataset)
    choose = choose_sections if dataset.multimodal else _choose_single_sections
    parts = choose(recipe, dataset, given)
    groups, learned = given.get("groups"), _choose_prior(recipe, given)
    bound, space = bind(recipe, chosen), Space.from_config(parts.latents, groups, learned)
    bound.check(dataset, space)
    models[model].make.check(space, select_model_settings(model, chosen))
    if parent is not None:
        bound.check_parent(dataset, parent["config"])
    training = Training.from_settings(_only(given, Training.fields()))
    _refuse_unfinished_annealing(parts.latents, training)
    if training.patience is not None and split(dataset, training.split).held_out is None:
        raise UsageError(
            f"patience={training.patience} needs held-out rows, and split={training.split} holds out none of "
            f"{dataset.name}; add split=0.1."
        )
    return Config(
        objective=Choice(recipe, chosen),
        model=model,
        data=data,
        encoder=parts.encoder if modules.encoder is None else _describe_module(modules.encoder),
        decoder=parts.decoder if modules.decoder is None else _describe_module(modules.decoder),
        likelihood=parts.likelihood,
        latents=parts.latents,
        training=training,
        groups=groups,
        prior=learned,
        parent=parent,
    )


def _choose_single_sections(recipe: str, dataset: FactorDataset, given: Mapping[str, Any]) -> Sections:
    """Return networks, likelihood and latents for one modality."""
    facts = objective[recipe].facts
    network, decoders = given.get("network"), models[facts.model].make.decoders
    if network is not None and network not in encoders and network not in decoders:
        raise unknown("network", str(network), {*encoders, *decoders})
    default = (facts.network or choose_network)(dataset.shape)
    defaults = {"encoder": default, "decoder": default} if isinstance(default, str) else default
    names = {side: given.get(side, network) or defaults[side] for side in ("encoder", "decoder")}
    for side, registry, other in (("encoder", encoders, decoders), ("decoder", decoders, encoders)):
        if names[side] not in registry and names[side] in other:
            raise UsageError(f"'{names[side]}' has no {side}; choose one with {side}=NAME (unbraid list networks).")
    likelihood = given.get("likelihood") or choose_likelihood(dataset)
    refuse_out_of_range(likelihood, dataset.pixels, dataset.name, "likelihood")
    density = {**choose_likelihood_settings(likelihood, dataset), **select_prefix("likelihood.", given)}
    chosen = make_choice(likelihoods, likelihood, density)
    kind: Kind = "image" if len(dataset.shape) == 3 else "vector"
    columns = columns_of(dataset)
    where = (dataset.source if columns else "") or dataset.name
    refuse_wrong_widths(chosen, kind, dataset.shape, where, "likelihood", columns)
    return Sections(
        make_choice(encoders, names["encoder"], select_prefix("encoder.", given)),
        make_choice(decoders, names["decoder"], select_prefix("decoder.", given)),
        chosen,
        parse_latents(given),
    )


def _refuse_module_settings(overrides: Mapping[str, Any], modules: Modules) -> None:
    """Raise if the user gives settings for a module of their own."""
    for side, module in modules._asdict().items():
        settings = select_prefix(f"{side}.", overrides)
        if module is not None and settings:
            raise UsageError(f"{side} is a module of your own; leave {side}_{next(iter(settings))} out.")


def _refuse_unfinished_annealing(latents: Mapping[str, Mapping[str, Any]], training: Training) -> None:
    """Raise if training ends before a temperature schedule does."""
    for name, block in latents.items():
        if block.get("anneal", 0) > training.steps:
            raise UsageError(
                f"latents.{name}.anneal={block['anneal']} is longer than the {training.steps} steps of training; "
                "scores would use a temperature at which the decoder was never trained."
            )


def _choose_batch(dataset: FactorDataset, given: Mapping[str, Any]) -> int:
    """Return the default batch, or all training rows if there are fewer."""
    default = given.get("batch", Training.batch)
    if len(dataset) >= MAX_BATCHES_TO_COUNT * default:
        return default
    return max(1, min(default, len(split(dataset, given.get("split", Training.split)).train)))


def _choose_prior(recipe: str, given: Mapping[str, Any]) -> Choice | None:
    """Return the learned prior, or None for the standard one."""
    name, settings = given.get("prior"), select_prefix("prior.", given)
    if name is None or name == "standard":
        if settings:
            raise UsageError(f"prior.{next(iter(settings))} is a setting of a learned prior; choose one with prior=….")
        return None
    if objective[recipe].facts.model != "vae":
        raise UsageError(f"{recipe} learns no prior; leave prior={name} out.")
    if name in objective[recipe].facts.untrained:
        raise UsageError(f"Nothing in {recipe}'s loss would train prior={name}; leave it out.")
    return make_choice(priors, name, settings)


def choose_network(shape: Shape) -> str:
    """Return the default network for observations of a shape."""
    if len(shape) == 3 and shape[1] == shape[2] == 64:
        return "conv-locatello"
    if len(shape) == 3 and shape[1] == shape[2] and shape[1] in (28, 32):
        return "conv-small"
    return "mlp"


def is_multimodal(recipe: str) -> bool:
    """Return whether a recipe learns from several modalities."""
    return models[objective[recipe].facts.model].make.multimodal


def list_settings(recipe: str) -> list[str]:
    """Return every key without a dot that `configure` takes for a recipe."""
    sizes = SIZES if is_multimodal(recipe) else ()
    return [*objective[recipe].settings, *Training.fields(), *MODEL_SETTINGS, *sizes]


def to_dotted(recipe: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return Python keywords such as `encoder_width` as settings such as `encoder.width`."""
    dotted, known = {}, list_settings(recipe)
    for key, value in overrides.items():
        head, underscore, tail = key.partition("_")
        dotted[f"{head}.{tail}" if underscore and head in SECTIONS and key not in known else key] = value
    return dotted


def check_settings(recipe: str, given: Mapping[str, Any]) -> None:
    """Raise a `UsageError` for the first key that no part of the recipe takes, and for names that are no words."""
    check_names(given)
    for key, value in given.items():
        if hasattr(value, "__array__") and getattr(value, "ndim", 0) > 0:
            raise UsageError(f"{key} is an array; a single run takes one value, and a sweep a list of them.")
        if key != "seed" and isinstance(value, int) and abs(value) >= MAX_WHOLE_NUMBER:  # a seed has its own limit
            raise UsageError(f"{key}={shorten(value)} is too large a number.")
    known = list_settings(recipe)
    for key in given:
        section = key.partition(".")[0]
        if key not in known and not (section != key and section in SECTIONS):
            raise unknown("setting", key, ["data", *known, *(f"{s}.…" for s in SECTIONS)], of=f"recipe '{recipe}'")


def _describe_module(module: nn.Module) -> Choice:
    """Return what a config records of a user's module: its class, a hash of its code, and one of its weights, too."""
    for part in module.modules():
        if isinstance(part, nn.modules.dropout._DropoutNd) and part.p > 0:
            raise UsageError(
                f"Your module has a {type(part).__name__} layer, whose random draws no checkpoint holds, so that a "
                "resumed run would differ; remove it (the noise of a VAE's code already regularises)."
            )
    code = hash_code(module)
    digest = hashlib.sha256(code.encode())
    for name, tensor in module.state_dict().items():
        digest.update(name.encode() + tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return Choice(CUSTOM, {"module": type(module).__qualname__, "content": digest.hexdigest(), "code": code})


def _only(given: Mapping[str, Any], names: Any) -> dict[str, Any]:
    return {key: value for key, value in given.items() if key in names}


def choose_likelihood(dataset: FactorDataset) -> str:
    """Return the default likelihood for data of one modality."""
    if len(dataset.shape) == 3:
        return "bernoulli"
    return "mixed" if any(column.classes for column in columns_of(dataset)) else "gaussian"


def choose_likelihood_settings(likelihood: str, dataset: FactorDataset) -> dict[str, Any]:
    """Return settings of a likelihood that the data choose: the widths of a table's columns, and a learned scale.

    The features of a table have variance 1 and often little noise. With a scale fixed at 1 a model would ignore
    whatever explains less of them than that.
    """
    columns = columns_of(dataset)
    widths = {"widths": tuple(column.width for column in columns) or (1,) * dataset.shape[-1]}
    learned = {"learned": True} if columns and likelihood in ("gaussian", "laplace", "mixed") else {}
    return {**(widths if likelihood == "mixed" else {}), **learned}
