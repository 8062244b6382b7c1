"""Downloads from a server on this machine: the good case and everything that may go wrong."""

import gzip
import hashlib
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from tests.support.messages import names, naming
from unbraid.data import check, dataset, download, fetch, load
from unbraid.data.download import Remote
from unbraid.data.files import Recipe, load_stored
from unbraid.data.mnist import DIGIT, PARTS, WANTS, convert
from unbraid.errors import DataError

BODY = bytes(range(256)) * 40
FILES = {"/data.bin": BODY}
REQUESTS: list[str] = []
GOOD = f"sha256:{hashlib.sha256(BODY).hexdigest()}"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        REQUESTS.append(self.path)
        if self.path == "/half":
            self._send(200, BODY[:1000], length=len(BODY))
        elif self.path == "/slow":
            time.sleep(1)
        elif self.path == "/moved":
            self.send_response(302)
            self.send_header("Location", "/data.bin")
            self.end_headers()
        elif self.path in FILES:
            self._send(200, FILES[self.path])
        else:
            self._send(404, b"no such file")

    def _send(self, code, body, length=None):
        self.send_response(code)
        self.send_header("Content-Length", str(length or len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def server():
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{httpd.server_port}"
    httpd.shutdown()
    httpd.server_close()


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("UNBRAID_DATA", str(tmp_path))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return tmp_path


def files_in(folder):
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("checksum", [GOOD, f"md5:{hashlib.md5(BODY).hexdigest()}", None])
@pytest.mark.parametrize("address", ["/data.bin", "/moved"])
def test_good_file_arrives(server, home, checksum, address):
    path = download.download(Remote(server + address, checksum), home, "")
    assert path.read_bytes() == BODY
    assert files_in(home) == [path.name]


def test_verified_file_is_not_fetched_twice(server, home):
    download.download(Remote(f"{server}/data.bin", GOOD), home, "")
    before = len(REQUESTS)
    download.download(Remote(f"{server}/data.bin", GOOD), home, "")
    assert len(REQUESTS) == before
    (home / "data.bin").write_bytes(b"something else")
    assert download.download(Remote(f"{server}/data.bin", GOOD), home, "").read_bytes() == BODY


@pytest.mark.parametrize(
    ("address", "checksum", "facts"),
    [
        ("/data.bin", f"sha256:{'0' * 64}", ["checksum", GOOD]),
        ("/half", None, [1000, 10240]),
        ("/none.bin", GOOD, [404]),
        ("/slow", None, ["timed out"]),
    ],
)
def test_failure_is_one_sentence_and_leaves_nothing(server, home, monkeypatch, address, checksum, facts):
    monkeypatch.setattr(download, "TIMEOUT", 0.2)
    remote = Remote(server + address, checksum)
    with pytest.raises(DataError) as caught:
        download.download(remote, home, "run `unbraid data fetch x --from PATH`.")
    hint = "unbraid data fetch x --from PATH"
    assert names(str(caught.value), remote.url, home / remote.filename, *facts, hint)
    assert "\n" not in str(caught.value)
    assert files_in(home) == []


def test_unreachable_server(home):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]  # bound, but nobody listens
        with pytest.raises(DataError, match="refused"):
            download.download(Remote(f"http://127.0.0.1:{port}/data.bin"), home, "")
    assert files_in(home) == []


def test_unknown_host(home, monkeypatch):
    def no_network(*_, **__):
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    with pytest.raises(DataError, match="name resolution"):
        download.download(Remote("http://unbraid.invalid/data.bin"), home, "")
    assert files_in(home) == []


def test_folder_that_cannot_be_written(server, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match=naming(tmp_path / "file", "UNBRAID_DATA")):
        download.download(Remote(f"{server}/data.bin"), tmp_path / "file", "")


@pytest.fixture
def digits(server):
    """A data set of four downloads, as MNIST is."""
    random = np.random.default_rng(0)
    arrays = {
        "train_images": random.integers(0, 256, (6, 4, 4)),
        "train_labels": random.integers(0, 10, 6),
        "test_images": random.integers(0, 256, (3, 4, 4)),
        "test_labels": random.integers(0, 10, 3),
    }
    remotes = []
    for key, array in arrays.items():
        head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
        body = gzip.compress(head + array.astype(np.uint8).tobytes())
        FILES[f"/{PARTS[key]}.gz"] = body
        remotes.append(Remote(f"{server}/{PARTS[key]}.gz", f"md5:{hashlib.md5(body).hexdigest()}"))

    def recipe():
        return Recipe("digits", lambda p: convert(p, "digits", DIGIT), WANTS, tuple(remotes))

    @dataset("digits", recipe=recipe)
    def digits():
        """Digits of a test."""
        return load_stored(recipe())

    yield arrays
    dataset.remove("digits")


def test_fetch_downloads_converts_and_tidies_up(digits, home):
    assert check("digits").state == "missing"
    with pytest.raises(DataError, match="`unbraid data fetch digits`"):
        load("digits")
    path = fetch("digits")
    assert files_in(home) == [path.name] == ["digits-v1.safetensors"]
    data = load("digits")
    assert (data.pixels.stored[:6, 0].numpy() == digits["train_images"]).all()
    assert data.held_out.tolist() == [6, 7, 8]
    assert check("digits").state == "present"
    assert names(check("digits").words, "digits", 9)


def test_failed_fetch_keeps_what_is_verified_and_stores_nothing(digits, home):
    name = PARTS["test_labels"]
    kept = FILES.pop(f"/{name}.gz")
    with pytest.raises(DataError, match=naming(f"{name}.gz", 404, "unbraid data fetch digits --from PATH")):
        fetch("digits")
    assert files_in(home) == sorted(f"{PARTS[key]}.gz" for key in PARTS if key != "test_labels")
    FILES[f"/{name}.gz"] = kept
    REQUESTS.clear()
    fetch("digits")
    assert [f"/{name}.gz"] == REQUESTS
