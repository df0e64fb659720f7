"""Headers, modules and projects of a library are accepted by compilers and build systems."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import caldera as cd
from caldera import nn, op
from caldera.compiler.lazy import Expr
from tests.unit.export.loaded import WARNINGS, Loaded, needs, run

pytestmark = needs("cc", "ar")
COMPILERS = {
    "c": ("cc", "-std=c11"),
    "cpp": ("g++", "-std=c++11"),
    "f90": ("gfortran", "-std=f2018"),
}


def _images() -> cd.Model:
    layers = [nn.Input((2, 5, 4)), nn.Conv2D(3, 3), nn.Flatten(), nn.Dense(3)]
    return cd.NeuralNetwork(layers, loss="mean_squared")


class _Mixed(cd.Model):
    """Inputs of several dtypes, and one number for each sample."""

    def __init__(self) -> None:
        super().__init__(loss="mean_squared")
        self.table, self.last = nn.Embedding(4, 3), nn.Dense(1)

    def forward(self, codes: Expr, flags: Expr, bytes_: Expr, numbers: Expr) -> Expr:
        parts = [op.mean(self.table(codes), axis=1), op.cast(flags, "float32")]
        parts += [op.cast(bytes_, "float32") / 255.0, op.cast(numbers, "float32")]
        return self.last(op.concat(parts, axis=1))[:, 0]


def _mixed() -> cd.Model:
    model = _Mixed()
    model.predict(*(np.ones(s, d) for s, d in zip(SHAPES, DTYPES, strict=True)))
    return model


SHAPES, DTYPES = ((3, 2), (3, 1), (3, 4), (3, 2)), ("int64", "bool", "uint8", "float32")
MODELS = {
    "images": (_images, (np.ones((3, 2, 5, 4), "float32"),)),
    "mixed": (_mixed, tuple(np.ones(s, d) for s, d in zip(SHAPES, DTYPES, strict=True))),
}


@pytest.fixture(scope="module", params=MODELS)
def exported(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[np.ndarray, Path]:
    """The first output of each sample of the examples, and a library."""
    make, inputs = MODELS[request.param]
    model, folder = make(), tmp_path_factory.mktemp("bindings")
    cd.export.c(model, folder, name="wing", batch=(2,))
    return model.predict(*inputs).reshape(3, -1)[:, 0], folder


def _sources(folder: Path, language: str) -> list[Path]:
    return [*([folder / "wing.f90"] if language == "f90" else []), folder / f"example.{language}"]


@pytest.mark.parametrize(
    "language", [pytest.param(each, marks=needs(COMPILERS[each][0])) for each in COMPILERS]
)
def test_examples_build_without_warnings(
    exported: tuple[np.ndarray, Path], tmp_path: Path, language: str
) -> None:
    wanted, folder = exported
    shared, static = [f"-L{folder}", "-lwing", f"-Wl,-rpath,{folder}"], [folder / "libwing.a"]
    libraries = static if language == "cpp" else shared
    given = [*_sources(folder, language), *libraries, "-lm", "-lpthread"]
    options = (*COMPILERS[language], *WARNINGS, f"-I{folder}")
    run(*options, *given, "-o", "example", folder=tmp_path)
    found = np.array(run(tmp_path / "example").split(), "float32")
    np.testing.assert_allclose(found, wanted, atol=1e-6)


@needs("gfortran")
def test_arrays_of_fortran_have_the_samples_last(
    exported: tuple[np.ndarray, Path], tmp_path: Path
) -> None:
    """The example of images, with inputs that differ along all axes, and a wrong shape."""
    folder = exported[1]
    text = (folder / "example.f90").read_text()
    if "x0" in text:
        pytest.skip("the model has several inputs")
    text = text.replace("x = 1", "x = reshape([(sin(real(i)), i = 1, 120)], shape(x))")
    text = text.replace("integer :: row\n", "integer :: row, i, code\n")
    text = text.replace(
        "  call model%destroy",
        "  call model%predict(x, y(:2, :), code)\n  print *, code\n  call model%destroy",
    )
    (tmp_path / "example.f90").write_text(text)
    given = [folder / "wing.f90", tmp_path / "example.f90", folder / "libwing.a", "-lpthread"]
    run("gfortran", *given, "-o", "example", folder=tmp_path)
    *found, code = run(tmp_path / "example").split()
    x = np.sin(np.arange(1, 121)).astype("float32").reshape(3, 2, 5, 4)
    wanted = run_plainly(folder, x)
    np.testing.assert_allclose(np.array(found, "float32"), wanted, atol=1e-6)
    assert int(code) == 4


def run_plainly(folder: Path, x: np.ndarray) -> np.ndarray:
    """Return the first output of each sample, from C."""
    with Loaded(folder, "wing") as loaded:
        return loaded.predict(x, outputs=(3,))[:, 0]


@needs("pkg-config")
def test_pkg_config_knows_the_library(exported: tuple[np.ndarray, Path], tmp_path: Path) -> None:
    wanted, folder = exported
    flags = run("env", f"PKG_CONFIG_PATH={folder}", "pkg-config", "--cflags", "--libs", "wing")
    given = [*(each.replace('"', "") for each in flags.split()), f"-Wl,-rpath,{folder}"]
    run("cc", *WARNINGS, folder / "example.c", *given, "-o", "example", folder=tmp_path)
    found = np.array(run(tmp_path / "example").split(), "float32")
    np.testing.assert_allclose(found, wanted, atol=1e-6)


PROJECT = """\
cmake_minimum_required(VERSION 3.16)
project(user C Fortran ASM)
find_package(bird QUIET PATHS {folder}/bird NO_DEFAULT_PATH)
if(bird_FOUND)
  message(FATAL_ERROR "the library of bird is not built")
endif()
add_subdirectory({folder}/bird bird)
find_package(wing REQUIRED PATHS {wing} NO_DEFAULT_PATH)
add_executable(in_f90 ${wing_FORTRAN_SOURCE} {wing}/example.f90)
target_link_libraries(in_f90 wing::wing)
add_executable(static {wing}/example.c)
target_link_libraries(static wing::static)
add_executable(of_bird {folder}/bird/example.c)
target_link_libraries(of_bird bird::bird)
"""


@needs("cmake", "gfortran")
def test_cmake_builds_programs(
    exported: tuple[np.ndarray, Path], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    wanted, folder = exported
    if "mixed" in request.node.name:
        pytest.skip("one model is enough for CMake, which takes seconds")
    bird = cd.NeuralNetwork([nn.Input((4,)), nn.Dense(3)], loss="mean_squared")
    cd.export.c(bird, tmp_path / "bird", batch=(), build=False)
    text = PROJECT.replace("{wing}", str(folder)).replace("{folder}", str(tmp_path))
    (tmp_path / "CMakeLists.txt").write_text(text)
    run("cmake", "-S", tmp_path, "-B", tmp_path / "made")
    run("cmake", "--build", tmp_path / "made")
    for program in ("in_f90", "static"):
        found = np.array(run(tmp_path / "made" / program).split(), "float32")
        np.testing.assert_allclose(found, wanted, atol=1e-6)
    assert len(run(tmp_path / "made" / "of_bird").split()) == 3
