r"""The page's matrix product, C += A B, assembled into WebAssembly with 128-bit vectors.

A tile of 4 rows and 8 columns of C stays in registers while k runs,

    C[i, j : j+8] += sum_k A[i, k] B[k, j : j+8],    i = 4 rows at once, or 1,

tiles go down the rows first, so that 8 columns of B stay in the cache. B is either plain, or packed as panels of 8
columns: `panel` is the distance from one tile's columns to the next. Columns beyond the last are computed and not
stored. All distances are in bytes. `fused` uses a fused multiply-add, which newer browsers have.

Instructions are listed with their codes of the WebAssembly core specification, 2.0; nothing is compiled by other tools.
"""

import struct
from collections.abc import Iterable

ROWS, VECTORS, LANES = 4, 2, 4
COLUMNS = VECTORS * LANES

SCRATCH = 16
"""Address of a row of C whose columns are not all stored; the heap begins behind it (`page/heap.js`)."""

ARGUMENTS = ("a", "b", "c", "m", "n", "k", "lda", "ldb", "ldc", "panel")
COUNTERS = ("j", "i", "left", "pa", "pb", "pc", "last", "lane", "row1", "row2", "row3")

I32, V128, VOID = 0x7F, 0x7B, 0x40
BLOCK, LOOP, IF, END, BRANCH, BRANCH_IF = b"\x02", b"\x03", b"\x04", b"\x0b", b"\x0c", b"\x0d"
ADD, SUB, MUL, LESS, AT_LEAST = b"\x6a", b"\x6b", b"\x6c", b"\x48", b"\x4e"
F32_ADD = b"\x92"


def product(fused: bool) -> bytes:
    """Return a module that imports `env.memory` and exports `product` with the arguments `ARGUMENTS`."""
    signature = b"\x60" + _vector([bytes([I32])] * len(ARGUMENTS)) + _vector([])
    memory = _text("env") + _text("memory") + b"\x02\x00" + _number(1)
    exported = _text("product") + b"\x00" + _number(0)
    sections = [
        (1, _vector([signature])),
        (2, _vector([memory])),
        (3, _vector([_number(0)])),
        (7, _vector([exported])),
        (10, _vector([_sized(_body(fused))])),
    ]
    return b"\x00asm\x01\x00\x00\x00" + b"".join(bytes([number]) + _sized(part) for number, part in sections)


class _Names:
    """Numbers of the local variables: arguments, counters, then vectors."""

    def __init__(self) -> None:
        vectors = [f"s{r}{v}" for r in range(ROWS) for v in range(VECTORS)] + [f"b{v}" for v in range(VECTORS)] + ["x"]
        self.vectors = len(vectors)
        self.numbers = {name: place for place, name in enumerate((*ARGUMENTS, *COUNTERS, *vectors))}

    def get(self, name: str) -> bytes:
        return b"\x20" + _number(self.numbers[name])

    def set(self, name: str, *value: bytes) -> bytes:
        return b"".join(value) + b"\x21" + _number(self.numbers[name])

    def move(self, name: str, *by: bytes) -> bytes:
        return self.set(name, self.get(name), *by, ADD)


def _body(fused: bool) -> bytes:
    at = _Names()
    kinds = [_number(len(COUNTERS)) + bytes([I32]), _number(at.vectors) + bytes([V128])]
    over_rows = [
        at.set("pa", at.get("a")),
        at.set("pc", at.get("c"), at.get("j"), _constant(4), MUL, ADD),
        at.set("i", at.get("m")),
        _while([at.get("i"), _constant(ROWS), AT_LEAST], _tile(at, ROWS, fused)),
        _while([at.get("i"), _constant(1), AT_LEAST], _tile(at, 1, fused)),
        at.move("b", at.get("panel")),
        at.move("j", _constant(COLUMNS)),
    ]
    start = at.set("j", _constant(0)) + b"".join(
        at.set(f"row{r}", at.get("lda"), _constant(r), MUL) for r in range(1, ROWS)
    )
    return _vector(kinds) + start + _while([at.get("j"), at.get("n"), LESS], over_rows) + END


