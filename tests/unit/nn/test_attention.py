"""Embeddings, attention and the transformer's block, head by head in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from caldera import nn, op, testing
from caldera.errors import ConfigError, ShapeError

N, T, C, HEADS = 2, 4, 6, 2


def _x(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape)


def _run(layer: nn.Layer, *inputs: Any, **named: Any) -> np.ndarray:
    with nn.trace(dtype="float64"):
        return layer(*inputs, **named).numpy()


def _softmax(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def _attended(layer: Any, x: np.ndarray, memory: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Each head by itself; `seen` says which keys (N, T, S) a query may see."""
    w, *of_memory, b, w_out, b_out = (variable.numpy() for variable in layer.parameters())
    q = x @ w[:, :C] + b[:C]
    k, v = np.split(memory @ (of_memory[0] if of_memory else w[:, C:]) + b[C:], 2, axis=2)
    size = C // HEADS
    parts = []
    for head in range(HEADS):
        own = slice(head * size, (head + 1) * size)
        scores = q[..., own] @ k[..., own].swapaxes(1, 2) / np.sqrt(size)
        parts.append(_softmax(np.where(seen, scores, -np.inf)) @ v[..., own])
    return np.concatenate(parts, axis=2) @ w_out + b_out


def _made(*memory: np.ndarray, **settings: Any) -> Any:
    layer = nn.MultiHeadAttention(HEADS, **settings)
    _run(layer, _x(N, T, C), *memory)
    generator = np.random.default_rng(1)
    for parameter in layer.parameters():
        parameter.assign(generator.normal(size=parameter.shape))
    return layer


def test_self_attention() -> None:
    layer, x = _made(), _x(N, T, C)
    expected = _attended(layer, x, x, np.ones((N, T, T), bool))
    np.testing.assert_allclose(_run(layer, x), expected, atol=1e-12)


def test_causal_attention_sees_no_later_step() -> None:
    layer, x = _made(causal=True), _x(N, T, C)
    expected = _attended(layer, x, x, np.tril(np.ones((N, T, T), bool)))
    np.testing.assert_allclose(_run(layer, x), expected, atol=1e-12)


def test_attention_to_another_sequence() -> None:
    layer, x, memory = _made(), _x(N, T, C), _x(N, 3, C) + 1.0
    expected = _attended(layer, x, memory, np.ones((N, T, 3), bool))
    np.testing.assert_allclose(_run(layer, x, memory), expected, atol=1e-12)


def test_attention_to_a_sequence_of_another_width() -> None:
    x, memory = _x(N, T, C), _x(N, 3, C + 5) + 1.0
    layer = _made(memory)
    assert layer.parameters()[1].shape == (C + 5, 2 * C)
    some = np.arange(3) < np.array([[2], [1]])
    for given, seen in (({}, np.ones((N, 3), bool)), ({"mask": some}, some)):
        expected = _attended(layer, x, memory, np.repeat(seen[:, None], T, axis=1))
        np.testing.assert_allclose(_run(layer, x, memory, **given), expected, atol=1e-12)
    with pytest.raises(ShapeError, match=r"a memory \(N, S, 11\)"):
        _run(layer, x)
    with pytest.raises(ShapeError, match=r"sequences \(N, T, 11\)"):
        _run(layer, x, x)
    with pytest.raises(ShapeError, match="keys and values come from memory"):
        _run(layer, x, memory, memory)


def test_padded_sequences_give_what_the_unpadded_ones_give() -> None:
    layer, x = _made(), _x(N, T, C)
    lengths = np.array([4, 2])
    mask = np.arange(T) < lengths[:, None]
    x[~mask] = 1e6
    padded = _run(layer, x, mask=mask)
    for i, length in enumerate(lengths):
        alone = _run(layer, x[i : i + 1, :length])[0]
        np.testing.assert_allclose(padded[i, :length], alone, atol=1e-12)


def test_masks_of_three_and_four_axes() -> None:
    layer, x = _made(), _x(N, T, C)
    seen = np.tril(np.ones((N, T, T), bool))
    expected = _attended(layer, x, x, seen)
    np.testing.assert_allclose(_run(layer, x, mask=seen), expected, atol=1e-12)
    np.testing.assert_allclose(_run(layer, x, mask=seen[:, None]), expected, atol=1e-12)
    with pytest.raises(ShapeError, match=r"a mask of shape \(2, 4\).*got \(5,\)"):
        layer(x, mask=np.ones(5, bool))


def test_gradients_of_attention() -> None:
    layer = _made(causal=True)
    testing.check_gradients(lambda x: layer(x), [_x(1, 3, C)])


def _normal(x: np.ndarray, layer: Any) -> np.ndarray:
    unit = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return unit * layer.weight.numpy() + layer.bias.numpy()


def test_the_block_adds_attention_and_two_dense_layers_to_its_input() -> None:
    block = nn.TransformerBlock(HEADS, causal=True, ratio=2.0, activation="relu")
    x = _x(N, T, C)
    _run(block, x)
    generator = np.random.default_rng(1)
    for parameter in block.parameters():
        parameter.assign(generator.normal(size=parameter.shape))
    seen = np.tril(np.ones((N, T, T), bool))
    y = _normal(x, block.norm1)
    middle = x + _attended(block.attention, y, y, seen)
    w1, b1, w2, b2 = (p.numpy() for p in (*block.hidden.parameters(), *block.output.parameters()))
    expected = middle + np.maximum(_normal(middle, block.norm2) @ w1 + b1, 0) @ w2 + b2
    assert w1.shape == (C, 2 * C)
    np.testing.assert_allclose(_run(block, x), expected, atol=1e-10)


