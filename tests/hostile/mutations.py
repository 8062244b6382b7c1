"""Strategies of hypothesis that damage a valid file: its bytes, or the values of its JSON or YAML."""

import copy
import json
from collections.abc import Callable
from typing import Any

import yaml
from hypothesis import HealthCheck, Phase, given, settings, strategies as st

CHUNKS = [b"", b"\0", b"\n", b'"', b",", b"{", b"[" * 3000, b"]", b"NaN", b"1e999", b"-1", b"9" * 5000, b"\xff\xfe"]
CHUNKS += [b"\x1b[31m", b"\r", b";", b"\xed\xa0\x80", b"&a [*a]", b"!!python/name:os.system", b"\x00" * 64, b"\xff" * 8]

NUMBERS = [0, -1, 1, 2, 3, 1.5, -0.0, 1e308, 10**15, -(10**15), 10**40, float("nan"), float("inf"), float("-inf")]
"""Huge sizes are far beyond any memory, so that no example fills that of this machine."""

TEXTS = ["", "x", "..", "../../x", "/etc/passwd", "\0", "a\nb", "\x1b[31mred", "\u202eevil", "\ud800", "x" * 5000]
TEXTS += ["nan", "1", "true", "null", "[red]", "<script>", "sprites-small", "beta-vae", "finished", "running", "full"]


def nest(depth: int) -> Any:
    value: Any = 0
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


# st.text() knows the kind of every character, and takes seconds to learn it
WORDS = st.lists(st.one_of(st.integers(0, 127), st.integers(0, 0x10FFFF)).map(chr), max_size=8).map("".join)
SCALARS = st.one_of(st.none(), st.booleans(), st.sampled_from(NUMBERS), st.sampled_from(TEXTS), WORDS)
VALUES = st.one_of(
    st.recursive(
        SCALARS,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(TEXTS), inner, max_size=3),
        max_leaves=6,
    ),
    st.sampled_from([10, 31, 32, 33, 400]).map(nest),
)


@st.composite
def damaged_bytes(draw: st.DrawFn, valid: bytes) -> bytes:
    """Flip, cut, insert, repeat and remove parts of a file, one to four times."""
    content = valid
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(content)))
        end = min(len(content), start + draw(st.sampled_from([1, 2, 8, 64])))
        kind = draw(st.sampled_from(["flip", "cut", "insert", "repeat", "remove", "tail"]))
        if kind == "flip" and start < len(content):
            flipped = content[start] ^ (1 << draw(st.integers(0, 7)))
            content = content[:start] + bytes([flipped]) + content[start + 1 :]
        elif kind == "cut":
            content = content[:start]
        elif kind == "tail":
            content = content[start:]
        elif kind == "insert":
            content = content[:start] + draw(st.sampled_from(CHUNKS)) + content[start:]
        elif kind == "repeat":
            content = content[:end] + content[start:end] * draw(st.integers(1, 3)) + content[end:]
        else:
            content = content[:start] + content[end:]
    return content


def list_places(value: Any, at: tuple = ()) -> list[tuple]:
    """Return the keys that lead to every value inside a value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(place for key, part in inner for place in list_places(part, (*at, key)))]


@st.composite
def damaged_value(draw: st.DrawFn, valid: Any) -> Any:
    """Replace, add or remove values inside a value, one to three times; its checksum mostly goes too."""
    value = copy.deepcopy(valid)
    if isinstance(value, dict) and draw(st.integers(0, 4)):
        value.pop("sum", None)
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.sampled_from(list_places(value)))
        if not place:
            if draw(st.integers(0, 9)) == 0:
                return draw(VALUES)
            if isinstance(value, dict):
                value[draw(st.sampled_from(TEXTS))] = draw(VALUES)
            continue
        holder = value
        for key in place[:-1]:
            holder = holder[key]
        if draw(st.integers(0, 3)):
            holder[place[-1]] = draw(VALUES)
        else:
            del holder[place[-1]]
    return value


def damaged_json(valid: bytes) -> st.SearchStrategy[bytes]:
    """Damage a JSON file, by its bytes or by its values."""
    values = damaged_value(json.loads(valid)).map(lambda value: json.dumps(value).encode())
    return st.one_of(values, values, damaged_bytes(valid))


def damaged_lines(valid: bytes) -> st.SearchStrategy[bytes]:
    """Damage a JSON-lines file: the values of its first line, or its bytes."""
    first, _, rest = valid.partition(b"\n")
    values = damaged_value(json.loads(first)).map(lambda value: json.dumps(value).encode() + b"\n" + rest)
    return st.one_of(values, values, damaged_bytes(valid))


def damaged_yaml(valid: bytes) -> st.SearchStrategy[bytes]:
    """Damage a YAML file, by its bytes or by its values."""
    values = damaged_value(yaml.safe_load(valid)).map(lambda value: yaml.safe_dump(value).encode("utf-8", "replace"))
    return st.one_of(values, values, damaged_bytes(valid))


def damaged_tensors(valid: bytes) -> st.SearchStrategy[bytes]:
    """Damage a safetensors file: the values of its header, or its bytes."""
    size = int.from_bytes(valid[:8], "little")
    header, body = json.loads(valid[8 : 8 + size]), valid[8 + size :]

    def join(value: Any) -> bytes:
        text = json.dumps(value).encode()
        return len(text).to_bytes(8, "little") + text + body

    values = damaged_value(header).map(join)
    return st.one_of(values, values, damaged_bytes(valid))


def try_examples(
    strategy: st.SearchStrategy, count: int, attempt: Callable[[Any], object], record: Callable[[str, int], None]
) -> None:
    """Call a function with examples of a strategy, and record how many there were, also if one fails."""
    tried = 0

    # Shrinking a failure would repeat it hundreds of times, and its message shows the file anyway.
    @settings(max_examples=count, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(strategy)
    def try_one(example: Any) -> None:
        nonlocal tried
        tried += 1
        attempt(example)

    try:
        try_one()
    finally:
        record("hostile cases", tried)
