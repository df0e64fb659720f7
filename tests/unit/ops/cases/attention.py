"""Cases for attention."""

from __future__ import annotations

from typing import Any

import numpy as np

from caldera import op
from caldera.compiler.lazy import Expr, wrap
from caldera.core.graph.ops import attention
from tests.unit.ops.case import Case, numbers


def _attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    allowed: Any = True,
    added: Any = 0.0,
    scale: float | None = None,
) -> np.ndarray:
    scores = q @ k.swapaxes(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale) + added
    weights = np.where(allowed, np.exp(scores), 0.0)
    total = weights.sum(-1, keepdims=True)
    return np.where(total == 0, 0.0, weights / np.where(total == 0, 1.0, total)) @ v


def _qkv(
    q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return numbers(*q), numbers(*k, seed=1), numbers(*v, seed=2)


_PLAIN = _qkv((2, 3), (2, 3), (2, 2))
_MASK = np.array([[True, False, True], [False, False, False]])
NAME = "scaled_dot_product_attention"
attend = op.scaled_dot_product_attention
CASES = [
    Case(NAME, attend, inputs, _attention, order=order)
    for inputs, order in [
        (_PLAIN, 2),
        (_qkv((2, 1, 2, 2), (2, 2, 2, 2), (1, 1, 2, 2)), 1),
        (_qkv((1, 2), (2, 3, 2), (3, 1)), 2),
        (_qkv((1, 2), (3, 2), (2, 3, 1)), 2),
        (_qkv((0, 2), (3, 2), (3, 2)), 1),
        (_qkv((2, 2), (0, 2), (0, 2)), 1),
    ]
]
CASES += [
    Case(
        NAME,
        lambda q, k, v: attend(q, k, v, scale=0.3),
        _PLAIN,
        lambda q, k, v: _attention(q, k, v, scale=0.3),
        name="scale",
    ),
    Case(
        NAME,
        lambda q, k, v, m: attend(q, k, v, mask=m),
        (*_qkv((2, 2), (3, 2), (3, 2)), _MASK),
        _attention,
        order=2,
        name="mask",
    ),
    Case(
        NAME,
        lambda q, k, v, m: attend(q, k, v, mask=m),
        (*_qkv((2, 1, 2), (2, 3, 2), (2, 3, 1)), np.array([True, False, True])),
        _attention,
        order=2,
        name="broadcast mask",
    ),
    Case(
        NAME,
        lambda q, k, v, m: attend(q, k, v, mask=m),
        (*_qkv((2, 2, 2), (2, 2, 2), (2, 2, 1)), numbers(2, 1, seed=6)),
        lambda q, k, v, m: _attention(q, k, v, added=m),
        order=2,
        name="added mask",
    ),
    Case(
        NAME,
        lambda q, k, v: attend(q, k, v, causal=True),
        _qkv((3, 2), (3, 2), (3, 2)),
        lambda q, k, v: _attention(q, k, v, np.tri(3, dtype=bool)),
        order=2,
        name="causal",
    ),
    Case(
        NAME,
        lambda q, k, v: attend(q, k, v, causal=True),
        _qkv((2, 2), (3, 2), (3, 1)),
        lambda q, k, v: _attention(q, k, v, np.tri(2, 3, 1, dtype=bool)),
        name="causal, a past",
    ),
    Case(
        NAME,
        lambda q, k, v: attend(q, k, v, causal=True),
        _qkv((3, 2), (2, 2), (2, 1)),
        lambda q, k, v: _attention(q, k, v, np.tri(3, 2, -1, dtype=bool)),
        name="causal, short",
    ),
    Case(
        NAME,
        lambda q, k, v: wrap(
            attention.attention.outputs(q.node, k.node, v.node, causal=False, scale=1.0)
        ),
        _PLAIN,
        lambda q, k, v: (_attention(q, k, v, scale=1.0), np.log(np.exp(q @ k.T).sum(-1))),
        order=2,
        name="logarithm",
    ),
    Case(
        NAME,
        lambda q: attend(q, q, q),
        (numbers(2, 2),),
        lambda q: _attention(q, q, q),
        order=2,
        name="self",
    ),
]
CASES += [
    Case(
        "scaled_dot_product_attention_grad",
        lambda *a: wrap(
            attention.attention_grad.outputs(*[each.node for each in a], causal=True, scale=0.5)
        ),
        (
            numbers(2, 2, seed=5),
            *_qkv((2, 2), (2, 2), (2, 2)),
            numbers(2, seed=8),
            numbers(2, seed=9),
            numbers(2, 2, seed=6),
        ),
        order=2,
    ),
    Case(
        "scaled_dot_product_attention_backward",
        lambda *a: wrap(
            attention.attention_backward.outputs(*[each.node for each in a], causal=True, scale=0.5)
        ),
        (
            numbers(2, 2, seed=5),
            *_qkv((2, 2), (2, 2), (2, 2)),
            numbers(2, 2, seed=8),
            numbers(2, seed=9),
            numbers(2, 2, seed=6),
        ),
        order=2,
    ),
    Case(
        "scaled_dot_product_attention_backward_packed",
        lambda *a: Expr(
            attention.attention_backward_packed(*[each.node for each in a], causal=True, scale=0.5)
        ),
        (
            numbers(1, 2, 2, 2, seed=5),
            *_qkv((1, 2, 2, 2), (1, 2, 2, 2), (1, 2, 2, 2)),
            numbers(1, 2, 2, 2, seed=8),
            numbers(1, 2, 2, seed=9),
        ),
    ),
]
