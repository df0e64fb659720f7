"""Every public function and class, called with arguments that make no sense.

Each call gives an error of Caldera's, which says what was expected or what came, or something that
works: values of expressions are computed by the oracle, layers are called.
"""

from __future__ import annotations

import inspect
import random
import resource
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from importlib import import_module
from pathlib import Path

import pytest

from caldera.errors import CalderaError
from tests.bad_calls import (
    calls_of_methods,
    calls_of_op,
    calls_of_rooms,
    calls_of_services,
    methods_of_services,
)
from tests.bad_calls.damage import Given, damaged
from tests.bad_calls.outcome import raw_exception, used
from tests.bad_calls.public_names import INTERNAL, public_names

CALLS: dict[str, Given] = {
    **{f"op.{name}": given for name, given in calls_of_op.CALLS.items()},
    **calls_of_rooms.CALLS,
    **calls_of_services.CALLS,
}
EACH = 5
"""Calls of each name."""
NOT_CALLED = {
    # Made by Caldera itself, and passed to those who look.
    "Expr",
    "History",
    "LearningRates",
    "Plan",
    "Run",
    "TableRun",
    "Variable",
    "data.Batch",
    "comm.Communicator",
    "audio.Sound",
    "audio.Utterance",
    "code.Function",
    "code.Score",
    "code.Program",
    "code.Statement",
    "comm.Counts",
    "comm.Request",
    "comm.VirtualRank",
    "comm.MpiCommunicator",
    "comm.NcclCommunicator",
    "core.memory.Block",
    "core.memory.Device",
    "core.memory.Pool",
    "core.memory.PendingRead",
    "bench.Findings",
    "bench.levels.Difference",
    "bench.levels.Finding",
    "bench.levels.Validation",
    "dmath.Array",
    "nn.Context",
    "nn.LayerCall",
    "onnx.Backend",
    "onnx.ImportedModel",
    "parallel.Proposal",
    # Its valid calls train for seconds; its own tests have bad ones.
    "train_table",
    "parallel.planner.LayerCost",
    "parallel.planner.Prediction",
    "parallel.planner.Proposal",
    "parallel.planner.Ranking",
    "parallel.planner.Setting",
    "parallel.planner.Way",
    "parallel.planner.Workload",
    "parallel.planner.proposed",
    "parallel.planner.rank",
    "search.Importance",
    "search.Luck",
    "search.Proposal",
    "search.Table",
    "search.Trial",
    "serve.Application",
    # Abstract: to be derived from, or protocols.
    "bench.levels.Learner",
    "search.Method",
    "search.Objective",
    "Callback",
    "CustomModel",
    "Filler",
    "Model",
    "compress.Compressor",
    "data.Data",
    "data.Stage",
    "data.Transform",
    "core.memory.CapturedGraph",
    "core.memory.Event",
    "core.memory.Stream",
    "nn.Layer",
    "nn.losses.ClassLoss",
    "nn.losses.ElementLoss",
    "nn.losses.Loss",
    "nn.losses.RegionLoss",
    "nn.metrics.ByClass",
    "nn.metrics.CentredMetric",
    "nn.metrics.ClassMetric",
    "nn.metrics.MeanMetric",
    "nn.metrics.Metric",
    "nn.metrics.ValueMetric",
    "optim.Clip",
    "optim.Decay",
    "optim.EpochRule",
    "optim.Optimizer",
    "optim.Schedule",
    "core.memory.Kind",
}
READ_A_FILE = {
    "load",
    "onnx.load",
    "nn.models.load_torchvision",
    "nn.models.load_huggingface",
    "data.Shards",
    "data.cifar10",
    "data.cifar100",
    "data.mnist",
    "data.csv",
    "data.csv_inputs",
    "data.images",
    "data.npz",
    "data.table",
    "data.table_inputs",
    "data.source",
    "io.load_npy",
    "io.load_npz",
    "io.load_safetensors",
    "io.load_safetensors_metadata",
    "io.map_npy",
    "io.map_safetensors",
    "io.read_csv",
    "audio.librispeech",
    "audio.model_input",
    "audio.read",
    "audio.speech_commands",
    "audio.kaldi.read_ark",
    "audio.kaldi.read_scp",
    "code.compile_c",
    "code.poj104",
    "dmath.load",
    "search.load",
    "train.report.compare_page",
    "train.report.run_page",
}
"""Their calls here name files that are not there; `test_files.py` has files for them."""
NEED_MORE = {
    "parallel.planner.measured_wire",
    "dmath.connect",
    "dmath.from_dask",
    "dmath.from_pandas",
    "serve.run",
}
"""What needs several processes, another library, or goes on until it is stopped."""

