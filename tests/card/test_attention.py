"""Attention on a card and its gradient: tiles of queries by keys, masks, heads that share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from caldera.core.graph.node import Spec, intern
from caldera.core.graph.ops import attention
from caldera.core.memory import Device
from caldera.core.tensor.dtype import BY_NAME
from caldera.kernels.cuda.runtime import driver
from caldera.kernels.cuda.runtime.device import CardProperties
from caldera.kernels.reference import evaluate
from caldera.kernels.table import TABLE
from tests.card.candidates import check, check_cases, run_kernel
from tests.card.emulated import EmulatedCard, EmulatedDriver
from tests.card.variants import node_of, numbers
from tests.unit.kernels.checking import DTYPES, compare

OPS = {
    "scaled_dot_product_attention",
    "scaled_dot_product_attention_backward",
    "scaled_dot_product_attention_backward_packed",
    "scaled_dot_product_attention_grad",
}
Shape = tuple[int, ...]


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_cases_of_every_op(card: Device, dtype: str) -> None:
    assert check_cases(card, OPS, dtype) == OPS


def check_attention(
    card: Device,
    q: Shape,
    key: Shape,
    v: Shape,
    masks: tuple[np.ndarray, ...] = (),
    dtype: str = "float32",
    *,
    causal: bool = False,
    compute: str | None = None,
    names: tuple[str, ...] | None = None,
) -> set[str]:
    """Forward and backward on random numbers, the latter from the rows' sums and without."""
    wanted = BY_NAME[dtype]
    given = [numbers(*shape, dtype=wanted, seed=i) for i, shape in enumerate((q, key, v))]
    attrs: Any = {"causal": causal, "scale": 0.3} | ({"compute": compute} if compute else {})
    how: Any = {
        "names": names,
        "layouts": ["dense"],
        "by": compare if compute is None else _compare_rounded,
    }
    forward = node_of(attention.attention, (*given, *masks), **attrs)
    check(card, forward, (*given, *masks), **how)
    result, logarithm = forward.outputs
    wide = "float64" if dtype == "float64" else "float32"
    g = numbers(*result.shape, dtype=wanted, seed=5)
    common = numbers(*logarithm.shape, dtype=wide, seed=6)
    level = numbers(*logarithm.shape, dtype=wide, seed=7) + np.dtype(wide).type(2)
    inputs = (g, *given, common, level, *masks)
    backward = node_of(attention.attention_grad, inputs, **attrs)
    check(card, backward, inputs, **how)
    inputs = (g, *given, numbers(*result.shape, dtype=wanted, seed=8), level, *masks)
    backward = node_of(attention.attention_backward, inputs, **attrs)
    return check(card, backward, inputs, **how)


def _compare_rounded(output: np.ndarray, right: np.ndarray) -> None:
    """As far as tf32 goes."""
    np.testing.assert_allclose(output, right, rtol=0, atol=3e-3 * np.abs(right).max())


@pytest.mark.parametrize(
    ("queries", "keys", "depth", "width", "dtype", "causal"),
    [
        (70, 130, 20, 12, "float32", False),
        (70, 130, 20, 12, "float32", True),
        (130, 66, 72, 136, "float32", True),
        (3, 70, 16, 16, "bfloat16", False),
        (40, 35, 36, 70, "float64", True),
        (1, 1, 1, 1, "float16", False),
    ],
)
def test_sizes_that_are_no_whole_tiles(
    card: Device,
    queries: int,
    keys: int,
    depth: int,
    width: int,
    dtype: str,
    causal: bool,
) -> None:
    check_attention(
        card, (queries, depth), (keys, depth), (keys, width), dtype=dtype, causal=causal
    )


def test_heads_that_share(card: Device) -> None:
    check_attention(card, (2, 3, 5, 4), (2, 1, 6, 4), (2, 1, 6, 3))
    check_attention(card, (1, 3, 5, 4), (2, 1, 6, 4), (6, 3), causal=True)
    check_attention(card, (5, 4), (2, 6, 4), (3, 1, 6, 3))


@pytest.mark.parametrize("shape", [(2, 1, 70, 66), (70, 66), (70, 1), (66,), (2, 2, 1, 66), ()])
def test_masks(card: Device, shape: Shape) -> None:
    generator = np.random.default_rng(1)
    allowed = generator.random(shape) < 0.7
    if len(shape) == 4 and shape[2] > 1:
        allowed[0, 0, 3] = False
    added = numbers(*shape, seed=9)
    heads = ((2, 2, 70, 4), (2, 2, 66, 4), (2, 2, 66, 5))
    if shape in ((2, 1, 70, 66), (66,)):
        check_attention(card, *heads, masks=(np.array(allowed),))
    check_attention(card, *heads, masks=(added, np.array(allowed)), causal=True)