def test_the_block_hands_its_mask_to_attention() -> None:
    block, x = nn.TransformerBlock(HEADS), _x(N, T, C)
    mask = np.array([[True, True, False, False]] * N)
    expected = _run(block, x[:, :2])
    np.testing.assert_allclose(_run(block, x, mask)[:, :2], expected, atol=1e-12)


def test_dropout_acts_on_both_branches_of_the_block_while_training() -> None:
    block, x = nn.TransformerBlock(HEADS, dropout=0.5), _x(N, T, C)
    evaluated = _run(block, x)
    with nn.trace(training=True, dtype="float64", random=op.random_state()):
        assert np.abs(block(x).numpy() - evaluated).max() > 1e-3
    paths = {layer.path for layer in block.walk() if isinstance(layer, nn.Dropout)}
    assert paths == {"TransformerBlock/drop1", "TransformerBlock/drop2"}


def test_embedding_looks_up_and_its_gradient_counts_uses() -> None:
    table = nn.Embedding(5, 3)
    words = np.array([[1, 4], [1, 0]])
    y = table(words)
    np.testing.assert_array_equal(y.numpy(), table.weight.numpy()[words])
    assert np.abs(table.weight.numpy()).max() <= 0.05
    assert op.grad(op.sum(y), table.weight).numpy()[:, 0].tolist() == [1, 2, 0, 0, 1]


def test_embedding_masks_word_zero_if_asked() -> None:
    vectors, mask = nn.Embedding(5, 3, mask_zero=True)(np.array([[1, 0]]))
    assert vectors.shape == (1, 2, 3)
    assert mask.tolist() == [[True, False]]


def test_positions_are_added_from_the_first() -> None:
    layer = nn.PositionalEmbedding(8)
    x = _x(N, T, C).astype(np.float32)
    expected = x + _weight_after(layer, x)[:T]
    np.testing.assert_allclose(layer(x).numpy(), expected, rtol=1e-6)


def _weight_after(layer: Any, x: np.ndarray) -> np.ndarray:
    layer(x)
    return layer.weight.numpy()


@pytest.mark.parametrize("behind", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", ["self", "memory", "block"])
def test_nothing_that_is_not_finite_behind_a_mask_reaches_a_gradient(
    kind: str, behind: float
) -> None:
    mask = np.array([[True, True, False], [True, False, False]])
    plain = np.random.default_rng(0).normal(size=(2, 3, 4))

    layer: Any = nn.TransformerBlock(2) if kind == "block" else nn.MultiHeadAttention(2)

    def found(given: np.ndarray) -> list[np.ndarray]:
        with nn.trace(dtype="float64"):
            x = op.var("x", given.shape, fill=given, dtype="float64")
            y = layer(plain, x, mask=mask) if kind == "memory" else layer(x, mask=mask)
            if kind != "memory":
                y = op.where(mask[:, :, None], y, 0.0)
            own = op.grad(op.sum(y * y), [x, *layer.parameters()])
            results = [each.numpy() for each in (y, *own)]
        assert all(np.isfinite(each).all() for each in results)
        results[1] = np.where(mask[:, :, None], results[1], 0.0)
        return results

    clean, dirty = (np.where(mask[:, :, None], plain, each) for each in (0.0, behind))
    for one, other in zip(found(clean), found(dirty), strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("key_heads", [1, 2])
@pytest.mark.parametrize("causal", [False, True])
def test_grouped_queries_are_heads_whose_keys_are_equal(key_heads: int, causal: bool) -> None:
    x, memory = (np.random.default_rng(i).normal(size=(2, 5 - i, 8)) for i in range(2))
    grouped = nn.MultiHeadAttention(4, causal=causal, key_heads=key_heads)
    whole = nn.MultiHeadAttention(4, causal=causal)
    for layer in (grouped, whole):
        layer(x)
    for name in ("weight", "offset"):
        given = getattr(grouped, name).numpy()
        queries, shared = given[..., :8], given[..., 8:].reshape(*given.shape[:-1], 2, -1, 2)
        keys = np.repeat(shared, 4 // key_heads, axis=-2).reshape(*given.shape[:-1], 16)
        getattr(whole, name).assign(np.concatenate([queries, keys], axis=-1))
    whole.output_weight.assign(grouped.output_weight.numpy())
    np.testing.assert_allclose(grouped(x).numpy(), whole(x).numpy(), rtol=1e-4, atol=1e-5)
    if not causal:
        found, wanted = grouped(x, memory).numpy(), whole(x, memory).numpy()
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    assert sum(p.size for p in grouped.parameters()) < sum(p.size for p in whole.parameters())
    with pytest.raises(ConfigError, match="key_heads= a divisor of 4 heads, got 3"):
        nn.MultiHeadAttention(4, key_heads=3)
