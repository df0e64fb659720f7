"""Graphs as plain data."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

import caldera as cd
from caldera import op
from caldera.compiler.lazy import lift
from caldera.compiler.sharding.distributions import BlockCyclic, Blocks, Replicated, Rows
from caldera.core.graph.ops.collective import Message
from caldera.core.tensor import Tensor
from caldera.core.tensor.dtype import bfloat16
from caldera.dmath.codec import decode, decode_graph, encode, encode_graph, graph_key
from caldera.errors import CalderaError, ConfigError, DataError


def _evaluated(content: bytes, values: list[np.ndarray]) -> list[np.ndarray]:
    graph = decode_graph(content)
    given = iter(values)
    for leaf in graph.leaves:
        if leaf.role != "array":
            leaf.value = Tensor.from_numpy(next(given))
    return [cd.Expr(node).numpy() for node in graph.outputs]


def test_a_graph_comes_back_and_computes_the_same() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(3, 4)), rng.normal(size=(4, 4))
    x, y = cd.tensor(a), cd.tensor(b)
    values, indices = op.top_k(x @ y, 2)
    scanned, _ = op.scan(lambda carry, row: (carry + row, carry), cd.tensor(np.zeros(4)) * 1.0, x)
    outputs = [
        op.softmax(x @ y, axis=-1) + np.arange(4.0),
        values * math.inf,
        indices,
        op.cast(x > 0.0, "float32"),
        scanned,
        op.grad(op.sum(op.tanh(x @ y) ** 2.0), [x * 1.0], unused="zero")[0],
    ]
    content, leaves = encode_graph([each.node for each in outputs])
    by_leaf = [leaf.value.numpy() for leaf in leaves if leaf.role != "array"]
    for got, expected in zip(_evaluated(content, by_leaf), outputs, strict=True):
        np.testing.assert_array_equal(got, expected.numpy())


def test_graphs_that_differ_in_their_leaves_alone_are_one_program() -> None:
    first, second, third = (cd.tensor(np.full(3, float(n))) for n in range(3))
    one = encode_graph([(first * second + first).node])[0]
    assert one == encode_graph([(third * first + third).node])[0]
    assert one != encode_graph([(third * first + first).node])[0]
    assert one != encode_graph([(third * first + third * 2.0).node])[0]


def test_keys_are_equal_where_what_is_written_is() -> None:
    a, b = (cd.Expr(lift(cd.tensor(np.full((3, 3), float(n))))) for n in range(2))
    small = cd.Expr(lift(cd.tensor(np.ones((3, 3), np.float32))))
    total, _ = op.scan(lambda carry, row: (carry + row, carry), b[0] * 1.0, a)
    graphs = [
        [a],
        [b],
        [small],
        [a, a],
        [a, b],
        [b, a],
        [a + b],
        [b + a],
        [a + a],
        [a @ b, a],
        [a, a @ b],
        [a + 0.0],
        [a + -0.0],
        [a + 1.0],
        [a + True],
        [a + 1],
        [b + 1],
        [a * math.nan],
        [b * math.nan],
        [a * math.inf],
        [a + np.ones(3)],
        [b + np.ones(3)],
        [a + np.zeros(3)],
        [op.sum(a, axis=0)],
        [op.sum(a, axis=1)],
        [op.sum(b, axis=1)],
        [total],
        list(op.top_k(a, 2)),
        [op.top_k(a, 2)[1]],
        [op.top_k(b, 2)[1]],
        [op.cast(a, "float32")],
        [op.fft(a)],
    ]
    nodes = [[each.node for each in graph] for graph in graphs]
    written, keys = [encode_graph(each) for each in nodes], [graph_key(each) for each in nodes]
    for (content, leaves), (key, found) in zip(written, keys, strict=True):
        assert found == leaves
        for (other, _), (second, _) in zip(written, keys, strict=True):
            assert (content == other) == (key == second)
            assert content != other or hash(key) == hash(second)


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        3,
        -0.0,
        math.inf,
        -math.inf,
        2 - 3j,
        "a",
        (),
        (1, (2, "b")),
        bfloat16,
        Rows().of((5, 3), range(2)),
        BlockCyclic(2, grid=(2, 2)).of((7, 5), range(4)),
        Replicated().of((2,), range(3)),
        Blocks(rows=[0, 1, 4], columns=2, owners=[[0, 1], [1, 0]]).of((4, 4), range(2)),
        Message("sum", "data", (3,), 2, names=("a",)),
    ],
)
def test_attributes_come_back(value: object) -> None:
    found = decode(encode(value))
    assert found == value
    assert type(found) is type(value)
    if isinstance(value, float):
        assert math.copysign(1, found) == math.copysign(1, value)


def test_what_is_no_plain_data_is_refused() -> None:
    for value in (object(), [1], {"a": 1}, np.float32(1), len):
        with pytest.raises(ConfigError, match="expected attributes that are plain data"):
            encode(value)


def test_damaged_and_hostile_programs_are_refused() -> None:
    content, _ = encode_graph([(cd.tensor([1.0, 2.0]) + np.arange(2.0, dtype=np.float32)).node])
    head = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    rest = content[8 + int.from_bytes(content[:8], "little") :]

    def changed(**parts: object) -> bytes:
        text = json.dumps({**head, **parts}).encode()
        return len(text).to_bytes(8, "little") + text + rest

    decode_graph(changed())
    for bad in (
        changed(nodes=[["os.system", [], {}]]),
        changed(nodes=[["add", [0, 1], {}]]),
        changed(nodes=[["tensor", [], {"symbol": {"Popen": ["ls"]}}]]),
        changed(nodes=[["tensor", [], {"symbol": {"leaf": -1}}]]),
        changed(nodes=[["tensor", [], {"symbol": {"leaf": 99}}]]),
        changed(nodes=[["constant", [], {"value": 1, "dtype": {"dtype": "object"}}]]),
        changed(leaves=[["lambda", [2], "float32"]]),
        changed(leaves=[["array", [1 << 40], "float32"]]),
        changed(outputs=[7]),
        content[:20],
        b"",
    ):
        with pytest.raises(CalderaError):
            decode_graph(bad)
    rng = np.random.default_rng(1)
    for _ in range(300):
        damaged = bytearray(content)
        damaged[int(rng.integers(len(damaged)))] ^= 1 << int(rng.integers(8))
        try:
            decode_graph(bytes(damaged))
        except (CalderaError, UnicodeDecodeError, OverflowError):
            continue


def test_a_message_of_another_kind_is_an_error_of_the_data() -> None:
    with pytest.raises(DataError):
        decode_graph((3).to_bytes(8, "little") + b"[1]")
