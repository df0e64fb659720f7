"""Compiling kernels and keeping the machine code on disk.

A kernel is named by the function that builds it and its parameters. The object file is kept under
a key made of that name, the source it is built by, the compiler and the processor, so a change of
any of them compiles anew, and a second process loads in a millisecond what the first one compiled.
"""

from __future__ import annotations

import hashlib
import re
import sys
import threading
from collections.abc import Callable
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import llvmlite
from llvmlite import binding as llvm

from caldera.file_cache import FileCache
from caldera.kernels.native.codegen.emitter import Emitter, kernel_module
from caldera.kernels.native.codegen.target import host_target, target_machine
from caldera.memory.heap import note_garbage

_addresses: dict[str, int] = {}
_lock = threading.Lock()
_OBJECTS = FileCache("native")


def compiled(build: Callable[..., None], **parameters: Any) -> int:
    """The address of the kernel that `build(k, **parameters)` writes.

    Parameters must be plain values whose `repr` says all there is to know about them (a longer
    description, such as a fused body, is passed as text and read again by `build`).

    >>> from caldera.kernels.native.codegen.compiler import compiled
    >>> from caldera.kernels.native.codegen.emitter import F32, POINTER, Pointer
    >>> def double(k, factor):
    ...     x = Pointer(k, k.argument(0, POINTER), F32)
    ...     x.store(0, x.load(0) * factor)
    >>> compiled(double, factor=2.0) == compiled(double, factor=2.0)
    True
    """
    described = ", ".join(f"{name}={parameters[name]!r}" for name in sorted(parameters))
    name = f"{build.__module__}.{build.__qualname__}({described})"
    known = _addresses.get(name)
    if known is not None:
        return known
    with _lock:
        if name not in _addresses:
            _addresses[name] = _load_or_compile(name, build, parameters)
        return _addresses[name]


def _load_or_compile(name: str, build: Callable[..., None], parameters: dict[str, Any]) -> int:
    made_of = f"{_toolchain()}\n{_sources(build.__module__)}\n{name}"
    key = hashlib.blake2b(made_of.encode(), digest_size=20).hexdigest()
    symbol = f"caldera_{key}"
    code = _OBJECTS.get(key, lambda: _compile(symbol, lambda k: build(k, **parameters)))
    return _address(code, symbol)


@lru_cache(maxsize=1)
def _toolchain() -> str:
    """The compiler and the processor."""
    here = host_target()
    compiler = f"{llvmlite.__version__} {llvm.llvm_version_info}"
    return f"{compiler} {here}"


@cache
def _sources(module: str) -> str:
    """A digest of the source of a module and of all kernels' modules it imports, in turn."""
    found: dict[str, bytes] = {}
    pending = [module]
    while pending:
        name = pending.pop()
        if name not in found:
            found[name], imported = _source(name)
            pending += imported
    digest = hashlib.blake2b(digest_size=20)
    for name in sorted(found):
        digest.update(found[name])
    return digest.hexdigest()


_IMPORT = re.compile(
    r"^from (caldera\.kernels\.(?:native|common)[\w.]*) import (\([^)]*\)|[^\n]*)", re.MULTILINE
)


@cache
def _source(module: str) -> tuple[bytes, list[str]]:
    """The source of a module, and the kernels' modules that it imports."""
    file = getattr(sys.modules.get(module), "__file__", None)
    source = b"" if file is None else Path(file).read_bytes()
    imported: list[str] = []
    for line in _IMPORT.finditer(source.decode()):
        package, names = line.group(1), line.group(2)
        inside = [f"{package}.{each}" for each in re.findall(r"\w+", names)]
        imported += [package, *(each for each in inside if each in sys.modules)]
    return source, imported


def _compile(symbol: str, build: Callable[[Emitter], None]) -> bytes:
    note_garbage()
    module = llvm.parse_assembly(str(kernel_module(symbol, build)))
    module.verify()
    _optimise(module)
    return bytes(target_machine().emit_object(module))


def _optimise(module: Any) -> None:
    """Simplify the code, and move out of loops what stays the same in them.

    Kernels say themselves what is a vector and how often a loop is unrolled: LLVM's own guesses
    make no kernel faster, and take longer than all the rest. Nor do the passes over whole modules,
    so they are for kernels of several functions alone, which have something to inline.
    """
    functions = [each for each in module.functions if not each.is_declaration]
    options = llvm.create_pipeline_tuning_options(speed_level=1 if len(functions) == 1 else 2)
    options.loop_vectorization = False
    options.slp_vectorization = False
    options.loop_unrolling = False
    passes = llvm.create_pass_builder(target_machine(), options)
    if len(functions) == 1:
        passes.getFunctionPassManager().run(functions[0], passes)
    else:
        passes.getModulePassManager().run(module, passes)


def _address(code: bytes, symbol: str) -> int:
    engine = _engine()
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return int(engine.get_function_address(symbol))


@cache
def _engine() -> Any:
    """What loads kernels, and owns the memory of their code. One for all of them: it begins with a
    module, and to compile even an empty one takes twenty times as long as to load a kernel."""
    empty = llvm.parse_assembly("")
    empty.triple = host_target().triple
    return llvm.create_mcjit_compiler(empty, target_machine())
