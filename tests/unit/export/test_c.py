"""Libraries for C: bit-equal to the plans they were made of, for any number of rows."""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import caldera as cd
from caldera import nn
from caldera.cli.program import main
from caldera.compiler.lazy import Expr
from caldera.errors import ConfigError
from caldera.export import library
from tests.unit.export.loaded import Loaded, needs, planned, run

pytestmark = needs("cc", "ar")
RNG = np.random.default_rng(0)


def _mlp() -> cd.NeuralNetwork:
    return cd.NeuralNetwork(
        [nn.Input((20,)), nn.Dense(24), nn.ReLU(), nn.Dense(16), nn.Tanh(), nn.Dense(3)],
        loss="mean_squared",
    )


def _small() -> cd.NeuralNetwork:
    return cd.NeuralNetwork([nn.Input((4,)), nn.Dense(3)], loss="mean_squared")


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[cd.NeuralNetwork, Path]:
    model = _mlp()
    return model, cd.export.c(model, tmp_path_factory.mktemp("c"), name="wing", batch=(1, 16))


def test_a_library_is_bit_equal_to_the_plan(exported: tuple[cd.NeuralNetwork, Path]) -> None:
    model, folder = exported
    with Loaded(folder, "wing") as loaded:
        for rows in (1, 16):
            x = RNG.normal(size=(rows, 20)).astype("float32")
            np.testing.assert_array_equal(loaded.predict(x, outputs=(3,)), planned(model, x))
        for rows in (0, 2, 5, 15, 17, 31, 100, 2000):
            x = RNG.normal(size=(rows, 20)).astype("float32")
            found = loaded.predict(x, outputs=(3,))
            np.testing.assert_allclose(found, model.predict(x), rtol=0, atol=1e-6)


def test_convolutions_of_bytes(tmp_path: Path) -> None:
    block = [nn.Conv2D(6, 3, padding="same", bias=False), nn.BatchNorm()]
    layers = [nn.Input((3, 7, 6)), nn.Conv2D(6, 3), nn.Residual(block, activation="relu")]
    layers += [nn.GlobalAveragePool(), nn.Dense(2)]
    model = cd.NeuralNetwork(layers, loss="mean_squared").quantise()
    x = RNG.normal(size=(2, 3, 7, 6)).astype("float32")
    folder = cd.export.c(model, tmp_path, name="bytes", batch=(2,))
    with Loaded(folder, "bytes") as loaded:
        np.testing.assert_array_equal(loaded.predict(x, outputs=(2,)), planned(model, x))


def test_errors_are_codes_with_a_message(exported: tuple[cd.NeuralNetwork, Path]) -> None:
    with Loaded(exported[1], "wing") as loaded:
        x = np.zeros((1, 20), "float32")
        assert loaded.call("predict", -1, x, x) == 4
        assert loaded.text("message") == "expected rows >= 0, got -1"
        assert loaded.call("predict", 1, x, None) == 1
        assert loaded.text("message") == "argument 4 is a null pointer"
        loaded.predict(x, outputs=(3,))
        assert loaded.text("message") == ""


def test_a_library_needs_the_c_library_alone(exported: tuple[cd.NeuralNetwork, Path]) -> None:
    lines = run("ldd", exported[1] / "libwing.so").splitlines()
    names = {line.split()[0].rpartition("/")[2].split(".")[0] for line in lines}
    assert names <= {"linux-vdso", "libc", "libm", "libpthread", "ld-linux-x86-64"}


def test_the_command_exports_a_model_file(tmp_path: Path) -> None:
    model = _mlp()
    path = model.save(tmp_path / "wing.caldera")
    out = tmp_path / "out"
    assert main(["export", str(path), "--c", str(out), "--batch", "1,8"]) == 0
    x = RNG.normal(size=(8, 20)).astype("float32")
    with Loaded(out, "wing") as loaded:
        np.testing.assert_array_equal(loaded.predict(x, outputs=(3,)), planned(model, x))


def test_wrong_arguments_are_refused(tmp_path: Path) -> None:
    model = _mlp()
    with pytest.raises(ConfigError, match="starts with a letter, got '9lives'"):
        cd.export.c(model, tmp_path, name="9lives")
    with pytest.raises(ConfigError, match="numbers of rows >= 1"):
        cd.export.c(model, tmp_path, name="wing", batch=(0, 4))
    with pytest.raises(ConfigError, match="at most 65536, got"):
        cd.export.c(model, tmp_path, name="wing", batch=(10**9,))
    with pytest.raises(ConfigError, match="threads >= 1"):
        cd.export.c(model, tmp_path, name="wing", threads=0)
    with pytest.raises(ConfigError, match="no header of C has, got 'string'"):
        cd.export.c(model, tmp_path, name="string")
    with pytest.raises(ConfigError, match=r"no word of C\+\+, got 'double'"):
        cd.export.c(model, tmp_path, name="double")


