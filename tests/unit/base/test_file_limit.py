"""A small file does not get much memory, whatever it says."""

from __future__ import annotations

import json
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest

import caldera as cd
from caldera.base.config import Settings
from caldera.base.file_access import check_asked
from caldera.data.sources.file_formats import map_idx, read_idx
from caldera.errors import ConfigError, DataError


def test_a_file_may_ask_for_a_hundred_times_what_it_has_or_for_the_limit() -> None:
    with cd.settings.override(file_limit=1000):
        check_asked(1000, "load")
        check_asked(1000, "load", held=1)
        check_asked(5000, "load", held=50)
        with pytest.raises(DataError, match=r"at most 1000 B, got 1001 B; .*file_limit = 1001"):
            check_asked(1001, "load", held=10)
        with pytest.raises(DataError, match="file_limit"):
            check_asked(5001, "load", held=50)


def test_the_limit_comes_from_the_environment() -> None:
    assert Settings({"CALDERA_FILE_LIMIT": "5"}).file_limit == 5
    assert Settings({}).file_limit == 1 << 30
    with pytest.raises(ConfigError, match="CALDERA_FILE_LIMIT"):
        Settings({"CALDERA_FILE_LIMIT": "much"})


def test_an_npz_that_unpacks_to_a_thousand_times_its_size(tmp_path: Path) -> None:
    path = tmp_path / "bomb.npz"
    np.savez_compressed(path, a=np.zeros(4 << 20, "uint8"))
    assert path.stat().st_size < 10_000
    tracemalloc.start()
    with (
        cd.settings.override(file_limit=1 << 20),
        pytest.raises(DataError, match=r"bomb\.npz: .* got 4\.0 MiB; .*file_limit"),
    ):
        cd.io.load_npz(path)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
    assert cd.io.load_npz(path)["a"].shape == (4 << 20,)


def test_an_npy_header_of_many_megabytes(tmp_path: Path) -> None:
    path = tmp_path / "bomb.npy"
    with path.open("wb") as file:
        file.write(b"\x93NUMPY\x02\x00" + (300 << 20).to_bytes(4, "little"))
        file.truncate(301 << 20)
    tracemalloc.start()
    for load in (cd.io.load_npy, cd.io.map_npy):
        with pytest.raises(DataError, match="a header of 314572800 bytes"):
            load(path)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_a_compressed_idx_file(tmp_path: Path) -> None:
    path = tmp_path / "bomb.gz"
    packer = zlib.compressobj(9, wbits=31)
    content = bytes([0, 0, 8, 1]) + (4 << 20).to_bytes(4, "big") + bytes(4 << 20)
    path.write_bytes(packer.compress(content) + packer.flush())
    with (
        cd.settings.override(file_limit=1 << 20),
        pytest.raises(DataError, match="file_limit"),
    ):
        read_idx(path, axes=1)
    assert read_idx(path, axes=1).size == 4 << 20


SHAPES = [(0, 1 << 62, 1 << 62), (1 << 62, 0, 1 << 62), (0,) * 70, (1 << 70, 0)]


def _empty_safetensors(path: Path, shape: tuple[int, ...]) -> None:
    entry = {"dtype": "F32", "shape": list(shape), "data_offsets": [0, 0]}
    header = json.dumps({"w": entry}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header)


def _empty_npy(path: Path, shape: tuple[int, ...]) -> None:
    header = repr({"descr": "<f4", "fortran_order": False, "shape": shape}).encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_that_no_array_has_are_refused(tmp_path: Path, shape: tuple[int, ...]) -> None:
    tensors, array = tmp_path / "a.safetensors", tmp_path / "a.npy"
    _empty_safetensors(tensors, shape)
    _empty_npy(array, shape)
    for load, path in (
        (cd.io.load_safetensors, tensors),
        (cd.io.map_safetensors, tensors),
        (cd.io.load_npy, array),
        (cd.io.map_npy, array),
    ):
        with pytest.raises(DataError, match="whose product fits into 64 bits"):
            load(path)


def test_an_idx_file_of_a_shape_that_no_array_has(tmp_path: Path) -> None:
    path = tmp_path / "images"
    path.write_bytes(bytes([0, 0, 8, 9]) + bytes(4) + b"\xff" * 32)
    for read in (map_idx, lambda path: read_idx(path, 9)):
        with pytest.raises(DataError, match="whose product fits into 64 bits"):
            read(path)


def test_onnx_models_with_shapes_that_no_array_has(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    from caldera.onnx import load

    helper, float32, path = onnx.helper, onnx.TensorProto.FLOAT, tmp_path / "a.onnx"
    sizes = helper.make_tensor("s", onnx.TensorProto.INT64, [3], [0, 1 << 62, 1 << 62])
    stated = onnx.TensorProto(data_type=float32, dims=[0, 1 << 62, 1 << 62], name="z", raw_data=b"")
    made = helper.make_node("ConstantOfShape", ["s"], ["z"])
    for nodes, array in (([made], sizes), ([], stated)):
        graph = helper.make_graph(
            [*nodes, helper.make_node("Add", ["x", "z"], ["y"])],
            "graph",
            [helper.make_tensor_value_info("x", float32, [1])],
            [helper.make_tensor_value_info("y", float32, None)],
            initializer=[array],
        )
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
        with pytest.raises(DataError, match="whose product fits into 64 bits"):
            load(path)
