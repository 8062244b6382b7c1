"""JSON and YAML of strangers: bounded in depth, without aliases, and with a checksum of their content.

A file that unbraid writes holds `sum`, a CRC-32 of everything else in it, so that a changed byte is noticed. Files of
older versions have none. Whoever edits a file by hand removes its `sum`.
"""

import copy
import json
import zlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import yaml

from unbraid.errors import UsageError

MAX_DEPTH = 32
"""Deeper nesting is refused; a config that refines a run nests it, so this allows a dozen stages."""

MAX_YAML_CHARACTERS = 1 << 24

MAX_KEPT_CHARACTERS = 1 << 14
"""A longer YAML text is parsed anew each time; a config is far shorter, and commands read it many times."""

SUM = "sum"

FastSafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The safe loader in C, if PyYAML has it: a sweep reads hundreds of configs."""

FastSafeDumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
"""The safe dumper in C, if PyYAML has it; both write the same text."""


class ParseError(UsageError):
    """A text is not JSON or YAML, or not such as unbraid reads; the message is a phrase without the file's name."""


def parse_json(text: str) -> Any:
    try:
        value = json.loads(text)
    except RecursionError:
        raise ParseError(f"it is nested deeper than {MAX_DEPTH} levels") from None
    except ValueError as error:
        raise ParseError(f"it is not JSON ({str(error)[:120]})") from error
    _check_depth(value)
    return value


def parse_yaml(text: str) -> Any:
    """Return the value of a YAML text without aliases, which let 700 bytes stand for gigabytes."""
    if len(text) > MAX_YAML_CHARACTERS:
        raise ParseError(f"it has more than {MAX_YAML_CHARACTERS:,} characters")
    if len(text) > MAX_KEPT_CHARACTERS:
        return _build_yaml(text)
    return copy.deepcopy(_recall_yaml(text))  # the caller may change its own


def _build_yaml(text: str) -> Any:
    try:
        _check_events(text)
        return yaml.load(text, FastSafeLoader)
    except RecursionError:
        raise ParseError(f"it is nested deeper than {MAX_DEPTH} levels") from None
    except (yaml.YAMLError, ValueError, TypeError, OverflowError) as error:  # ValueError: an impossible date
        raise ParseError(f"it is not readable YAML ({str(error).splitlines()[0][:120]})") from error


_recall_yaml = lru_cache(maxsize=1024)(_build_yaml)
"""`_build_yaml` with its last results kept by the text itself, so that a file that has changed is parsed anew."""


def _check_events(text: str) -> None:
    """Raise for aliases and deep nesting, before anything is built."""
    depth = 0
    for event in yaml.parse(text, FastSafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise ParseError(f"it is nested deeper than {MAX_DEPTH} levels")
        if isinstance(event, yaml.AliasEvent):
            raise ParseError(f"it has a YAML alias, *{event.anchor[:40]}, which is refused")


def _check_depth(value: Any) -> None:
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH + 1:
            raise ParseError(f"it is nested deeper than {MAX_DEPTH} levels")
        inner = (each.values() if isinstance(each, dict) else each for each in level if isinstance(each, (dict, list)))
        level = [part for parts in inner for part in parts]


def compute_sum(content: Mapping[str, Any]) -> str:
    """Return the CRC-32 of a mapping without its `sum`, as eight hexadecimal digits."""
    rest = {key: value for key, value in content.items() if key != SUM}
    return f"{zlib.crc32(json.dumps(rest, sort_keys=True, default=str).encode()):08x}"


def add_sum(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping with the checksum that reading it again compares."""
    plain = json.loads(json.dumps(content, default=str))  # keys as text, tuples as lists
    return {**content, SUM: compute_sum(plain)}


def check_sum(content: dict[str, Any]) -> dict[str, Any]:
    """Return a mapping without its checksum; raise if it differs from that of the content."""
    if SUM in content and content[SUM] != compute_sum(content):
        raise ParseError(f"its content does not fit its '{SUM}'; restore it, or remove '{SUM}' if you changed it")
    return {key: value for key, value in content.items() if key != SUM}
