"""Making native kernels for another processor than this one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

from llvmlite import binding as llvm

from caldera.kernels.native.codegen import compiler, matrix_multiply
from caldera.kernels.native.codegen.program import _functions
from caldera.kernels.native.codegen.target import CompilerTarget, host_target

X86, ARM = "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"
_AMX = "+amx-tile,+amx-bf16,+avx512f,+avx512bw,+avx512vl,+avx512dq,-prefer-256-bit"
TARGETS = {
    "sse2": CompilerTarget(X86, "x86-64", "", 16, 16),
    "avx2": CompilerTarget(X86, "haswell", "+avx2,+fma,+f16c", 32, 16),
    "avx512": CompilerTarget(X86, "skylake-avx512", "+avx512f,+f16c,-prefer-256-bit", 64, 32),
    "amx": CompilerTarget(X86, "sapphirerapids", "+f16c," + _AMX, 64, 32),
    "neon": CompilerTarget(ARM, "neoverse-n1", "+neon", 16, 32),
    "vnni": CompilerTarget(
        X86, "cascadelake", "+avx512f,+f16c,+avx512vnni,-prefer-256-bit", 64, 32
    ),
    "avxvnni": CompilerTarget(X86, "alderlake", "+avx2,+fma,+f16c,+avxvnni", 32, 16),
    "dot": CompilerTarget(ARM, "neoverse-n1", "+neon,+dotprod", 16, 32),
}
"""Of each kind of vectors. Where there is SVE, kernels have NEON's vectors so far."""
_ELF_MACHINES = {X86: 0x3E, ARM: 0xB7}
"""Numbers in the header of an object file."""
_NEEDS = {
    "sse2": "sse2",
    "avx2": "avx2",
    "avx512": "avx512f",
    "neon": "neon",
    "vnni": "avx512vnni",
    "avxvnni": "avxvnni",
    "dot": "dotprod",
}
_NOWHERE = 1 << 20
"""An address for code that is never called."""


def runs_here(name: str) -> bool:
    """Whether this machine has the instructions of a target."""
    here, there = host_target().triple.partition("-")[0], TARGETS[name].triple.partition("-")[0]
    return here == there and bool(llvm.get_host_cpu_features().get(_NEEDS.get(name, ""), False))


@contextmanager
def building_for(name: str) -> Iterator[None]:
    """Kernels that are bound inside are compiled for this target; they can be called if it
    `runs_here`. All else (the threads' own code among it) stays what it was."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    _functions()
    compiler._engine()
    target = TARGETS[name]
    changes: list[Any] = [patch.object(compiler, "_addresses", {})]
    for module in [each for key, each in sys.modules.items() if key.startswith("caldera.kernels")]:
        if hasattr(module, "host_target"):
            changes.append(patch.object(module, "host_target", lambda: target))
    if not runs_here(name):
        changes.append(patch.object(compiler, "_address", partial(_placed_nowhere, target)))
    matrix_multiply._has_amx.cache_clear()
    try:
        for change in changes:
            change.start()
        yield
    finally:
        for change in changes:
            change.stop()
        matrix_multiply._has_amx.cache_clear()


def _placed_nowhere(target: CompilerTarget, code: bytes, symbol: str) -> int:
    assert symbol.encode() in code
    assert int.from_bytes(code[18:20], "little") == _ELF_MACHINES[target.triple]
    return _NOWHERE
