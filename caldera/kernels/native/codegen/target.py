"""The processor that native kernels are made for: its name, its features, its vector width."""

from __future__ import annotations

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

    def lanes(self, itemsize: int) -> int:
        """Return the number of elements of this size in a vector register."""
        return self.width // itemsize


def _vector_bytes(triple: str, features: dict[str, bool]) -> tuple[int, int]:
    if triple.startswith(("x86_64", "i686")):
        if features.get("avx512f"):
            return 64, 32
        return (32, 16) if features.get("avx2") else (16, 16)
    return 16, 32


@lru_cache(maxsize=1)
def host_target() -> CompilerTarget:
    """The machine this process runs on.

    >>> from caldera.kernels.native.codegen.target import host_target
    >>> host_target().lanes(4) >= 4
    True
    """
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


@lru_cache
def target_machine(*, position_independent: bool = False) -> Any:
    """LLVM's own description of the machine, with all optimisations on.

    Code for this process is loaded at a fixed address, code for a library at any.
    """
    here = host_target()
    target = llvm.Target.from_triple(here.triple)
    how: dict[str, Any] = {"reloc": "pic"} if position_independent else {"jit": True}
    return target.create_target_machine(cpu=here.cpu, features=here.features, opt=3, **how)
