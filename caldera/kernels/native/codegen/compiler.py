"""Compile kernels and cache the machine code on disk.

The name of a kernel consists of the function that builds it and its parameters. The key of the
cached object file contains that name, the source code of the kernel, the compiler and the
processor. A change to any of these triggers a new compilation. A second process loads a cached
kernel within a millisecond.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import cache, partial
from importlib.util import resolve_name
from pathlib import Path
from typing import Any

import llvmlite
from llvmlite import binding as llvm
from llvmlite.binding import ffi

from caldera.base.file_cache import FileCache
from caldera.core.memory.host import note_garbage
from caldera.kernels.native.codegen.dtypes import has_conversion
from caldera.kernels.native.codegen.emitter import Emitter, kernel_module
from caldera.kernels.native.codegen.target import host_target, is_foreign, target_machine


class CodeAddress(int):
    """The address of a kernel, with the function and the parameters that it was compiled from."""

    name: str
    build: Callable[..., None]
    parameters: dict[str, Any]

    @classmethod
    def of(
        cls, address: int, name: str, build: Callable[..., None], parameters: dict[str, Any]
    ) -> CodeAddress:
        """Return an address that can be compiled again, for another program."""
        made = cls(address)
        made.name, made.build, made.parameters = name, build, parameters
        return made


_addresses: dict[str, Future[CodeAddress]] = {}
_NOWHERE = 1 << 20
"""The address of code for another processor."""
_lock = threading.Lock()
_OBJECTS = FileCache("native")


def compiled(build: Callable[..., None], **parameters: Any) -> CodeAddress:
    """Return the address of the kernel that `build(k, **parameters)` writes.

    Parameters must be plain values fully described by their `repr`. A longer description, such as a
    fused body, is passed as text and parsed by `build`.

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
    if is_foreign():
        # Never called here: a kernel is compiled again, to an object file.
        return CodeAddress.of(_NOWHERE, name, build, parameters)
    made: Future[CodeAddress] = Future()
    found = _addresses.setdefault(name, made)
    if found is made:
        # Other threads that need this kernel wait for it; they can compile other kernels.
        try:
            address = _load_or_compile(name, build, parameters)
        except BaseException as error:
            del _addresses[name]
            made.set_exception(error)
        else:
            made.set_result(CodeAddress.of(address, name, build, parameters))
    return found.result()


def _load_or_compile(name: str, build: Callable[..., None], parameters: dict[str, Any]) -> int:
    made_of = f"{_toolchain()}\n{_sources(build.__module__)}\n{name}"
    key = hashlib.blake2b(made_of.encode(), digest_size=20).hexdigest()
    symbol = f"caldera_{key}"
    code = _OBJECTS.get(key, lambda: _compile(symbol, lambda k: build(k, **parameters)))
    with _lock:
        return _address(code, symbol)


def _toolchain() -> str:
    """Return the compiler and the processor."""
    here = host_target()
    compiler = f"{llvmlite.__version__} {llvm.llvm_version_info}"
    return f"{compiler} {here}"


@cache
def _sources(module: str) -> str:
    """Return a digest of the sources that define a kernel: its module and the imported builders."""
    digest = hashlib.blake2b(digest_size=20)
    for _, source in sorted(builder_sources(module).items()):
        digest.update(source)
    return digest.hexdigest()


def builder_sources(module: str) -> dict[str, bytes]:
    """Return the source of a module and of every builder module it imports, directly or not."""
    found: dict[str, bytes] = {}
    pending = [module]
    while pending:
        name = pending.pop()
        if name not in found:
            found[name], imported = _source(name)
            pending += imported
    return found


_KERNELS = __name__.rsplit(".", 3)[0]
BUILDERS = (f"{_KERNELS}.native", f"{_KERNELS}.common")
"""Packages with code that builds kernels. Derived from this module's own name: a package that
moved would otherwise drop out of the digest, and its edited code would run old machine code."""
_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+import[ \t]+(\([^)]*\)|[^\n]*)|import[ \t]+([^\n]*))",
    re.MULTILINE,
)


@cache
def _source(module: str) -> tuple[bytes, list[str]]:
    """Return the source of a module and the names of the builder modules it imports."""
    found = sys.modules.get(module)
    file = getattr(found, "__file__", None)
    source = b"" if file is None else Path(file).read_bytes()
    imported: list[str] = []
    for line in _IMPORT.finditer(source.decode()):
        package, names, whole = line.groups()
        if whole is not None:
            imported += re.findall(r"[\w.]+", whole)
            continue
        if package.startswith("."):
            package = resolve_name(package, getattr(found, "__package__", None))
        imported += [package, *(f"{package}.{name}" for name in re.findall(r"\w+", names))]
    return source, [name for name in imported if _is_builder(name)]