def _tile(at: _Names, rows: int, fused: bool) -> list[bytes]:
    """One tile: clear the sums, run over k, add to C, and go on to the next rows."""
    sums = [f"s{r}{v}" for r in range(rows) for v in range(VECTORS)]
    step = [at.set(f"b{v}", at.get("pb"), _load(16 * v)) for v in range(VECTORS)]
    for r in range(rows):
        place = at.get("pa") if r == 0 else at.get("pa") + at.get(f"row{r}") + ADD
        step.append(at.set("x", place, _splat()))
        step += [at.set(f"s{r}{v}", _madd(at, "x", f"b{v}", f"s{r}{v}", fused)) for v in range(VECTORS)]
    step += [at.move("pa", _constant(4)), at.move("pb", at.get("ldb"))]
    length = at.get("k") + _constant(4) + MUL
    return [
        *(at.set(name, _zero()) for name in sums),
        at.set("pb", at.get("b")),
        at.set("last", at.get("pa"), length, ADD),
        _until([at.get("pa"), at.get("last"), LESS], step),
        at.set("pa", at.get("pa"), length, SUB, at.get("lda"), _constant(rows), MUL, ADD),
        at.set("left", at.get("n"), at.get("j"), SUB),
        *(part for r in range(rows) for part in _store(at, r)),
        at.set("i", at.get("i"), _constant(rows), SUB),
    ]


def _store(at: _Names, row: int) -> list[bytes]:
    """Add a row of sums to C: as vectors, or one number after the other where fewer columns are left."""
    whole = [
        part
        for v in range(VECTORS)
        for part in (at.get("pc"), at.get("pc"), _load(16 * v), at.get(f"s{row}{v}"), VECTOR_ADD, _store_vector(16 * v))
    ]
    number = [at.get("pc"), at.get("lane"), ADD]
    some = [
        *(
            part
            for v in range(VECTORS)
            for part in (_constant(SCRATCH + 16 * v), at.get(f"s{row}{v}"), _store_vector())
        ),
        at.set("lane", _constant(0)),
        _while(
            [at.get("lane"), at.get("left"), _constant(4), MUL, LESS],
            [
                *number,
                *number,
                LOAD_NUMBER,
                _constant(SCRATCH),
                at.get("lane"),
                ADD,
                LOAD_NUMBER,
                F32_ADD,
                STORE_NUMBER,
                at.move("lane", _constant(4)),
            ],
        ),
    ]
    return [
        at.get("left"), _constant(COLUMNS), AT_LEAST, IF, bytes([VOID]), *whole, b"\x05", *some, END,
        at.move("pc", at.get("ldc")),
    ]  # fmt: skip


def _while(condition: Iterable[bytes], body: Iterable[bytes]) -> bytes:
    """Repeat while a condition holds."""
    void = bytes([VOID])
    test = b"".join(condition) + b"\x45" + BRANCH_IF + _number(1)  # leave if it does not
    return BLOCK + void + LOOP + void + test + b"".join(body) + BRANCH + _number(0) + END + END


def _until(condition: Iterable[bytes], body: Iterable[bytes]) -> bytes:
    """Repeat at least once, and again while a condition holds: one branch for each round."""
    return LOOP + bytes([VOID]) + b"".join(body) + b"".join(condition) + BRANCH_IF + _number(0) + END


def _madd(at: _Names, x: str, y: str, total: str, fused: bool) -> bytes:
    if fused:
        return at.get(x) + at.get(y) + at.get(total) + b"\xfd" + _number(0x105)
    return at.get(x) + at.get(y) + b"\xfd" + _number(0xE6) + at.get(total) + VECTOR_ADD


def _load(offset: int = 0) -> bytes:
    return b"\xfd\x00" + _number(2) + _number(offset)


def _splat() -> bytes:
    return b"\xfd\x09" + _number(2) + _number(0)


def _store_vector(offset: int = 0) -> bytes:
    return b"\xfd\x0b" + _number(2) + _number(offset)


def _zero() -> bytes:
    return b"\xfd\x0c" + bytes(16)


def _number(value: int) -> bytes:
    """Unsigned LEB128."""
    made = bytearray()
    while True:
        value, low = value >> 7, value & 0x7F
        made.append(low | (0x80 if value else 0))
        if not value:
            return bytes(made)


def _constant(value: int) -> bytes:
    """An i32 constant below 64 and at least 0, whose signed LEB128 is one byte."""
    assert 0 <= value < 64
    return b"\x41" + struct.pack("B", value)


def _sized(part: bytes) -> bytes:
    return _number(len(part)) + part


def _vector(parts: list[bytes]) -> bytes:
    return _number(len(parts)) + b"".join(parts)


def _text(text: str) -> bytes:
    return _sized(text.encode())


VECTOR_ADD = b"\xfd" + _number(0xE4)
LOAD_NUMBER, STORE_NUMBER = b"\x2a\x02\x00", b"\x38\x02\x00"
