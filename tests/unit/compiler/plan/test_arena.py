"""Offsets of buffers: none share memory while both live, and of many only those that meet count."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from caldera.compiler.plan import arena


def _lives(draw: random.Random, count: int) -> tuple[list[int], list[int], list[int]]:
    steps = draw.randrange(1, 90)
    first = [draw.randrange(steps) for _ in range(count)]
    last = [draw.randrange(born, steps) for born in first]
    return [draw.choice((0, 1, 64, 65, draw.randrange(9999))) for _ in range(count)], first, last


def _check(sizes: Sequence[int], first: Sequence[int], last: Sequence[int]) -> None:
    offsets, total = arena.place(sizes, first, last)
    tops = [offset + arena.aligned(size) for offset, size in zip(offsets, sizes, strict=True)]
    assert total == max(tops, default=0)
    for a in range(len(sizes)):
        for b in range(a):
            if first[a] <= last[b] and first[b] <= last[a]:
                assert tops[a] <= offsets[b] or tops[b] <= offsets[a]


def test_buffers_that_live_together_do_not_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(1)
    for _ in range(60):
        lives = _lives(draw, draw.randrange(40))
        _check(*lives)
        few = arena.place(*lives)
        with monkeypatch.context() as changed:
            changed.setattr(arena, "_FEW", 0)
            assert arena.place(*lives) == few


def test_of_a_long_chain_only_neighbours_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at = 0
    during = arena._Placed.during

    def counted(self: arena._Placed, start: int, end: int) -> list[arena.Span]:
        nonlocal looked_at
        found = during(self, start, end)
        looked_at += len(found)
        return found

    monkeypatch.setattr(arena._Placed, "during", counted)
    count = 5000
    offsets, total = arena.place([64] * count, range(count), range(1, count + 1))
    assert (set(offsets), total) == ({0, 64}, 128)
    assert looked_at <= 2 * count
