"""Downloads: what was published is kept, anything else leaves no trace."""

from __future__ import annotations

import gzip
import hashlib
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from caldera import data
from caldera.data.datasets import cifar, handwritten_digits
from caldera.data.datasets.dataset_cache import PublishedFile, download
from caldera.errors import DataError
from tests.unit.data.files import idx, tar
from tests.unit.data.test_cifar import binary10, check_binary


class Server:
    """A mirror on this machine."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.asked: list[str] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.asked.append(self.path)
                content = server.files.get(self.path)
                self.send_response(404 if content is None else 200)
                self.end_headers()
                self.wfile.write(content or b"nothing here")

            def log_message(self, *_: object) -> None:
                return

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}/"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,))
        self._thread.start()

    def stop(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.stop()


def published(name: str, content: bytes) -> PublishedFile:
    return PublishedFile(name, len(content), hashlib.sha256(content).hexdigest())


def test_a_file_is_fetched_and_kept(server: Server, tmp_path: Path) -> None:
    server.files["/a.gz"] = b"content"
    folder = tmp_path / "new" / "folder"
    path = download(published("a.gz", b"content"), [server.url], folder, "data.x")
    assert path.read_bytes() == b"content"
    assert list(folder.iterdir()) == [path]


def test_the_next_mirror_is_tried(server: Server, tmp_path: Path) -> None:
    server.files["/wrong/a.gz"] = b"c0ntent"
    server.files["/right/a.gz"] = b"content"
    mirrors = [server.url + "missing/", server.url + "wrong/", server.url + "right/"]
    path = download(published("a.gz", b"content"), mirrors, tmp_path, "data.x")
    assert path.read_bytes() == b"content"
    assert server.asked == ["/missing/a.gz", "/wrong/a.gz", "/right/a.gz"]


@pytest.mark.parametrize(
    ("served", "message"),
    [
        (b"c0ntent", "SHA-256"),
        (b"cont", "4 bytes with SHA-256"),
        (b"content and more" * 100_000, "more than the 7 bytes"),
        (None, "404"),
    ],
)
def test_anything_else_is_refused_without_a_trace(
    server: Server, tmp_path: Path, served: bytes | None, message: str
) -> None:
    if served is not None:
        server.files["/a.gz"] = served
    with pytest.raises(DataError, match=f"(?s){message}.*put the file into"):
        download(published("a.gz", b"content"), [server.url], tmp_path, "data.x")
    assert list(tmp_path.iterdir()) == []


def test_without_a_network_the_error_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="without a network, put the file into"):
        download(published("a.gz", b"x"), ["http://127.0.0.1:9/"], tmp_path, "data.x")


def test_mnist_is_downloaded_once(
    server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = {}
    for key, file in handwritten_digits.FILES.items():
        array = np.zeros((2, 3, 3)) if "images" in key else np.arange(2)
        contents[key] = gzip.compress(idx(array))
        server.files["/" + file.name] = contents[key]
    monkeypatch.setattr(handwritten_digits, "MIRRORS", (server.url,))
    files = {key: published(f.name, contents[key]) for key, f in handwritten_digits.FILES.items()}
    monkeypatch.setattr(handwritten_digits, "FILES", files)
    assert data.mnist().shape == (1, 3, 3)
    assert len(server.asked) == 4
    assert data.mnist().shape == (1, 3, 3)
    assert len(server.asked) == 4
    assert len(list((cache / "data" / "mnist").iterdir())) == 4


def test_cifar_is_downloaded_once(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    content = tar({f"cifar-10-batches-bin/{name}": each for name, each in binary10().items()})
    name = cifar._CIFAR10.archive.name
    server.files["/" + name] = content
    monkeypatch.setattr(cifar, "MIRRORS", (server.url,))
    form = replace(cifar._CIFAR10, archive=published(name, content))
    monkeypatch.setattr(cifar, "_CIFAR10", form)
    check_binary(data.cifar10())
    check_binary(data.cifar10())
    assert server.asked == ["/" + name]


def test_a_given_folder_is_the_only_place(server: Server, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="got none; download"):
        data.cifar10(tmp_path, download=True)
    assert server.asked == []
