"""The interface of a library in C: declarations, bodies of functions, and an example program."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from caldera.base.arguments import require
from caldera.core.graph import Spec
from caldera.core.tensor.dtype import canonical

C_TYPES = {
    "float32": "float",
    "float64": "double",
    "int8": "int8_t",
    "int16": "int16_t",
    "int32": "int32_t",
    "int64": "int64_t",
    "uint8": "uint8_t",
    "bool": "uint8_t",
}
"""C's name of the dtypes that an argument may have."""
ERRORS = {
    "OK": (0, "success"),
    "NULL": (1, "a handle or an argument is a null pointer"),
    "MEMORY": (2, "not enough memory"),
    "CPU": (3, "the library has no code for this processor"),
    "ROWS": (4, "a number of rows that the function does not accept"),
    "VALUE": (5, "a value that the network refuses"),
}
"""Error codes with their meaning."""
ROWS = 3
"""Samples that the example computes."""

HEADERS = (
    "assert|complex|ctype|errno|fenv|float|inttypes|limits|locale|math|pthread|sched|setjmp|signal"
    "|stdalign|stdarg|stdatomic|stdbool|stddef|stdint|stdio|stdlib|string|tgmath|threads|time"
    "|uchar|wchar|wctype"
)
"""Names of system headers, which a header of the same name next to a program would hide."""


@dataclass(frozen=True)
class Argument:
    """An array that a function reads or writes: `shape` values for each row."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    is_output: bool = False

    @classmethod
    def of(cls, name: str, spec: Spec, *, is_output: bool = False) -> Argument:
        """The argument for a value of a plan."""
        dtype = canonical(spec.dtype).name
        known = ", ".join(C_TYPES)
        require(dtype in C_TYPES, f"export of {name}", f"one of the dtypes {known}", dtype)
        return cls(name, dtype, spec.shape[1:], is_output)


@dataclass(frozen=True)
class LibraryInterface:
    """The prefix of a library's functions, and the arrays that its `predict` reads and writes."""

    name: str
    arguments: tuple[Argument, ...]

    def header(self) -> str:
        """Return the C header."""
        upper = self.name.upper()
        codes = [
            f"    {self.name}_{code} = {value}, /* {said} */"
            for code, (value, said) in ERRORS.items()
        ]
        parts = [
            f"/* {self.name}: a network trained with Caldera, as a library without Python.\n\n"
            "   Arrays are dense and row-major, samples in order; Fortran's (features, n).\n"
            "   A handle is used by one thread at a time; every thread may have its own. */",
            f"#ifndef {upper}_H\n#define {upper}_H\n\n#include <stdint.h>\n",
            '#ifdef __cplusplus\nextern "C" {\n#endif\n',
            f"#if defined(__GNUC__)\n#define {upper}_API "
            f'__attribute__((visibility("default")))\n#else\n#define {upper}_API\n#endif\n',
            "enum {\n" + "\n".join(codes) + "\n};\n",
            f"typedef struct {self.name}_model {self.name}_model;\n",
        ]
        parts += [f"/* {about} */\n{upper}_API {each};\n" for about, each in self._declared()]
        parts += ["#ifdef __cplusplus\n}\n#endif\n", "#endif"]
        return "\n".join(parts) + "\n"

    def _declared(self) -> Iterator[tuple[str, str]]:
        name = self.name
        handle = f"{name}_model *model"
        yield (
            "Create a handle with the weights of the trained model.",
            (f"int {name}_create({name}_model **model)"),
        )
        yield "Free a handle and its memory.", f"void {name}_destroy({handle})"
        yield "Explain the last error of a handle.", (f"const char *{name}_message(const {handle})")
        yield (
            "Name the processor whose code a handle runs.",
            (f"const char *{name}_target(const {handle})"),
        )
        said = [
            f"{each.name}[{']['.join(map(str, ('rows', *each.shape)))}]" for each in self.arguments
        ]
        about = f"Compute the outputs of any number of rows.\n   {', '.join(said)}"
        yield about, self._prototype()

    def _prototype(self) -> str:
        given = [_declaration(each) for each in self.arguments]
        arguments = ", ".join([f"{self.name}_model *model", "int64_t rows", *given])
        return f"int {self.name}_predict({arguments})"

    def body(self) -> str:
        """Return the C source of `predict`."""
        ports = ", ".join(f"(void *){each.name}" for each in self.arguments)
        return (
            f"{self._prototype()} {{\n    void *ports[] = {{{ports}}};\n"
            f"    return run(model, rows, ports, {len(self.arguments)});\n}}\n"
        )

    def example(self) -> str:
        """Return a C program that predicts for samples of ones and prints the first outputs."""
        name = self.name
        sizes = {each.name: max(1, prod(each.shape)) for each in self.arguments}
        arrays = "\n".join(
            f"static {C_TYPES[each.dtype]} {each.name}[{ROWS} * {sizes[each.name]}];"
            for each in self.arguments
        )
        fill = "\n".join(
            f"    for (int i = 0; i < {ROWS} * {sizes[each.name]}; i++) {each.name}[i] = 1;"
            for each in self.arguments
            if not each.is_output
        )
        given = ", ".join(each.name for each in self.arguments)
        return f"""\
#include <stdio.h>
#include "{name}.h"

{arrays}

int main(void) {{
    {name}_model *model;
    int code = {name}_create(&model);
    if (code != {name}_OK) return fprintf(stderr, "error %d\\n", code), 1;
{fill}
    code = {name}_predict(model, {ROWS}, {given});
    if (code != {name}_OK) fprintf(stderr, "error %d: %s\\n", code, {name}_message(model));
    for (int row = 0; row < {ROWS}; row++) printf("%.9g\\n", (double)y[row * {sizes["y"]}]);
    {name}_destroy(model);
    return code;
}}
"""


def _declaration(argument: Argument) -> str:
    const = "" if argument.is_output else "const "
    return f"{const}{C_TYPES[argument.dtype]} *{argument.name}"


def checked_name(name: str) -> str:
    """Return the name if C, C++ and Fortran accept it as a prefix of functions."""
    where, hint = "export", "choose another with name="
    require(
        re.fullmatch(r"[a-z][a-z0-9_]{0,30}", name),
        where,
        "a name of lower-case letters, digits and underscores, which starts with a letter",
        repr(name),
        hint,
    )
    require(
        not re.fullmatch(HEADERS, name), where, "a name that no header of C has", repr(name), hint
    )
    return name