@pytest.mark.parametrize(
    ("q", "key", "v", "causal", "is_masked", "dtype"),
    [
        ((1, 2, 70, 16), (1, 2, 130, 16), (1, 2, 130, 16), True, False, "bfloat16"),
        ((1, 2, 70, 16), (1, 2, 130, 16), (1, 2, 130, 24), True, False, "float32"),
        ((2, 3, 33, 20), (2, 1, 70, 20), (2, 1, 70, 12), True, True, "bfloat16"),
        ((66, 136), (40, 136), (40, 200), False, False, "bfloat16"),
    ],
)
def test_tensor_cores(
    card: Device, q: Shape, key: Shape, v: Shape, causal: bool, is_masked: bool, dtype: str
) -> None:
    """Several tiles; heads that share, masks and rows that are no whole pieces; parts of rows."""
    pairs = (q[-2], key[-2])
    masks: tuple[np.ndarray, ...] = ()
    if is_masked:
        allowed = np.random.default_rng(1).random((2, 1, 1, pairs[1])) < 0.7
        masks = (allowed, numbers(*pairs, dtype=BY_NAME[dtype], seed=9))
    compute = "tf32" if dtype == "float32" else None
    names = ("tensor cores",)
    found = check_attention(
        card, q, key, v, masks, dtype, causal=causal, compute=compute, names=names
    )
    assert found == set(names)


def test_tensor_cores_ask_what_the_card_has(card: Device) -> None:
    def names(width: int, dtype: str, properties: CardProperties) -> set[str]:
        given = tuple(numbers(5, width, dtype=BY_NAME[dtype], seed=i) for i in range(4))
        logarithm = (numbers(5, seed=4),)
        driver.use(EmulatedDriver(properties))
        node = node_of(
            attention.attention_backward, (*given, given[0], *logarithm), causal=True, scale=0.3
        )
        return {kernel.name for kernel in TABLE.candidates(node, "cuda")}

    if not isinstance(card, EmulatedCard):
        pytest.skip("a real card has what it has")
    large, small = (CardProperties((8, 9), 4, nbytes << 10, 1536) for nbytes in (227, 99))
    assert "tensor cores" in names(256, "bfloat16", large)
    assert "tensor cores" in names(64, "bfloat16", small)
    assert "tensor cores" not in names(256, "bfloat16", small)
    turing = CardProperties((7, 5), 4, 64 << 10, 1024)
    assert "tensor cores" not in names(16, "bfloat16", turing)
    assert "tensor cores" in names(16, "float16", turing)


def test_tensor_cores_with_heads_in_the_middle(card: Device) -> None:
    dtype = BY_NAME["bfloat16"]
    given = tuple(numbers(2, 66, 3, 16, dtype=dtype, seed=i).swapaxes(1, 2) for i in range(3))
    node = node_of(attention.attention, given, causal=True, scale=0.3)
    turned = Spec(node.outputs[0].shape, dtype, (0, 2, 1, 3))
    inside = intern(node.op, node.inputs, dict(node.attrs), (turned, node.outputs[1]))
    (kernel,) = (k for k in TABLE.candidates(inside, "cuda") if k.name == "tensor cores")
    results = run_kernel(card, kernel, inside, given)
    assert results[0].strides == given[0].strides
    for result, right in zip(results, evaluate(node, given), strict=True):
        compare(result, right)


def test_what_is_not_finite(card: Device) -> None:
    q, key, v = (numbers(4, 3, seed=i) for i in range(3))
    q[0, 0], q[1, 1], q[2, 2] = np.nan, np.inf, -np.inf
    added = np.zeros((4, 4), "float32")
    added[3] = [np.inf, 0.0, -np.inf, 1.0]
    for masks in ((), (added,)):
        node = node_of(attention.attention, (q, key, v, *masks), causal=False, scale=0.5)
        check(card, node, (q, key, v, *masks), layouts=["dense"])


def test_nothing_to_attend_to(card: Device) -> None:
    check_attention(card, (2, 0, 4), (2, 3, 4), (2, 3, 5))
    check_attention(card, (2, 3, 4), (2, 0, 4), (2, 0, 5))
    check_attention(card, (2, 3, 0), (2, 4, 0), (2, 4, 5))
    check_attention(card, (2, 3, 4), (2, 5, 4), (2, 5, 0))
    check_attention(card, (0, 3, 4), (5, 4), (5, 2))
