"""The interface of a library: its functions, and their declarations and bodies in C."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

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
    "VALUE": (5, "a value that the network refuses, or a loss that is not finite"),
    "FILE": (6, "a file that cannot be read or written, or does not fit"),
}
"""Error codes with their meaning."""


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
class LibraryFunction:
    """A function of a library that computes rows of its outputs from rows of its inputs."""

    name: str
    about: str
    arguments: tuple[Argument, ...]


@dataclass(frozen=True)
class LibraryInterface:
    """All that a caller of a library has to know."""

    name: str
    functions: tuple[LibraryFunction, ...]

    def function(self, name: str) -> LibraryFunction:
        """Return a function by its name."""
        return next(each for each in self.functions if each.name == name)

    def header(self) -> str:
        """Return the C header."""
        upper = self.name.upper()
        codes = [
            f"    {self.name}_{code} = {value}, /* {said} */" for code, (value, said) in _CODES
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
        for each in self.functions:
            yield f"{each.about}{_shapes(each)}", self._prototype(each)

    def _prototype(self, function: LibraryFunction) -> str:
        given = [_declaration(each) for each in function.arguments]
        arguments = ", ".join([f"{self.name}_model *model", "int64_t rows", *given])
        return f"int {self.name}_{function.name}({arguments})"

    def bodies(self) -> str:
        """Return the C source of the functions."""
        parts = []
        for each in self.functions:
            ports = ", ".join(f"(void *){argument.name}" for argument in each.arguments)
            count = len(each.arguments)
            parts.append(
                f"{self._prototype(each)} {{\n    void *ports[] = {{{ports}}};\n"
                f"    return run(model, {each.name.upper()}, rows, ports, {count});\n}}\n"
            )
        return "\n".join(parts)


_CODES = ERRORS.items()


def _declaration(argument: Argument) -> str:
    const = "" if argument.is_output else "const "
    return f"{const}{C_TYPES[argument.dtype]} *{argument.name}"


def _shapes(function: LibraryFunction) -> str:
    """Return the shapes of arguments in words."""
    said = [
        f"{each.name}[{']['.join(map(str, ('rows', *each.shape)))}]" for each in function.arguments
    ]
    return "\n   " + ", ".join(said)


def checked_name(name: str) -> str:
    """Return the name if C, C++ and Fortran accept it as a prefix of functions."""
    require(
        re.fullmatch(r"[a-z][a-z0-9_]{0,30}", name),
        "export",
        "a name of lower-case letters, digits and underscores, which starts with a letter",
        repr(name),
        "choose one with name=",
    )
    return name
