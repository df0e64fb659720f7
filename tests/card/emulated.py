"""A driver that compiles CUDA source with the machine's C++ compiler, and a device to go with it.

Threads of a block are fibers, so barriers, shuffles and tensor-core products do what they do on a
card; memory and streams are those of the loopback device. A block has exactly the shared memory
that was asked for, full of nan, and all memory has guarded ends (`guards`). It is slow and it is
right: what it finds wrong is wrong on a card too, and CI needs no card to find it. Each source also
has to compile for a real card before it may run here (`accepted`).

A cold run compiles 1,700 sources, so little is done for each: the machine is compiled once
(machine.cpp), the headers that sources include are read once for all that include the same, kernels
that wait for their first launch are compiled together, and what was compiled is kept from run to
run and shared by the workers of a run.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import hashlib
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

from caldera.core.memory import device as find_device
from caldera.core.memory.host import LoopbackDevice
from caldera.core.memory.pool import Pool
from caldera.kernels.cuda.runtime.device import CardProperties
from caldera.kernels.cuda.runtime.driver import Driver, Size
from tests.card.accepted import check_for_a_card, included
from tests.card.guards import GuardedPool, check_guards
from tests.object_cache import CACHE, cached_file

HERE = Path(__file__).parent
_RUN = """
extern "C" __attribute__((visibility("default"), externally_visible))
int run_KEY(const unsigned* sizes, unsigned long shared, void** arguments, int meeting,
            char* (*stacks)(size_t)) {
    return emulated::run([](void** given) { emulated::call(&NAME, given); }, sizes, shared,
                         arguments, meeting, stacks);
}
"""
MOST_TOGETHER = 24
"""Kernels that the compiler is given at once: to start it takes half of the time of one."""
# The machine that a kernel runs on is a few global variables, and all use the same stacks.
_one_at_a_time = threading.Lock()
_GRID = re.compile(r"\bgrid_")
_GLOBAL = re.compile(r"^(?:static )?__device__ \w+ (\w+)(?:\[\w+\])?(?: = .*)?;", re.MULTILINE)
_INCLUDES = re.compile(r'^#include "[^"]+"$', re.MULTILINE)
_BLOCK = re.compile(r"\b(block_|warp_|mma_|__sync|__shfl|__ballot)")


@cache
def compiler() -> str | None:
    """The C++ compiler, or None."""
    return shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")


PLAYED = CardProperties((9, 0), 4, 227 << 10, 2048)
"""An H200 of few multiprocessors: some kernels have a block on each, and playing these is slow."""
CARDS = (
    CardProperties((7, 5), 46, 64 << 10, 1024),
    CardProperties((8, 0), 108, 163 << 10, 2048),
    CardProperties((8, 6), 84, 99 << 10, 1536),
    CardProperties((8, 9), 20, 99 << 10, 1536),
    CardProperties((9, 0), 132, 227 << 10, 2048),
    CardProperties((10, 0), 148, 227 << 10, 2048),
    CardProperties((12, 0), 170, 99 << 10, 1536),
)
"""One card of each kind, large and small."""


class EmulatedFunction:
    """A kernel for the host, compiled when it is first launched, together with others by then."""

    def __init__(self, source: str, name: str) -> None:
        check_for_a_card(source)
        self.source = source
        self.name = name
        self.key = _key(source, name)
        self.meeting = 2 if _GRID.search(source) else 1 if _BLOCK.search(source) else 0
        self.bounds = bounds_of(source, name)
        self.globals = globals_of(source)
        self.run: Any = None

    def load(self, library: Path) -> None:
        """Take the function out of its library."""
        self.run = getattr(ctypes.CDLL(str(library)), f"run_{self.key}")
        self.run.argtypes = [
            ctypes.c_void_p,
            ctypes.c_ulong,
            ctypes.c_void_p,
            ctypes.c_int,
            ctypes.c_void_p,
        ]


class EmulatedDriver(Driver):
    """Runs kernels on the host, which plays a card of these properties."""

    def __init__(self, card: CardProperties = PLAYED) -> None:
        self._card = card
        self._loaded: dict[tuple[str, str], EmulatedFunction] = {}
        self._pending: list[EmulatedFunction] = []
        self._adding = threading.Lock()
        self.launches: list[str] = []
        """The names of what was launched, for tests that count."""

    def function(self, source: str, name: str) -> Any:
        key = (source, name)
        # Threads bind side by side, and no kernel may be compiled twice in one library.
        with self._adding:
            if key not in self._loaded:
                self._loaded[key] = EmulatedFunction(source, name)
                self._pending.append(self._loaded[key])
            return self._loaded[key]

    def launch(self, function: Any, grid: Size, block: Size, shared: int, parameters: Any) -> None:
        name = function.name
        threads = block[0] * block[1] * block[2]
        assert 0 < threads <= function.bounds, f"{name}: {block} threads"
        assert all(n > 0 for n in grid), f"{name}: {grid} blocks"
        assert grid[0] < 2**31, f"{name}: {grid} blocks"
        assert max(grid[1:]) < 65536, f"{name}: {grid} blocks"
        assert shared <= self.shared_bytes, f"{name}: {shared} bytes of shared memory"
        self.launches.append(name)
        process = _process()
        with _one_at_a_time:
            if function.run is None:
                with self._adding:
                    pending, self._pending = self._pending, []
                _build(pending)
            sizes = (ctypes.c_uint * 6)(*grid, *block)
            broken = function.run(sizes, shared, parameters, function.meeting, process.stacks)
            assert not broken, f"{name} wrote beside its {shared} bytes of shared memory"
            check_guards(name, process.find_broken)

    def launch_cooperative(
        self, function: Any, grid: Size, block: Size, shared: int, parameters: Any
    ) -> None:
        # All blocks must be there at once, and one for each multiprocessor surely is.
        assert grid[0] * grid[1] * grid[2] <= self.multiprocessors, (
            f"{function.name}: {grid} blocks"
        )
        self.launch(function, grid, block, shared, parameters)

    @property
    def card(self) -> CardProperties:
        return self._card

    @property
    def lonely_bytes(self) -> int:
        # A kernel has what it asked for and not a byte more, so that we see what it wanted.
        return 0


class UndrivenDriver(EmulatedDriver):
    """A card on which nothing runs."""

    def function(self, source: str, name: str) -> Any:
        return name

    def launch(self, *given: Any) -> None:
        pass

    launch_cooperative = launch


def bounds_of(source: str, name: str) -> int:
    """The most threads that a block of a function surely finds registers for."""
    found = re.search(rf"__launch_bounds__\((\S+?)[,)][^\n]*\b{name}\(", source)
    if found is None:
        # Each may have 255 of the registers of a multiprocessor.
        return 256
    constant = re.search(rf"\b{found[1].removeprefix('S::')} = (\d+)", source)
    return int(constant[1] if constant else found[1])


def globals_of(source: str) -> frozenset[str]:
    """The variables of the card that all launches of a source's functions have in common."""
    return _globals_in(source).union(*map(_globals_in, included(source).values()))


