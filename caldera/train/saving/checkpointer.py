"""Saving a whole run, so that it can be resumed as if it had never been interrupted."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from caldera.base.arguments import guarded, require
from caldera.base.plain_data import json_digest
from caldera.data import Schema, Share
from caldera.errors import CheckpointError, ConfigError
from caldera.nn.config import to_config
from caldera.optim import EpochRule
from caldera.train.arguments import plain_number, truth, whole_number
from caldera.train.callbacks import Callback
from caldera.train.saving.checkpoint import Checkpoint, CheckpointFolder, state_of, state_text
from caldera.train.saving.folder_lock import FolderLock
from caldera.train.saving.snapshot import (
    assign_all,
    broadcast_arrays,
    check_fit,
    model_variables,
)
from caldera.train.strategy import VariableView
from caldera.train.tracking.history import History

if TYPE_CHECKING:
    from caldera.train.model import Model
    from caldera.train.run import Run

__all__ = ["CheckpointFolder", "Checkpointer"]

_CALLBACK = "callback"
_STRATEGY = "strategy"


@guarded
class Checkpointer(Callback):
    """Saves a run to a folder: after each epoch, at intervals of steps or seconds, and at its end.

    Weights, optimizer, schedules, random state, the position in the data, the history and the state
    of other callbacks are saved. It should be the last callback, so that it sees their decisions. A
    run on several ranks is saved in the format of a single process: it can be resumed on any number
    of ranks, with any strategy. Rank 0 reads and writes for all.

    >>> import tempfile
    >>> import numpy as np
    >>> import caldera as cd
    >>> from caldera import nn
    >>> x = np.linspace(-1, 1, 32, dtype="float32")[:, None]
    >>> def model():
    ...     return cd.NeuralNetwork([nn.Input((1,)), nn.Dense(1)], loss="mse", optimizer="sgd")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = model().fit((x, x), epochs=2, checkpoint=folder, verbose=0)
    ...     history = model().fit((x, x), epochs=3, checkpoint=folder, resume=True, verbose=0)
    >>> history.epochs
    [0, 1, 2]
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        every_steps: int | None = None,
        every_seconds: float | None = 600.0,
        every_epoch: bool = True,
        keep: int = 2,
    ) -> None:
        where = "Checkpointer"
        if every_steps is not None:
            whole_number(every_steps, "every_steps", 1, where)
        require(
            every_seconds is None or plain_number(every_seconds, "every_seconds", 0, where),
            where,
            "every_seconds= a number above 0",
            "0",
        )
        self.folder = CheckpointFolder(folder, whole_number(keep, "keep", 1, where))
        self._lock = FolderLock(self.folder.path)
        self.every_steps = every_steps
        self.every_seconds = every_seconds
        self.every_epoch = truth(every_epoch, "every_epoch", where)
        self._resumed = False
        self._last_time = 0.0

    # --- moments

    def run_begins(self, run: Run) -> None:
        there = self._locked_steps() if run.communicator.rank == 0 else []
        if there and not self._resumed:
            raise CheckpointError.build(
                f"checkpoints in {self.folder.path}",
                expected="none from another run",
                got=f"a checkpoint of step {there[0]}",
                hint="continue it with fit(..., resume=True) (--resume), or name another folder",
            )
        self._last_time = time.monotonic()

    def batch_ends(self, run: Run) -> None:
        # After the last batch the end of the epoch comes next, and is worth more.
        if (self._is_due(run) and run.batch != run.batches) or run.stopped:
            self.save(run)

    def epoch_ends(self, run: Run) -> None:
        run.agree()
        if self.every_epoch or run.stopped or run.epoch == run.epochs:
            self.save(run)

    def run_ends(self, run: Run) -> None:
        self._resumed = False
        try:
            self.folder.wait()
        finally:
            self._lock.release()

    def _locked_steps(self) -> list[int]:
        self._lock.acquire()
        return self.folder.steps()

    def _is_due(self, run: Run) -> bool:
        by_steps = self.every_steps is not None and run.step % self.every_steps == 0
        late = self.every_seconds
        is_late = late is not None and time.monotonic() - self._last_time >= late
        if run.communicator.size == 1:
            return (by_steps or is_late) and not self.folder.busy
        # The clock of rank 0 decides, and all ranks save together.
        if run.communicator.rank == 0 and is_late and not self.folder.busy:
            run.save_soon()
        return by_steps or run.must_save

    # --- saving

    def save(self, run: Run) -> None:
        """Save the current state of the run; files are written in the background.

        Rank 0 writes for all ranks, but every rank must call this, so that split values can be
        gathered. A run that has met a nan is not saved: the last good checkpoint is worth more.
        """
        is_bad = int(run.steps.bad_step.numpy()) >= 0
        if any(run.communicator.gather_objects(is_bad)):
            return
        self._last_time = time.monotonic()
        strategy = run.steps.strategy
        tensors = {name: each.numpy() for name, each in _holders(run).items()}
        tensors |= {f"{_STRATEGY}/{name}": each for name, each in strategy.saved().items()}
        if run.communicator.rank != 0:
            return
        callbacks: dict[str, Any] = {}
        for name, callback in _callbacks(run).items():
            callbacks[name] = callback.state()
            for key, array in callback.arrays().items():
                tensors[f"{_CALLBACK}/{name}/{key}"] = array
        state = {
            "model": fingerprint(run.model),
            "schema": None if run.model.schema is None else run.model.schema.to_plain(),
            "kernels": _kernels(run),
            "ranks": run.communicator.size,
            "epoch": run.epoch,
            "batch": run.batch,
            "step": run.step,
            "batch_size": run.loader.batch_size,
            "loader": run.loader.state(),
            "history": run.history.to_dict(),
            "rules": [rule.state() for rule in _rules(run)],
            "callbacks": callbacks,
        }
        self.folder.save(run.step, tensors, state)

    # --- resuming

    def restore(self, run: Run) -> bool:
        """Restore the run from the newest checkpoint; return False if there is none yet."""
        self._resumed = True
        if run.communicator.rank == 0:
            self._lock.acquire()
        try:
            return self._restored(run)
        except BaseException:
            self._lock.release()
            raise

    def _restored(self, run: Run) -> bool:
        found = self._read(run)
        if found is None:
            return False
        where = f"checkpoint step-{found.step} in {self.folder.path}"
        try:
            self._restore(run, found, where)
        except (KeyError, TypeError) as problem:
            raise CheckpointError.build(
                where,
                expected="the state of a run",
                got=f"one without {problem}",
                hint="was it written by another version?",
            ) from problem
        return True

    def _read(self, run: Run) -> Checkpoint | None:
        """Return the newest checkpoint, which rank 0 reads and broadcasts."""
        everyone = run.communicator
        found = self.folder.latest() if everyone.rank == 0 else None
        if everyone.size == 1:
            return found
        known = None if found is None else [found.step, state_text(found.state)]
        known = everyone.bcast_object(known)
        if known is None:
            return None
        step, text = known
        tensors = broadcast_arrays(everyone, {} if found is None else found.tensors)
        return found or Checkpoint(step, tensors, state_of(text))

    def _restore(self, run: Run, found: Checkpoint, where: str) -> None:
        state = found.state
        _restore_batch_size(run, state, where)
        # The first plan makes the optimizer's variables and the totals.
        kernels = _kernels(run)
        others = (f"{_CALLBACK}/", f"{_STRATEGY}/")
        own = {k: v for k, v in found.tensors.items() if not k.startswith(others)}
        variables = _holders(run)
        check_fit(variables, own, where)
        rules = _rules(run)
        require(
            state["model"] == fingerprint(run.model) and len(state["rules"]) == len(rules),
            where,
            "the layers and schedules of this model",
            "others with the same parameters",
            "resume with the model that was saved, or load only its weights",
            CheckpointError,
        )
        known = state.get("schema")
        if known is not None and run.model.schema is not None:
            Schema.from_plain(known, where).check(run.model.schema, where)
        same_ranks = state["ranks"] == run.communicator.size
        if state["kernels"] != kernels and same_ranks and run.communicator.rank == 0:
            warnings.warn(
                f"{where}: this run uses different kernels from the saved run; results agree up "
                "to rounding, but not bit by bit",
                RuntimeWarning,
                stacklevel=4,
            )
        loader = state["loader"]
        run.loader.restore({**loader, "seed": run.steps.strategy.rank_seed(loader["seed"])})
        assign_all(variables, own, where)
        run.steps.strategy.restore(_under(_STRATEGY, found.tensors))
        run.epoch, run.batch, run.step = state["epoch"], state["batch"], state["step"]
        run.history = History.from_dict(state["history"])
        run.history.stopped = ""
        for rule, kept in zip(rules, state["rules"], strict=True):
            rule.restore(kept)
        for name, callback in _callbacks(run).items():
            if name in state["callbacks"]:
                arrays = _under(f"{_CALLBACK}/{name}", found.tensors)
                callback.take_back(state["callbacks"][name], arrays)


