"""The interface of a library: its functions, their arguments, and the C header."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
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
    "FILE": (6, "a file that cannot be read or written, or has other weights"),
}
"""Error codes with their meaning."""
KEYWORDS = (
    "alignas|alignof|and|asm|auto|bitand|bitor|bool|break|case|catch|char|class|compl|concept|const"
    "|consteval|constexpr|constinit|continue|decltype|default|delete|do|double|else|enum|explicit"
    "|export|extern|false|float|for|friend|goto|if|inline|int|long|mutable|namespace|new|noexcept"
    "|not|nullptr|operator|or|private|protected|public|register|requires|return|short|signed|sizeof"
    "|static|struct|switch|template|this|throw|true|try|typedef|typeid|typename|union|unsigned"
    "|using|virtual|void|volatile|while|xor|(and|not|or|xor)_eq|(co|static|const|dynamic)_\\w+"
    "|reinterpret_cast|thread_local|(wchar|char8|char16|char32)_t"
)
"""Words of C++, which cannot be the name of its namespace."""
HEADERS = (
    "assert|complex|ctype|errno|fenv|float|inttypes|limits|locale|math|pthread|sched|setjmp|signal"
    "|stdalign|stdarg|stdatomic|stdbool|stddef|stdint|stdio|stdlib|string|tgmath|threads|time"
    "|uchar|wchar|wctype"
)
"""Names of system headers, which a header of the same name next to a program would hide."""


@dataclass(frozen=True)
class Argument:
    """An array that a function reads or writes: `shape` values for each row, or one number."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    is_output: bool = False
    has_rows: bool = True

    @property
    def c_type(self) -> str:
        """The name of the dtype in C and C++."""
        return C_TYPES[self.dtype]

    @property
    def size(self) -> int:
        """Number of values for each row, at least 1."""
        return max(1, prod(self.shape))

    @classmethod
    def of(cls, name: str, spec: Spec, *, is_output: bool = False) -> Argument:
        """Return the argument for a value of a plan."""
        dtype = canonical(spec.dtype).name
        known = ", ".join(C_TYPES)
        require(dtype in C_TYPES, f"export of {name}", f"one of the dtypes {known}", dtype)
        return cls(name, dtype, spec.shape[1:], is_output, spec.rank > 0)


@dataclass(frozen=True)
class ExportedFunction:
    """A function of a library that computes arrays of rows."""

    name: str
    about: str
    arguments: tuple[Argument, ...]

    def prototype(self, library: str) -> str:
        """Return the declaration in C, without a semicolon."""
        given = [f"{'' if a.is_output else 'const '}{a.c_type} *{a.name}" for a in self.arguments]
        arguments = ", ".join([f"{library}_model *model", "int64_t rows", *given])
        return f"int {library}_{self.name}({arguments})"

    def comment(self) -> str:
        """Return a description with the shape of each array."""
        said = [
            f"{a.name}[{']['.join(map(str, ('rows', *a.shape))) if a.has_rows else 1}]"
            for a in self.arguments
        ]
        return f"{self.about}\n   {', '.join(said)}"


@dataclass(frozen=True)
class LibraryInterface:
    """The prefix of a library's functions, and its functions of arrays."""

    name: str
    functions: tuple[ExportedFunction, ...]
    declared: Sequence[tuple[str, str]] = ()
    """Comments and declarations of other functions."""

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
        for about, each in self._declared():
            api = "" if each.startswith("typedef") else f"{upper}_API "
            parts.append(f"/* {about} */\n{api}{each};\n")
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
        yield (
            "Write the weights to a safetensors file, for `load_weights` of Caldera.",
            f"int {name}_store({handle}, const char *path)",
        )
        yield (
            "Read the weights of this network from a .caldera or safetensors file.",
            f"int {name}_load({handle}, const char *path)",
        )
        for each in self.functions:
            yield each.comment(), each.prototype(name)
        yield from self.declared

    def body(self) -> str:
        """Return the C source of the functions."""
        bodies = []
        for number, each in enumerate(self.functions):
            ports = ", ".join(f"(void *){a.name}" for a in each.arguments)
            bodies.append(
                f"{each.prototype(self.name)} {{\n    void *ports[] = {{{ports}}};\n"
                f"    return run(model, {number}, rows, ports);\n}}\n"
            )
        return "\n".join(bodies)


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
    for expected, taken in (
        ("a name that no header of C has", HEADERS),
        ("a name that is no word of C++", KEYWORDS),
    ):
        require(not re.fullmatch(taken, name), where, expected, repr(name), hint)
    return name
