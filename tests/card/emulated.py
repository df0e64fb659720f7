"""A driver that compiles CUDA source with the machine's C++ compiler, and a device to go with it.

Threads of a block are fibers, so barriers, shuffles and tensor-core products do what they do on a
card; memory and streams are those of the loopback device. It is slow and it is right: what it finds
wrong is wrong on a card too, and CI needs no card to find it. Where NVIDIA's compiler is installed,
each source also has to compile for a real card before it may run here.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import threading
from functools import cache
from pathlib import Path
from typing import Any

from caldera.kernels.cuda.runtime import nvrtc
from caldera.kernels.cuda.runtime.driver import Driver, Size, headers
from caldera.memory import device as find_device
from caldera.memory.loopback import LoopbackDevice

HERE = Path(__file__).parent
_CALL = """
#include <utility>
template <typename... P, size_t... I>
static void spread(void (*kernel)(P...), void** given, std::index_sequence<I...>) {
    kernel(*(P*)given[I]...);
}
template <typename... P> static void spread(void (*kernel)(P...), void** given) {
    spread(kernel, given, std::index_sequence_for<P...>());
}
namespace emulated { static void call(void** given) { spread(&NAME, given); } }
"""
ARCHITECTURE = "sm_90"
_INCLUDE = re.compile(r'#include "([^"]+)"')
# The machine that a kernel runs on is a few global variables.
_one_at_a_time = threading.Lock()
_GRID = re.compile(r"\bgrid_")
_GLOBAL = re.compile(r"^(?:static )?__device__ \w+ (\w+)(?:\[\w+\])?(?: = .*)?;", re.MULTILINE)
_BLOCK = re.compile(r"\b(block_|warp_|mma_|__sync|__shfl|__ballot)")


@cache
def compiler() -> str | None:
    """The C++ compiler, or None."""
    return shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")


def _included(source: str) -> dict[str, str]:
    """The headers that a source includes, directly or not: only a change of these concerns it."""
    found: dict[str, str] = {}
    texts = [source]
    while texts:
        for name in _INCLUDE.findall(texts.pop()):
            if name not in found:
                assert name in headers(), f"there is no header {name}\n{source}"
                found[name] = headers()[name]
                texts.append(found[name])
    return dict(sorted(found.items()))


@cache
def _folder(names: tuple[str, ...]) -> Path:
    """These headers with the emulated machine among them, and what was compiled with them."""
    real = {name: headers()[name] for name in names}
    texts = {**real, "machine.cuh": (HERE / "machine.cuh").read_text()}
    launcher = (HERE / "launcher.cpp").read_text()
    made_of = [*real, *real.values(), texts["machine.cuh"], launcher]
    digest = hashlib.blake2b("\n".join(made_of).encode(), digest_size=8)
    root = Path(tempfile.gettempdir()) / f"caldera-test-card-{os.getuid()}"
    folder = root / digest.hexdigest()
    if not folder.exists():
        root.mkdir(exist_ok=True)
        fresh = Path(tempfile.mkdtemp(dir=root))
        for name, text in texts.items():
            (fresh / name).write_text(text)
        # Read once by the compiler for all sources: that halves the time of each.
        _compile("c++-header", fresh / "machine.cuh.gch", fresh, str(fresh / "machine.cuh"))
        try:
            fresh.rename(folder)
        except OSError:
            # Another worker was faster.
            shutil.rmtree(fresh)
    return folder


class EmulatedDriver(Driver):
    """Runs kernels on the host."""

    def __init__(self, multiprocessors: int = 4) -> None:
        self._multiprocessors = multiprocessors
        self._loaded: dict[tuple[str, str], tuple[Any, int, frozenset[str]]] = {}
        self.launches: list[str] = []
        """The names of what was launched, for tests that count."""

    def function(self, source: str, name: str) -> Any:
        key = (source, name)
        if key not in self._loaded:
            check_for_a_card(source)
            barrier = 2 if _GRID.search(source) else 1 if _BLOCK.search(source) else 0
            library = ctypes.CDLL(str(_built(source, name)))
            library.run.argtypes = [ctypes.c_void_p, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_int]
            self._loaded[key] = library, barrier, globals_of(source)
        return name, *self._loaded[key]

    def launch(self, function: Any, grid: Size, block: Size, shared: int, parameters: Any) -> None:
        name, library, barrier, _ = function
        assert 0 < block[0] * block[1] * block[2] <= 1024, f"{name}: {block} threads"
        assert all(n > 0 for n in grid), f"{name}: {grid} blocks"
        assert grid[0] < 2**31, f"{name}: {grid} blocks"
        assert max(grid[1:]) < 65536, f"{name}: {grid} blocks"
        assert shared <= self.shared_bytes, f"{name}: {shared} bytes of shared memory"
        self.launches.append(name)
        with _one_at_a_time:
            library.run((ctypes.c_uint * 6)(*grid, *block), shared, parameters, barrier)

    def launch_cooperative(
        self, function: Any, grid: Size, block: Size, shared: int, parameters: Any
    ) -> None:
        self.launch(function, grid, block, shared, parameters)

    @property
    def multiprocessors(self) -> int:
        return self._multiprocessors

    @property
    def shared_bytes(self) -> int:
        return 227 << 10


def globals_of(source: str) -> frozenset[str]:
    """The variables of the card that all launches of a source's functions have in common."""
    texts = [source, *_included(source).values()]
    return frozenset(name for text in texts for name in _GLOBAL.findall(text))


def _key(*made_of: object) -> str:
    return hashlib.blake2b("\n".join(map(str, made_of)).encode(), digest_size=16).hexdigest()


def check_for_a_card(source: str) -> None:
    """Compile a source for a real card, once: what succeeded is remembered on disk."""
    if nvrtc.library() is None:
        return
    included = _included(source)
    passed = _folder(tuple(included)) / f"{_key(source, ARCHITECTURE, nvrtc.version())}.passed"
    if not passed.exists():
        nvrtc.compile_source(source, included, ARCHITECTURE)
        passed.touch()


def _built(source: str, name: str) -> Path:
    folder = _folder(tuple(_included(source)))
    file = folder / f"{_key(source, name)}.so"
    if not file.exists():
        text = '#include "machine.cuh"\n' + source + _CALL.replace("NAME", name)
        text += (HERE / "launcher.cpp").read_text()
        descriptor, fresh = tempfile.mkstemp(dir=folder, suffix=".tmp")
        os.close(descriptor)
        _compile("c++", Path(fresh), folder, "-", "-shared", text=text)
        os.replace(fresh, file)
    return file


def _compile(
    language: str, target: Path, folder: Path, source: str, *options: str, text: str = ""
) -> None:
    """Compile a file, or the text if the source is "-"."""
    program = compiler()
    assert program is not None
    done = subprocess.run(
        [program, "-x", language, "-std=c++17", "-O1", "-w", "-fPIC", "-ffp-contract=off",
         "-U_FORTIFY_SOURCE", *options, f"-I{folder}", "-o", str(target), source],
        input=text.encode(), capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stderr.decode()}\n{text}"


class EmulatedCard(LoopbackDevice):
    """A loopback device whose kernels are those of a card."""

    kernels = "cuda"


def emulated_card(index: int = 0) -> EmulatedCard:
    """A new card without hardware."""
    return EmulatedCard(index, find_device("cpu").pool)
