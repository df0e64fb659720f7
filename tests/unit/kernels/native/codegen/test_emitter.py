"""The language native kernels are written in."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import pytest

from caldera.kernels.native.codegen.emitter import (
    F32,
    I32,
    I64,
    Emitter,
    Pointer,
    RegisterValue,
    natural_lanes,
)
from caldera.kernels.native.codegen.kernel import (
    Integer,
    NativeKernel,
    Real,
    integers,
    native_kernel,
)
from caldera.kernels.native.codegen.program import NativeRunner


def _run(kernel: NativeKernel, parts: int = 1, **given: object) -> None:
    NativeRunner([kernel.call(parts=parts, **given)])()


@native_kernel
def _scaled(k: Emitter, x: Pointer, y: Pointer, n: Integer, factor: Real, lanes: int) -> None:
    factor = k.convert(factor, F32)
    begin, end = k.part_range(n, 8)
    for i, count in k.vectors(begin, end, lanes, 1):
        y.store(i, x.load(i, count) * factor)


@pytest.mark.parametrize("n", [0, 1, 3, 4, 7, 64, 1001])
@pytest.mark.parametrize("parts", [1, 2, 3, 7])
def test_every_element_is_computed_once_whatever_the_split(n: int, parts: int) -> None:
    x = np.arange(n + 8, dtype=np.float32)
    y = np.full(n + 8, -1, np.float32)
    _run(_scaled, parts, x=x, y=y, n=n, factor=2.5, lanes=natural_lanes(F32))
    np.testing.assert_array_equal(y[:n], x[:n] * np.float32(2.5))
    assert (y[n:] == -1).all()


@native_kernel
def _arithmetic(k: Emitter, x: Pointer, out: Pointer) -> None:
    a, b = x.load(0, 2), x.load(2, 2)
    results = [
        a + b,
        a - b,
        a * b,
        a / b,
        -a,
        1.0 - a,
        2.0 / a,
        k.fma(a, b, 1.0),
        k.select(a < b, a, b),
        k.maximum(a, b),
        k.polynomial(a, (1.0, 2.0, 3.0)),
        k.intrinsic("llvm.sqrt", a * a),
        k.splat(k.reduce_lanes(a, lambda p, q: p + q), 2),
        k.broadcast_lane(a, 1),
        k.shuffle(a, b, (3, 0)),
    ]
    for row, value in enumerate(results):
        out.store(2 * row, value)


def test_operators_mean_what_they_mean_in_python() -> None:
    a, b = np.array([3.0, -5.0]), np.array([4.0, 0.5])
    out = np.zeros((15, 2))
    _run(_arithmetic, x=np.concatenate([a, b]), out=out)
    expected = [
        a + b,
        a - b,
        a * b,
        a / b,
        -a,
        1 - a,
        2 / a,
        a * b + 1,
        np.minimum(a, b),
        np.maximum(a, b),
        a * a + 2 * a + 3,
        abs(a),
        np.full(2, a.sum()),
        np.full(2, a[1]),
        np.array([b[1], a[0]]),
    ]
    np.testing.assert_allclose(out, expected, rtol=1e-15)


@native_kernel
def _comparisons(k: Emitter, x: Pointer, out: Pointer) -> None:
    a, b = x.load(0), x.load(1)
    for place, truth in enumerate([a < b, a <= b, a > b, a >= b, a.equals(b), a.differs(b)]):
        out.store(place, k.convert(truth, I32))


@pytest.mark.parametrize("pair", [(1.0, 2.0), (2.0, 2.0), (np.nan, 1.0), (np.inf, np.nan)])
def test_comparisons_with_a_nan_are_all_false_but_unequal(pair: tuple[float, float]) -> None:
    x = np.array(pair, np.float32)
    out = np.zeros(6, np.int32)
    _run(_comparisons, x=x, out=out)
    a, b = x
    assert out.tolist() == [a < b, a <= b, a > b, a >= b, a == b, a != b]


@native_kernel
def _integers(k: Emitter, x: Pointer, out: Pointer) -> None:
    a, b = x.load(0), x.load(1)
    results = [a // b, a % b, a & b, a | b, a ^ b, a << 2, a >> 1, -a, ~a, k.minimum(a, b)]
    for place, value in enumerate([*results, k.shift_right(-a, 60)]):
        out.store(place, value)


def test_integers() -> None:
    out = np.zeros(11, np.int64)
    _run(_integers, x=np.array([29, 6]), out=out)
    a, b = 29, 6
    expected = [a // b, a % b, a & b, a | b, a ^ b, a << 2, a >> 1, -a, ~a, b]
    assert out.tolist() == [*expected, ((1 << 64) - a) >> 60]


@native_kernel
def _fibonacci(k: Emitter, out: Pointer, n: Integer) -> None:
    a, b, i = k.variable(0, I64), k.variable(1, I64), k.variable(0, I64)
    with k.while_loop(lambda: i.value < n):
        following = a.value + b.value
        a.value, b.value = b.value, following
        i.value = i.value + 1
    with k.if_else((n % 2).equals(0)) as (even, odd):
        with even:
            out.store(1, 100)
        with odd:
            out.store(1, 200)
    with k.if_then(n > 5):
        out.store(2, 1)
    out.store(0, a.value)


@pytest.mark.parametrize("n", [0, 1, 2, 10, 31])
def test_control(n: int) -> None:
    out = np.zeros(3, np.int64)
    _run(_fibonacci, out=out, n=n)
    a, b = 0, 1
    for _ in range(n):
        a, b = b, a + b
    assert out.tolist() == [a, 100 + 100 * (n % 2), int(n > 5)]


@native_kernel
def _memory(k: Emitter, source: Pointer, target: Pointer, n: Integer) -> None:
    aside = k.alloca(F32, 4)
    k.clear_bytes(target, n * 4)
    k.copy_bytes(aside, source, 16)

    def add_one(inside: Emitter, address: RegisterValue) -> None:
        place = inside.int_to_pointer(address, F32)
        place.store(0, place.load(0) + 1.0)

    add = k.internal_function("add_one", [I64], add_one)
    k.call(add, k.pointer_to_int(aside.at(2)))
    target.store(0, aside.load(0, 4))


def test_memory_and_functions() -> None:
    target = np.full(6, 9, np.float32)
    _run(_memory, source=np.arange(4, dtype=np.float32), target=target, n=6)
    assert target.tolist() == [0, 1, 3, 3, 0, 0]


_Bounds = Annotated[Any, integers("begin end")]


@native_kernel
def _numbered(k: Emitter, x: Pointer, n: _Bounds) -> None:
    with k.loop(n.begin, n.end) as i:
        x.store(i, i)


def test_integers_in_a_group_are_given_by_name() -> None:
    x = np.zeros(5, np.int64)
    _run(_numbered, x=x, n={"end": 4, "begin": 2})
    np.testing.assert_array_equal(x, [0, 0, 2, 3, 0])
    with pytest.raises(TypeError, match="missing end, unknown stop"):
        _numbered.call(x=x, n={"begin": 2, "stop": 4})
