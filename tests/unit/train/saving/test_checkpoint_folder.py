"""Checkpoints survive kills and notice damage."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from caldera.errors import CheckpointError
from caldera.train.saving import checkpoint as folder_module
from caldera.train.saving.checkpoint import STATE, TENSORS, CheckpointFolder


def tensors(step: int) -> dict[str, np.ndarray]:
    return {
        "a/weight": np.full((3, 4), step, np.float32),
        "count": np.array(step),
        "half": np.array([step], ml_dtypes.bfloat16),
        "empty": np.zeros((0, 2)),
        "flags": np.array([True, False]),
    }


def saved(path: Path, *steps: int, keep: int = 2) -> CheckpointFolder:
    made = CheckpointFolder(path, keep)
    for step in steps:
        made.save(step, tensors(step), {"step": step})
    made.wait()
    return made


def test_what_was_saved_comes_back(tmp_path: Path) -> None:
    state = {"epoch": 2, "best": float("inf"), "other": [float("nan"), -0.0, 1e-300, "text", None]}
    made = CheckpointFolder(tmp_path / "new" / "folder")
    made.save(5, tensors(5), state)
    made.wait()
    found = made.latest()
    assert found is not None
    assert found.step == 5
    assert repr(found.state) == repr(state)
    for name, array in tensors(5).items():
        assert found.tensors[name].dtype == array.dtype
        assert found.tensors[name].shape == array.shape
        assert found.tensors[name].tobytes() == array.tobytes()


def test_a_folder_without_checkpoints_has_no_latest(tmp_path: Path) -> None:
    assert CheckpointFolder(tmp_path / "nothing").latest() is None


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_the_newest_are_kept(tmp_path: Path, keep: int) -> None:
    made = saved(tmp_path, 1, 2, 10, 11, keep=keep)
    assert made.steps() == [11, 10, 2][:keep]
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(f"step-{s}" for s in made.steps())


def test_values_are_copied_before_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()
    write = folder_module.write_checkpoint

    def slow(*arguments: Any) -> None:
        assert go.wait(10)
        write(*arguments)

    monkeypatch.setattr(folder_module, "write_checkpoint", slow)
    array = np.zeros(1000)
    made = CheckpointFolder(tmp_path)
    made.save(1, {"a": array}, {})
    assert made.busy
    array += 1
    go.set()
    made.wait()
    assert not made.busy
    found = made.latest()
    assert found is not None
    assert not found.tensors["a"].any()


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    made = saved(tmp_path, 3)
    made.save(3, {"a": np.ones(2)}, {"again": True})
    made.wait()
    found = made.latest()
    assert found is not None
    assert found.state == {"again": True}
    assert [p.name for p in tmp_path.iterdir()] == ["step-3"]


def test_what_went_wrong_in_the_background_is_raised_later(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    made = CheckpointFolder(blocked)
    made.save(1, {}, {})
    with pytest.raises(CheckpointError, match="FileExistsError"):
        made.save(2, {}, {})
    made.wait()


def test_a_state_that_json_cannot_hold_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="JSON"):
        CheckpointFolder(tmp_path).save(1, {}, {"model": object()})


# --- damage


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("where", ["last byte", "first element", "json number", "json key"])
def test_a_flipped_bit_is_noticed_and_the_one_before_is_loaded(tmp_path: Path, where: str) -> None:
    made = saved(tmp_path, 1, 2)
    damaged = tmp_path / "step-2"
    if where == "last byte":
        flip(damaged / TENSORS, -1)
    elif where == "first element":
        header = int.from_bytes((damaged / TENSORS).read_bytes()[:8], "little")
        flip(damaged / TENSORS, 8 + header)
    else:
        text = (damaged / STATE).read_text()
        old, new = ('"step": 2', '"step": 3') if where == "json number" else ('"a/w', '"b/w')
        assert old in text
        (damaged / STATE).write_text(text.replace(old, new))
    with pytest.warns(RuntimeWarning, match="step-2"):
        found = made.latest()
    assert found is not None
    assert found.step == 1


@pytest.mark.parametrize("name", [TENSORS, STATE])
@pytest.mark.parametrize("damage", ["missing", "empty", "half", "noise"])
def test_whatever_happens_to_a_file_the_one_before_is_loaded(
    tmp_path: Path, name: str, damage: str
) -> None:
    made = saved(tmp_path, 1, 2)
    path = tmp_path / "step-2" / name
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "noise":
        path.write_bytes(np.random.default_rng(0).bytes(len(content)))
    else:
        path.write_bytes(content[: 0 if damage == "empty" else len(content) // 2])
    with pytest.warns(RuntimeWarning, match="step-2"):
        found = made.latest()
    assert found is not None
    assert found.step == 1


def test_it_is_an_error_if_all_are_damaged(tmp_path: Path) -> None:
    made = saved(tmp_path, 1, 2)
    for step in (1, 2):
        (tmp_path / f"step-{step}" / STATE).write_text("{}")
    with (
        pytest.warns(RuntimeWarning, match="step"),
        pytest.raises(CheckpointError, match="damage in step-2, step-1"),
    ):
        made.latest()


def test_sizes_are_compared_before_memory_is_taken(tmp_path: Path) -> None:
    made = saved(tmp_path, 1)
    path = tmp_path / "step-1" / STATE
    whole = json.loads(path.read_text())
    content = whole["content"]
    content["tensors"]["a/weight"]["shape"] = [1 << 40, 1 << 20]
    whole["digest"] = forged_digest(content)
    path.write_text(json.dumps(whole))
    with (
        pytest.warns(RuntimeWarning, match="bytes of tensors"),
        pytest.raises(CheckpointError),
    ):
        made.latest()


def forged_digest(content: Any) -> str:
    """The digest of somebody who knows the format and means no good."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def test_links_and_strange_names_are_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    saved(outside, 9)
    inside = tmp_path / "inside"
    made = saved(inside, 1)
    (inside / "step-9").symlink_to(outside / "step-9")
    (inside / "step-99x").mkdir()
    (inside / "step-..").mkdir()
    assert made.steps() == [1]
    made.save(2, tensors(2), {})
    made.wait()
    assert (outside / "step-9" / STATE).exists()


