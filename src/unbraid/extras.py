"""Packages of optional extras, imported where they are needed."""

from importlib import import_module
from types import ModuleType

from unbraid.errors import MissingExtraError


def import_extra(module: str, extra: str, what: str = "This", otherwise: str = "") -> ModuleType:
    """Import a module of an optional extra, or raise an error that names `what` needs it and how to install it.

    `otherwise` ends the sentence with what to use without it.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtraError(what, module.partition(".")[0], extra, otherwise) from error
