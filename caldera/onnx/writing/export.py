"""Export of a model to an ONNX file, and verification of the file's results."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from caldera.base.arguments import require, within
from caldera.base.file_cache import write_file
from caldera.base.registry import optional_import
from caldera.compiler.lazy import Expr, compile
from caldera.core.graph import Node, topological
from caldera.core.graph.ops.int8 import int8_conv2d, int8_linear
from caldera.core.tensor.dtype import is_float
from caldera.errors import CalderaError, ConfigError
from caldera.kernels.reference import interpret
from caldera.onnx.library import helper, onnx
from caldera.onnx.reading.parser import LARGEST_FILE
from caldera.onnx.runtime import Backend
from caldera.onnx.writing.dynamic_batch import FIRST, SECOND, Pair
from caldera.onnx.writing.writer import OPSET, Writer, as_proto
from caldera.train.model import Model

COUNTS = (1, 2)
"""Numbers of samples that a file with an open number is run for: none that it was made from."""

_SPREADS = (16, 2, 1)
"""Whole numbers that are fed are below these: a table may have few rows."""

_DIGITS = {2: 3e-2, 4: 1e-3, 8: 1e-6}
"""Allowed difference relative to the largest value, by the bytes of a number."""

_OF_BYTES = 3e-2
"""The same where a network rounds to 8 bits: layers multiply the difference of a step."""

_MUCH = 10**11
"""Number of operations from which on a plan is compiled; below it, compiling takes longer."""

Runner = Callable[[Sequence[np.ndarray]], Sequence[Any]]


def check(raw: bytes, model: Model, batch_size: int | None = None) -> None:
    """Raise an error unless these bytes are a file of ONNX that computes what `model` does."""
    with _refusing("a file that is right by ONNX's own check"):
        onnx.checker.check_model(raw, full_check=True)
    counts = COUNTS if batch_size is None else (batch_size,)
    with _refusing("a file that can be loaded"):
        run = _by_onnxruntime(raw) if find_spec("onnxruntime") else _by_caldera(raw)
    for count in counts:
        inputs, outputs, _ = model.open_expressions(count)
        feeds, expected = _example(inputs, outputs)
        order = topological([each.node for each in outputs.values()])
        rounds = any(node.op in (int8_conv2d, int8_linear) for node in order)
        with _refusing(f"a file that runs for {count} samples"):
            found = run(feeds)
        for (name, value), theirs in zip(expected.items(), found, strict=True):
            _compare(name, theirs, value, count, rounds=rounds)


@contextmanager
def _refusing(expected: str) -> Iterator[None]:
    """Raise an error with `expected` for any exception inside: the file is not as it should be."""
    try:
        yield
    except Exception as problem:
        raise _wrong(expected, str(problem)) from None


def _example(
    inputs: Sequence[Expr], outputs: Mapping[str, Expr]
) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
    """Return inputs of the model, in order, and its outputs for them."""
    compute = _evaluator(inputs, list(outputs.values()))
    for spread in _SPREADS:
        values = _random([each.node for each in inputs], spread)
        try:
            results = compute(values)
        except (IndexError, CalderaError):
            if spread == _SPREADS[-1]:
                raise
        else:
            break
    return values, dict(zip(outputs, results, strict=True))


def _evaluator(inputs: Sequence[Expr], outputs: Sequence[Expr]) -> Runner:
    """Return a runner that computes expressions once: reference functions, or a plan if it pays."""
    fed, roots = [each.node for each in inputs], [each.node for each in outputs]
    order = topological(roots)
    if sum(node.op.count_flops(node) for node in order) > _MUCH:
        plan = compile(outputs, remember=False)
        names = [node.attrs["symbol"].name for node in fed]
        return lambda values: [
            each.numpy().copy() for each in plan.run(dict(zip(names, values, strict=True)))
        ]
    held = {
        node: np.asarray(node.attrs["symbol"].value.numpy())
        for node in order
        if "symbol" in node.attrs and node not in fed
    }

    def interpreted(values: Sequence[np.ndarray]) -> list[np.ndarray]:
        with np.errstate(all="ignore"):
            return interpret(roots, {**held, **dict(zip(fed, values, strict=True))})

    return interpreted


def _random(fed: Sequence[Node], spread: int) -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    return [
        (
            generator.normal(size=node.shape)
            if is_float(node.dtype)
            else generator.integers(0, spread, node.shape)
        ).astype(node.dtype)
        for node in fed
    ]


def _by_caldera(raw: bytes) -> Runner:
    prepared = Backend.prepare(onnx.ModelProto.FromString(raw), compiled=False)
    return lambda feeds: prepared.run(list(feeds))


def _by_onnxruntime(raw: bytes) -> Runner:
    """Return a runner by onnxruntime; by Caldera if onnxruntime has no kernel for a dtype."""
    runtime = optional_import("onnxruntime", "onnxruntime", "onnx export")
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = runtime.InferenceSession(raw, options, providers=["CPUExecutionProvider"])
    except runtime.capi.onnxruntime_pybind11_state.NotImplemented:
        return _by_caldera(raw)
    names = [each.name for each in session.get_inputs()]
    return lambda feeds: session.run(None, dict(zip(names, feeds, strict=True)))


def _compare(name: str, found: Any, expected: np.ndarray, count: int, *, rounds: bool) -> None:
    if found.shape != expected.shape or found.dtype != expected.dtype:
        raise _wrong(
            f"{expected.shape} {expected.dtype} as output {name!r} for {count} samples",
            f"{found.shape} {found.dtype}",
        )
    if not is_float(expected.dtype):
        agrees = np.array_equal(found, expected)
    else:
        a, b = found.astype(np.float64), expected.astype(np.float64)
        largest = float(np.abs(b[np.isfinite(b)]).max(initial=0))
        # Numbers halfway between two of 8 bits may be rounded to either.
        digits = _OF_BYTES if rounds else _DIGITS[expected.dtype.itemsize]
        # Results after cancellation are as inexact as the terms they were computed from.
        agrees = np.allclose(a, b, rtol=0, atol=digits * largest + 0.01 * digits, equal_nan=True)
    if not agrees:
        raise _wrong(f"the model's own output {name!r} for {count} samples", "other numbers")


def _wrong(expected: str, got: str) -> ConfigError:
    return ConfigError.build(
        "onnx export",
        expected=expected,
        got=" ".join(got.split())[:400],
        hint="no file was written; export it with batch_size=, for a fixed number of samples",
    )


_IR_VERSION = 8
"""The oldest form of the file that has all of these operators."""


def export(model: Model, path: str | os.PathLike[str], *, batch_size: int | None = None) -> Path:
    """Write a model in evaluation mode to an ONNX file; return the path.

    The number of samples stays open unless `batch_size` fixes it. Parameters and running statistics
    keep their names, and the file names the outputs. With auxiliary heads it contains only the main
    output, as `predict` does. Before it is written it is run, by onnxruntime if that is installed,
    for two numbers of samples. If the results differ from the model's, an error is raised and no
    file is written.

    >>> import tempfile
    >>> from pathlib import Path
    >>> import caldera as cd
    >>> from caldera import nn
    >>> model = cd.NeuralNetwork([nn.Input((4,)), nn.Dense(3, activation="relu")])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = cd.onnx.export(model, Path(folder) / "small.onnx")
    ...     again = cd.onnx.load(path)
    >>> [p.name for p in again.parameters()]
    ['1-Dense/weight', '1-Dense/bias']
    """
    target = Path(path)
    require(
        not target.is_dir() and target.parent.is_dir(),
        "onnx export",
        "a file in a folder that exists",
        repr(str(target)),
    )
    if batch_size is not None:
        within("onnx.export", "batch_size", batch_size, 1, 2**16)  # it is tried with that many
    model.check_exportable("onnx export")
    raw = to_proto(model, batch_size).SerializeToString()
    check(raw, model, batch_size)
    write_file(target, raw, durable=True)
    return target


def to_proto(model: Model, batch_size: int | None = None) -> Any:
    """Return a model as a ModelProto."""
    counts = (FIRST, SECOND) if batch_size is None else (batch_size, batch_size)
    first, second = (model.open_expressions(count) for count in counts)
    if batch_size is not None and not any(batch_size in each.shape for each in first[0]):
        raise ConfigError.build(
            "onnx export",
            expected="batch_size= the number of samples that the model takes",
            got=f"{batch_size} for inputs of {', '.join(str(each.shape) for each in first[0])}",
        )
    write = Writer()
    for i, (a, b) in enumerate(zip(first[0], second[0], strict=True)):
        write.source("input" if len(first[0]) == 1 else f"input{i}", Pair(a.node, b.node))
    roots = {name: Pair(first[1][name].node, second[1][name].node) for name in first[1]}
    write.write(list(roots.values()))
    outputs = []
    for name, pair in roots.items():
        own = write.unique(name)
        write.nodes.append(helper.make_node("Identity", [write.name(pair)], [own], name=own))
        outputs.append(write.declared(own, pair))
    held = sum(array.nbytes for array in write.arrays.values())
    require(
        held <= LARGEST_FILE,
        "onnx export",
        f"at most {LARGEST_FILE} bytes of arrays",
        held,
        hint="one file of ONNX cannot be larger",
    )
    graph = helper.make_graph(
        write.nodes,
        model.name or type(model).__name__,
        [write.declared(name, pair) for name, pair in write.sources.items()],
        outputs,
        [as_proto(name, array) for name, array in write.arrays.items()],
    )
    return helper.make_model(
        graph,
        producer_name="caldera",
        ir_version=_IR_VERSION,
        opset_imports=[helper.make_opsetid("", OPSET)],
    )