def test_an_unfinished_one_is_ignored_and_tidied_away(tmp_path: Path) -> None:
    made = saved(tmp_path, 1)
    (tmp_path / "step-2.tmp").mkdir()
    (tmp_path / "step-2.tmp" / TENSORS).write_bytes(b"half")
    found = made.latest()
    assert found is not None
    assert found.step == 1
    made.save(3, tensors(3), {})
    made.wait()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-1", "step-3"]


def test_one_moved_aside_is_found_while_its_place_is_empty(tmp_path: Path) -> None:
    # What a kill between the two renames of a step that is saved again leaves.
    made = saved(tmp_path, 4)
    (tmp_path / "step-4").rename(tmp_path / "step-4.old")
    found = made.latest()
    assert found is not None
    assert found.step == 4


def test_a_future_that_was_given_up_is_removed(tmp_path: Path) -> None:
    saved(tmp_path, 10, 20)
    flip(tmp_path / "step-20" / TENSORS, -1)
    resumed = CheckpointFolder(tmp_path, keep=1)
    resumed.save(15, tensors(15), {})
    resumed.wait()
    assert resumed.steps() == [15]


WRITER = """
import itertools, os, sys
import numpy as np
from caldera.train.saving.checkpoint import CheckpointFolder

def tell(event, number):
    # One write a line (print may take several): a kill must not leave half of one.
    os.write(1, f"{event} {number}\\n".encode())

def write(first):
    folder = CheckpointFolder(sys.argv[1])
    for step in itertools.count(first):
        # Each step twice, as at the end of an epoch.
        for turn in range(2):
            folder.save(step, {"a": np.full(20_000, step), "b": np.array(step)}, {"step": step})
        folder.wait()
        tell("saved", step)

for line in sys.stdin:
    child = os.fork()
    if not child:
        write(int(line))
    tell("began", child)
    os.waitpid(child, 0)
    tell("ended", 0)
"""


def test_a_kill_at_any_moment_leaves_the_last_good_one(tmp_path: Path) -> None:
    # As on a machine that dies: no moment to clean up.
    chance = random.Random(0)
    last, longest = 0, 0.06
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        for _ in range(40):
            parent.stdin.write(f"{last + 1}\n")
            parent.stdin.flush()
            acknowledged = last
            for line in parent.stdout:
                event, number = line.split()
                if event == "began":
                    time.sleep(chance.uniform(0.0, longest))
                    os.kill(int(number), signal.SIGKILL)
                elif event == "saved":
                    acknowledged = int(number)
                else:
                    break
            if acknowledged == last:
                # A busy machine writes more slowly: kills are to come while and after it writes.
                longest = min(1.2 * longest, 1.0)
            found = CheckpointFolder(tmp_path).latest()
            if found is None:
                assert acknowledged == 0
                continue
            assert found.step >= acknowledged
            assert found.state == {"step": found.step}
            assert (found.tensors["a"] == found.step).all()
            last = found.step
        parent.stdin.close()
    assert last > 10
