"""Attention on a card and its gradient: tiles of queries by keys, masks, heads that share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from caldera.graph.ops import attention
from caldera.memory import Device
from caldera.tensor.dtype import BY_NAME
from tests.card.candidates import check, check_cases
from tests.card.variants import node_of, numbers
from tests.unit.kernels.checking import DTYPES

OPS = {"scaled_dot_product_attention", "scaled_dot_product_attention_grad"}
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
) -> None:
    """Forward and backward on random numbers."""
    wanted = BY_NAME[dtype]
    given = [numbers(*shape, dtype=wanted, seed=i) for i, shape in enumerate((q, key, v))]
    attrs: Any = {"causal": causal, "scale": 0.3}
    forward = node_of(attention.attention, (*given, *masks), **attrs)
    check(card, forward, (*given, *masks), layouts=["dense"])
    result, logarithm = forward.outputs
    wide = "float64" if dtype == "float64" else "float32"
    g = numbers(*result.shape, dtype=wanted, seed=5)
    common = numbers(*logarithm.shape, dtype=wide, seed=6)
    level = numbers(*logarithm.shape, dtype=wide, seed=7) + np.dtype(wide).type(2)
    inputs = (g, *given, common, level, *masks)
    backward = node_of(attention.attention_grad, inputs, **attrs)
    check(card, backward, inputs, layouts=["dense"])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("queries", "keys", "depth", "width", "dtype"),
    [
        (70, 130, 20, 12, "float32"), (130, 66, 72, 136, "float32"), (3, 70, 16, 16, "bfloat16"),
        (40, 35, 36, 70, "float64"), (1, 1, 1, 1, "float16"),
    ],
)  # fmt: skip
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
    )  # fmt: skip


def test_heads_that_share(card: Device) -> None:
    check_attention(card, (2, 3, 5, 4), (2, 1, 6, 4), (2, 1, 6, 3))
    check_attention(card, (1, 3, 5, 4), (2, 1, 6, 4), (6, 3), causal=True)
    check_attention(card, (5, 4), (2, 6, 4), (3, 1, 6, 3))


@pytest.mark.parametrize("shape", [(2, 1, 70, 66), (70, 66), (70, 1), (66,), (2, 3, 1, 66), ()])
def test_masks(card: Device, shape: Shape) -> None:
    generator = np.random.default_rng(1)
    allowed = generator.random(shape) < 0.7
    if len(shape) == 4 and shape[2] > 1:
        allowed[0, 0, 3] = False
    added = numbers(*shape, seed=9)
    heads = ((2, 3, 70, 4), (2, 3, 66, 4), (2, 3, 66, 5))
    check_attention(card, *heads, masks=(np.array(allowed),))
    check_attention(card, *heads, masks=(added, np.array(allowed)), causal=True)


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