@cache
def _globals_in(text: str) -> frozenset[str]:
    return frozenset(_GLOBAL.findall(text))


# --- compiling


_OPTIONS = (
    "-O1",
    "-std=c++17",
    "-w",
    "-fPIC",
    "-fvisibility=hidden",
    "-ffp-contract=off",
    "-U_FORTIFY_SOURCE",
    "-nostdinc++",
    "-fno-exceptions",
    "-fno-asynchronous-unwind-tables",
)
_WHOLE = "-fwhole-program"
"""Nobody but `run` calls a kernel: where it is inlined there, it is not compiled a second time."""
_GCC = (
    "-fno-tree-dominator-opts",
    "-fno-tree-pta",
    "-fno-tree-loop-optimize",
    "-fno-ivopts",
    "-fno-guess-branch-probability",
    "-fno-ipa-ra",
    "-fno-ipa-pure-const",
    "-fno-ipa-reference",
    "-fno-ipa-profile",
    "-fira-region=one",
)
"""A kernel is compiled for longer than it is played. These passes take a sixth of GCC's time, and
without them playing takes no longer. Other compilers do not know the options."""


@cache
def _version() -> str:
    asked = [str(compiler()), "--version"]
    return subprocess.run(asked, capture_output=True, check=True, text=True).stdout


@cache
def _of_kernels() -> tuple[str, ...]:
    """The options of sources and their headers, besides those of all."""
    return (_WHOLE, *(_GCC if "Free Software Foundation" in _version() else ()))


def _build(functions: Sequence[EmulatedFunction]) -> None:
    """Compile and load kernels: those of the same headers together."""
    missing: dict[Path, list[EmulatedFunction]] = {}
    for each in functions:
        folder = _headers(tuple(included(each.source).items()))
        file = folder / f"{each.key}.so"
        if not file.exists():
            # Variables of the card belong to one source: nothing else is compiled with it.
            alone = folder / each.key if each.globals else folder
            missing.setdefault(alone, []).append(each)
    for several in missing.values():
        for first in range(0, len(several), MOST_TOGETHER):
            _build_together(several[first : first + MOST_TOGETHER])
    for each in functions:
        folder = _headers(tuple(included(each.source).items()))
        each.load(cached_file(folder / f"{each.key}.so", partial(_compile_kernels, folder, [each])))


