"""The journal of a study: what was changed is refused, and what was not finished is cut."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from caldera import search
from caldera.errors import CalderaError, DataError
from caldera.search.storage import Journal
from tests.unit.search import made_up


def without_checks(journal: bytes) -> bytes:
    """The same journal as older versions wrote it."""
    return re.sub(rb',"check":"[0-9a-f]{16}"}\n', b"}\n", journal)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("study")
    made_up.study(trials=6, folder=folder)
    return (folder / "journal.log").read_bytes()


def _facts(journal: bytes, folder: Path) -> str | None:
    """All that a study says of itself; nothing if it is refused."""
    (folder / "journal.log").write_bytes(journal)
    try:
        study = search.load(folder)
    except CalderaError:
        return None
    kept = study.record.notes(), study.record.conditions()
    return repr([[vars(trial) for trial in study.trials], *kept])


@pytest.mark.parametrize("seed", range(4))
def test_a_flipped_bit_is_never_believed(seed: int, whole: bytes, tmp_path: Path) -> None:
    draw = random.Random(seed)
    for _ in range(60):
        damaged = bytearray(whole)
        damaged[draw.randrange(len(whole) - 1)] ^= 1 << draw.randrange(8)
        assert _facts(bytes(damaged), tmp_path) is None


def test_every_bit_of_a_checksum_and_what_is_around_it_counts(whole: bytes, tmp_path: Path) -> None:
    for end in (whole.index(b"\n"), len(whole) - 1):
        for bit in range(8 * 30):
            damaged = bytearray(whole)
            damaged[end - 1 - bit // 8] ^= 1 << bit % 8
            assert _facts(bytes(damaged), tmp_path) is None


def test_lines_that_were_moved_doubled_or_left_out_are_noticed(
    whole: bytes, tmp_path: Path
) -> None:
    lines = whole.splitlines(keepends=True)
    for at in range(len(lines) - 1):
        moved = [*lines[:at], lines[at + 1], lines[at], *lines[at + 2 :]]
        doubled = [*lines[: at + 1], *lines[at:]]
        short = [*lines[:at], *lines[at + 1 :]]
        for damaged in (moved, doubled, short):
            assert _facts(b"".join(damaged), tmp_path) is None


@pytest.mark.parametrize("seed", range(3))
def test_a_torn_end_is_cut_and_the_rest_is_there(seed: int, whole: bytes, tmp_path: Path) -> None:
    draw = random.Random(seed)
    for _ in range(25):
        length = draw.randrange(whole.index(b"\n") + 1, len(whole))
        # What a file has where its last blocks were never written.
        torn = whole[:length] + bytes(draw.choice([0, 0, 3, 200]))
        kept = whole[: whole[: length + 1].rfind(b"\n") + 1]
        if len(torn) > length:
            kept = whole[: whole[:length].rfind(b"\n") + 1]
        expected = _facts(kept, tmp_path)
        assert _facts(torn, tmp_path) == expected
        assert (tmp_path / "journal.log").read_bytes().startswith(kept)


def test_the_last_line_survives_the_loss_of_its_newline(whole: bytes, tmp_path: Path) -> None:
    expected = _facts(whole, tmp_path)
    for bit in range(8):
        damaged = whole[:-1] + bytes([whole[-1] ^ 1 << bit])
        assert _facts(damaged, tmp_path) == expected
        assert (tmp_path / "journal.log").read_bytes() == whole


def test_journals_of_older_versions_are_read_and_gone_on_with(whole: bytes, tmp_path: Path) -> None:
    old = without_checks(whole)
    assert old.count(b'"check":') == 0
    assert _facts(old, tmp_path) == _facts(whole, tmp_path)
    (tmp_path / "journal.log").write_bytes(old)
    Journal(tmp_path / "journal.log").append_logs([{"op_code": 99, "worker_id": "x"}])
    mixed = (tmp_path / "journal.log").read_bytes()
    assert mixed.startswith(old)
    assert len(list(Journal(tmp_path / "journal.log").read_logs(0))) == mixed.count(b"\n")
    # What was written before is covered from then on.
    draw = random.Random(0)
    for _ in range(40):
        damaged = bytearray(mixed)
        damaged[draw.randrange(len(old))] ^= 1 << draw.randrange(8)
        assert _facts(bytes(damaged), tmp_path) is None


def test_lines_of_other_tools_are_read_among_checked_ones(tmp_path: Path) -> None:
    path = tmp_path / "journal.log"
    written: list[dict[str, int]] = []
    for number in range(6):
        Journal(path).append_logs([{"ours": number}])
        with open(path, "ab") as file:
            file.write(b'{"theirs": %d}\n' % number)
        written += [{"ours": number}, {"theirs": number}]
    assert list(Journal(path).read_logs(0)) == written
    path.write_bytes(path.read_bytes().replace(b'"theirs": 3', b'"theirs": 2'))
    with pytest.raises(DataError, match=r"journal\.log, line 9: .* the file is damaged there or"):
        Journal(path)


def test_what_a_killed_process_left_is_cut_before_another_writes(tmp_path: Path) -> None:
    path = tmp_path / "journal.log"
    journal = Journal(path)
    journal.append_logs([{"n": 1}])
    with open(path, "ab") as file:
        file.write(b'{"n": 2, "text": "half')
    journal.append_logs([{"n": 3}])
    assert list(journal.read_logs(0)) == list(Journal(path).read_logs(0)) == [{"n": 1}, {"n": 3}]


def test_a_line_of_brackets_is_refused_in_words(tmp_path: Path) -> None:
    path = tmp_path / "journal.log"
    path.write_bytes(b"[" * 200_000 + b"\n")
    with pytest.raises(DataError, match="line 1: expected an entry of a study's journal"):
        list(Journal(path).read_logs(0))