MAY_FAIL = {
    "NeuralNetwork.explain",
    "NeuralNetwork.load_weights",
    "search.Study.model_of",
    "code.Embedding.load",
}
"""Methods whose calls here need a file, a table, or a study that was run with data."""


@pytest.fixture(autouse=True)
def _small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In an empty folder, and with little memory: what asks for terabytes is refused at once."""
    monkeypatch.chdir(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + (4 << 30), hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _takes_arguments(value: object) -> bool:
    if not callable(value) or (inspect.isclass(value) and issubclass(value, Exception)):
        return False
    try:
        return bool(inspect.signature(value).parameters)
    except ValueError:  # built in
        return False


def test_every_public_name_that_takes_arguments_has_a_valid_call() -> None:
    called = {id(inspect.unwrap(calls_of_rooms.find(name))) for name in CALLS}
    public = public_names()
    missing = [
        name
        for name, value in public.items()
        if _takes_arguments(value)
        and name not in NOT_CALLED
        and id(inspect.unwrap(value)) not in called
    ]
    assert not missing
    assert len(public) > 800
    assert not [name for name in NOT_CALLED if name not in public or name in CALLS]
    assert all(hasattr(import_module(f"caldera.{name}"), "__all__") for name in INTERNAL)


def test_valid_calls_are_valid() -> None:
    for name, given in CALLS.items():
        with suppress(CalderaError) if name in READ_A_FILE | NEED_MORE else nullcontext():
            used(given(calls_of_rooms.find(name)))


def test_every_method_that_takes_arguments_has_a_valid_call() -> None:
    assert not calls_of_methods.uncalled()
    for name, (function, given) in calls_of_methods.CALLS.items():
        with suppress(CalderaError) if name in MAY_FAIL else nullcontext():
            used(given(function))


def test_bad_calls_of_methods_are_refused_in_words(tmp_path: Path) -> None:
    draw = random.Random(7)
    raw: list[str] = []
    count = 0
    for name, (function, given) in calls_of_methods.CALLS.items():
        # Each kind of value for each argument, where a call that is accepted takes no time.
        is_slow = name.startswith(("NeuralNetwork", *methods_of_services.METHODS))
        some = draw if is_slow or name == "Plan.trace" else None
        for bad in damaged(name, function, given, tmp_path, some, EACH):
            if any(kind in ("1e12", "2**70") for _, kind in bad.bad) and some is not None:
                continue  # so many epochs or runs may be wanted
            count += 1
            error = raw_exception(bad.call)
            if error is not None:
                raw.append(f"{bad}: {type(error).__name__}: {error}")
    assert count >= 5000
    assert not raw, "\n".join(raw)


def test_bad_calls_are_refused_in_words(tmp_path: Path) -> None:
    draw = random.Random(7)
    raw: list[str] = []
    count = 0
    for name, given in CALLS.items():
        for bad in damaged(name, calls_of_rooms.find(name), given, tmp_path, draw, EACH):
            count += 1
            error = raw_exception(bad.call)
            if error is not None:
                raw.append(f"{bad}: {type(error).__name__}: {error}")
    assert count >= 2000
    assert not raw, "\n".join(raw)
