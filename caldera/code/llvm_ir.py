"""LLVM IR of C files, compiled by the installed clang and parsed into statements."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from os import PathLike, fspath
from pathlib import Path

from llvmlite import binding as llvm

from caldera.base.arguments import require
from caldera.base.children import run_program
from caldera.code.vocabulary import LOCAL_NAME, normalised, structures_of
from caldera.errors import DataError

MOST_SECONDS = 1e6


@lru_cache
def find_clang() -> str:
    """Return the newest clang on the path: `clang` itself, or the `clang-N` with the largest N."""
    known = [shutil.which("clang"), *(shutil.which(f"clang-{n}") for n in range(30, 14, -1))]
    versions = {path: _version(path) for path in known if path is not None}
    require(
        versions,
        "code.compile_c",
        "clang 15 or newer",
        "none on the path",
        hint="install it, for example with: apt install clang-19",
    )
    return max(versions, key=versions.__getitem__)


def _version(path: str) -> int:
    done = run_program(path, "--version", seconds=MOST_SECONDS)
    found = re.search(rb"version (\d+)", b"" if done is None else done.stdout)
    return int(found.group(1)) if found else 0


def compile_c(
    source: str | PathLike[str], flags: Sequence[str] = ("-O1",), seconds: float = 60.0
) -> str:
    """Compile a C file to LLVM IR text.

    Flags are clang's, such as `-I` for folders of headers and `-O0` to `-O3`. Only the compiler is
    run, not the program.

    >>> from caldera import code
    >>> text = code.compile_c("sum.c", ["-O2", "-I", "include"])  # doctest: +SKIP
    """
    require(
        0 < seconds <= MOST_SECONDS,
        "code.compile_c",
        f"seconds= above 0, at most {MOST_SECONDS}",
        repr(seconds),
    )
    command = [find_clang(), "-S", "-emit-llvm", "-w", "-o", "-", *flags, fspath(source)]
    done = run_program(*command, seconds=seconds)
    if done is None:
        raise DataError.build(
            "code.compile_c",
            expected=f"clang to be done in {seconds} s",
            got=str(source),
            hint="give it more seconds=, or leave the file out",
        )
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        first = next((line for line in said if "error: " in line), "clang printed no message")
        raise DataError.build(
            "code.compile_c",
            expected="a C file that clang compiles",
            got=first,
            hint="headers are found with flags=['-I', folder]",
        )
    return done.stdout.decode(errors="replace")


_DEFINITION = re.compile(
    r'^define [^@\n]*@("[^"]*"|[-\w$.]+)\([^\n]*\{\n(.*?)^\}', re.MULTILINE | re.DOTALL
)
_LABEL = re.compile(r'^("[^"]*"|[-\w$.]+):')
_WRITTEN = re.compile(r'(%(?:"[^"]*"|[-\w$.]+)) = ')
_JUMP = re.compile(r"label %(\"[^\"]*\"|[-\w$.]+)")
_INCOMING = re.compile(r"\[ (%[^ ,]+),")
_CALLEE = re.compile(r'\b(?:call|invoke)\b[^@"]*@("[^"]*"|[-\w$.]+)\(')


@dataclass(frozen=True)
class Statement:
    """One statement of a function: as a word, and the names it has to do with.

    >>> from caldera import code
    >>> text = "define i32 @f(i32 %x) {\\n  %y = add i32 %x, 1\\n  ret i32 %y\\n}"
    >>> [function] = code.read_ir(text)
    >>> function.statements[0].writes, function.statements[0].reads
    ('%y', ('%x',))
    """

    word: str
    block: str
    writes: str | None
    reads: tuple[str, ...]
    jumps: tuple[str, ...] = ()
    calls: str | None = None

    @property
    def is_return(self) -> bool:
        """True if the function ends here."""
        return self.word.startswith("ret")


@dataclass(frozen=True)
class Function:
    """A function that a module defines.

    >>> from caldera import code
    >>> [function] = code.read_ir("define void @nothing() {\\n  ret void\\n}")
    >>> function.name, function.words
    ('nothing', ['ret void'])
    """

    name: str
    statements: tuple[Statement, ...]

    @property
    def words(self) -> list[str]:
        """Texts of the statements, in order."""
        return [statement.word for statement in self.statements]


def read_ir(source: str | PathLike[str]) -> list[Function]:
    """Return the functions that an LLVM IR module defines, from its text or its file (.ll).

    LLVM parses the text first, and reports its errors.

    >>> text = "define i32 @twice(i32 %x) {\\n  %y = add i32 %x, %x\\n  ret i32 %y\\n}"
    >>> [function] = read_ir(text)
    >>> function.name, function.words
    ('twice', ['<%ID> = add i32 <%ID>, <%ID>', 'ret i32 <%ID>'])
    """
    text = source if isinstance(source, str) and "\n" in source else _read(Path(source))
    try:
        # A new context: a shared one appends numbers to repeated structure names.
        printed = str(llvm.parse_assembly(text, llvm.create_context()))
    except (RuntimeError, UnicodeError) as error:
        raise DataError.build(
            "code.read_ir",
            expected="LLVM IR in the form of text",
            got=str(error).strip(),
            hint="code.compile_c makes it from C; another LLVM's may differ: "
            f"this one is {'.'.join(map(str, llvm.llvm_version_info))}",
        ) from error
    structures = structures_of(printed)
    return [
        Function(name.strip('"'), tuple(_statements(body, structures)))
        for name, body in _DEFINITION.findall(printed)
    ]


def checked_functions(where: str, given: object) -> list[Function]:
    """Return the functions, or raise an error for other objects than results of `read_ir`."""
    found = []
    for each in given if isinstance(given, list | tuple) else [given]:
        if not isinstance(each, Function):
            raise DataError.build(
                where,
                expected="modules: lists of functions, as returned by code.read_ir",
                got=f"a {type(each).__name__}",
            )
        found.append(each)
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise DataError.build(
            "code.read_ir",
            expected="a file of LLVM IR (.ll), or its text",
            got=str(error),
            hint="code.compile_c makes one from C",
        ) from error


def _statements(body: str, structures: dict[str, str]) -> Iterator[Statement]:
    block = ""
    for line in _whole_lines(body):
        label = _LABEL.match(line)
        if label is not None:
            block = label.group(1)
        elif line and not line.startswith(";"):
            yield _statement(line, block, structures)


def _whole_lines(body: str) -> Iterator[str]:
    """Yield the statements of a body, with more deeply indented continuation lines joined."""
    pending = ""
    for line in body.split("\n"):
        text = line.strip()
        if text.startswith("#dbg_"):
            continue
        if pending and (line.startswith("   ") or text.startswith("]")):
            pending = f"{pending} {text}"
            continue
        yield pending
        pending = text
    yield pending


def _statement(line: str, block: str, structures: dict[str, str]) -> Statement:
    text = line.split(", !")[0]
    written = _WRITTEN.match(text)
    rest = text if written is None else text[written.end() :]
    jumps = tuple(_JUMP.findall(text)) if "label %" in text else ()
    if rest.startswith("phi "):
        # Each value is followed by its source block.
        reads = _INCOMING.findall(rest)
    else:
        given = [f"%{name}" for name in LOCAL_NAME.findall(rest)]
        reads = [name for name in given if name not in structures and name[1:] not in jumps]
    callee = _CALLEE.search(text) if "@" in text else None
    return Statement(
        word=normalised(line, structures),
        block=block,
        writes=None if written is None else written.group(1),
        reads=tuple(dict.fromkeys(reads)),
        jumps=jumps,
        calls=None if callee is None else callee.group(1).strip('"'),
    )