def _is_builder(module: str) -> bool:
    is_inside = any(module == each or module.startswith(f"{each}.") for each in BUILDERS)
    return is_inside and module in sys.modules


def _compile(symbol: str, build: Callable[[Emitter], None]) -> bytes:
    module, problem = _module(symbol, build), ffi.OutputString()
    buffer = _unlocked("TargetMachineEmitToMemory")(target_machine(), module, 1, problem)
    if not buffer:
        raise RuntimeError(str(problem))
    try:
        start = ffi.lib.LLVMPY_GetBufferStart(buffer)
        return ctypes.string_at(start, ffi.lib.LLVMPY_GetBufferSize(buffer))
    finally:
        ffi.lib.LLVMPY_DisposeMemoryBuffer(buffer)


@cache
def _unlocked(name: str) -> Any:
    """Return a function of LLVM without the lock of llvmlite, which threads would wait for.

    Modules have separate contexts, and threads separate target machines: LLVM requires no more.
    """
    locked = getattr(ffi.lib, f"LLVMPY_{name}")
    function = getattr(ctypes.CDLL(ffi.lib._name), f"LLVMPY_{name}")
    function.argtypes, function.restype = locked.argtypes, locked.restype
    return function


def _module(
    symbol: str, build: Callable[[Emitter], None], context: llvm.ContextRef | None = None
) -> Any:
    note_garbage()
    text = str(kernel_module(symbol, build))
    module = llvm.parse_assembly(text, context or llvm.create_context())
    module.verify()
    _optimise(module)
    return module


def object_file(kernels: Mapping[str, CodeAddress]) -> bytes:
    """Return one object file with these kernels, by their symbols, to be linked to a program."""
    whole = llvm.parse_assembly("")
    whole.triple = host_target().triple
    machine = target_machine(position_independent=True)
    whole.data_layout = str(machine.target_data)
    for symbol, kernel in kernels.items():
        build = partial(kernel.build, **kernel.parameters)
        module = _module(symbol, build, llvm.get_global_context())
        for function in module.functions:
            if not function.is_declaration:
                own = function.name == symbol
                function.visibility = "hidden" if own else "default"
                function.linkage = "external" if own else "internal"
        whole.link_in(module)
    return bytes(machine.emit_object(whole))


def _optimise(module: Any) -> None:
    """Simplify the code and move loop-invariant code out of loops.

    Kernels vectorise and unroll explicitly: LLVM's heuristics make no kernel faster and take longer
    than all other passes. Passes over whole modules do not help either, except in kernels of
    several functions, which have calls to inline.
    """
    functions = [each for each in module.functions if not each.is_declaration]
    options = llvm.create_pipeline_tuning_options(speed_level=1 if len(functions) == 1 else 2)
    options.loop_vectorization = False
    options.slp_vectorization = False
    options.loop_unrolling = False
    passes = llvm.create_pass_builder(target_machine(), options)
    if len(functions) == 1:
        manager = passes.getFunctionPassManager()
        _unlocked("RunNewFunctionPassManager")(manager, functions[0], passes)
    else:
        _unlocked("RunNewModulePassManager")(passes.getModulePassManager(), module, passes)


def _address(code: bytes, symbol: str) -> int:
    engine = _engine()
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return int(engine.get_function_address(symbol))


@cache
def _engine() -> Any:
    """Return the engine that loads all kernels and owns the memory of their code.

    It is shared because an engine is created with a module, and compiling even an empty module
    takes twenty times as long as loading a kernel.
    """
    first = llvm.parse_assembly(_HALF_OF_DOUBLE if has_conversion() else "")
    first.triple = host_target().triple
    return llvm.create_mcjit_compiler(first, target_machine())


_HALF_OF_DOUBLE = """
declare double @llvm.fabs.f64(double)

define half @__truncdfhf2(double %x) {
  %near = fptrunc double %x to float
  %back = fpext float %near to double
  %bits = bitcast float %near to i32
  %last = and i32 %bits, 1
  %even = icmp eq i32 %last, 0
  %inexact = fcmp one double %back, %x
  %size = call double @llvm.fabs.f64(double %x)
  %found = call double @llvm.fabs.f64(double %back)
  %away = fcmp ogt double %found, %size
  %step = select i1 %away, i32 -1, i32 1
  %wrong = and i1 %even, %inexact
  %change = select i1 %wrong, i32 %step, i32 0
  %sum = add i32 %bits, %change
  %odd = bitcast i32 %sum to float
  %half = fptrunc float %odd to half
  ret half %half
}
"""
"""Conversion of float64 to float16, rounded once, from the compiler's runtime library.

Python does not include that library. LLVM may call the function where a kernel converts small
integers to float16 (sinh, asinh and atanh of int8).
"""