def test_a_refused_network_leaves_no_folder(tmp_path: Path) -> None:
    model = cd.NeuralNetwork([nn.Input((8,)), nn.Lambda(cd.op.sort)], loss="mean_squared")
    with pytest.raises(ConfigError, match=r"op\.sort: expected operations with machine"):
        cd.export.c(model, tmp_path / "wing")
    assert not (tmp_path / "wing").exists()


def test_images_are_passed_in_the_order_of_the_caller(tmp_path: Path) -> None:
    layers = [nn.Input((3, 9, 9)), nn.Conv2D(5, 3), nn.BatchNorm(), nn.MaxPool2D(2)]
    model = cd.NeuralNetwork(layers, loss="mean_squared")
    with Loaded(cd.export.c(model, tmp_path, name="wing"), "wing") as loaded:
        for rows in (1, 2, 33):
            x = RNG.normal(size=(rows, 3, 9, 9)).astype("float32")
            wanted = model.predict(x)
            found = loaded.predict(x, outputs=wanted.shape[1:])
            np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)


def test_a_refused_value_leaves_a_usable_handle(tmp_path: Path) -> None:
    layers = [nn.Input((5,), dtype="int64"), nn.Embedding(11, 6), nn.LSTM(7)]
    model = cd.NeuralNetwork(layers, loss="mean_squared")
    with Loaded(cd.export.c(model, tmp_path, name="wing"), "wing") as loaded:
        x = RNG.integers(0, 11, (33, 5))
        x[3, 2] = 11
        assert loaded.call("predict", 33, x, np.zeros((33, 7), "float32")) == 5
        assert loaded.text("message") == "op.gather refuses a value of the input"
        x[3, 2] = 10
        found = loaded.predict(x, outputs=(7,))
        np.testing.assert_allclose(found, model.predict(x), rtol=0, atol=1e-5)


class _TwoInputs(cd.Model):
    def __init__(self) -> None:
        super().__init__(loss="mean_squared")
        self.first, self.second = nn.Dense(3), nn.Dense(3)

    def forward(self, x: Expr, y: Expr) -> Expr:
        return self.first(x) - self.second(y)


def test_several_inputs_in_the_order_of_predict(tmp_path: Path) -> None:
    model = _TwoInputs()
    x, y = (RNG.normal(size=(33, width)).astype("float32") for width in (6, 4))
    wanted = model.predict(x, y)
    with Loaded(cd.export.c(model, tmp_path, name="wing"), "wing") as loaded:
        found = loaded.predict(x, y, outputs=(3,))
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)


def test_a_folder_may_have_other_files_and_any_name(tmp_path: Path) -> None:
    """A comma separates options that the compiler passes on to the assembler."""
    folder = tmp_path / "first, second"
    cd.export.c(_small(), folder, name="wing", batch=(), build=False)
    (folder / "source" / "mine.c").write_text("int unfinished(")
    cd.export.c(_small(), folder, name="wing", batch=())
    names = run("nm", "-D", "--defined-only", folder / "libwing.so").split()[2::3]
    assert all(each.startswith("wing_") for each in names)


def test_files_of_another_project_are_not_replaced(tmp_path: Path) -> None:
    cd.export.c(_small(), tmp_path, name="wing", batch=(), build=False)
    with pytest.raises(ConfigError, match=r"CMakeLists.txt of wing; export every library"):
        cd.export.c(_small(), tmp_path, name="wing_native", build=False)
    (tmp_path / "CMakeLists.txt").write_text("add_subdirectory(mine)\n")
    with pytest.raises(ConfigError, match="of another project"):
        cd.export.c(_small(), tmp_path, name="wing", batch=(), build=False)


def test_the_compiler_may_have_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "cc -pthread")
    assert (cd.export.c(_small(), tmp_path, name="wing", batch=()) / "libwing.so").exists()


def test_without_a_compiler_the_sources_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", str(tmp_path / "no compiler"))
    assert not list(cd.export.c(_small(), tmp_path, name="wing", batch=()).glob("lib*"))


def test_a_processor_without_the_instructions_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "_condition", lambda: "    return 0;\n")
    folder = cd.export.c(_small(), tmp_path, name="wing", batch=())
    handle = ctypes.c_void_p()
    assert ctypes.CDLL(str(folder / "libwing.so")).wing_create(ctypes.byref(handle)) == 3


def test_threads_use_handles_at_the_same_time(tmp_path: Path) -> None:
    model = _mlp()
    folder = cd.export.c(model, tmp_path, name="wing", threads=2)
    x = RNG.normal(size=(50, 20)).astype("float32")
    wanted = model.predict(x)

    def work(_: int) -> None:
        with Loaded(folder, "wing") as loaded:
            for rows in (1, 33, 50) * 10:
                found = loaded.predict(x[:rows], outputs=(3,))
                np.testing.assert_allclose(found, wanted[:rows], atol=1e-6)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(8)))
