"""Download of one public file: complete and verified, or no file at all."""

import hashlib
import http.client
import urllib.error
import urllib.request
from pathlib import Path
from typing import NamedTuple

from unbraid.atomic import replacing
from unbraid.errors import DataError
from unbraid.progress import progress

TIMEOUT = 30.0
"""Seconds without a byte after which a download fails."""

_BYTES_PER_READ = 1 << 20
_NETWORK_ERRORS = (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError)


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


def download(remote: Remote, folder: Path, advice: str) -> Path:
    """Return the file in `folder`, downloaded unless a verified copy exists.

    Every failure is a `DataError` with the address, the file and `advice`, and leaves no file behind.
    """
    path = folder / remote.filename
    if path.exists() and remote.checksum and _digest_like(remote.checksum, path) == remote.checksum:
        return path
    try:
        with replacing(path) as part:
            _receive(remote, part)
        return path
    except urllib.error.HTTPError as error:
        cause, reason = error, f"the server answered {error.code} {error.reason}"
    except _NETWORK_ERRORS as error:
        cause, reason = error, f"no connection: {getattr(error, 'reason', None) or error or type(error).__name__}"
    except OSError as error:
        reason = error.strerror or error
        raise DataError(f"{path} cannot be written ({reason}); set UNBRAID_DATA to another folder.") from error
    except ValueError as error:
        cause, reason = error, str(error)
    raise DataError(f"{remote.url} could not be downloaded to {path} ({reason}); {advice}") from cause


def _receive(remote: Remote, part: Path) -> None:
    """Copy the response to `part`; raise a `ValueError` if it is too short or has a wrong checksum."""
    request = urllib.request.Request(remote.url, headers={"User-Agent": "unbraid"})
    received = 0
    with urllib.request.urlopen(request, timeout=TIMEOUT) as response, part.open("wb") as file:
        announced = response.headers.get("Content-Length")
        length = None if announced is None else int(announced)
        with progress(f"Downloading {remote.filename}", length, delay=0.5) as bar:
            while chunk := response.read(_BYTES_PER_READ):
                file.write(chunk)
                received += len(chunk)
                bar.advance(len(chunk))
    if length is not None and received != length:
        raise ValueError(f"only {received} of {length} bytes arrived")
    if remote.checksum and (found := _digest_like(remote.checksum, part)) != remote.checksum:
        raise ValueError(f"its checksum is {found}, not {remote.checksum}")


def digest(path: Path, algorithm: str = "sha256") -> str:
    """Return the checksum of a file in the form of `Remote.checksum`."""
    with path.open("rb") as file:
        return f"{algorithm}:{hashlib.file_digest(file, algorithm).hexdigest()}"


def _digest_like(checksum: str, path: Path) -> str:
    return digest(path, checksum.partition(":")[0])