def _under(folder: str, tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the tensors whose names begin so, by the rest of their names."""
    prefix = f"{folder}/"
    return {
        key.removeprefix(prefix): array for key, array in tensors.items() if key.startswith(prefix)
    }


def fingerprint(model: Model) -> str:
    """Return a digest of a model's layers and parameters, independent of parameter values."""
    variables = model_variables(model)
    content: dict[str, Any] = {
        "variables": [[name, list(v.shape), v.dtype.name] for name, v in variables.items()]
    }
    try:
        content["layers"] = [to_config(layer) for _, layer in model.children()]
    except ConfigError:
        # Unregistered layers are identified by the classes of their sublayers.
        content["layers"] = [type(layer).__name__ for layer in model.walk()]
    return json_digest(content)


def _kernels(run: Run) -> str:
    """Return a digest of the kernels of a plan and their order.

    Values that are computed again to save memory do not change results, so these steps are ignored.
    """
    plan = run.steps.training(_share_of_a_batch(run))
    steps = [step for step in plan.schedule.steps if not step.is_again]
    return json_digest([[step.node.op.name, step.kernel.name] for step in steps])


def _holders(run: Run) -> Mapping[str, VariableView]:
    """Everything that training changes, by the name it has in a checkpoint."""
    found = {f"model/{name}": each for name, each in model_variables(run.model).items()}
    kept = run.model.optimizer.named_variables()
    found |= {f"optimizer/{name}": each for name, each in kept.items()}
    found |= {f"run/{name}": each for name, each in run.steps.variables().items()}
    return run.steps.strategy.checkpoint_views(found)


def _rules(run: Run) -> list[EpochRule]:
    """Return the rules that adapt learning rate and batch size between epochs, each once."""
    given = [*run.model.optimizer.epoch_rules, *run.model.between_epochs]
    return list({id(rule): rule for rule in given}.values())


def _restore_batch_size(run: Run, state: dict[str, Any], where: str) -> None:
    """Restore a batch size that a rule controls; otherwise the user's choice stays.

    The user may change it between epochs only.
    """
    size = state["batch_size"]
    if any(rule.controls == "batch_size" for rule in _rules(run)):
        run.loader.batch_size = size
    elif state["batch"] and size != run.loader.batch_size:
        raise CheckpointError.build(
            where,
            expected=f"a batch size of {size}, with which its epoch began",
            got=f"{run.loader.batch_size}",
            hint=f"resume with batch_size={size} (--batch-size {size})",
        )


def _callbacks(run: Run) -> dict[str, Callback]:
    """Return the callbacks by their names in a checkpoint: the class and a number."""
    found: dict[str, Callback] = {}
    for callback in run.callbacks:
        kind = type(callback).__name__
        number = sum(type(other).__name__ == kind for other in found.values())
        found[f"{kind} {number}"] = callback
    return found


def _share_of_a_batch(run: Run) -> Share:
    """Return this rank's share of a whole batch."""
    loader = run.loader
    samples = loader.state()["samples"] or loader.batch_size
    count = min(loader.batch_size, samples)
    return loader.share(0, count, loader.batch_size)
