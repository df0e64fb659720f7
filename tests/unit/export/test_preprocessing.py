"""Rows of a table are encoded in C as in Python; parts without code are refused by name."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest

import caldera as cd
from caldera import nn
from caldera.data.tables.reading import TableFormat, read_table
from caldera.errors import ConfigError
from tests.unit.export.loaded import WARNINGS, Loaded, needs, run

pytestmark = needs("cc", "ar")
RNG = np.random.default_rng(0)
COLOURS = ("red", "grün", 'light "blue"', "a??/b", None)


class _Row(ctypes.Structure):
    _fields_ = (
        ("wing_span", ctypes.c_double),
        ("colour", ctypes.c_char_p),
        ("column_class", ctypes.c_double),
    )


def _rows(count: int) -> list[dict[str, object]]:
    return [
        {
            "wing span": None if n % 7 == 0 else float(RNG.normal(5.0, 3.0)),
            "colour": COLOURS[n % 5],
            "class": float(n % 13) ** 2,
            "kind": ("bird", "plane", "kite")[n % 3],
        }
        for n in range(count)
    ]


def _model(rows: list[dict[str, object]], **kinds: str) -> cd.NeuralNetwork:
    table = cd.data.table(rows, "kind", kinds=kinds or None)
    width = len(table.schema.features)
    layers = [nn.Input((width,)), nn.Dense(8, activation="relu"), nn.Dense(3)]
    model = cd.NeuralNetwork(layers)
    model.fit(table.train, epochs=2, verbose=0)
    return model


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[cd.NeuralNetwork, Path]:
    model = _model(_rows(120))
    return model, cd.export.c(model, tmp_path_factory.mktemp("rows"), name="wing")


def _in_c(rows: list[dict[str, object]]) -> ctypes.Array[_Row]:
    return (_Row * len(rows))(
        *(
            (
                np.nan if each["wing span"] is None else each["wing span"],
                None if each["colour"] is None else str(each["colour"]).encode(),
                each["class"],
            )
            for each in rows
        )
    )


@pytest.mark.filterwarnings("ignore:table")
def test_rows_are_encoded_as_in_python(exported: tuple[cd.NeuralNetwork, Path]) -> None:
    model, folder = exported
    assert model.schema is not None
    rows = [*_rows(40), {"wing span": 1.0, "colour": "unknown", "class": 1.0}]
    rows = [{name: each[name] for name in ("wing span", "colour", "class")} for each in rows]
    table = read_table(rows, "test", TableFormat())
    wanted = model.schema.encode(table, range(3), is_new=False).x
    with Loaded(folder, "wing") as loaded:
        x = np.full((len(rows), wanted.shape[1]), np.nan, "float32")
        assert loaded.call("encode", len(rows), _in_c(rows), x) == 0
        np.testing.assert_array_equal(x, wanted)
        found = loaded.predict(x, outputs=(3,))
        np.testing.assert_allclose(found, model.predict(rows), rtol=0, atol=1e-6)
        name = loaded.function("class", ctypes.c_char_p)
        names = [name(ctypes.c_int64(n)) for n in range(-1, 4)]
        assert names == [None, *(each.encode() for each in model.schema.classes), None]
        rows[3]["class"] = np.inf
        assert loaded.call("encode", len(rows), _in_c(rows), x) == 5
        assert loaded.text("message") == "row 3, column class: expected a finite number, got inf"


IN_CPP = """\
#include <cmath>
#include <iostream>
#include "wing.hpp"
int main() {
    caldera::wing::Model model;
    for (float each : model.encode({{2.5, "gr\\303\\274n", 4.0}, {NAN, nullptr, 1.0}}))
        std::cout << each << "\\n";
    try { model.class_name(3); } catch (const caldera::wing::Error &error) {
        std::cout << model.class_name(2) << "\\n" << error.what() << "\\n";
    }
}
"""
IN_FORTRAN = """\
program user
  use, intrinsic :: iso_c_binding
  use, intrinsic :: ieee_arithmetic
  use wing
  implicit none
  type(wing_model) :: model
  real(c_float) :: x(8, 2)
  integer :: code, i

  call model%create()
  call model%encode([wing_row(2.5d0, "grün", 4d0), &
    wing_row(ieee_value(1d0, ieee_quiet_nan), "", 1d0)], x)
  print '(g0)', (x(:, i), i = 1, 2)
  print '(a)', model%class_name(3)
  call model%encode([wing_row(1d0, "red", 1d0)], x, code)
  print '(a,i0)', "no class 3"//model%class_name(0), code
end program
"""


@pytest.mark.parametrize(
    "language",
    [pytest.param("cpp", marks=needs("g++")), pytest.param("f90", marks=needs("gfortran"))],
)
@pytest.mark.filterwarnings("ignore:table")
def test_rows_are_encoded_in_cpp_and_fortran(
    exported: tuple[cd.NeuralNetwork, Path], tmp_path: Path, language: str
) -> None:
    model, folder = exported
    (tmp_path / f"user.{language}").write_text(IN_CPP if language == "cpp" else IN_FORTRAN)
    command = {
        "cpp": ("g++", "-std=c++11", *WARNINGS, f"-I{folder}"),
        "f90": ("gfortran", "-std=f2018", *WARNINGS, folder / "wing.f90"),
    }[language]
    given = [f"user.{language}", folder / "libwing.a", "-lm", "-lpthread", "-o", "user"]
    run(*command, *given, folder=tmp_path)
    *found, name, error = run(tmp_path / "user").splitlines()
    rows = [("wing span", 2.5, None), ("colour", "grün", None), ("class", 4.0, 1.0)]
    table = [{name: values[n] for name, *values in rows} for n in range(2)]
    assert model.schema is not None
    wanted = model.schema.encode(read_table(table, "test", TableFormat()), range(3), is_new=False)
    np.testing.assert_allclose(np.array(found, "float32"), wanted.x.ravel(), rtol=1e-5)
    assert name == model.schema.classes[2]
    assert error == ("no class 3" if language == "cpp" else "no class 34")


def test_the_header_lists_columns_and_categories(
    exported: tuple[cd.NeuralNetwork, Path],
) -> None:
    text = (exported[1] / "wing.h").read_text()
    assert "double wing_span; /* wing span: mean" in text
    assert "const char *colour; /* colour:" in text


def test_parts_without_code_are_refused_by_name(tmp_path: Path) -> None:
    rows = [{**each, "day": f"2024-03-{1 + n % 28:02}"} for n, each in enumerate(_rows(60))]
    model = _model(rows)
    with pytest.raises(ConfigError, match="column 'day': expected numbers and categories, got the"):
        cd.export.c(model, tmp_path, name="wing")
    cd.export.c(model, tmp_path, name="wing", preprocessing=False, build=False)
    assert "wing_encode" not in (tmp_path / "wing.h").read_text()
