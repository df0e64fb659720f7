"""Snapshots of a model in memory, and its training progress as bytes.

The progress complements a model file: a copy needs both to resume training. The optimizer's
variables are tensors of a safetensors file; its metadata contains the counts of epochs and steps,
and the state of the rules between epochs.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from caldera.comm import Communicator
from caldera.compiler.lazy import Variable
from caldera.core.tensor.dtype import canonical
from caldera.errors import CheckpointError, DataError
from caldera.io import load_safetensors_metadata, save_safetensors
from caldera.io.safetensors_files import safetensors_arrays
from caldera.nn.layer import Layer
from caldera.optim import EpochRule, epoch_rules
from caldera.train.saving.checkpoint import state_of, state_text
from caldera.train.strategy import VariableView

if TYPE_CHECKING:
    from caldera.train.model import Model


def by_name(variables: Iterable[Variable]) -> dict[str, Variable]:
    """Return variables by their names; two that share one are an error, since files go by names.

    >>> from caldera import op
    >>> list(by_name([op.var("a", ()), op.var("b", ())]))
    ['a', 'b']
    """
    found: dict[str, Variable] = {}
    for variable in variables:
        if variable.name in found:
            raise CheckpointError.build(
                variable.name,
                expected="a distinct name for each variable",
                got="two alike",
                hint="give one of the layers another name=",
            )
        found[variable.name] = variable
    return found


def model_variables(model: Layer) -> dict[str, Variable]:
    """Return the parameters and states of a model, by name.

    >>> import caldera as cd
    >>> from caldera import nn
    >>> list(model_variables(cd.NeuralNetwork([nn.Input((2,)), nn.Dense(3)])))
    ['1-Dense/weight', '1-Dense/bias']
    """
    return by_name([*model.parameters(), *model.states()])


@dataclass(frozen=True)
class Snapshot:
    """The values of a model's parameters and states at one moment.

    >>> import caldera as cd
    >>> from caldera import nn
    >>> model = cd.NeuralNetwork([nn.Input((2,)), nn.Dense(3)])
    >>> before = Snapshot.of(model)
    >>> bias = model.parameters()[1]
    >>> bias.assign([1.0, 2.0, 3.0])
    >>> before.put_back(model)
    >>> bias.numpy().tolist()
    [0.0, 0.0, 0.0]
    """

    values: Mapping[str, np.ndarray]

    @classmethod
    def of(cls, model: Layer) -> Snapshot:
        """Copy the values as they are now."""
        return cls({name: each.numpy() for name, each in model_variables(model).items()})

    def put_back(self, model: Layer) -> None:
        """Give the model these values again."""
        assign_all(model_variables(model), self.values, "Snapshot")


def assign_all(
    variables: Mapping[str, VariableView], values: Mapping[str, np.ndarray], where: str
) -> None:
    """Assign values to variables by name; a mismatch raises an error before any assignment."""
    check_fit(variables, values, where)
    for name, variable in variables.items():
        variable.assign(values[name])


def check_fit(
    variables: Mapping[str, VariableView], values: Mapping[str, np.ndarray], where: str
) -> None:
    """Check that values and variables have the same names, shapes and dtypes.

    >>> import numpy as np
    >>> from caldera import op
    >>> check_fit({"a": op.var("a", (2,))}, {"b": np.zeros(2)}, "checkpoint")
    Traceback (most recent call last):
    caldera.errors.CheckpointError: checkpoint: expected values for every variable and no others,
    got a missing; b unexpected; was it made for another model?
    """
    problems = []
    for name, variable in variables.items():
        if name in values and values[name].shape != variable.shape:
            problems.append(f"{name} of shape {values[name].shape} for {variable.shape}")
        elif name in values and values[name].dtype != variable.dtype:
            problems.append(f"{name} of dtype {values[name].dtype} for {variable.dtype}")
    problems += [f"{name} missing" for name in variables if name not in values]
    problems += [f"{name} unexpected" for name in values if name not in variables]
    if problems:
        shown = "; ".join(problems[:8])
        more = f"; and {len(problems) - 8} more" if len(problems) > 8 else ""
        raise CheckpointError.build(
            where,
            expected="values for every variable and no others",
            got=shown + more,
            hint="was it made for another model?",
        )


def broadcast_arrays(
    communicator: Communicator, arrays: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Return the arrays of rank 0, on every rank; what others give is not looked at.

    >>> import numpy as np
    >>> from caldera.comm import SingleProcess
    >>> broadcast_arrays(SingleProcess(), {"w": np.arange(3)})
    {'w': array([0, 1, 2])}
    """
    described = [[name, list(each.shape), each.dtype.name] for name, each in arrays.items()]
    found = {}
    for name, shape, dtype in communicator.bcast_object(described):
        array = np.empty(shape, canonical(dtype))
        if communicator.rank == 0:
            array[...] = arrays[name]
        # Sent as bytes, as an MPI may not support the dtype.
        communicator.Bcast(array.reshape(-1).view(np.uint8))
        found[name] = array
    return found


# --- as it was before anything was learned


def reinitialise(model: Model) -> None:
    """Give a model the parameters and states that a new one with its seed would have.

    >>> import numpy as np
    >>> import caldera as cd
    >>> from caldera import nn
    >>> from caldera.train.saving.snapshot import reinitialise
    >>> def made(seed):
    ...     return cd.NeuralNetwork([nn.Input((2,)), nn.Dense(3)], seed=seed)
    >>> model = made(seed=1)
    >>> model.seed = 5
    >>> reinitialise(model)
    >>> np.array_equal(model.parameters()[0].numpy(), made(seed=5).parameters()[0].numpy())
    True
    """
    variables = model_variables(model)
    books = [(layer, dict(vars(layer))) for layer in model.walk()]
    try:
        for layer, _ in books:
            layer.forget()
        model.build_again()
        values = {name: each.numpy() for name, each in model_variables(model).items()}
    finally:
        # Plans and optimizers refer to these variables: only their values are replaced.
        for layer, kept in books:
            vars(layer).clear()
            vars(layer).update(kept)
    assign_all(variables, values, "reinitialise")


_KEY = "caldera-progress"
_WHERE = "progress of training"


def progress_bytes(model: Model) -> bytes:
    """Return the bytes for `restore_progress`."""
    optimizer = model.optimizer
    # An optimizer has variables once a step has been written down.
    kept = optimizer.named_variables() if optimizer.state else {}
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
    """Restore the training progress of a model from the result of `progress_bytes`.

    >>> import caldera as cd
    >>> from caldera import nn
    >>> from caldera.train.saving.snapshot import progress_bytes, restore_progress
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
            _WHERE, expected="output of progress_bytes", got=f"{type(problem).__name__}: {problem}"
        ) from None
    kept = optimizer.named_variables() if optimizer.state else {}
    tensors = safetensors_arrays(file)
    assign_all(kept, tensors, _WHERE)


def _rule(config: dict[str, object], state: dict[str, object]) -> EpochRule:
    rule = epoch_rules.from_config(config)
    rule.restore(state)
    return rule
