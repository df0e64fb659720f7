"""Tests keep what they measure in a folder of their own, and start from the same seed."""

from __future__ import annotations

import gc
import math
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.object_cache import link_kernels

# Before the package is imported: it reads these when it starts. One BLAS thread a worker, because
# the tests themselves run side by side; our own threads are under test. Compiled kernels are kept
# from run to run (their names say what they are made of); measured choices are not.
_cache = Path(tempfile.mkdtemp(prefix="caldera-tests-"))
link_kernels(_cache)
os.environ["CALDERA_CACHE"] = str(_cache)
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("CALDERA_THREADS", str(os.cpu_count() or 1))
# Tests start hundreds of processes: without bytecode each would compile the package first.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

import hypothesis  # noqa: E402
import pytest  # noqa: E402
from hypothesis.internal.conjecture import providers  # noqa: E402

import caldera as cd  # noqa: E402
from caldera import dmath, nn  # noqa: E402
from caldera.bench import timing, worker_process  # noqa: E402
from caldera.bench.worker_process import worker_environment  # noqa: E402
from caldera.kernels.native.codegen import program  # noqa: E402
from caldera.kernels.tuning import measure as tuning  # noqa: E402
from caldera.parallel.planner import compression_cost  # noqa: E402
from tests.browser import Browser, find_browser  # noqa: E402
from tests.reporting import *  # noqa: E402, F403 - hooks

# The same examples every time, and no deadline: a busy machine is not a failure.
hypothesis.settings.register_profile("caldera", deadline=None, derandomize=True)
hypothesis.settings.load_profile("caldera")
# Nor numbers out of the sources of whatever modules happen to be imported, which would make
# examples depend on the tests before; to parse all sources takes each worker ten seconds.
providers._get_local_constants = providers.Constants
# A planner measures what a dozen codecs take, for every link: here once, on shorter gradients.
compression_cost._LONG = 1 << 16
compression_cost._RUNS = 1
# Workers of tests share the cores: a thread that waits for more work takes them from another.
program._LINGER = 10
# Nor are choices provisional because other tests run at the same time.
tuning.NoiseWatch = type("NoNoise", (), {"cores": lambda self: 0.0})  # type: ignore[misc, assignment]
tuning.PACE_CHANGES = math.inf
timing.OthersWatch = type("Alone", (), {"share": lambda self: 0.0})  # type: ignore[misc, assignment]
# Nor is a tenth of their time for measuring kernels: they have what a process has at first.
tuning.BACK_A_SECOND = 0.0


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Each worker begins to import at another place. In a fresh clone that compiles all of these
    files and what they import: what one has compiled, others read."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    root = session.config.rootpath
    files = sorted(file for given in session.config.args for file in Path(given).rglob("test_*.py"))
    for file in files[len(files) * worker // workers :] if worker else ():
        # What cannot be imported will be said when it is collected.
        with suppress(Exception, pytest.skip.Exception):
            import_module(".".join(file.resolve().relative_to(root).with_suffix("").parts))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Jobs of several processes come last: by then the kernels that each rank would compile are
    there, and while the last of them run no core is idle."""
    items.sort(key=lambda item: not {"mpi", "cluster"}.isdisjoint(item.path.parts))


def pytest_collection_finish() -> None:
    """What is there before the first test stays: looking through it again and again for garbage
    took a tenth of the time of all tests."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 10, 10)


@pytest.fixture(scope="module", autouse=True)
def _young_heap() -> None:
    """What other tests left stays too: where a test or a plan asks for a collection, which happens
    thousands of times, it looks at what this file has made."""
    gc.collect()
    gc.freeze()


def _disconnected() -> Iterator[None]:
    """Begin and end without a session of distributed arrays."""
    dmath.disconnect()
    yield
    dmath.disconnect()


no_session = pytest.fixture(_disconnected)
# Files run in any order: none may find the session of another.
_no_session_between_files = pytest.fixture(scope="module", autouse=True)(_disconnected)


@pytest.fixture(autouse=True)
def _same_seed() -> None:
    cd.seed(0)


@pytest.fixture
def own_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers that the test registers are forgotten after it: others may use the same names."""
    monkeypatch.setattr(nn.layers, "_entries", dict(nn.layers._entries))


@pytest.fixture
def compiled_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers of the bench have empty caches, but find the kernels that tests compile: half of the
    time of theirs went into that."""

    def environment(caches: Path, *given: Any) -> dict[str, str]:
        link_kernels(caches / "caldera")
        return worker_environment(caches, *given)

    monkeypatch.setattr(worker_process, "worker_environment", environment)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A Chromium for the tests of a file."""
    program = find_browser()
    if program is None:
        pytest.skip("no Chromium on this machine")
    with Browser(program, tmp_path_factory.mktemp("profile")) as found:
        yield found
