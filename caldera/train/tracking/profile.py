"""`model.profile`: a training step as a table of its kernels, and as a time line."""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING, Any

from caldera.data import Loader, as_data
from caldera.errors import DataError
from caldera.plan.explain import Explanation
from caldera.plan.plan import Plan
from caldera.train.fit import make_steps

if TYPE_CHECKING:
    from caldera.train.model import Model


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
    """The plan of a training step that is fed its batch, and a batch for it."""
    source = as_data(data)
    steps = make_steps(model, source)
    batch = next(iter(Loader(source, batch_size, shuffle=False)), None)
    if batch is None:
        raise DataError.build("profile", expected="at least one sample", got="none")
    return steps.training(len(batch)), steps.feeds(batch.arrays, None)
