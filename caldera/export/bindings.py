"""The interface of a library in C++ and Fortran."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from importlib.resources import files
from textwrap import indent

from caldera.export.interface import ERRORS, Argument, ExportedFunction, LibraryInterface

FORTRAN_TYPES = {
    "float32": "real(c_float)",
    "float64": "real(c_double)",
    "int8": "integer(c_int8_t)",
    "int16": "integer(c_int16_t)",
    "int32": "integer(c_int32_t)",
    "int64": "integer(c_int64_t)",
    "uint8": "integer(c_int8_t)",
    "bool": "logical(c_bool)",
}
"""Fortran's types for the dtypes of arguments; it has no unsigned integers."""


def template(file: str, library: str, **marks: str) -> str:
    """Return a file of `runtime` for a library, with text for marks such as @CODES@."""
    text = (files("caldera.export") / "runtime" / file).read_text().replace("MODEL", library)
    for mark, said in marks.items():
        text = re.sub(f"(?:(?://|!) )?@{mark}@", said.replace("\\", r"\\"), text)
    return text


def cpp_header(interface: LibraryInterface, more: str) -> str:
    """Return a header with a class for C++11: exceptions, and vectors besides pointers.

    `more` are further members of the class.
    """
    functions = "\n".join(
        [*(_cpp_function(each, interface.name) for each in interface.functions), more]
    )
    marks = {"FUNCTIONS": indent(functions, "    "), "GUARD": f"{interface.name.upper()}_HPP"}
    return template("MODEL.hpp", interface.name, **marks)


def _cpp_function(function: ExportedFunction, library: str) -> str:
    pointers = [
        f"{'' if each.is_output else 'const '}{each.c_type} *{each.name}"
        for each in function.arguments
    ]
    names = ", ".join(each.name for each in function.arguments)
    text = (
        f"// {function.comment().replace(chr(10), chr(10) + '//')}\n"
        f"void {function.name}({', '.join(['std::int64_t rows', *pointers])}) {{\n"
        f"    check({library}_{function.name}(handle_, rows, {names}));\n}}\n"
    )
    outputs = [each for each in function.arguments if each.is_output]
    if len(outputs) != 1:
        return text
    (result,) = outputs
    inputs = [each for each in function.arguments if not each.is_output]
    vectors = ", ".join(f"const std::vector<{each.c_type}> &{each.name}" for each in inputs)
    checks = "".join(f"    check_size({each.name}, rows, {each.size});\n" for each in inputs)
    first = inputs[0]
    made = f"{result.c_type} {result.name}", f"&{result.name}"
    returned = result.c_type
    if result.has_rows:
        returned = f"std::vector<{result.c_type}>"
        size = f"static_cast<std::size_t>(rows) * {result.size}"
        made = f"{returned} {result.name}({size})", f"{result.name}.data()"
    given = ", ".join([*(f"{each.name}.data()" for each in inputs), made[1]])
    return text + (
        f"{returned} {function.name}({vectors}) {{\n"
        f"    const std::int64_t rows = static_cast<std::int64_t>({first.name}.size() / "
        f"{first.size});\n{checks}"
        f"    {made[0]};\n"
        f"    {function.name}(rows, {given});\n    return {result.name};\n}}\n"
    )


def fortran_module(interface: LibraryInterface, more: Mapping[str, str]) -> str:
    """Return a Fortran module with a type for handles; arrays are (features, n).

    `more` has further types, bound procedures, interfaces and bodies by the marks of their places.
    """
    name, functions = interface.name, interface.functions
    codes = [
        f"  integer, parameter, public :: {name}_{code.lower()} = {value}"
        for code, (value, _) in ERRORS.items()
    ]
    return template(
        "MODEL.f90",
        name,
        CODES="\n".join(codes),
        TYPES=more["TYPES"],
        BOUND="\n".join(
            [
                *(f"    procedure :: {each.name} => do_{each.name}" for each in functions),
                more["BOUND"],
            ]
        ),
        DECLARED="\n".join(
            [*(_fortran_interface(each, name) for each in functions), more["DECLARED"]]
        ),
        BODIES="\n".join([*(_fortran_procedure(each, name) for each in functions), more["BODIES"]]),
    )


def _fortran_interface(function: ExportedFunction, library: str) -> str:
    names = [each.name for each in function.arguments]
    arrays = "\n".join(
        f"      {FORTRAN_TYPES[each.dtype]}, intent({_intent(each)}) :: {each.name}"
        f"{'(*)' if each.has_rows else ''}"
        for each in function.arguments
    )
    kinds = sorted({kind_of(each) for each in function.arguments})
    imported = ", ".join(dict.fromkeys(["c_int", "c_int64_t", "c_ptr", *kinds]))
    return f"""\
    function c_{function.name}({_wrapped(["model", "rows", *names])}) &
        bind(c, name="{library}_{function.name}") result(code)
      import :: {imported}
      type(c_ptr), value :: model
      integer(c_int64_t), value :: rows
{arrays}
      integer(c_int) :: code
    end function
"""


def _fortran_procedure(function: ExportedFunction, library: str) -> str:
    names = [each.name for each in function.arguments]
    arrays = "\n".join(map(_fortran_argument, function.arguments))
    first = function.arguments[0]
    checks = "\n".join(
        f"    if (any(shape({each.name}) /= [{', '.join([*map(str, each.shape[::-1]), 'rows'])}])) "
        f"code = {library}_rows"
        for each in function.arguments
        if each.has_rows
    )
    about = function.about.replace("\n", "\n  ! ")
    return f"""\
  ! {about}
  subroutine do_{function.name}({_wrapped(["self", *names, "status"])})
    class({library}_model), intent(in) :: self
{arrays}
    integer, intent(out), optional :: status
    integer :: code, rows

    rows = size({first.name}, {1 + len(first.shape)})
    code = {library}_ok
{checks}
    if (code == {library}_ok) &
      code = int(c_{function.name}({_wrapped(["self%handle", "int(rows, c_int64_t)", *names])}))
    call finish(self, code, "{function.name}", status)
  end subroutine
"""


def kind_of(argument: Argument) -> str:
    """Return the kind parameter of an argument's type, such as c_float."""
    return FORTRAN_TYPES[argument.dtype].split("(")[1][:-1]


def _fortran_argument(argument: Argument) -> str:
    """Return the declaration of an argument of a Fortran procedure."""
    kind, axes = (
        f"    {FORTRAN_TYPES[argument.dtype]}",
        ", ".join([":"] * (1 + len(argument.shape))),
    )
    if not argument.has_rows:
        return f"{kind}, intent({_intent(argument)}) :: {argument.name}"
    return f"{kind}, contiguous, intent({_intent(argument)}) :: {argument.name}({axes})"


def _intent(argument: Argument) -> str:
    return "out" if argument.is_output else "in"


def _wrapped(names: Iterable[str]) -> str:
    """Return names with commas, of which a line of Fortran has at most six."""
    names = list(names)
    lines = [", ".join(names[i : i + 6]) for i in range(0, len(names), 6)]
    return ", &\n        ".join(lines)
