"""The processor that native kernels are made for: its name, its features, its vector width."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from llvmlite import binding as llvm

CACHE_LINE = 64
"""Bytes; also the alignment of everything a plan lays out."""


@dataclass(frozen=True)
class CompilerTarget:
    """Target machine of LLVM's code.

    `width` is the number of bytes in a vector register, and `registers` the number of vector
    registers. A kernel that keeps more values than that between two instructions spills them to
    memory.
    """

    triple: str
    cpu: str
    features: str
    width: int
    registers: int

    @property
    def has_masks(self) -> bool:
        """True if one instruction reads and writes part of a vector (AVX-512, AVX2)."""
        return self.width >= 32

    @property
    def scales_vectors(self) -> bool:
        """True if one instruction multiplies a vector by powers of two (AVX-512)."""
        return self.width == 64

    def lanes(self, itemsize: int) -> int:
        """Return the number of elements of this size in a vector register."""
        return self.width // itemsize


def _vector_bytes(triple: str, features: dict[str, bool]) -> tuple[int, int]:
    if triple.startswith(("x86_64", "i686")):
        if features.get("avx512f"):
            return 64, 32
        return (32, 16) if features.get("avx2") else (16, 16)
    return 16, 32


_V2 = "+sse3,+ssse3,+sse4.1,+sse4.2,+popcnt,+cx16,+sahf"
_V3 = f"{_V2},+avx,+avx2,+bmi,+bmi2,+f16c,+fma,+lzcnt,+movbe,+xsave"
_V4 = f"{_V3},+avx512f,+avx512bw,+avx512cd,+avx512dq,+avx512vl,-prefer-256-bit"
_X86, _ARM = "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"
TARGETS = {
    "x86-64-v4": CompilerTarget(_X86, "x86-64-v4", _V4, 64, 32),
    "x86-64-v3": CompilerTarget(_X86, "x86-64-v3", _V3, 32, 16),
    "x86-64-v2": CompilerTarget(_X86, "x86-64-v2", _V2, 16, 16),
    "aarch64": CompilerTarget(_ARM, "generic", "+neon,+fp-armv8", 16, 32),
}
"""Other processors that kernels are made for, the best first."""
_other: ContextVar[CompilerTarget | None] = ContextVar("other target", default=None)


@contextmanager
def compiled_for(target: CompilerTarget | None) -> Iterator[None]:
    """Context in which kernels are made for another processor, and never loaded; None: for this."""
    if target is not None:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
    before = _other.set(target)
    try:
        yield
    finally:
        _other.reset(before)


def is_foreign() -> bool:
    """Return True if kernels are made for another processor."""
    return _other.get() is not None


def host_target() -> CompilerTarget:
    """Return the processor that kernels are made for: this machine's, except in `compiled_for`.

    >>> from caldera.kernels.native.codegen.target import host_target
    >>> host_target().lanes(4) >= 4
    True
    """
    return _other.get() or _this_machine()


@lru_cache(maxsize=1)
def _this_machine() -> CompilerTarget:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features()
    triple = llvm.get_process_triple()
    width, registers = _vector_bytes(triple, features)
    # LLVM avoids 512-bit registers by default.
    extra = ",-prefer-256-bit" if width == 64 else ""
    return CompilerTarget(
        triple, llvm.get_host_cpu_name(), features.flatten() + extra, width, registers
    )


def target_machine(*, position_independent: bool = False) -> Any:
    """LLVM's own description of the machine, with all optimisations on, for the calling thread.

    Code for this process is loaded at a fixed address, code for a library at any.
    """
    return _machine(host_target(), position_independent, threading.get_ident())


@lru_cache
def _machine(here: CompilerTarget, position_independent: bool, thread: int) -> Any:
    target = llvm.Target.from_triple(here.triple)
    how: dict[str, Any] = {"reloc": "pic"} if position_independent else {"jit": True}
    return target.create_target_machine(cpu=here.cpu, features=here.features, opt=3, **how)
