"""Pictures of a folder, decoded once into one .npy file of bytes [n, channels, height, width] that is read by rows.

The file is in `UNBRAID_DATA/pictures`, named by a hash of the names, sizes and times of the pictures and of the setting
`size`. Decoding uses all cores and continues after an interruption.
"""

import hashlib
import io
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np

from unbraid.data.base import data_home, refuse_unwritable
from unbraid.data.picture_files import Mode, choose_mode, read_picture
from unbraid.data.row_files import RowFile
from unbraid.errors import DataError
from unbraid.progress import progress

FORMAT = 1
BLOCK_ROWS = 1024
"""Pictures that are decoded and synced together; an interruption loses at most two blocks."""


def decode_once(folder: Path, names: Sequence[str], size: int | None) -> RowFile:
    """Return the decoded pictures of a folder, by their names below it; decode them if no file holds them yet."""
    path = data_home() / "pictures" / f"{hash_files(folder, names, size)}.npy"
    if not path.exists():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _decode(path, folder, names, size)
        except OSError as error:
            raise refuse_unwritable(path, error) from error
    file = RowFile.open(path)
    if file.count != len(names):
        raise DataError(f"{path} holds {file.count:,} of {len(names):,} pictures; remove it and run this again.")
    return file


def hash_files(folder: Path, names: Sequence[str], size: int | None) -> str:
    """Return a hash of the names, sizes and times of pictures below a folder, and of a setting."""
    digest = hashlib.sha256(f"{FORMAT} {size} {folder.resolve()}\n".encode())
    for name in names:
        facts = (folder / name).stat()
        digest.update(f"{name}\0{facts.st_size} {facts.st_mtime_ns}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:32]


def _decode(path: Path, folder: Path, names: Sequence[str], size: int | None) -> None:
    with _lock(path.with_suffix(".part")) as file, ThreadPoolExecutor() as pool:
        if path.exists():
            return  # another process has decoded them meanwhile
        mode = choose_mode(((folder / name, str(folder / name)) for name in names), size)
        first = _read(folder, mode, size, names[0])
        header = _npy_header((len(names), *first.shape))
        done = _count_kept_rows(file, header, first.nbytes)
        file.truncate(len(header) + done * first.nbytes)
        if not done:
            file.seek(0)
            file.write(header)
        file.seek(0, os.SEEK_END)
        with progress(f"Decoding {folder}", len(names), done=done) as bar:
            for start in range(done, len(names), BLOCK_ROWS):
                for array in pool.map(partial(_read, folder, mode, size), names[start : start + BLOCK_ROWS]):
                    file.write(array.data)
                    bar.advance()
                file.flush()
                os.fsync(file.fileno())
        path.with_suffix(".part").replace(path)


def _read(folder: Path, mode: Mode, size: int | None, name: str) -> np.ndarray:
    return np.ascontiguousarray(read_picture(folder / name, str(folder / name), mode, size))


def _npy_header(shape: tuple[int, ...]) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "|u1", "fortran_order": False, "shape": shape})
    return stream.getvalue()


def _count_kept_rows(file: BinaryIO, header: bytes, row_bytes: int) -> int:
    """Return the rows that an interrupted process has certainly written: all synced blocks but the last."""
    file.seek(0)
    if file.read(len(header)) != header:
        return 0
    blocks = (os.fstat(file.fileno()).st_size - len(header)) // (row_bytes * BLOCK_ROWS)
    return max(0, blocks - 1) * BLOCK_ROWS


@contextmanager
def _lock(path: Path) -> Iterator[BinaryIO]:
    """Open a file for reading and writing; wait while another process decodes into it."""
    import fcntl  # systems that lack it cannot read rows either (`RowFile.read`)

    while True:
        with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
                yield file
                return
            # the other process has renamed the file to its final name
