"""Files appear whole or not at all; a cache believes only what it wrote itself."""

from __future__ import annotations

import os
import re
import shutil
import stat
import threading
import time
from pathlib import Path

import pytest

import caldera as cd
from caldera.base import file_access
from caldera.base.file_cache import FileCache, atomic_write


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
    assert modes == {"a.2": 0o600, "things": 0o700, "caldera": 0o700, "of": 0o700}
    assert {stat.S_IMODE(path.stat().st_mode) for path in cache.folder.iterdir()} == {0o600}


@pytest.mark.parametrize("damage", ["cut", "flip", "longer", "empty", "foreign"])
def test_what_is_damaged_is_not_there(cache: FileCache, damage: str) -> None:
    cache.write("a", b"content")
    whole = cache.path("a").read_bytes()
    flipped = bytearray(whole)
    flipped[-1] ^= 1
    spoiled = {
        "cut": whole[:-1],
        "flip": bytes(flipped),
        "longer": whole + b"!",
        "empty": b"",
        "foreign": b"content",
    }
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
    assert not list(cache.folder.glob(".a*"))


def test_what_a_killed_process_left_is_swept(tmp_path: Path) -> None:
    old, young, other = (
        tmp_path / name
        for name in (
            f".a.{'0' * 16}.tmp",
            f".a.{'1' * 16}.tmp",
            "notes.tmp",
        )
    )
    for path in (old, young, other):
        path.write_text("half")
    long_ago = time.time() - 7200
    for path in (old, other):
        os.utime(path, (long_ago, long_ago))
    with atomic_write(tmp_path / "b") as unfinished:
        unfinished.write_text("whole")
    assert not old.exists()
    assert young.exists()
    assert other.exists()


# --- whom a cache believes


def test_only_who_knows_the_secret_writes_what_is_believed(cache: FileCache) -> None:
    cache.write("a", b"content")
    cache.write("b", b"other")
    whole = cache.path("a").read_bytes()
    # A whole entry, under another name: it would be run in the place of the right one.
    shutil.copy(cache.path("b"), cache.path("a"))
    assert cache.read("a") is None
    cache.path("a").write_bytes(whole)
    assert cache.read("a") == b"content"
    # One that was made elsewhere, by the same rules but with another secret.
    with cd.settings.override(cache_dir=cache.folder.parent.parent / "elsewhere"):
        cache.write("a", b"hostile")
        foreign = cache.path("a").read_bytes()
    cache.path("a").write_bytes(foreign)
    assert cache.read("a") is None
    assert cache.get("a", lambda: b"made") == b"made"


unix = pytest.mark.skipif(os.name == "nt", reason="owners and modes are those of Unix")


def _refuses(cache: FileCache, reason: str) -> None:
    """Nothing is read or written, one warning says why, and work goes on without the cache."""
    before = {path: path.read_bytes() for path in cache.folder.iterdir()}
    with pytest.warns(RuntimeWarning, match=reason + ".*CALDERA_CACHE") as warned:
        found = [cache.get("a", lambda: b"made"), cache.get("a", lambda: b"again")]
    assert found == [b"made", b"again"]
    assert len(warned) == 1
    with pytest.raises(PermissionError):
        cache.write("b", b"other")
    assert {path: path.read_bytes() for path in cache.folder.iterdir()} == before


@unix
@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o702])
def test_a_folder_that_others_may_write_to_is_refused(cache: FileCache, mode: int) -> None:
    cache.write("a", b"content")
    cache.folder.chmod(mode)
    _refuses(cache, f"others may write to {cache.folder} .mode {mode:04o}")
    cache.folder.chmod(0o700)
    assert cache.read("a") == b"content"


@unix
def test_a_folder_on_the_way_counts_unless_only_owners_may_rename(
    cache: FileCache, tmp_path: Path
) -> None:
    cache.write("a", b"content")
    (tmp_path / "of").chmod(0o1777)
    assert cache.read("a") == b"content"
    (tmp_path / "of").chmod(0o777)
    _refuses(cache, f"others may write to {tmp_path / 'of'} ")


@unix
def test_groups_count_unless_nobody_else_is_in_them(
    cache: FileCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.write("a", b"content")
    cache.folder.chmod(0o770)
    monkeypatch.setattr(file_access, "_is_group_of_one", lambda group: True)
    assert cache.read("a") == b"content"
    monkeypatch.setattr(file_access, "_is_group_of_one", lambda group: False)
    _refuses(cache, "others may write")


@unix
def test_what_another_user_owns_is_refused(
    cache: FileCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.write("a", b"content")
    monkeypatch.setattr(file_access, "this_user", lambda: os.geteuid() + 1)
    # Folders on the way may be root's, but nobody else's; the cache itself has to be the user's.
    _refuses(cache, f"belongs to user {os.geteuid()}")


@unix
def test_a_file_that_others_may_write_to_is_refused(cache: FileCache) -> None:
    cache.write("a", b"content")
    cache.path("a").chmod(0o666)
    with pytest.warns(RuntimeWarning, match=re.escape(str(cache.path("a")))):
        assert cache.get("a", lambda: b"made") == b"made"
    # It was written anew, for this user alone.
    assert cache.read("a") == b"made"


@unix
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives away")
def test_a_file_of_another_user_in_a_folder_of_ours_is_refused(cache: FileCache) -> None:
    cache.write("a", b"content")
    os.chown(cache.path("a"), 12345, 12345)
    with pytest.warns(RuntimeWarning, match="belongs to user 12345"):
        assert cache.read("a") is None
    # A secret that another user may have put there is no secret.
    cache.write("a", b"content")
    before = (cache.folder / ".secret").read_bytes()
    os.chown(cache.folder / ".secret", 12345, 12345)
    assert cache.read("a") is None
    cache.write("a", b"content")
    assert cache.read("a") == b"content"
    assert (cache.folder / ".secret").read_bytes() != before


@unix
def test_links_are_followed_and_what_they_lead_through_counts(
    cache: FileCache, tmp_path: Path
) -> None:
    (tmp_path / "open" / "objects").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "open")
    cache.folder.parent.mkdir(parents=True)
    cache.folder.symlink_to(Path("../../link/objects"))
    cache.write("a", b"content")
    assert cache.read("a") == b"content"
    (tmp_path / "open").chmod(0o777)
    _refuses(cache, f"others may write to {tmp_path / 'open'} ")
    # An entry itself is no link.
    (tmp_path / "open").chmod(0o700)
    cache.path("a").rename(tmp_path / "a")
    cache.path("a").symlink_to(tmp_path / "a")
    assert cache.read("a") is None


@unix
def test_links_in_a_circle_are_no_folder(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert "too many links" in file_access.why_folder_is_unsafe(tmp_path / "a")
