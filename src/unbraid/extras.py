"""Packages of optional extras, imported where they are needed."""

from importlib import import_module
from types import ModuleType

from unbraid.errors import MissingExtraError


def import_extra(module: str, extra: str, what: str = "This", otherwise: str = "") -> ModuleType:
    """Import a module of an optional extra, or raise an error that says how to install it.

    `what` is the subject of the message, and `otherwise` ends it with an alternative.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtraError(what, module.partition(".")[0], extra, otherwise) from error
