"""How far the training of a model has come, as bytes: beside its file, all that a copy needs.

The optimizer's variables are tensors of a safetensors file; in its metadata stand the counts of
epochs and steps, and what the rules between epochs remember.
"""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING

from caldera.errors import DataError
from caldera.io import load_safetensors_metadata, save_safetensors
from caldera.io.safetensors_files import safetensors_arrays
from caldera.optim import EpochRule, epoch_rules
from caldera.train.saving.checkpoint_file import state_of, state_text
from caldera.train.saving.snapshot import assign_all, by_name, model_variables

if TYPE_CHECKING:
    from caldera.train.model import Model

_KEY = "caldera-progress"
_WHERE = "progress of training"


def progress_bytes(model: Model) -> bytes:
    """What `restore_progress` takes."""
    optimizer = model.optimizer
    # An optimizer has variables once a step has been written down.
    kept = by_name(optimizer.variables()) if optimizer.state else {}
    state = {
        "epochs_done": model.epochs_done,
        "steps_done": model.steps_done,
        "optimized": [variable.name for variable in optimizer.state],
        "rate_rule": None if optimizer.epoch_rule is None else optimizer.epoch_rule.state(),
        "between_epochs": [[rule.config(), rule.state()] for rule in model.between_epochs],
    }
    file = io.BytesIO()
    tensors = {name: each.numpy() for name, each in kept.items()}
    save_safetensors(file, tensors, {_KEY: state_text(state)})
    return file.getvalue()


def restore_progress(model: Model, content: bytes) -> None:
    """Let a model go on where the one that `progress_bytes` was given had come to.

    >>> import caldera as cd
    >>> from caldera import nn
    >>> from caldera.train.saving.progress import progress_bytes, restore_progress
    >>> model, other = (cd.NeuralNetwork([nn.Input((2,)), nn.Dense(3)]) for _ in range(2))
    >>> model.epochs_done = 5
    >>> restore_progress(other, progress_bytes(model))
    >>> other.epochs_done
    5
    """
    file = io.BytesIO(content)
    try:
        state = state_of(load_safetensors_metadata(file)[_KEY])
        variables = model_variables(model)
        optimizer = model.optimizer
        optimizer.prepare([variables[name] for name in state["optimized"]])
        model.epochs_done, model.steps_done = int(state["epochs_done"]), int(state["steps_done"])
        if optimizer.epoch_rule is not None:
            optimizer.epoch_rule.restore(state["rate_rule"])
        model.between_epochs = [_rule(*each) for each in state["between_epochs"]]
    except (KeyError, TypeError, json.JSONDecodeError) as problem:
        raise DataError.build(
            _WHERE, expected="what progress_bytes wrote", got=f"{type(problem).__name__}: {problem}"
        ) from None
    kept = by_name(optimizer.variables()) if optimizer.state else {}
    tensors = safetensors_arrays(file)
    assign_all(kept, tensors, _WHERE)


def _rule(config: dict[str, object], state: dict[str, object]) -> EpochRule:
    rule = epoch_rules.from_config(config)
    rule.restore(state)
    return rule
