"""Reading, appending and locking inside a folder that a stranger may have made.

A link in the folder could lead anywhere, and a pipe could block forever. So every path is checked for links below the
folder's root, and only plain files are opened. The root itself may be reached by a link: the user named it.
"""

import errno
import os
import stat
from pathlib import Path

from unbraid.errors import RunError

MAX_FILE_BYTES = 1 << 28
"""Text files above this size are refused; the largest known one, the members of a sweep, has a few megabytes."""


def check_inside(root: Path, path: Path) -> None:
    """Raise unless `path` is below `root` without a link or a step upwards on the way; it need not exist."""
    try:
        parts = path.relative_to(root).parts
    except ValueError:
        raise RunError(f"{path} is outside {root}; choose a path inside it.") from None
    if ".." in parts:
        raise RunError(f"{path} is outside {root}; choose a path inside it.")
    below = root
    for part in parts:
        below = below / part
        if below.is_symlink():
            raise RunError(f"{below} is a link, and a folder of runs may not lead elsewhere; replace it by a copy.")


def open_plain_file(path: Path, flags: int) -> int:
    """Open a plain file without following a link, and return its handle; create it if `flags` ask for that."""
    extra = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    if path.is_symlink():  # O_NOFOLLOW is missing on Windows, and its error is not clear elsewhere
        raise RunError(f"{path} is a link, and a folder of runs may not lead elsewhere; replace it by a copy.")
    handle = os.open(path, flags | extra, 0o666)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise RunError(f"{path} is not a plain file; remove it.")
    return handle


def read_text(path: Path, max_bytes: int = MAX_FILE_BYTES) -> str:
    """Return the text of a plain file of bounded size."""
    with os.fdopen(open_plain_file(path, os.O_RDONLY), "rb") as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise RunError(f"{path} has more than {max_bytes:,} bytes, which no run writes; remove it.")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RunError(f"{path} is damaged: byte {error.start} is not UTF-8 text; restore it.") from error


def try_lock(handle: int) -> bool:
    """Lock an open file, and return whether no other process has; the system releases the lock of one that dies."""
    try:
        import fcntl
    except ImportError:  # Windows
        import msvcrt

        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)  # pyrefly: ignore[missing-attribute]
        except OSError:
            return False
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise
        return False
    return True
