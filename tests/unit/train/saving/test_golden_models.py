"""Model files of every format, written once: each machine reads the same numbers out of them."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest

import caldera as cd
from tools.golden_models import golden_model, golden_values

FILES = sorted((Path(__file__).parent / "golden").glob("*.caldera"))
PREDICTED = [
    [-0.3583574, -0.3446634, -0.3308211],
    [-0.8886332, -0.8741031, -0.8578199],
]


def test_there_is_one_for_each_format() -> None:
    assert [file.stem for file in FILES] == ["caldera-1", "caldera-2"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_tensors_have_the_bytes_they_were_written_with(file: Path) -> None:
    raw = file.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    del header["__metadata__"]
    expected = [*golden_model().parameters(), *golden_model().states()]
    assert set(header) == {each.name for each in expected}
    model = cd.load(file)
    found = {each.name: each.numpy() for each in (*model.parameters(), *model.states())}
    for number, variable in enumerate(expected):
        wanted = golden_values(number, variable.shape)
        # The file says how: 32 bits, lowest byte first, row by row.
        entry = header[variable.name]
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        assert (entry["dtype"], entry["shape"]) == ("F32", list(variable.shape))
        assert raw[begin:end] == struct.pack(f"<{wanted.size}f", *wanted.reshape(-1).tolist())
        assert found[variable.name].astype("<f4").tobytes() == wanted.tobytes()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_predictions_are_the_same_up_to_rounding(file: Path) -> None:
    model = cd.load(file)
    x = ((np.arange(32) - 16) / 128).astype("float32").reshape(2, 1, 4, 4)
    assert model.predict(x) == pytest.approx(np.array(PREDICTED), rel=1e-5)
    assert (model.name, model.batch_size, model.seed) == ("golden", 2, 3)
    assert model.optimizer.config() == golden_model().optimizer.config()
