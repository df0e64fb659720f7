"""From a trained model to the record of its run: results, mistakes, where time and memory go."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from caldera.compiler.plan.explain import Explanation, StepRow, shapes_text
from caldera.compiler.plan.inspection import arena_in_use
from caldera.compiler.plan.plan import Plan
from caldera.data import Dataset, Loader, as_data
from caldera.errors import DataError
from caldera.train.fit import make_steps
from caldera.train.tracking.evaluation import tested_classes, tested_values
from caldera.train.tracking.history import History
from caldera.train.tracking.leaderboard import leaderboard
from caldera.train.tracking.run_record import (
    DataRecord,
    KernelRecord,
    LayerRecord,
    NetworkRecord,
    ProfileRecord,
    RunRecord,
    Setting,
    environment,
)
from caldera.train.tracking.summary import blocks_of, hyper_parameters

if TYPE_CHECKING:
    from caldera.train.model import Model

_PASSING = ("memory available", "cache folder", "data folder", "kernel choices remembered")


def record_of(
    model: Model,
    history: History,
    data: Dataset,
    settings: Mapping[str, Setting] | None,
    *,
    measured: bool,
) -> tuple[RunRecord, Plan | None]:
    """Return the record of a run, and the plan of its training step if that was `measured`."""
    settings = dict(hyper_parameters(model) if settings is None else settings)
    seconds = float(sum(history["seconds"])) if history.epochs else 0.0
    tested = measured and len(data.test) > 0
    asked = tested and bool(data.classes)
    confusion, classes = tested_classes(model, data) if asked else (None, None)
    asked = tested and not data.classes
    pairs, values = tested_values(model, data) if asked else (None, None)
    profile, plan = _profiled(model, data) if measured else (None, None)
    results = model.evaluate(data.test) if tested else {}
    has_part = tested and data.validation is not None
    held_out = model.evaluate(data.validation) if has_part else {}
    chosen = history.selection
    started = datetime.now().astimezone() - timedelta(seconds=seconds)
    return RunRecord(
        name=data.name,
        started=started.isoformat(timespec="seconds"),
        seconds=seconds,
        stopped=history.stopped,
        settings=settings,
        seeds=_seeds(model, settings),
        machine=_machine(),
        data=DataRecord(
            data.name,
            len(data.train),
            len(data.test),
            list(data.shape),
            list(data.class_names),
            faults=[str(each) for each in data.findings if each.is_fault],
            remarks=[str(each) for each in data.findings if not each.is_fault],
        ),
        network=network_record(model),
        results=_numbers(results),
        confusion=confusion,
        predictions=pairs,
        profile=profile,
        selection=chosen.text(data.train, data.validation) if chosen is not None else "",
        classes=classes,
        values=values,
        held_out=_numbers(held_out),
        leaderboard=leaderboard(model, data) if tested else [],
    ), plan


def _numbers(results: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in results.items() if np.ndim(value) == 0}


def _seeds(model: Model, settings: Mapping[str, Setting]) -> dict[str, int]:
    own = {"weights, order of the samples, dropout": model.seed}
    split = settings.get("split_seed")
    return own | ({"split of the data": split} if isinstance(split, int) else {})


def _machine() -> dict[str, dict[str, int | str]]:
    """Return the machine and the versions, without temporary or personal facts."""
    return {
        title: {name: value for name, value in rows.items() if name not in _PASSING}
        for title, rows in environment().items()
    }


def network_record(model: Model) -> NetworkRecord:
    """Return the record of a network, layer by layer."""
    found = model.summary(show=False)
    layers = [
        LayerRecord(row.path, row.kind, list(row.shape), row.parameters, row.flops, row.nbytes)
        for row in found.rows
    ]
    return NetworkRecord(layers, found.parameters, found.trainable, found.flops, blocks_of(model))


# --- time and memory


def _profiled(model: Model, data: Dataset) -> tuple[ProfileRecord, Plan]:
    plan, feeds = training_step(model, data.train, model.batch_size)
    found = plan.explain(feeds)
    assert found.seconds is not None
    profile = ProfileRecord(
        batch_size=len(next(iter(feeds.values()))),
        device=found.device,
        precision=list(found.precision),
        steps=[_step(row) for row in found.rows if row.step is not None],
        seconds=found.seconds,
        flops=found.flops,
        nodes_as_written=found.nodes_as_written,
        nodes_optimised=found.nodes_optimised,
        in_place=found.in_place,
        arena_bytes=found.arena_bytes,
        naive_bytes=found.naive_bytes,
        arena_in_use=arena_in_use(plan.schedule),
        memory=_memory(model, plan),
    )
    return profile, plan


def _step(row: StepRow) -> KernelRecord:
    assert row.seconds is not None
    return KernelRecord(
        op=row.op,
        kernel=row.kernel,
        beaten=row.beaten,
        source=row.source,
        shapes=shapes_text(row),
        target=row.target,
        nbytes=row.nbytes,
        flops=row.flops,
        seconds=row.seconds,
        roofline=row.roofline,
    )


def _memory(model: Model, plan: Plan) -> dict[str, int]:
    """Return the bytes by purpose, largest first."""
    found = {
        "parameters": sum(each.tensor.nbytes for each in model.parameters()),
        "running statistics": sum(each.tensor.nbytes for each in model.states()),
        "optimizer": sum(each.tensor.nbytes for each in model.optimizer.variables()),
        "batch": sum(each.spec.nbytes for each in plan.symbols if each.role == "input"),
        "activations and gradients": plan.arena_bytes,
    }
    return dict(sorted(((k, v) for k, v in found.items() if v), key=lambda each: -each[1]))


# --- a training step as a table of its kernels, and as a time line


def profile(
    model: Model, data: Any, batch_size: int, trace: str | PathLike[str] | None
) -> Explanation:
    """Time the training step on a batch; see `Model.profile`."""
    plan, feeds = training_step(model, data, batch_size)
    found = plan.explain(feeds)
    if trace is not None:
        plan.trace(trace, feeds)
    return found


def training_step(model: Model, data: Any, batch_size: int) -> tuple[Plan, dict[str, Any]]:
    """Return the plan of a training step that is fed its batch, and a batch for it."""
    source = as_data(data)
    steps = make_steps(model, source)
    batch = next(iter(Loader(source, batch_size, shuffle=False)), None)
    if batch is None:
        raise DataError.build("profile", expected="at least one sample", got="none")
    return steps.training(batch), steps.feeds(batch.arrays, None)
