"""Whatever writes a result leaves the old file if it fails: a full disk loses nothing."""

from __future__ import annotations

import ast
import os
import re
import resource
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import caldera as cd
from caldera import audio, search
from caldera.audio import kaldi
from caldera.base.file_cache import atomic_write, write_file
from caldera.cli.recipe import write_recipe
from caldera.draw.svg import write_svg
from caldera.errors import CheckpointError, DataError, FileWriteError
from caldera.train.saving.checkpoint import CheckpointFolder
from tests.unit.search import made_up

PACKAGE = Path(cd.__file__).parent
LARGE = np.arange(5000.0)
MODEL = cd.NeuralNetwork([cd.nn.Input((100,)), cd.nn.Dense(100)], loss="mse")


WRITERS: dict[str, Callable[[Path], object]] = {
    "save_npy": lambda path: cd.io.save_npy(path, LARGE),
    "save_npz": lambda path: cd.io.save_npz(path, {"a": LARGE}),
    "save_safetensors": lambda path: cd.io.save_safetensors(path, {"a": LARGE}),
    "write_csv": lambda path: cd.io.write_csv(path, LARGE),
    "write_svg": lambda path: write_svg(path, "<svg>" + "x" * 20000, "draw"),
    "write_recipe": lambda path: write_recipe(path, {"name": "x" * 20000, "model": "x" * 20000}),
    "model.save": lambda path: MODEL.save(path),
    "write_ark": lambda path: kaldi.write_ark(path, {"a": LARGE}),
    "audio.write": lambda path: audio.write(path, LARGE / 5000, 8000),
    "write_file": lambda path: write_file(path, "x" * 20000),
}


@contextmanager
def full_disk(room: int = 1000) -> Iterator[None]:
    """Files cannot grow: the system refuses every byte after so many."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("writer", WRITERS)
def test_a_full_disk_leaves_the_old_file(tmp_path: Path, writer: str) -> None:
    path = tmp_path / ("old.classes.txt" if writer == "class names" else "old.svg")
    path.write_text("the old one")
    with full_disk(), pytest.raises(FileWriteError, match=r"old\.\w+: .*(too large|109 written)"):
        WRITERS[writer](path)
    assert path.read_text() == "the old one"
    assert list(tmp_path.iterdir()) == [path]
    WRITERS[writer](path)
    assert path.stat().st_size > 10000
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_leaves_the_old_checkpoint_and_no_other(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    folder.save(1, {"w": np.zeros(2)}, {"epoch": 1})
    folder.wait()
    with full_disk():
        folder.save(2, {"w": LARGE}, {"epoch": 2})
        with pytest.raises(CheckpointError, match="too large"):
            folder.wait()
    assert [path.name for path in tmp_path.iterdir()] == ["step-1"]
    found = folder.latest()
    assert found is not None
    assert found.step == 1


def test_a_full_disk_ends_a_search_in_words_and_keeps_its_trials(tmp_path: Path) -> None:
    with full_disk(8000), pytest.raises(FileWriteError, match=r"journal\.log: .*too large"):
        made_up.study(folder=tmp_path)
    journal = tmp_path / "journal.log"
    written = journal.read_bytes()
    assert written.endswith(b"}\n")
    found = search.load(tmp_path)
    assert 0 < len(found.trials) < 40
    assert len(made_up.study(folder=tmp_path).trials) == 40
    assert journal.read_bytes().startswith(written)


def test_a_full_disk_ends_a_search_in_a_database_in_words(tmp_path: Path) -> None:
    pytest.importorskip("sqlalchemy")
    address = f"sqlite:///{tmp_path}/study.db"
    made_up.study(trials=2, storage=address)
    room = (tmp_path / "study.db").stat().st_size + 2000
    with full_disk(room), pytest.raises(FileWriteError, match=r"study\.db: expected a database"):
        made_up.study(trials=40, storage=address)
    assert len(made_up.study(trials=3, storage=address).trials) >= 2


def test_other_errors_within_a_write_are_what_they_are(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), atomic_write(tmp_path / "a"):
        (tmp_path / "b").read_text()


def test_links_are_followed_and_modes_are_kept(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("old")
    real.chmod(0o640)
    link.symlink_to("real")
    write_file(link, "new")
    assert link.is_symlink()
    assert real.read_text() == "new"
    assert stat.S_IMODE(real.stat().st_mode) == 0o640


def test_what_is_no_file_is_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    cd.io.save_safetensors(pipe, {"a": np.zeros(3, "uint8")})
    reader.join()
    assert read[0].endswith(b"\0\0\0")
    with atomic_write(Path(os.devnull)) as unfinished:
        unfinished.write_text("nobody reads it")


def test_a_place_that_cannot_be_written_to_is_explained(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no folder"):
        cd.io.save_safetensors(tmp_path / "no" / "file", {})
    with pytest.raises(DataError, match="a folder"):
        cd.io.save_npz(tmp_path, {})


# Files that grow, a name that `atomic_write` gave, and one that is no file.
DIRECT = {
    "base/file_cache.py": 4,
    "io/files.py": 2,
    "io/events.py": 1,
    "io/numpy_files.py": 1,
    "data/datasets/dataset_cache.py": 1,
    "bench/timing.py": 1,
    # A journal, to which whole lines are added, and locks.
    "search/storage.py": 1,
    "base/file_lock.py": 1,
    "train/saving/folder_lock.py": 1,
    # A nonce, which workers read to prove that they see the folder.
    "comm/places/shared_folder.py": 1,
}


def test_nobody_else_writes_files() -> None:
    found: dict[str, int] = {}
    for file in PACKAGE.rglob("*.py"):
        text = file.read_text()
        if not re.search(r"write_text|write_bytes|open\(", text):
            continue
        count = sum(_writes(node) for node in ast.walk(ast.parse(text)))
        if count:
            found[file.relative_to(PACKAGE).as_posix()] = count
    assert found == DIRECT


def _writes(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    is_open = name == "open" or (isinstance(node.func, ast.Name) and node.func.id == "open")
    modes = [each.value for each in node.args if isinstance(each, ast.Constant)]
    passed_on = any(isinstance(each, ast.Name) and each.id == "mode" for each in node.args)
    writing = any(isinstance(each, str) and each[:1] in "wax" and len(each) < 4 for each in modes)
    return name in ("write_text", "write_bytes") or (is_open and (writing or passed_on))
