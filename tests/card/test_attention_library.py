"""Attention by cuDNN: what the library is asked, checked by a fake that computes from the raw
pointers, shapes and strides it is given."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from caldera.core.graph.node import Node
from caldera.core.graph.ops.attention import (
    attention,
    attention_backward,
    attention_backward_packed,
)
from caldera.core.memory import Device
from caldera.core.memory.gpus import card_count
from caldera.core.tensor.dtype import BY_NAME
from caldera.kernels.cuda.attention import cudnn_sdpa
from caldera.kernels.cuda.runtime import cudnn, device
from caldera.kernels.reference import evaluate
from caldera.kernels.table import TABLE, Kernel
from tests.card.candidates import run_kernel
from tests.card.fake_cudnn import FakeCudnn
from tests.card.variants import node_of, numbers
from tests.unit.kernels.checking import LAYOUTS, compare

pytestmark = pytest.mark.skipif(card_count() > 0, reason="a real card has the real libraries")

Shape = tuple[int, ...]
Problem = tuple[Node, tuple[np.ndarray, ...]]


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCudnn]:
    """A library that does what cuDNN does."""
    fake = FakeCudnn()
    monkeypatch.setattr(device, "cudnn", lambda: fake)
    cudnn.handle.cache_clear()
    cudnn_sdpa.graph_of.cache_clear()
    yield fake
    cudnn.handle.cache_clear()
    cudnn_sdpa.graph_of.cache_clear()


def problems(
    q: Shape, key: Shape, v: Shape, *, causal: bool, dtype: str = "bfloat16", masks: Any = ()
) -> Iterator[Problem]:
    """Attention and its gradient on random numbers."""
    wanted = BY_NAME[dtype]
    given = [numbers(*shape, dtype=wanted, seed=i) for i, shape in enumerate((q, key, v))]
    how: Any = {"causal": causal, "scale": 0.3}
    forward = node_of(attention, (*given, *masks), **how)
    yield forward, (*given, *masks)
    outputs = evaluate(forward, (*given, *masks))
    g = numbers(*outputs[0].shape, dtype=wanted, seed=5)
    inputs = (g, *given, *outputs, *masks)
    yield node_of(attention_backward, inputs, **how), inputs


def kernels(node: Node) -> list[Kernel]:
    return [each for each in TABLE.candidates(node, "cuda") if each.name.startswith("cudnn")]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("q", "key", "v"),
    [
        ((2, 3, 10, 8), (2, 3, 10, 8), (2, 3, 10, 16)),
        ((2, 3, 4, 8), (2, 1, 6, 8), (2, 1, 6, 8)),
        ((3, 5, 8), (3, 7, 8), (3, 7, 8)),
        ((1, 8), (6, 8), (6, 8)),
    ],
)
def test_values_and_gradients(
    card: Device, library: FakeCudnn, q: Shape, key: Shape, v: Shape, causal: bool
) -> None:
    for node, inputs in problems(q, key, v, causal=causal):
        assert [kernel.name for kernel in kernels(node)] == ["cudnn"]
        for kernel in kernels(node):
            before = len(library.executed)
            results = run_kernel(card, kernel, node, inputs, times=2)
            assert len(library.executed) == before + 2
            for result, right in zip(results, evaluate(node, inputs), strict=True):
                compare(result, right)


def test_heads_in_the_middle_are_read_as_they_lie(card: Device, library: FakeCudnn) -> None:
    def in_the_middle(array: np.ndarray) -> np.ndarray:
        if array.ndim < 4:
            return array
        packed = np.zeros((2, 10, 3, 3, 8), array.dtype)
        packed[:, :, 1] = array.transpose(0, 2, 1, 3)
        return packed[:, :, 1].transpose(0, 2, 1, 3)

    for node, inputs in problems((2, 3, 10, 8), (2, 3, 10, 8), (2, 3, 10, 8), causal=True):
        given = tuple(map(in_the_middle, inputs))
        for kernel in kernels(node):
            for result, right in zip(
                run_kernel(card, kernel, node, given), evaluate(node, inputs), strict=True
            ):
                compare(result, right)
    assert len(library.executed) == 2


def test_gradients_are_written_side_by_side(card: Device, library: FakeCudnn) -> None:
    *_, (node, inputs) = problems((2, 3, 10, 8), (2, 3, 10, 8), (2, 3, 10, 16), causal=True)
    packed = node_of(attention_backward_packed, inputs, **node.attrs)
    assert packed.shape == (2, 10, 3 * (8 + 8 + 16))
    for kernel in kernels(packed):
        (result,) = run_kernel(card, kernel, packed, inputs)
        compare(result, evaluate(packed, inputs)[0])
    assert len(library.executed) == 1


def test_arrays_that_lie_otherwise_are_our_own_kernels_business(
    card: Device, library: FakeCudnn
) -> None:
    for node, inputs in problems((2, 10, 8), (2, 10, 8), (2, 10, 8), causal=True):
        given = tuple(LAYOUTS["with gaps"](array) for array in inputs)
        for result, right in zip(
            run_kernel(card, kernels(node)[0], node, given), evaluate(node, inputs), strict=True
        ):
            compare(result, right)
    assert not library.executed


def test_what_is_left_to_our_own_kernels(card: Device, library: FakeCudnn) -> None:
    plain = ((2, 3, 10, 8), (2, 3, 10, 8), (2, 3, 10, 8))
    mask = (np.ones((10, 10), bool),)
    left = [
        problems(*plain, causal=False, masks=mask),
        problems(*plain, causal=False, dtype="float32"),
        problems((2, 3, 11, 8), *plain[1:], causal=True),
        problems((2, 3, 10, 4), (2, 3, 10, 4), plain[2], causal=False),
        problems((1, 3, 10, 8), *plain[1:], causal=False),
        problems((2, 3, 0, 8), *plain[1:], causal=False),
    ]
    for node, _ in (problem for each in left for problem in each):
        assert kernels(node) == [], node


def test_every_run_gives_the_same_sums(card: Device, library: FakeCudnn) -> None:
    *_, (node, _) = problems((10, 8), (10, 8), (10, 8), causal=True)
    assert [each.name for each in kernels(node)] == ["cudnn"]
    assert library.ordered == [True]
