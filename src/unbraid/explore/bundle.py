"""Join the page's modules, style and data into one HTML file that loads nothing else.

Modules import each other by name, `import { a } from "./b.js";`, and export what they declare. Joined in the order of
their imports they are one script, as long as no two of them declare the same name, which is checked. The script is
stored compressed, at a third of its size, and a short one unpacks and starts it. A content security policy allows both
and the style by their hashes, and nothing else: no request, no other code.
"""

import base64
import gzip
import hashlib
import html
import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from unbraid.errors import UnbraidError

BOOT, MAIN = "boot.js", "main.js"
IMPORT = re.compile(r'^import \{[^}]*\} from "\./([\w-]+\.js)";\n', re.MULTILINE)
EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const|let) )", re.MULTILINE)
COMMENT = re.compile(r"^ */\*\*.*?\*/\n", re.MULTILINE | re.DOTALL)
DECLARED = re.compile(r"^(?:async )?(?:function\*?|class|const|let) (?:\{([^}]*)\}|(\w+))", re.MULTILINE)
STAND_INS = {0: 0xA1, 13: 0xA2, 60: 0xA3}
"""Code points for characters that HTML does not keep (see `page/text.js`)."""


def render(title: str, data: Mapping[str, Any], blocks: Mapping[str, str]) -> str:
    """Return the page; `data` becomes JSON that is no script, `blocks` are further texts by the id of their element."""
    boot, script, style = join_modules(BOOT), join_modules(MAIN), _shorten(_read("style.css"))
    page = _read("page.html")
    fill = {
        "POLICY": _policy([boot, script], style),
        "TITLE": html.escape(title),
        "STYLE": style,
        "BOOT": boot,
        "SCRIPT": pack(script.encode()),
        "DATA": _harmless(data),
        "BLOCKS": "\n".join(f'<script type="text/plain" id="{key}">{text}</script>' for key, text in blocks.items()),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda found: fill[found[1]], page)


def _policy(scripts: Sequence[str], style: str) -> str:
    allowed = {
        "default-src": "'none'",
        "script-src": f"{' '.join(map(_hash, scripts))} 'wasm-unsafe-eval'",
        "style-src": _hash(style),
        "img-src": "data: blob:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{key} {value}" for key, value in allowed.items())


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _harmless(data: Mapping[str, Any]) -> str:
    """JSON in which no character can end the element that holds it."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@cache
def join_modules(main: str = MAIN) -> str:
    """Return a module and all that it needs as one script."""
    ordered: dict[str, str] = {}
    _add(main, ordered)
    seen: dict[str, str] = {}
    parts = []
    for name, text in ordered.items():
        plain = EXPORT.sub("", IMPORT.sub("", text))
        for grouped, single in DECLARED.findall(plain):
            for declared in grouped.split(",") if grouped else [single]:
                other = seen.setdefault(declared.strip(), name)
                if other != name:
                    raise UnbraidError(f"{name} and {other} of the explorer both declare '{declared.strip()}'.")
        if "import " in plain or "export " in plain:
            raise UnbraidError(f"{name} of the explorer imports or exports in another form than one line with names.")
        parts.append(_shorten(plain))
    return "\n".join(parts)


def _shorten(text: str) -> str:
    """Leave out indentation, and lines that are comments: a third of the script."""
    lines = (line.strip() for line in COMMENT.sub("", text).splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("//"))


def _add(name: str, ordered: dict[str, str]) -> None:
    text = _read(name)
    for other in IMPORT.findall(text):
        if other not in ordered:
            _add(other, ordered)
    ordered[name] = text


def _read(name: str) -> str:
    return resources.files("unbraid.explore").joinpath("page", name).read_text(encoding="utf-8")


def to_text(data: bytes) -> str:
    """Return bytes as text of seven bits for each character, where base64 has six; its reader knows their number.

    Every character is one byte of UTF-8, but three that HTML would change or read as markup: NUL, the carriage return
    and `<` stand as ¡, ¢ and £. A page is so a seventh smaller than with base64.
    """
    bits = np.unpackbits(np.frombuffer(data, np.uint8))
    groups = np.zeros((-(-len(bits) // 7), 8), np.uint8)
    padded = np.zeros(len(groups) * 7, np.uint8)
    padded[: len(bits)] = bits
    groups[:, 1:] = padded.reshape(-1, 7)
    table = bytes(STAND_INS.get(value, value) for value in range(256))
    return np.packbits(groups, axis=1).tobytes().translate(table).decode("latin-1")


def pack(data: bytes) -> str:
    """Return bytes compressed, as text."""
    return to_text(gzip.compress(data, 9, mtime=0))
