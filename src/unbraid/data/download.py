"""Download of one public file: complete and verified, or no file at all.

A broken connection is tried again and continues where it broke. If the file has a checksum, what has arrived also
outlives the process, and the next call continues it.
"""

import contextlib
import hashlib
import http.client
import os
import re
import socket
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import NamedTuple

from unbraid.data.base import refuse_unwritable
from unbraid.errors import DataError
from unbraid.progress import progress

TIMEOUT = 30.0
"""Seconds without a byte after which a connection is given up."""

ATTEMPTS = 5
"""Connections that a download may take."""

PAUSE = 1.0
"""Seconds before the second attempt; every further pause is twice as long."""

MAX_PAUSE = 60.0
"""Longest pause that a server may ask for."""

_BYTES_PER_READ = 1 << 20
_NETWORK_ERRORS = (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError)
_BUSY = (408, 425, 429, 500, 502, 503, 504)
_BEYOND_THE_END = 416
_PARTIAL = 206


class Remote(NamedTuple):
    """A file on a public server.

    `checksum` is `md5:…` or `sha256:…` as its publisher or a long-standing catalogue states it, or None if none is
    known; then only the size is verified here, and the format by the conversion.
    """

    url: str
    checksum: str | None = None

    @property
    def filename(self) -> str:
        return self.url.partition("?")[0].rpartition("/")[2]


class BrokenOffError(ConnectionError):
    """A connection ended before the announced length."""


def download(remote: Remote, folder: Path, advice: str) -> Path:
    """Return the file in `folder`, downloaded unless a verified copy exists.

    Every failure is a `DataError` with the address, the file and `advice`. It leaves no file behind, except the
    beginning of a file whose checksum is known, which the next call continues.
    """
    path = folder / remote.filename
    if path.exists() and remote.checksum and _digest_like(remote.checksum, path) == remote.checksum:
        return path
    part = folder / f".{remote.filename}.partial"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _receive(remote, part)
        part.replace(path)
        return path
    except urllib.error.HTTPError as error:
        cause, reason = error, f"the server answered {error.code} {error.reason}"
    except BrokenOffError as error:
        cause, reason = error, str(error)
    except _NETWORK_ERRORS as error:
        cause, reason = error, f"no connection: {getattr(error, 'reason', None) or error or type(error).__name__}"
    except OSError as error:
        raise refuse_unwritable(path, error) from error
    except ValueError as error:
        cause, reason = error, str(error)
    finally:
        if not remote.checksum or (part.exists() and part.stat().st_size == 0):
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
    kept = "; what has arrived is kept, and the same command continues it, or " if part.exists() else "; "
    raise DataError(f"{remote.url} could not be downloaded to {path} ({reason}){kept}{advice}") from cause


def _receive(remote: Remote, part: Path) -> None:
    """Fill `part`, over several connections if need be; raise a `ValueError` if its checksum is wrong."""
    resumed = part.exists()
    transfer = _Transfer(remote, part)
    if not remote.checksum:
        part.unlink(missing_ok=True)  # another process may have begun it, from another version of the file
    for attempt in range(1, ATTEMPTS + 1):
        try:
            transfer.connect()
            break
        except urllib.error.HTTPError as error:
            if error.code == _BEYOND_THE_END and part.exists():
                break  # it is whole, or the checksum tells
            if error.code not in _BUSY or attempt == ATTEMPTS:
                raise
            _wait(attempt, error.headers.get("Retry-After"))
        except _NETWORK_ERRORS as error:
            if attempt == ATTEMPTS or isinstance(
                getattr(error, "reason", None), (ConnectionRefusedError, socket.gaierror)
            ):
                raise
            _wait(attempt)
    if remote.checksum and (found := _digest_like(remote.checksum, part)) != remote.checksum:
        part.unlink()
        if resumed:  # its beginning was that of another file
            return _receive(remote, part)
        raise ValueError(f"its checksum is {found}, not {remote.checksum}")
    return None


def _wait(attempt: int, asked: str | None = None) -> None:
    """Wait before the next attempt, as long as the server asks for, within limits."""
    seconds = float(asked) if asked and re.fullmatch(r"\d{1,6}", asked.strip()) else PAUSE * 2 ** (attempt - 1)
    time.sleep(min(seconds, MAX_PAUSE))


class _Transfer:
    """A download that may take several connections."""

    def __init__(self, remote: Remote, part: Path) -> None:
        self.remote, self.part = remote, part
        self.version: str | None = None
        """What the server calls this version of the file: a later connection must not continue another one."""

    def connect(self) -> None:
        """Continue `part` by one connection; raise `BrokenOffError` if it ends too early."""
        have = self.part.stat().st_size if self.part.exists() else 0
        headers = {"User-Agent": "unbraid", "Accept-Encoding": "identity"}
        if have:
            headers["Range"] = f"bytes={have}-"
            if self.version:
                headers["If-Range"] = self.version
        request = urllib.request.Request(self.remote.url, headers=headers)
        with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
            start = _read_start(response, have)
            if start is None:
                self.part.unlink(missing_ok=True)
                raise BrokenOffError("the server answered with another part of the file")
            tag = response.headers.get("ETag", "")
            self.version = tag if tag and not tag.startswith("W/") else None
            length = _read_length(response)
            self._copy(response, start, None if length is None else start + length)

    def _copy(self, response: http.client.HTTPResponse, start: int, total: int | None) -> None:
        received = start
        with self.part.open("ab") as file:
            file.truncate(start)
            with progress(f"Downloading {self.remote.filename}", total, delay=0.5, done=start) as bar:
                while chunk := response.read(_BYTES_PER_READ):
                    file.write(chunk)
                    received += len(chunk)
                    bar.advance(len(chunk))
            file.flush()
            os.fsync(file.fileno())
        if total is not None and received != total:
            raise BrokenOffError(f"only {received} of {total} bytes arrived")


def _read_start(response: http.client.HTTPResponse, have: int) -> int | None:
    """Return the position at which an answer begins, or None if it is not the one that was asked for."""
    if response.status != _PARTIAL:
        return 0  # the server ignores ranges, or has another version
    found = re.match(r"bytes (\d{1,18})-", response.headers.get("Content-Range", ""))
    return have if found and int(found[1]) == have else None


def _read_length(response: http.client.HTTPResponse) -> int | None:
    length = response.headers.get("Content-Length", "")
    return int(length) if re.fullmatch(r"\d{1,18}", length) else None


def digest(path: Path, algorithm: str = "sha256") -> str:
    """Return the checksum of a file in the form of `Remote.checksum`."""
    with path.open("rb") as file:
        return f"{algorithm}:{hashlib.file_digest(file, algorithm).hexdigest()}"


def _digest_like(checksum: str, path: Path) -> str:
    return digest(path, checksum.partition(":")[0])
