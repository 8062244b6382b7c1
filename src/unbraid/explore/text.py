"""Bytes as text inside an HTML page: seven bits for each character, where base64 has six.

Every character is one byte of UTF-8, but three that HTML would change or read as markup: NUL, the carriage return and
`<` stand as ¡, ¢ and £. A page is so a seventh smaller than with base64.
"""

import base64
import gzip

import numpy as np

STAND_INS = {0: 0xA1, 13: 0xA2, 60: 0xA3}
"""Code points for characters that HTML does not keep (see `page/text.js`)."""


def to_text(data: bytes) -> str:
    """Return bytes as text of seven bits each; the length of the data is known to whoever reads it."""
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


def to_base64(data: bytes) -> str:
    """Return bytes as base64, for what is small."""
    return base64.b64encode(data).decode()
