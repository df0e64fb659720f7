"""Files appear whole or not at all; a cache believes only what it wrote itself."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

import caldera as cd
from caldera.file_cache import FileCache, atomic_write


@pytest.fixture
def cache(tmp_path: Path):
    with cd.settings.override(cache_dir=tmp_path / "of" / "caldera"):
        yield FileCache("things")


def test_writing_that_fails_leaves_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("before")

    def fail_half_way() -> None:
        with atomic_write(path) as unfinished:
            unfinished.write_text("half")
            raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        fail_half_way()
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_for_everybody_has_the_usual_mode(tmp_path: Path) -> None:
    (tmp_path / "usual").touch()
    with atomic_write(tmp_path / "ours", durable=True) as unfinished:
        unfinished.write_text("whole")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "usual").stat().st_mode
    assert (tmp_path / "ours").read_text() == "whole"


def test_what_was_written_is_read(cache: FileCache) -> None:
    assert cache.read("a") is None
    cache.write("a", b"one")
    cache.write("a", b"two")
    cache.write_json("b", {"x": [1, None]})
    assert cache.read("a") == b"two"
    assert cache.read_json("b") == {"x": [1, None]}
    assert cache.read_json("a") is None
    assert list(cache) == ["a", "b"]


@pytest.mark.skipif(os.name == "nt", reason="modes are those of Unix")
def test_a_cache_is_private(cache: FileCache, tmp_path: Path) -> None:
    cache.write("a", b"content")
    modes = {
        path.name: stat.S_IMODE(path.stat().st_mode)
        for path in (cache.path("a"), cache.folder, cache.folder.parent, tmp_path / "of")
    }
    assert modes == {"a": 0o600, "things": 0o700, "caldera": 0o700, "of": 0o700}


@pytest.mark.parametrize("damage", ["cut", "flip", "longer", "empty", "foreign"])
def test_what_is_damaged_is_not_there(cache: FileCache, damage: str) -> None:
    cache.write("a", b"content")
    whole = cache.path("a").read_bytes()
    flipped = bytearray(whole)
    flipped[-1] ^= 1
    spoiled = {"cut": whole[:-1], "flip": bytes(flipped), "longer": whole + b"!", "empty": b"",
               "foreign": b"content"}  # fmt: skip
    cache.path("a").write_bytes(spoiled[damage])
    assert cache.read("a") is None
    assert cache.get("a", lambda: b"again") == b"again"
    assert cache.read("a") == b"again"


def test_what_is_there_is_not_made(cache: FileCache) -> None:
    cache.write("a", b"content")
    assert cache.get("a", lambda: pytest.fail("was made")) == b"content"


def test_a_folder_that_cannot_be_written(cache: FileCache) -> None:
    cache.folder.parent.mkdir(parents=True)
    cache.folder.write_text("in the way")
    with pytest.raises(OSError, match="things"):
        cache.write("a", b"content")
    assert cache.get("a", lambda: b"made") == b"made"
    assert list(cache) == []


def test_clearing_takes_what_was_left_unfinished(cache: FileCache) -> None:
    cache.write("a", b"content")
    (cache.folder / ".b.0123.tmp").write_text("half")
    assert list(cache) == ["a"]
    cache.clear()
    assert not list(cache.folder.iterdir())


def test_many_may_write_at_once(cache: FileCache) -> None:
    contents = [bytes([65 + number]) * 10000 for number in range(4)]

    def write(content: bytes) -> None:
        for _ in range(50):
            cache.write("a", content)
            assert cache.read("a") in contents

    writers = [threading.Thread(target=write, args=(content,)) for content in contents]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert cache.read("a") in contents
    assert list(cache.folder.iterdir()) == [cache.path("a")]
