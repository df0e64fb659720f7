"""`cd.TensorBoard`: TensorBoard's own reader finds what was written."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import nn
from caldera.errors import ConfigError
from caldera.io.events import EventFile

WHY = "TensorBoard is not installed: pip install tensorboard"


def small(**settings: Any) -> cd.NeuralNetwork:
    layers = [nn.Input((2,)), nn.Dense(8, activation="relu"), nn.Dense(2)]
    return cd.NeuralNetwork(layers, batch_size=10, learning_rate=0.05, **settings)


def samples(count: int = 40) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(count, 2)).astype("float32")
    return x, (x[:, 0] > x[:, 1]).astype("int64")


def read(folder: Path) -> Any:
    """What TensorBoard reads from a folder."""
    module = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason=WHY
    )
    found = module.EventAccumulator(str(folder), size_guidance={"tensors": 0, "histograms": 0})
    return found.Reload()


def hparams(folder: Path, tag: str) -> Any:
    data = pytest.importorskip("tensorboard.plugins.hparams.plugin_data_pb2", reason=WHY)
    content = read(folder).SummaryMetadata(f"_hparams_/{tag}").plugin_data.content
    return data.HParamsPluginData.FromString(content)


def numbers(folder: Path, tag: str) -> list[tuple[int, float]]:
    return [(each.step, each.value) for each in read(folder).Scalars(tag)]


# --- what a run writes


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, cd.History, cd.NeuralNetwork]:
    folder = tmp_path_factory.mktemp("board")
    model = small(epochs=3)
    board = cd.TensorBoard(folder, every=2)
    history = model.fit(samples(), validation=samples(20), callbacks=[board], verbose=0)
    return folder, history, model


def test_training_and_validation_are_two_runs_with_equal_tags(
    trained: tuple[Path, cd.History, cd.NeuralNetwork],
) -> None:
    folder, history, _ = trained
    for tag in ("loss", "accuracy"):
        for part, column in (("train", tag), ("validation", f"val_{tag}")):
            found = numbers(folder / part, tag)
            assert [step for step, _ in found] == [4, 8, 12]
            assert [value for _, value in found] == pytest.approx(history[column], rel=1e-6)
    assert numbers(folder / "train", "learning_rate")[0] == (4, pytest.approx(0.05))
    assert len(numbers(folder / "train", "seconds")) == 3


def test_the_loss_within_an_epoch_every_so_many_steps(
    trained: tuple[Path, cd.History, cd.NeuralNetwork],
) -> None:
    folder, history, _ = trained
    found = numbers(folder / "train", "loss_within_epoch")
    assert [step for step, _ in found] == [2, 4, 6, 8, 10, 12]
    assert [value for _, value in found[1::2]] == pytest.approx(history["loss"], rel=1e-6)


def test_histograms_of_every_parameter(
    trained: tuple[Path, cd.History, cd.NeuralNetwork],
) -> None:
    folder, _, model = trained
    board = read(folder / "train")
    assert board.Tags()["histograms"] == [each.name for each in model.parameters()]
    for parameter in model.parameters():
        events = board.Histograms(parameter.name)
        assert [each.step for each in events] == [4, 8, 12]
        last, values = events[-1].histogram_value, parameter.numpy().astype(np.float64)
        assert last.num == values.size == sum(last.bucket)
        assert (last.min, last.max) == pytest.approx((values.min(), values.max()))
        assert last.sum == pytest.approx(values.sum())
        assert last.sum_squares == pytest.approx((values**2).sum())
        counted, _ = np.histogram(values, bins=[-np.inf, *last.bucket_limit[1:-1], np.inf])
        assert last.bucket[1:] == counted.tolist()


def test_settings_and_how_it_ended(trained: tuple[Path, cd.History, cd.NeuralNetwork]) -> None:
    folder, _, model = trained
    info = hparams(folder / "train", "session_start_info").session_start_info
    assert info.hparams["optimizer"].string_value == "Adam"
    assert info.hparams["optimizer/learning_rate"].number_value == 0.05
    assert info.hparams["batch_size"].number_value == 10
    assert info.hparams["parameters"].number_value == sum(p.size for p in model.parameters())
    assert hparams(folder / "train", "session_end_info").session_end_info.status == 1


def test_the_summary_is_a_text(trained: tuple[Path, cd.History, cd.NeuralNetwork]) -> None:
    board = read(trained[0] / "train")
    (event,) = board.Tensors("summary")
    assert board.SummaryMetadata("summary").plugin_data.plugin_name == "text"
    assert "1-Dense" in event.tensor_proto.string_val[0].decode()


def test_the_graph_has_a_box_for_each_layer(
    trained: tuple[Path, cd.History, cd.NeuralNetwork],
) -> None:
    graph = read(trained[0] / "train").Graph()
    nodes = {node.name: node for node in graph.node}
    assert nodes["output"].input == ["2-Dense/add"]
    assert {"x0", "1-Dense/weight", "1-Dense/relu", "2-Dense/matmul"} <= set(nodes)
    assert all(name in nodes for node in graph.node for name in node.input)
    (shape,) = nodes["2-Dense/matmul"].attr["_output_shapes"].list.shape
    assert [each.size for each in shape.dim] == [2, 2]


# --- runs that end in other ways


def test_a_resumed_run_goes_on_in_the_same_charts(tmp_path: Path) -> None:
    class Fails(cd.Callback):
        def batch_ends(self, run: cd.Run) -> None:
            if run.step == 10:
                raise RuntimeError("after the checkpoint of step 8")

    def go(resume: bool, *more: cd.Callback) -> cd.History:
        board = cd.TensorBoard(tmp_path / "board", every=1, histograms=0)
        return small(epochs=3).fit(
            samples(),
            validation=samples(20),
            callbacks=[board, *more],
            verbose=0,
            checkpoint=tmp_path / "run",
            resume=resume,
        )

    with pytest.raises(RuntimeError):
        go(False, Fails())
    history = go(True)
    for part, column in (("train", "loss"), ("validation", "val_loss")):
        assert numbers(tmp_path / "board" / part, "loss") == [
            (step, pytest.approx(loss, rel=1e-6))
            for step, loss in zip((4, 8, 12), history[column], strict=True)
        ]
    steps = [step for step, _ in numbers(tmp_path / "board/train", "loss_within_epoch")]
    assert steps == list(range(1, 13))


def test_a_run_that_fails_is_recorded_as_such(tmp_path: Path) -> None:
    class Fails(cd.Callback):
        def epoch_ends(self, run: cd.Run) -> None:
            raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        small().fit(samples(), callbacks=[cd.TensorBoard(tmp_path), Fails()], verbose=0)
    assert hparams(tmp_path / "train", "session_end_info").session_end_info.status == 2
    assert len(numbers(tmp_path / "train", "loss")) == 1


@pytest.mark.parametrize(("name", "value"), [("every", 0), ("histograms", -1)])
def test_wrong_settings_are_refused(tmp_path: Path, name: str, value: int) -> None:
    with pytest.raises(ConfigError, match=f"{name} >= "):
        cd.TensorBoard(tmp_path, **{name: value})


# --- the file itself


def test_values_that_are_not_finite(tmp_path: Path) -> None:
    with EventFile(tmp_path) as file:
        file.scalars(1, {"a": float("nan"), "b": float("inf"), "c": 1e300})
        file.histograms(1, {"h": np.array([1.0, np.nan, 3.0, np.inf]), "none": np.array([])})
    assert np.isnan(numbers(tmp_path, "a")[0][1])
    assert numbers(tmp_path, "b") == [(1, np.inf)]
    assert numbers(tmp_path, "c") == [(1, np.inf)]
    (event,) = read(tmp_path).Histograms("h")
    assert (event.histogram_value.num, event.histogram_value.max) == (2, 3.0)


def test_what_was_flushed_can_be_read_while_the_run_goes_on(tmp_path: Path) -> None:
    file = EventFile(tmp_path)
    file.scalars(7, {"loss": 0.25})
    file.flush()
    assert numbers(tmp_path, "loss") == [(7, 0.25)]
    file.close()


def test_a_large_step_and_a_negative_number(tmp_path: Path) -> None:
    with EventFile(tmp_path) as file:
        file.scalars(2**40, {"loss": -1.5})
    assert numbers(tmp_path, "loss") == [(2**40, -1.5)]


def test_records_have_their_length_first(tmp_path: Path) -> None:
    with EventFile(tmp_path) as file:
        file.texts(0, {"note": "grüße"})
    data = file.path.read_bytes()
    lengths = []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        lengths.append(length)
        data = data[8 + 4 + length + 4 :]
    assert len(lengths) == 2
