"""Example programs in C, C++ and Fortran: each predicts for samples of ones."""

from __future__ import annotations

from caldera.export.bindings import FORTRAN_TYPES, kind_of
from caldera.export.interface import Argument, LibraryInterface

ROWS = 3
"""Samples that an example computes."""


def c_example(interface: LibraryInterface) -> str:
    """Return a C program that prints the first output of each sample."""
    name, given = interface.name, interface.functions[0].arguments
    arrays = "\n".join(f"static {a.c_type} {a.name}[{ROWS} * {a.size}];" for a in given)
    fill = "\n".join(
        f"    for (int i = 0; i < {ROWS} * {a.size}; i++) {a.name}[i] = 1;"
        for a in given
        if not a.is_output
    )
    y = given[-1]
    return f"""\
#include <stdio.h>
#include "{name}.h"

{arrays}

int main(void) {{
    {name}_model *model;
    int code = {name}_create(&model);
    if (code != {name}_OK) return fprintf(stderr, "error %d\\n", code), 1;
{fill}
    code = {name}_predict(model, {ROWS}, {", ".join(a.name for a in given)});
    if (code != {name}_OK) fprintf(stderr, "error %d: %s\\n", code, {name}_message(model));
    for (int row = 0; row < {ROWS}; row++) printf("%.9g\\n", (double){y.name}[row * {y.size}]);
    {name}_destroy(model);
    return code;
}}
"""


def cpp_example(interface: LibraryInterface) -> str:
    """Return the same program in C++."""
    name, (*inputs, y) = interface.name, interface.functions[0].arguments
    arrays = "\n".join(
        f"        std::vector<{a.c_type}> {a.name}({ROWS} * {a.size}, 1);" for a in inputs
    )
    return f"""\
#include <exception>
#include <iostream>
#include <vector>

#include "{name}.hpp"

int main() {{
    try {{
        caldera::{name}::Model model;
{arrays}
        std::vector<{y.c_type}> {y.name} = model.predict({", ".join(a.name for a in inputs)});
        std::cout.precision(9);
        for (std::size_t row = 0; row < {ROWS}; row++)
            std::cout << static_cast<double>({y.name}[row * {y.size}]) << "\\n";
    }} catch (const std::exception &error) {{
        std::cerr << error.what() << "\\n";
        return 1;
    }}
}}
"""


def fortran_example(interface: LibraryInterface) -> str:
    """Return the same program in Fortran."""
    name, given = interface.name, interface.functions[0].arguments
    y = given[-1]
    arrays = "\n".join(
        f"  {FORTRAN_TYPES[a.dtype]} :: {a.name}({', '.join(map(str, (*a.shape[::-1], ROWS)))})"
        for a in given
    )
    fill = "\n".join(f"  {a.name} = {_one(a)}" for a in given if not a.is_output)
    first = ", ".join([*["1"] * len(y.shape), "row"])
    return f"""\
program example
  use, intrinsic :: iso_c_binding
  use {name}
  implicit none
  type({name}_model) :: model
{arrays}
  integer :: row

  call model%create()
{fill}
  call model%predict({", ".join(a.name for a in given)})
  do row = 1, {ROWS}
    print '(g0)', {f"merge(1, 0, {y.name}({first}))" if y.dtype == "bool" else f"{y.name}({first})"}
  end do
  call model%destroy()
end program
"""


def _one(argument: Argument) -> str:
    if argument.dtype == "bool":
        return ".true._c_bool"
    return f"1_{kind_of(argument)}" if "int" in argument.dtype else "1"
