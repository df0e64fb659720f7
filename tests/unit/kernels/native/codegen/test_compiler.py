"""The cache of machine code."""

from __future__ import annotations

import ast
import importlib
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from llvmlite import binding as llvm

import caldera as cd
from caldera.kernels.native.codegen import compiler
from caldera.kernels.native.codegen.emitter import (
    F32,
    I64,
    POINTER,
    Emitter,
    Pointer,
    RegisterValue,
    kernel_module,
    vector,
)
from caldera.kernels.native.codegen.kernel import native_kernel
from caldera.kernels.native.codegen.program import NativeRunner, compiled_together
from caldera.kernels.table import TABLE

_times_built: list[float] = []


@native_kernel
def _double(k: Emitter, x: Pointer, factor: float) -> None:
    _times_built.append(factor)
    x.store(0, x.load(0) * factor)


def _result(factor: float) -> float:
    x = np.array([1.0])
    NativeRunner([_double.call(x=x, factor=factor)])()
    return float(x[0])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """An empty cache; nothing is known in memory."""
    monkeypatch.setattr(compiler, "_addresses", {})
    _times_built.clear()
    with cd.settings.override(cache_dir=tmp_path):
        yield tmp_path / "native"


def _forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "_addresses", {})


def test_a_kernel_is_built_once_in_a_process(folder: Path) -> None:
    assert _result(3.0) == _result(3.0) == 3.0
    assert _times_built == [3.0]


def test_parameters_are_part_of_the_key(folder: Path) -> None:
    assert (_result(3.0), _result(4.0)) == (3.0, 4.0)
    assert len(list(compiler._OBJECTS)) == 2


def test_what_is_on_disk_is_not_built_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _result(5.0)
    _forget(monkeypatch)
    assert _result(5.0) == 5.0
    assert _times_built == [5.0]


