"""Requests that come together are computed together, and none spoils another."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest

from caldera.errors import DataError
from caldera.serve.batcher import Batcher, Metrics
from caldera.serve.http import Limits, Refusal


class Doubling:
    """Doubles what it is given; refuses negative numbers. Keeps the sizes of its batches."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def __call__(self, x: np.ndarray) -> np.ndarray:
        self.sizes.append(len(x))
        if (x < 0).any():
            raise DataError.build("x", expected="positive numbers", got="others")
        return 2 * x


def _rows(*values: float) -> np.ndarray:
    return np.array(values, "float32")[:, None]


@pytest.mark.parametrize("in_thread", [False, True])
def test_requests_at_the_same_time_share_a_batch(in_thread: bool) -> None:
    predict, metrics = Doubling(), Metrics()
    batcher = Batcher(predict, Limits(batch_size=8), metrics)
    if in_thread:
        batcher.warm_up(_rows(0))
        batcher.use_thread()
        predict.sizes.clear()

    async def go() -> list[np.ndarray]:
        asked = [_rows(number, number + 0.5) for number in range(9)]
        return await asyncio.gather(*(batcher.submit(x) for x in asked))

    for number, found in enumerate(asyncio.run(go())):
        assert found[:, 0].tolist() == [2 * number, 2 * number + 1]
    # Eighteen samples, eight at a time, filled up to sizes that have a plan.
    assert sum(predict.sizes) >= 18
    assert max(predict.sizes) == 8
    assert len(predict.sizes) <= 4
    assert (metrics.samples, batcher.waiting) == (18, 0)
    batcher.close()


def test_one_that_cannot_be_computed_does_not_spoil_the_others() -> None:
    batcher = Batcher(Doubling(), Limits(batch_size=8), Metrics())

    async def go() -> list[np.ndarray | BaseException]:
        asked = [_rows(1), _rows(-1), _rows(3)]
        return await asyncio.gather(*map(batcher.submit, asked), return_exceptions=True)

    first, second, third = asyncio.run(go())
    assert isinstance(second, Refusal)
    assert second.status == 422
    assert np.array_equal([first, third], [_rows(2), _rows(6)])


def test_more_than_may_wait_are_told_to_come_again() -> None:
    batcher = Batcher(Doubling(), Limits(batch_size=2, waiting=3), Metrics())

    async def go() -> list[np.ndarray | BaseException]:
        asked = [_rows(1, 2), _rows(3, 4), _rows(5)]
        return await asyncio.gather(*map(batcher.submit, asked), return_exceptions=True)

    first, second, third = asyncio.run(go())
    assert isinstance(second, Refusal)
    assert (second.status, second.headers) == (503, {"retry-after": "1"})
    assert np.array_equal(np.asarray(first), _rows(2, 4))
    assert np.array_equal(np.asarray(third), _rows(10))
    assert batcher.waiting == 0


def test_a_request_larger_than_a_batch_and_one_that_was_given_up() -> None:
    predict = Doubling()
    batcher = Batcher(predict, Limits(batch_size=4), Metrics())

    async def go() -> np.ndarray:
        given_up = asyncio.ensure_future(batcher.submit(_rows(7)))
        await asyncio.sleep(0)
        given_up.cancel()
        return await batcher.submit(_rows(*range(11)))

    assert asyncio.run(go())[:, 0].tolist() == [2 * number for number in range(11)]
    assert predict.sizes == [4, 4, 4]
    assert batcher.waiting == 0


def test_others_are_read_while_a_thread_computes() -> None:
    release = threading.Event()

    def slow(x: np.ndarray) -> np.ndarray:
        assert release.wait(60)
        return x

    batcher = Batcher(slow, Limits(batch_size=4), Metrics())
    batcher.use_thread()

    async def go() -> int:
        first = asyncio.ensure_future(batcher.submit(_rows(1)))
        rest = [asyncio.ensure_future(batcher.submit(_rows(2))) for _ in range(3)]
        await asyncio.sleep(0.02)
        waiting = batcher.waiting
        release.set()
        await asyncio.gather(first, *rest)
        return waiting

    assert asyncio.run(go()) == 4
    batcher.close()
