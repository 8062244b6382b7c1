"""Downloads from a server on this machine: the good case and everything that may go wrong."""

import gzip
import hashlib
import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
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
        times = REQUESTS.count(self.path)
        asked = re.match(r"bytes=(\d+)-", self.headers.get("Range", ""))
        start = int(asked[1]) if asked else 0
        if self.path == "/half":
            self._send(200, BODY[:1000], length=len(BODY))
        elif self.path == "/pieces":  # breaks off after 3,000 bytes, and continues where it is asked to
            rest = BODY[start:]
            self._send(206 if asked else 200, rest[:3000], len(rest), f"bytes {start}-{len(BODY) - 1}/{len(BODY)}")
        elif self.path == "/no-ranges":  # breaks off once, and then starts again from 0
            self._send(200, BODY if times > 1 else BODY[:3000], len(BODY))
        elif self.path == "/wrong-range":  # answers with another part than was asked for
            if asked:
                self._send(206, BODY[7:], None, f"bytes 7-{len(BODY) - 1}/{len(BODY)}")
            else:
                self._send(200, BODY if times > 2 else BODY[:3000], len(BODY))
        elif self.path == "/changed":  # has another version of the file at the second connection
            whole, tag = (b"old" * 2000, '"a"') if times == 1 else (BODY, '"b"')
            self._send(200, whole[:3000] if times == 1 else whole, len(whole), etag=tag)
        elif self.path == "/beyond" and start >= len(BODY):
            self._send(416, b"")
        elif self.path == "/busy" and times < 3:
            self._send(503, b"later")
        elif self.path == "/odd-length":
            self._send(200, BODY, "many")
        elif self.path in ("/busy", "/beyond"):
            self._send(200, BODY)
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

    def _send(self, code, body, length=None, content_range=None, etag=None):
        self.send_response(code)
        self.send_header("Content-Length", str(length or len(body)))
        for name, value in (("Content-Range", content_range), ("ETag", etag)):
            if value is not None:
                self.send_header(name, value)
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
    monkeypatch.setattr(download, "PAUSE", 0.0)
    REQUESTS.clear()
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


@pytest.mark.parametrize("checksum", [GOOD, None])
@pytest.mark.parametrize(
    ("address", "connections"),
    [("/pieces", 4), ("/no-ranges", 2), ("/wrong-range", 3), ("/changed", 2), ("/busy", 3), ("/odd-length", 1)],
)
def test_download_survives_what_servers_do(server, home, address, connections, checksum):
    path = download.download(Remote(server + address, checksum), home, "")
    assert path.read_bytes() == BODY
    assert [address] * connections == REQUESTS
    assert files_in(home) == [path.name]


def test_beginning_of_a_file_outlives_the_process(server, home, monkeypatch):
    monkeypatch.setattr(download, "ATTEMPTS", 1)
    with pytest.raises(DataError, match=naming(3000, 10240, "continues")):
        download.download(Remote(f"{server}/pieces", GOOD), home, "")
    assert [path.stat().st_size for path in home.iterdir()] == [3000]
    monkeypatch.setattr(download, "ATTEMPTS", 5)
    assert download.download(Remote(f"{server}/pieces", GOOD), home, "").read_bytes() == BODY
    assert len(REQUESTS) == 4
    assert files_in(home) == ["pieces"]


@pytest.mark.parametrize("start", [b"another file", BODY, BODY + b"more"])
def test_beginning_of_another_file_is_dropped(server, home, start):
    (home / ".beyond.partial").write_bytes(start)
    assert download.download(Remote(f"{server}/beyond", GOOD), home, "").read_bytes() == BODY
    assert files_in(home) == ["beyond"]


def test_busy_server_may_say_how_long(server, monkeypatch):
    waited = []
    monkeypatch.setattr(download.time, "sleep", waited.append)
    for asked in ("7", "soon", "100000"):
        download._wait(2, asked)
    assert waited == [7.0, 0.0, download.MAX_PAUSE]


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


def test_whole_file_is_not_fetched_again(digits):
    path = fetch("digits")
    REQUESTS.clear()
    assert fetch("digits") == path
    assert REQUESTS == []
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    fetch("digits")
    assert len(REQUESTS) == 4
    assert check("digits").state == "present"


def test_eight_fetches_at_once_download_once(digits, home):
    with ThreadPoolExecutor(8) as pool:
        paths = set(pool.map(lambda _: fetch("digits"), range(8)))
    assert len(paths) == 1
    assert len(REQUESTS) == 4
    assert files_in(home) == ["digits-v1.safetensors"]
    assert list(home.iterdir()) == [home / "digits-v1.safetensors"]