@pytest.mark.parametrize("damage", ["cut", "flip", "empty"])
def test_a_damaged_file_is_built_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    _result(6.0)
    (key,) = compiler._OBJECTS
    file = compiler._OBJECTS.path(key)
    content = bytearray(file.read_bytes())
    if damage == "flip":
        content[len(content) // 2] ^= 1
    file.write_bytes({"cut": content[:100], "flip": content, "empty": b""}[damage])
    _forget(monkeypatch)
    assert _result(6.0) == 6.0
    assert _times_built == [6.0, 6.0]


@pytest.mark.skipif(os.name == "nt", reason="modes are those of Unix")
def test_code_that_others_may_have_written_is_not_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _result(6.0)
    _forget(monkeypatch)
    folder.chmod(0o777)
    with pytest.warns(RuntimeWarning, match="others may write"):
        assert _result(6.0) == 6.0
    assert _times_built == [6.0, 6.0]


def test_another_compiler_builds_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _result(7.0)
    _forget(monkeypatch)
    monkeypatch.setattr(compiler, "_toolchain", lambda: "another compiler, another processor")
    assert _result(7.0) == 7.0
    assert _times_built == [7.0, 7.0]


def test_a_cache_that_cannot_be_written_costs_only_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.parent.mkdir(exist_ok=True)
    folder.write_text("a file where the folder should be")
    assert _result(8.0) == 8.0


@native_kernel
def _refused(k: Emitter, x: Pointer) -> None:
    raise ValueError("cannot be compiled")


def test_kernels_compiled_together_compute_as_alone(folder: Path) -> None:
    numbers = np.ones(12)
    with cd.settings.override(threads=3):
        with compiled_together():
            calls = [_double.call(x=numbers[i:], factor=1.0 + i // 2) for i in range(12)]
            assert not _times_built
        assert sorted(_times_built) == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
        NativeRunner(calls)()
    assert numbers.tolist() == [1.0 + i // 2 for i in range(12)]
    assert len(_times_built) == 6


def test_what_is_run_before_the_others_is_compiled_at_once(folder: Path) -> None:
    with compiled_together():
        assert _result(5.0) == 5.0
    assert _times_built == [5.0]


def test_threads_share_the_code_of_a_kernel(folder: Path) -> None:
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(_result, [7.0] * 8)) == [7.0] * 8
    assert _times_built == [7.0]


def test_a_kernel_that_cannot_be_compiled_raises_its_error_each_time(folder: Path) -> None:
    numbers = np.ones(1)
    with pytest.raises(ValueError, match="cannot be compiled"), compiled_together():
        refused, double = _refused.call(x=numbers), _double.call(x=numbers, factor=2.0)
    with pytest.raises(ValueError, match="cannot be compiled"):
        NativeRunner([refused])()
    NativeRunner([double])()
    assert numbers[0] == 2.0


def test_another_process_loads_it(folder: Path) -> None:
    script = "from caldera.kernels.native.codegen.program import _functions; _functions()"
    for _ in range(2):
        run = subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            check=False,
            env={"CALDERA_CACHE": str(folder.parent), "PATH": "", "PYTHONPATH": ":".join(sys.path)},
        )
        assert run.returncode == 0, run.stderr
        written = {file.name: file.stat().st_mtime_ns for file in folder.iterdir()}
    again = {file.name: file.stat().st_mtime_ns for file in folder.iterdir()}
    assert written == again
    assert written


def test_all_kernels_are_loaded_by_one_engine(folder: Path) -> None:
    """To make one takes many times as long as to load a kernel."""
    before = compiler._engine()
    assert [_result(factor) for factor in (2.0, 3.0, 5.0)] == [2.0, 3.0, 5.0]
    assert compiler._engine() is before
    assert compiler._engine.cache_info().misses == 1


# --- what LLVM is given, and makes of it


def _optimised(build) -> str:
    module = llvm.parse_assembly(str(kernel_module("kernel", build)))
    compiler._optimise(module)
    return str(module)


def test_what_stays_the_same_is_moved_out_of_loops() -> None:
    def build(k: Emitter) -> None:
        x = Pointer(k, k.argument(0, POINTER), I64)
        count, by = RegisterValue(k, k.argument(1, I64)), RegisterValue(k, k.argument(2, I64))
        with k.loop(0, count) as i:
            x.store(i, x.load(i) + count // by)

    text = _optimised(build)
    assert text.count("sdiv") == 1
    assert text.index("sdiv") < text.index("phi")


def test_functions_inside_a_kernel_are_inlined() -> None:
    def build(k: Emitter) -> None:
        x = k.argument(0, POINTER)
        store = k.internal_function(
            "inside", [POINTER], lambda k, to: Pointer(k, to.raw, I64).store(0, 7)
        )
        k.call(store, RegisterValue(k, x))

    assert "call" not in _optimised(build)


def test_a_number_in_all_lanes_is_written_once() -> None:
    def build(k: Emitter) -> None:
        x = Pointer(k, k.argument(0, POINTER), F32)
        x.store(0, x.load(0, 16) * k.constant(3.0, vector(F32, 16)))

    assert str(kernel_module("kernel", build)).count("float 0x4008") == 1


@pytest.mark.parametrize(
    "statement",
    [
        "from builders import helper",
        "from builders.helper import width",
        "from builders.helper import (\n    width,\n)",
        "import builders.helper as helper",
        "from . import helper",
        "from .helper import width",
        "if True:\n    from builders.helper import width",
    ],
)
def test_an_edited_helper_changes_the_key_of_the_kernels_built_with_it(
    statement: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "builders"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "deepest.py").write_text("width = 4\n")
    (package / "helper.py").write_text("from builders.deepest import width\n")
    (package / "kernel.py").write_text(f"{statement}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(compiler, "BUILDERS", ("builders",))
    importlib.import_module("builders.kernel")
    try:
        before = compiler._sources("builders.kernel")
        (package / "deepest.py").write_text("width = 8\n")
        compiler._sources.cache_clear()
        compiler._source.cache_clear()
        assert compiler._sources("builders.kernel") != before
    finally:
        compiler._sources.cache_clear()
        compiler._source.cache_clear()
        for name in [name for name in sys.modules if name.partition(".")[0] == "builders"]:
            del sys.modules[name]


def test_the_digest_covers_each_module_of_kernels_that_a_kernel_imports() -> None:
    """The imports are read a second time here, from the syntax tree."""
    importlib.import_module(TABLE.rooms.get("cpu", "caldera.kernels.native.families"))
    root = Path(cd.__file__).parent.parent
    modules = [name for name in sys.modules if compiler._is_builder(name)]
    assert len(modules) > 50
    for name in modules:
        covered = compiler.builder_sources(name)
        tree = ast.parse(Path(sys.modules[name].__file__ or root).read_bytes())
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                for each in (node.module, *(f"{node.module}.{one.name}" for one in node.names)):
                    assert each in covered or each not in modules, (name, each)
