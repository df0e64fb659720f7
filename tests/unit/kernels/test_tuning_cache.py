"""What is remembered of measured kernels: for which key, and what is not believed."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from caldera import op
from caldera.base.config import settings
from caldera.base.file_cache import FileCache
from caldera.base.plain_data import json_digest
from caldera.core.graph.node import Spec, intern
from caldera.core.graph.opdef import parameter
from caldera.core.graph.ops.control import fused
from caldera.core.graph.ops.elementwise import add, exp
from caldera.core.graph.ops.movement import arrange
from caldera.core.graph.ops.product import matmul
from caldera.core.graph.ops.random import random_uniform
from caldera.core.graph.program import Body
from caldera.core.tensor.dtype import float32, int64
from caldera.kernels.table import Call, Kernel, Runner
from caldera.kernels.tuning import database
from caldera.kernels.tuning.choose import Choices
from caldera.kernels.tuning.measure import measure
from tests.unit.kernels.fake_kernels import FakeKernels, product_node, race

pytestmark = pytest.mark.usefixtures("own_folder")


def test_another_process_remembers(kernels: FakeKernels) -> None:
    race(kernels).kernel(product_node(), "cpu")
    kernels.bound.clear()
    choice = Choices(kernels.table).choose(product_node(), "cpu")
    assert (choice.kernel.name, choice.source) == ("fast", "remembered")
    assert choice.times is not None
    assert set(choice.times) == {"slow", "fast"}
    assert not kernels.measured()
    assert len(list(FileCache("choices"))) == 1


def test_another_set_of_kernels_is_another_question(kernels: FakeKernels) -> None:
    race(kernels).kernel(product_node(), "cpu")
    kernels.add("new", priority=-1)
    kernels.bound.clear()
    assert Choices(kernels.table).choose(product_node(), "cpu").source == "measured"


def _columns_first(spec: Spec) -> Spec:
    return Spec(spec.shape, spec.dtype, (1, 0))


def test_kernels_are_measured_on_memory_in_the_order_of_the_node() -> None:
    plain = product_node()
    given = arrange(plain.inputs[0], (1, 0))
    node = intern(
        plain.op, (given, plain.inputs[1]), dict(plain.attrs), (_columns_first(plain.spec),)
    )
    seen: list[Call] = []

    def bind(call: Call) -> Runner:
        seen.append(call)
        return lambda: np.matmul(*call.inputs, call.outputs[0])

    outcome = measure(node, [Kernel("matmul", "cpu", "mine", bind)], 0.0)
    assert list(outcome.times) == ["mine"]
    (call,) = seen
    flags = [array.flags.f_contiguous for array in (*call.inputs, *call.outputs)]
    assert flags == [True, False, True]


@pytest.mark.parametrize("change", ["threads", "shape", "attribute", "order"])
def test_what_matters_is_part_of_the_question(change: str) -> None:
    node = product_node()
    before = database.tuning_key(node, "cpu", [])
    with settings.override(threads=settings.threads + (change == "threads")):
        other = node
        if change == "shape":
            other = product_node(65)
        if change == "attribute":
            other = matmul(*node.inputs, ta=True, tb=False)
        if change == "order":
            other = intern(node.op, node.inputs, dict(node.attrs), (_columns_first(node.spec),))
        after = database.tuning_key(other, "cpu", [])
    assert before is not None
    assert after is not None
    assert json_digest(before) != json_digest(after)


def test_the_machine_is_part_of_the_question() -> None:
    key = database.tuning_key(product_node(), "cpu", [])
    assert key is not None
    assert key["machine"]["numpy"] == np.__version__
    assert key["machine"]["cpu"]
    assert key["machine"]["blas"]


def test_the_number_of_a_random_stream_does_not_matter() -> None:
    state, offset = parameter(0, Spec((2,), int64)), parameter(1, Spec((), int64))
    first, second = (
        random_uniform(state, offset, shape=(9,), dtype=float32, stream=stream) for stream in (1, 2)
    )
    assert database.tuning_key(first, "cpu", []) == database.tuning_key(second, "cpu", [])


def test_bodies_are_written_down_by_structure() -> None:
    x = parameter(0, Spec((3,), float32))
    keys = [
        database.tuning_key(fused(x, body=Body([x], [output])), "cpu", [])
        for output in (exp(x), add(exp(x), x))
    ]
    assert None not in keys
    assert keys[0] != keys[1]
    assert json.loads(json.dumps(keys)) == keys


def test_many_choices_are_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for rows in range(40):
        key = database.tuning_key(product_node(64 + rows), "cpu", []) or {}
        record = database.TuningRecord({**key, "kernels": ["a"]}, "a", {"a": 1.0 + rows}, pace=2.0)
        database.store(record)
    first = list(database.all_records())
    assert len(first) == 40
    FileCache("choices").path(json_digest(first[0].key)).unlink()
    database.store(database.TuningRecord({**first[0].key, "op": "new"}, "a", {"a": 1.0}))
    opened: list[str] = []
    read = FileCache.read

    def counted(cache: FileCache, key: str) -> bytes | None:
        opened.append(key)
        return read(cache, key)

    monkeypatch.setattr(FileCache, "read", counted)
    again = list(database.all_records())
    assert len(opened) == 2
    assert len(again) == 40
    assert first[0] not in again
    assert all(each in again for each in first[1:])
    database.forget()
    assert not list(database.all_records())


def test_what_cannot_be_written_down_is_not_asked() -> None:
    variable = op.var("x", (3,)).node
    assert database.tuning_key(variable, "cpu", []) is None


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "null",
        '"text"',
        '{"format": 2}',
        '{"format": 3, "key": {}}',
        "\x00\xff",
        '{"format": 2, "key": {}, "chosen": "fast", "times": {}}',
        '{"format": 2, "key": [], "chosen": 3, "times": []}',
    ],
)
@pytest.mark.parametrize("foreign", [True, False])
def test_a_damaged_or_foreign_file_is_measured_anew(
    kernels: FakeKernels, content: str, foreign: bool
) -> None:
    race(kernels).kernel(product_node(), "cpu")
    cache = FileCache("choices")
    (key,) = cache
    for name in (key, "notes"):
        if foreign:
            cache.path(name).write_text(content, encoding="latin-1")
        else:
            cache.write(name, content.encode("latin-1"))
    choices = Choices(kernels.table)
    assert "fast" not in choices.table()
    assert choices.choose(product_node(), "cpu").source == "measured"
    assert Choices(kernels.table).choose(product_node(), "cpu").source == "remembered"


@pytest.mark.parametrize(
    "damage",
    [{"chosen": "gone"}, {"times": {"fast": "quick"}}, {"format": 7}, {"key": {"op": "add"}}],
)
def test_an_answer_that_does_not_fit_is_not_believed(
    kernels: FakeKernels, damage: dict[str, Any]
) -> None:
    race(kernels).kernel(product_node(), "cpu")
    cache = FileCache("choices")
    (key,) = cache
    cache.write_json(key, {**cache.read_json(key), **damage})
    assert Choices(kernels.table).choose(product_node(), "cpu").source == "measured"


def test_a_folder_that_cannot_be_written_costs_only_the_memory(
    kernels: FakeKernels, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    choices = race(kernels)
    with settings.override(cache_dir=tmp_path / "file" / "folder"):
        with pytest.warns(RuntimeWarning, match="not kept"):
            assert choices.kernel(product_node(), "cpu").name == "fast"
        assert choices.choose(product_node(), "cpu").source == "remembered"


def test_readers_never_see_half_a_file() -> None:
    key = database.tuning_key(product_node(), "cpu", [Kernel("matmul", "cpu", "k", _bind_none)])
    assert key is not None
    record = database.TuningRecord(key, "k", {"k": 1.0})
    database.store(record)
    done = threading.Event()

    def write() -> None:
        while not done.is_set():
            database.store(record)

    writers = [threading.Thread(target=write) for _ in range(2)]
    for writer in writers:
        writer.start()
    try:
        assert all(database.load(key) == record for _ in range(200))
    finally:
        done.set()
        for writer in writers:
            writer.join()


def _bind_none(call: Call) -> Runner:
    return lambda: None
