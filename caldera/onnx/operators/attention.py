"""Attention: over all keys, over windows of keys, and in its linear form."""

from __future__ import annotations

import math
from functools import reduce
from typing import Any

import numpy as np

from caldera import op
from caldera.compiler.lazy import Expr
from caldera.core.tensor.dtype import DType, bool_, float32, float64
from caldera.onnx.library import dtype_of
from caldera.onnx.operators.registry import Value, operator


def _in_heads(x: Value, heads: int | None) -> Value:
    """(N, T, C) as (N, heads, T, C / heads)."""
    if len(x.shape) == 4 or heads is None:
        return x
    count, steps, width = x.shape
    return op.transpose(op.reshape(x, (count, steps, heads, width // heads)), (0, 2, 1, 3))


def _for_queries(x: Value, queries: int) -> Value:
    """Return keys or values with a head for each head of the queries; neighbours share one."""
    return x if x.shape[1] == queries else op.repeat(x, queries // x.shape[1], 1)


def _visible(
    shape: tuple[int, int, int], offset: Value, causal: int, left: int, right: int
) -> Value:
    """Return the keys visible to each query, (N or 1, 1, T, S); None if all are visible."""
    _, queries, keys = shape
    key = np.arange(keys)
    place = op.add(op.reshape(offset, (-1, 1, 1, 1)), np.arange(queries)[:, None])
    limits = []
    if causal:
        limits.append(op.less_equal(key, place))
    if left >= 0:
        limits.append(op.greater_equal(key, op.sub(place, left)))
    if right >= 0:
        limits.append(op.less_equal(key, op.add(place, right)))
    return reduce(op.logical_and, limits) if limits else None


def _mask_to_length(mask: Value, keys: int) -> Value:
    """Extend a mask that covers only the first keys; the remaining keys are hidden."""
    lacking = keys - mask.shape[-1]
    if not lacking:
        return mask
    widths = [(0, 0)] * (len(mask.shape) - 1) + [(0, lacking)]
    return op.pad(mask, widths, 0 if mask.dtype == bool_ else -math.inf)


@operator("Attention")
def attention(
    q: Value,
    k: Value,
    v: Value,
    attn_mask: Value = None,
    past_key: Value = None,
    past_value: Value = None,
    nonpad_kv_seqlen: Value = None,
    *,
    is_causal: int = 0,
    kv_num_heads: int | None = None,
    left_window_size: int = -1,
    q_num_heads: int | None = None,
    qk_matmul_output_mode: int = 0,
    right_window_size: int = -1,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: int | None = None,
) -> tuple[Value, ...]:
    """softmax(scale q k^T + masks) v, with the cache of keys and values, and the scores."""
    is_packed = len(q.shape) == 3
    query = _in_heads(q, q_num_heads)
    key, value = (_in_heads(each, kv_num_heads) for each in (k, v))
    offset: Any = np.zeros(1, np.int64)
    if past_key is not None:
        offset = np.array([past_key.shape[2]])
        key, value = op.concat([past_key, key], axis=2), op.concat([past_value, value], axis=2)
    elif nonpad_kv_seqlen is not None:
        offset = op.sub(op.cast(nonpad_kv_seqlen, "int64"), query.shape[2])
    (count, heads, queries, width), keys = query.shape, key.shape[2]
    seen = _visible((count, queries, keys), offset, is_causal, left_window_size, right_window_size)
    if nonpad_kv_seqlen is not None:
        real = op.less(np.arange(keys), op.reshape(nonpad_kv_seqlen, (-1, 1, 1, 1)))
        seen = real if seen is None else op.logical_and(seen, real)
    added = None if attn_mask is None else _mask_to_length(attn_mask, keys)
    if added is not None and added.dtype == bool_:
        seen, added = added if seen is None else op.logical_and(seen, added), None
    precision = None if softmax_precision is None else dtype_of(softmax_precision)
    factor = 1 / math.sqrt(width) if scale is None else scale
    y, stages = _attend(
        query,
        _for_queries(key, heads),
        _for_queries(value, heads),
        seen,
        added,
        factor,
        softcap,
        precision,
    )
    if is_packed:
        y = op.reshape(op.transpose(y, (0, 2, 1, 3)), (count, queries, -1))
    return y, key, value, stages[qk_matmul_output_mode]


def _attend(
    q: Value,
    k: Value,
    v: Value,
    seen: Value,
    added: Value,
    scale: float,
    softcap: float,
    precision: DType | None,
) -> tuple[Expr, tuple[Expr, ...]]:
    """Return the result, and the scores as they come, capped, masked, and as probabilities.

    Halves are computed in float32 and rounded at the end.
    """
    dtype, working = q.dtype, _wide(q.dtype)
    query, key = (op.mul(op.cast(each, working), math.sqrt(scale)) for each in (q, k))
    scores = op.matmul(query, key, transpose_b=True)
    capped = op.mul(op.tanh(op.div(scores, softcap)), softcap) if softcap else scores
    masked = capped if added is None else op.add(capped, op.cast(added, working))
    if seen is not None:
        masked = op.where(seen, masked, -math.inf)
    shares = op.cast(_softmax(op.cast(masked, precision or working)), working)
    y = op.matmul(shares, op.cast(v, working))
    stages = tuple(op.cast(each, dtype) for each in (scores, capped, masked, shares))
    return op.cast(y, dtype), stages


def _wide(dtype: DType) -> DType:
    return float64 if dtype == float64 else float32


def _softmax(scores: Value) -> Expr:
    """Return softmax along the last axis; a row without visible keys is 0."""
    largest = op.max(scores, -1, keepdims=True)
    powers = op.exp(op.sub(scores, op.where(op.isfinite(largest), largest, 0.0)))
    total = op.sum(powers, -1, keepdims=True)
    return op.div(powers, op.where(op.equal(total, 0.0), 1.0, total))


@operator("FlexAttention", domain="ai.onnx.preview")
def flex_attention(
    q: Value,
    k: Value,
    v: Value,
    *,
    scale: float | None = None,
    softmax_precision: int | None = None,
    score_mod: Any = None,
    prob_mod: Any = None,
    scope: Any,
) -> Expr:
    """Return attention with graphs of the model's own between its steps."""
    heads, width = q.shape[1], q.shape[3]
    working = _wide(q.dtype) if softmax_precision is None else dtype_of(softmax_precision)
    factor = 1 / math.sqrt(width) if scale is None else scale
    keys, values = _for_queries(k, heads), _for_queries(v, heads)
    scores = op.cast(op.mul(op.matmul(q, keys, transpose_b=True), factor), working)
    if score_mod is not None:
        (scores,) = scope.run(score_mod, [scores])
    shares = op.softmax(scores, -1)
    if prob_mod is not None:
        (shares,) = scope.run(prob_mod, [shares])
    return op.matmul(op.cast(shares, q.dtype), values)


@operator("LinearAttention")
def linear_attention(
    query: Value,
    key: Value,
    value: Value,
    past_state: Value = None,
    decay: Value = None,
    beta: Value = None,
    *,
    kv_num_heads: int,
    q_num_heads: int,
    scale: float = 0.0,
    update_rule: str = "gated_delta",
    chunk_size: int = 64,
) -> tuple[Expr, Expr]:
    """Return a state of (keys, values) that each step changes and each query reads."""
    count, steps = query.shape[:2]
    dtype, working = query.dtype, _wide(query.dtype)

    def by_step(x: Value, heads: int) -> Expr:
        parts = op.reshape(op.cast(x, working), (count, steps, heads, -1))
        return op.transpose(parts, (1, 0, 2, 3))

    q, k, v = by_step(query, q_num_heads), by_step(key, kv_num_heads), by_step(value, kv_num_heads)
    factor = scale or 1 / math.sqrt(q.shape[-1])
    state: Any = np.zeros((count, kv_num_heads, k.shape[-1], v.shape[-1]), working)
    if past_state is not None:
        state = op.cast(past_state, working)
    sequences = [q, k, v]
    if decay is not None:
        sequences.append(op.exp(by_step(decay, kv_num_heads)))
    if beta is not None:
        sequences.append(by_step(beta, beta.shape[-1]))

    def step(state: Expr, given: tuple[Expr, ...]) -> tuple[Expr, Expr]:
        now, rest = given[:3], list(given[3:])
        kept = op.mul(state, op.unsqueeze(rest.pop(0), -1)) if decay is not None else state
        new = now[2]
        if "delta" in update_rule:
            told = op.squeeze(op.matmul(op.unsqueeze(now[1], -2), kept), -2)
            new = op.mul(op.sub(new, told), rest.pop(0))
        state = op.add(kept, op.mul(op.unsqueeze(now[1], -1), op.unsqueeze(new, -2)))
        shared = _for_queries(state, q_num_heads)
        read = op.squeeze(op.matmul(op.unsqueeze(now[0], -2), shared), -2)
        return state, op.mul(read, factor)

    last, outputs = op.scan(step, state, tuple(sequences))
    joined = op.reshape(op.transpose(outputs, (1, 0, 2, 3)), (count, steps, -1))
    kept_dtype = dtype if past_state is None else past_state.dtype
    return op.cast(joined, dtype), op.cast(last, kept_dtype)


@operator("RotaryEmbedding")
def rotary_embedding(
    x: Value,
    cos_cache: Value,
    sin_cache: Value,
    position_ids: Value = None,
    *,
    interleaved: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
) -> Expr:
    """Return pairs of numbers turned by an angle that grows with the position."""
    heads = _in_heads(x, num_heads or None)
    count, number, steps, width = heads.shape
    turned = rotary_embedding_dim or width
    cosines, sines = (
        op.unsqueeze(each if position_ids is None else op.gather(each, position_ids), 1)
        for each in (cos_cache, sin_cache)
    )
    moving, still = (
        op.split(heads, (turned, width - turned), 3) if turned < width else (heads, None)
    )
    # Partners are adjacent, or separated by half the width.
    grid = (turned // 2, 2) if interleaved else (2, turned // 2)
    axis = 4 if interleaved else 3
    pairs = op.reshape(moving, (count, number, steps, *grid))
    first, second = (op.squeeze(each, axis) for each in op.split(pairs, 2, axis))
    real = op.sub(op.mul(cosines, first), op.mul(sines, second))
    imaginary = op.add(op.mul(sines, first), op.mul(cosines, second))
    y = op.reshape(op.stack([real, imaginary], axis), (count, number, steps, turned))
    whole = y if still is None else op.concat([y, still], axis=3)
    if len(x.shape) == 4:
        return whole
    return op.reshape(op.transpose(whole, (0, 2, 1, 3)), x.shape)
