"""One public file over the network: whole and verified, or not there at all."""

import hashlib
import http.client
import urllib.error
import urllib.request
from pathlib import Path
from typing import BinaryIO, NamedTuple

from unbraid.atomic import replacing
from unbraid.errors import DataError
from unbraid.progress import progress

TIMEOUT = 30.0
"""Seconds without a byte after which a server counts as gone."""

_CHUNK = 1 << 20
_NETWORK = (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError)


class Remote(NamedTuple):
    """A file on a public server.

    `checksum` is `md5:…` or `sha256:…` as its publisher or a long-standing catalogue states it, or None where no
    such statement is known; then only the size is verified here, and the format by the conversion.
    """

    url: str
    checksum: str | None = None

    @property
    def filename(self) -> str:
        """Last part of the address."""
        return self.url.partition("?")[0].rpartition("/")[2]


def download(remote: Remote, folder: Path, advice: str) -> Path:
    """The file in `folder`, fetched unless a verified copy is already there.

    Every failure is a `DataError` with the address, the file and `advice`, and leaves no file behind.
    """
    path = folder / remote.filename
    if path.exists() and remote.checksum and _digest_like(remote.checksum, path) == remote.checksum:
        return path
    try:
        with replacing(path) as part:
            _receive(remote, part)
    except urllib.error.HTTPError as error:
        reason = f"the server answered {error.code} {error.reason}"
        raise _failed(remote, path, reason, advice) from error
    except _NETWORK as error:
        reason = f"no connection: {getattr(error, 'reason', None) or error or type(error).__name__}"
        raise _failed(remote, path, reason, advice) from error
    except OSError as error:
        reason = error.strerror or error
        raise DataError(f"{path} cannot be written ({reason}); set UNBRAID_DATA to another folder.") from error
    except ValueError as error:
        raise _failed(remote, path, str(error), advice) from error
    return path


def _receive(remote: Remote, part: Path) -> None:
    """Copy the body to `part`; a short body or a wrong checksum is a `ValueError`."""
    request = urllib.request.Request(remote.url, headers={"User-Agent": "unbraid"})
    with urllib.request.urlopen(request, timeout=TIMEOUT) as response, part.open("wb") as file:
        length = response.headers.get("Content-Length")
        received = _copy(response, file, remote.filename, None if length is None else int(length))
    if length is not None and received != int(length):
        raise ValueError(f"only {received} of {length} bytes arrived")
    if remote.checksum and (found := _digest_like(remote.checksum, part)) != remote.checksum:
        raise ValueError(f"its checksum is {found}, not {remote.checksum}")


def _copy(response: http.client.HTTPResponse, file: BinaryIO, name: str, length: int | None) -> int:
    received = 0
    with progress(f"Downloading {name}", length, delay=0.5) as bar:
        while chunk := response.read(_CHUNK):
            file.write(chunk)
            received += len(chunk)
            bar.advance(len(chunk))
    return received


def digest(path: Path, algorithm: str = "sha256") -> str:
    """Checksum of a file, written as in `Remote`."""
    with path.open("rb") as file:
        return f"{algorithm}:{hashlib.file_digest(file, algorithm).hexdigest()}"


def _digest_like(checksum: str, path: Path) -> str:
    return digest(path, checksum.partition(":")[0])


def _failed(remote: Remote, path: Path, reason: str, advice: str) -> DataError:
    return DataError(f"{remote.url} could not be downloaded to {path} ({reason}); {advice}")
