"""The backend: plans where shapes allow them, call by call where not; and what node tests miss."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper

from caldera.errors import ConfigError, DataError, DtypeError
from caldera.onnx import Backend
from tests.unit.onnx.files import declared, made


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def one(operator: str, *inputs: np.ndarray, outputs: int = 1, **attributes: Any) -> Any:
    """The result of one operator, as a plan."""
    names = [f"x{i}" for i in range(len(inputs))]
    node = helper.make_node(operator, names, [f"y{i}" for i in range(outputs)], **attributes)
    found = Backend.run_node(node, list(inputs))
    return found[0] if outputs == 1 else found


def test_a_model_runs_many_times_with_one_plan_a_shape() -> None:
    model = made(
        [helper.make_node("Exp", ["x"], ["y"])], [declared("x", ["n"])], [declared("y", None)]
    )
    prepared = Backend.prepare(model)
    for count in (2, 3, 2, 3, 2):
        x = numbers(count)
        np.testing.assert_allclose(prepared.run([x])[0], np.exp(x), rtol=1e-6)
        assert prepared.session.was_compiled
    assert len(prepared.session._plans) == 2


def test_results_of_one_run_stay_when_the_next_begins() -> None:
    model = made(
        [helper.make_node("Neg", ["x"], ["y"])], [declared("x", [2])], [declared("y", None)]
    )
    prepared = Backend.prepare(model)
    (first,) = prepared.run([np.ones(2, np.float32)])
    prepared.run([np.zeros(2, np.float32)])
    assert first.tolist() == [-1, -1]


def test_shapes_that_are_fed_are_part_of_what_a_plan_is_for() -> None:
    node = helper.make_node("Reshape", ["x", "shape"], ["y"])
    inputs = [declared("x", None), declared("shape", None, TensorProto.INT64)]
    prepared = Backend.prepare(made([node], inputs, [declared("y", None)]))
    x = numbers(4, 6)
    for shape in ([2, 12], [24], [2, 12]):
        (y,) = prepared.run([x, np.array(shape)])
        assert prepared.session.was_compiled
        np.testing.assert_array_equal(y, x.reshape(shape))


def test_shapes_that_follow_from_data_are_computed_call_by_call() -> None:
    nodes = [
        helper.make_node("Greater", ["x", "zero"], ["large"]),
        helper.make_node("NonZero", ["large"], ["places"]),
        helper.make_node("Transpose", ["places"], ["rows"]),
        helper.make_node("GatherND", ["x", "rows"], ["chosen"]),
        helper.make_node("ReduceSum", ["chosen"], ["y"], keepdims=0),
    ]
    model = made(
        nodes, [declared("x", [20, 20])], [declared("y", None)], {"zero": np.zeros((), "f")}
    )
    prepared = Backend.prepare(model)
    x = numbers(20, 20)
    np.testing.assert_allclose(prepared.run([x])[0], x[x > 0].sum(), rtol=1e-5)
    assert not prepared.session.was_compiled
    assert prepared.session.in_numpy == {"NonZero"}


def test_inputs_come_in_order_or_by_name() -> None:
    model = made(
        [helper.make_node("Sub", ["a", "b"], ["y"])],
        [declared("a", [2]), declared("b", [2])],
        [declared("y", None)],
    )
    a, b = numbers(2), numbers(2) * 2
    prepared = Backend.prepare(model)
    for given in ([a, b], {"b": b, "a": a}):
        np.testing.assert_array_equal(prepared.run(given)[0], a - b)
    with pytest.raises(DataError, match="none for b"):
        prepared.run([a])
    with pytest.raises(DataError, match="inputs a, b"):
        prepared.run([a, b, a])


def test_devices_and_operators_that_are_there() -> None:
    assert Backend.supports_device("CPU")
    assert not Backend.supports_device("CUDA:99")
    known = made(
        [helper.make_node("Relu", ["x"], ["y"])], [declared("x", [2])], [declared("y", None)]
    )
    unknown = made(
        [helper.make_node("Odd", ["x"], ["y"])], [declared("x", [2])], [declared("y", None)]
    )
    assert Backend.is_compatible(known)
    assert not Backend.is_compatible(unknown)


WIDE = np.concatenate(
    [np.linspace(-9, 9, 401), [-1e30, 1e30, -1e-20, 1e-20, np.inf, -np.inf, np.nan]]
)
INSIDE = np.concatenate([np.linspace(-1, 1, 401), [-1e-20, 1e-20, np.nan]])


@pytest.mark.parametrize(
    ("operator", "points", "expected"),
    [
        ("Atan", WIDE, np.arctan),
        ("Asin", INSIDE, np.arcsin),
        ("Acos", INSIDE, np.arccos),
        ("Tan", np.linspace(-9, 9, 401), np.tan),
        ("Sinh", WIDE, np.sinh),
        ("Cosh", WIDE, np.cosh),
        ("Asinh", np.linspace(-9, 9, 401), np.arcsinh),
        ("Acosh", np.linspace(1, 9, 401), np.arccosh),
        ("Atanh", np.linspace(-0.99, 0.99, 401), np.arctanh),
    ],
)
@pytest.mark.parametrize(("dtype", "digits"), [(np.float32, 2e-6), (np.float64, 1e-13)])
def test_functions_are_right_to_the_last_digits(
    operator: str, points: np.ndarray, expected: Callable[..., Any], dtype: Any, digits: float
) -> None:
    x = points.astype(dtype)
    with np.errstate(all="ignore"):
        wanted = expected(x)
    np.testing.assert_allclose(one(operator, x), wanted, rtol=digits, atol=digits * 1e-12)


def test_whole_numbers_are_divided_towards_zero() -> None:
    a, b = np.array([7, -7, 7, -7, 6, -6, 0]), np.array([2, 2, -2, -2, 3, 3, 5])
    assert one("Div", a, b).tolist() == [3, -3, -3, 3, 2, -2, 0]
    assert one("Mod", a, b, fmod=1).tolist() == np.fmod(a, b).tolist()


def test_products_of_whole_numbers_are_exact() -> None:
    a = np.array([[2**24 + 1, 3]])
    assert one("MatMul", a, a.T).tolist() == [[(2**24 + 1) ** 2 + 9]]


def test_elements_of_other_dtypes_are_moved_without_computing() -> None:
    words = np.array([["a", "b"], ["c", "d"]], object)
    assert one("Transpose", words).tolist() == [["a", "c"], ["b", "d"]]
    assert one("Concat", words, words, axis=1)[0].tolist() == ["a", "b", "a", "b"]
    small = np.array([7, 5], ml_dtypes.uint4)
    assert one("Gather", small, np.array([0, 0, 1])).astype(int).tolist() == [7, 7, 5]
    with pytest.raises(DtypeError, match=r"onnx Softmax.*uint4"):
        one("Softmax", small)


@pytest.mark.parametrize("pattern", ["(a+)+b", "(a|b)*", "((x))", "a" * 2000])
def test_patterns_that_could_take_forever_are_refused(pattern: str) -> None:
    with pytest.raises(ConfigError, match="groups that repeat"):
        one("RegexFullMatch", np.array(["aaaa"], object), pattern=pattern)


def test_a_loop_that_does_not_end_is_stopped() -> None:
    body = helper.make_graph(
        [helper.make_node("Identity", [a], [b]) for a, b in (("going", "on"), ("v", "w"))],
        "body",
        [
            declared("turn", [], TensorProto.INT64),
            declared("going", [], TensorProto.BOOL),
            declared("v", []),
        ],
        [declared("on", [], TensorProto.BOOL), declared("w", [])],
    )
    node = helper.make_node("Loop", ["", "yes", "start"], ["y"], body=body)
    model = made([node], [declared("start", [])], [declared("y", None)], {"yes": np.array(True)})
    with pytest.raises(DataError, match="turns"):
        Backend.run_model(model, [np.zeros((), np.float32)], compiled=False)


def test_older_versions_of_operators() -> None:
    x = numbers(2, 3, 4)
    nodes = [helper.make_node("Softmax", ["x"], ["y"], axis=1)]
    old = made(nodes, [declared("x", [2, 3, 4])], [declared("y", None)], opset=11)
    (y,) = Backend.run_model(old, [x])
    np.testing.assert_allclose(y.sum(axis=(1, 2)), [1, 1], rtol=1e-5)
    nodes = [helper.make_node("Squeeze", ["x"], ["y"], axes=[0])]
    old = made(nodes, [declared("x", [1, 3])], [declared("y", None)], opset=11)
    assert Backend.run_model(old, [numbers(1, 3)])[0].shape == (3,)


def test_without_the_package_the_error_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['onnx'] = None; import caldera as cd\n"
        "try: cd.onnx\n"
        "except cd.ConfigError as error: print(error)"
    )
    out = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert "pip install 'caldera[onnx]'" in out
