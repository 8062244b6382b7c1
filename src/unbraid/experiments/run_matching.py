"""The comparison of a run's config with the settings that a series asks for."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from unbraid.config import Choice, Config
from unbraid.experiments.stand_in import StandIn
from unbraid.latents import parse_latents
from unbraid.methods import objective
from unbraid.models.multimodal import MODALITIES, SHARED


def matches_settings(config: Config, wanted: Mapping[str, Any]) -> bool:
    """Return True if a run has the wanted settings, as far as its config has them under the same names.

    Settings of the objective and the prior that `wanted` leaves out must have their defaults.
    """
    if isinstance(wanted.get("data"), StandIn):
        return any(matches_settings(config, each) for each in list_choices_of_data(wanted))
    known = {**config.objective.settings, **asdict(config.training), "recipe": config.objective.name}
    known |= {"data": config.data.name, "encoder": _name(config.encoder), "decoder": _name(config.decoder)}
    known |= {"network": known["encoder"], "prior": config.prior.name if config.prior else "standard"}
    known |= {f"data.{key}": value for key, value in config.data.settings.items()}
    wanted = {**objective[config.objective.name].resolve({}), "prior": "standard", **wanted}
    same = all(known[key] in list_values(wanted[key]) for key in wanted.keys() & known.keys())
    return same and _matches_encoders(config.encoder, wanted) and _matches_latents(config, wanted)


def list_choices_of_data(settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the settings with the data set that a paper wants, then, if there is one, with its stand-in."""
    data = settings.get("data")
    return [{**settings, "data": data.wanted}, data.adapt(settings)] if isinstance(data, StandIn) else [dict(settings)]


def list_values(setting: Any) -> list[Any]:
    """Return the values of a setting, which may be an axis."""
    return list(setting) if isinstance(setting, (list, range)) else [setting]


def _name(section: Choice) -> str:
    """Return the name of a section's network, or the joined names of those of its modalities."""
    if section.name != MODALITIES:
        return section.name
    return "+".join(dict.fromkeys(each["name"] for each in section.settings.values()))


def _matches_encoders(section: Choice, wanted: Mapping[str, Any]) -> bool:
    """Compare the settings of each encoder with `encoder.NAME.key` of its modality, or else with `encoder.key`."""
    encoders = section.settings if section.name == MODALITIES else {"": section.settings}
    for name, settings in encoders.items():
        for key, value in settings.items():
            keys = [f"encoder.{name}" if key == "name" else f"encoder.{name}.{key}", f"encoder.{key}"]
            found = [wanted[each] for each in keys if each in wanted]
            if found and value not in list_values(found[0]):
                return False
    return True


def _matches_latents(config: Config, wanted: Mapping[str, Any]) -> bool:
    """Compare the latents of a run with the wanted ones; an axis of latents matches every run."""
    wanted = {**objective[config.objective.name].facts.defaults, **wanted}
    if (
        config.likelihood.name == MODALITIES
    ):  # with several modalities, c and s are the sizes of shared and private latents
        sizes = {name: latent["size"] for name, latent in config.latents.items()}
        known = {"c": sizes.pop(SHARED), "s": max(sizes.values(), default=0)}
        return all(known[key] in list_values(wanted.get(key, 5)) for key in known)
    latents = {key: value for key, value in wanted.items() if key == "z" or key.partition(".")[0] == "latents"}
    return any(isinstance(value, list) for value in latents.values()) or parse_latents(latents) == config.latents