def _build_together(functions: Sequence[EmulatedFunction]) -> None:
    """Compile kernels of the same headers into one library, known by the keys of all of them."""
    folder = _headers(tuple(included(functions[0].source).items()))
    name = _key(*(each.key for each in functions))
    library = folder / f"{name}.together.so"
    cached_file(library, partial(_compile_kernels, folder, functions))
    for each in functions:
        with suppress(FileExistsError):  # another run was faster
            os.link(library, folder / f"{each.key}.so")


def _compile_kernels(folder: Path, functions: Sequence[EmulatedFunction], file: Path) -> None:
    """Write a library with a function `run_...` for each kernel."""
    text = '#include "headers.cuh"\n'
    for each in functions:
        source = _INCLUDES.sub("", each.source).replace('extern "C" __global__', "__global__")
        run = _RUN.replace("KEY", each.key).replace("NAME", f"of_{each.key}::{each.name}")
        text += f"namespace of_{each.key} {{\n{source}\n}}\n{run}"
    # C's functions are those that this process has: looking for libraries takes the linker long.
    _compile(
        *_of_kernels(),
        f"-I{folder}",
        "-shared",
        "-nostdlib",
        "-o",
        str(file),
        "-x",
        "c++",
        "-",
        "-x",
        "none",
        str(_machine() / "machine.o"),
        "-lgcc",
        text=text,
    )


@cache
def _headers(texts: tuple[tuple[str, str], ...]) -> Path:
    """A folder with these headers, read by the compiler: half of the time of a source."""
    machine = _machine()
    real = {"machine.cuh": (machine / "machine.cuh").read_text()}
    real = {**real, **{name: text for name, text in texts if name not in real}}
    folder = machine / _key(*real, *real.values())
    folder.mkdir(exist_ok=True)
    for name, text in real.items():
        cached_file(folder / name, lambda file, text=text: file.write_text(text))
    every = "".join(f'#include "{name}"\n' for name in real)
    header = cached_file(folder / "headers.cuh", lambda file: file.write_text(every))
    cached_file(
        folder / "headers.cuh.gch",
        lambda file: _compile(
            *_of_kernels(), f"-I{folder}", "-o", str(file), "-x", "c++-header", str(header)
        ),
    )
    return folder


@cache
def _machine() -> Path:
    """A folder with the machine, compiled."""
    # Libraries of kernels take C's functions from here.
    ctypes.CDLL(ctypes.util.find_library("m"), mode=ctypes.RTLD_GLOBAL)
    header, code = HERE / "machine.cuh", HERE / "machine.cpp"
    digest = _key(header.read_text(), code.read_text(), _OPTIONS, _of_kernels(), _RUN, _version())
    folder = CACHE / "card" / digest
    folder.mkdir(parents=True, exist_ok=True)
    cached_file(folder / "machine.cuh", lambda file: file.write_text(header.read_text()))
    cached_file(
        folder / "machine.o", lambda file: _compile("-O2", "-c", "-o", str(file), str(code))
    )
    return folder


@cache
def _process() -> ctypes.PyDLL:
    """What all kernels of this process share, compiled. Called with Python's lock held: nobody
    gives memory back while its guards are looked at."""
    code = HERE / "process.cpp"
    built = cached_file(
        _machine() / f"{_key(code.read_text())}.so",
        lambda file: _compile("-O2", "-shared", "-o", str(file), str(code)),
    )
    return ctypes.PyDLL(str(built))


def _key(*made_of: object) -> str:
    return hashlib.blake2b("\n".join(map(str, made_of)).encode(), digest_size=10).hexdigest()


def _compile(*arguments: str, text: str = "") -> None:
    """Call the compiler; "-" among the arguments stands for the text."""
    done = subprocess.run(
        [str(compiler()), *_OPTIONS, *arguments],
        input=text.encode(),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stderr.decode()}\n{text}"


class EmulatedCard(LoopbackDevice):
    """A loopback device whose kernels are those of a card."""

    kernels = "cuda"

    def __init__(self, index: int, host_pool: Pool) -> None:
        super().__init__(index, host_pool)
        self.pool = GuardedPool(self.name)


def emulated_card(index: int = 0) -> EmulatedCard:
    """A new card without hardware."""
    return EmulatedCard(index, find_device("cpu").pool)
