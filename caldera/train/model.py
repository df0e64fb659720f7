"""`Model`: a network that can be trained."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Self

import numpy as np

from caldera import op, optim
from caldera.data import Data, IterableData, Schema
from caldera.errors import ConfigError, DataError
from caldera.lazy import Expr, compile
from caldera.memory import Device
from caldera.memory import device as find_device
from caldera.nn.basic import Sequential
from caldera.nn.layer import Layer
from caldera.nn.losses import Loss, losses
from caldera.nn.metrics import Metric
from caldera.nn.metrics import metrics as metric_names
from caldera.nn.tracing import Context, trace
from caldera.optim import Optimizer
from caldera.plan.explain import Explanation
from caldera.plan.plan import Plan
from caldera.strategy import Strategy
from caldera.train.callbacks import Callback
from caldera.train.fit import FitOptions, evaluate, fit, make_steps
from caldera.train.lr_find import LearningRates, lr_find
from caldera.train.saving.model_file import load_weights, save_model
from caldera.train.step import Steps
from caldera.train.step_graph import MAIN, Objective, Signature, main_output, named_outputs
from caldera.train.tracking.history import History
from caldera.train.tracking.measure_run import profile
from caldera.train.tracking.summary import Summary, summarise


class Model(Layer):
    """A network with a loss and an optimizer. Subclass it and write `forward`:

    >>> import numpy as np
    >>> import caldera as cd
    >>> from caldera import nn
    >>> class Net(cd.Model):
    ...     def __init__(self):
    ...         super().__init__(loss="mean_squared", optimizer="sgd", learning_rate=0.1)
    ...         self.hidden = nn.Dense(8, activation="tanh")
    ...         self.last = nn.Dense(1)
    ...     def forward(self, x):
    ...         return self.last(self.hidden(x))
    >>> x = np.linspace(-1, 1, 64, dtype="float32")[:, None]
    >>> history = Net().fit((x, x**2), epochs=2, verbose=0)
    >>> len(history["loss"])
    2

    `forward` may take several inputs, and give back a tuple or a dict of outputs; `loss` is then a
    dict from output names to losses, and `loss_weights` their weights in the sum.
    """

    samples_traced: int = 2
    """How many samples a batch has when only shapes are asked for."""

    def __init__(
        self,
        *,
        loss: str | Loss | Mapping[str, str | Loss] = "cross_entropy",
        optimizer: str | Optimizer = "adam",
        learning_rate: float | optim.Schedule | None = None,
        batch_size: int | optim.EpochRule = 32,
        epochs: int = 1,
        metrics: Sequence[str | Metric] | None = None,
        loss_weights: Mapping[str, float] | None = None,
        dtype: Any = "float32",
        precision: str | None = None,
        seed: int = 0,
        device: Device | str | int | None = None,
        name: str = "",
    ) -> None:
        super().__init__(name=name)
        self._path = ""
        self.between_epochs: list[optim.EpochRule] = []
        if isinstance(batch_size, optim.EpochRule):
            self.between_epochs.append(batch_size)
            batch_size = int(batch_size.value)
        if batch_size < 1 or epochs < 0:
            raise ConfigError.build(
                type(self).__name__, expected="batch_size >= 1 and epochs >= 0",
                got=f"{batch_size} and {epochs}",
            )  # fmt: skip
        self.batch_size = batch_size
        self.epochs = epochs
        self.dtype = dtype
        self.precision = precision
        self.seed = seed
        self.device = find_device(device)
        self.optimizer = _optimizer(optimizer, learning_rate)
        self.objective = _objective(loss, loss_weights or {})
        chosen = _default_metrics(self.objective) if metrics is None else metrics
        self.metrics = [metric_names.make(each) for each in chosen]
        self.schema: Schema | None = None
        """What it was trained on: the names of columns and classes, where the data have them."""
        self._signature: Signature | None = None
        self._predictors: dict[int, Plan] = {}
        self._evaluator: Steps | None = None
        # Where the last `fit` ended: another one goes on with new random numbers and new orders.
        self.epochs_done = 0
        self.steps_done = 0

    # --- shapes

    @property
    def signature(self) -> Signature:
        """The inputs and outputs for one sample, once the model has been built."""
        if self._signature is None:
            raise ConfigError.build(
                type(self).__name__, expected="a model that knows its input shape", got="a new one",
                hint="call build_for(x), fit or predict first, or start with nn.Input",
            )  # fmt: skip
        return self._signature

    def input_specs(self) -> tuple[tuple[tuple[int, ...], str], ...] | None:
        """Shape and dtype of one sample of each input, if the model knows them by itself."""
        return None

    def build_for(self, *samples: Any) -> Context:
        """Make all parameters for batches like these (only shapes and dtypes matter).

        >>> import numpy as np
        >>> import caldera as cd
        >>> from caldera import nn
        >>> model = cd.NeuralNetwork([nn.Input((4,)), nn.Dense(3)])
        >>> [p.shape for p in model.parameters()]
        [(4, 3), (3,)]
        """
        specs = tuple((np.shape(x)[1:], self._input_dtype(np.asarray(x))) for x in samples)
        return self._trace_once(specs)

    def build_again(self) -> Context:
        """Make all parameters that do not exist, for the inputs that are known."""
        return self._trace_once(self.signature.inputs)

    def _input_dtype(self, array: np.ndarray) -> str:
        return str(np.dtype(self.dtype)) if array.dtype.kind == "f" else array.dtype.name

    def _trace_once(self, specs: tuple[tuple[tuple[int, ...], str], ...]) -> Context:
        # Parameters take the model's seed, whatever was drawn before.
        op.seed(self.seed)
        _, outputs, traced = self._expressions(specs, self.samples_traced)
        self._signature = Signature(specs, {name: e.shape[1:] for name, e in outputs.items()})
        return traced

    def expressions(self, count: int) -> tuple[list[Expr], dict[str, Expr], Context]:
        """The network for a batch of `count` samples: its inputs, outputs, and calls of layers.

        >>> import caldera as cd
        >>> from caldera import nn
        >>> inputs, outputs, traced = cd.NeuralNetwork([nn.Input((4,)), nn.Dense(3)]).expressions(5)
        >>> [each.shape for each in (*inputs, *outputs.values())]
        [(5, 4), (5, 3)]
        """
        return self._expressions(self.signature.inputs, count)

    def _expressions(
        self, specs: Sequence[tuple[tuple[int, ...], str]], count: int
    ) -> tuple[list[Expr], dict[str, Expr], Context]:
        inputs: list[Expr] = [
            op.input(f"x{i}", (count, *shape), dtype=dtype)
            for i, (shape, dtype) in enumerate(specs)
        ]
        with trace(dtype=self.dtype, device=self.device) as traced:
            outputs = named_outputs(self(*inputs))
        return inputs, outputs, traced

    # --- using it

    def predict(self, *inputs: Any, batch_size: int | None = None) -> np.ndarray:
        """What the network gives for each sample (of its main output).

        >>> import numpy as np
        >>> import caldera as cd
        >>> from caldera import nn
        >>> model = cd.NeuralNetwork([nn.Input((4,)), nn.Dense(3)])
        >>> model.predict(np.zeros((5, 4), "float32")).shape
        (5, 3)
        """
        arrays = [np.asarray(x) for x in inputs]
        self.ensure_built(arrays)
        samples = len(arrays[0])
        count = min(batch_size or self.batch_size, max(samples, 1))
        plan = self._predictor(count)
        parts = []
        for start in range(0, samples, count):
            feeds = {
                f"x{i}": _padded(x[start : start + count], count) for i, x in enumerate(arrays)
            }
            parts.append(plan.run(feeds)[0].numpy()[: samples - start].copy())
        if not parts:
            name = next(iter(self.signature.outputs))
            return np.zeros((0, *self.signature.outputs[name]), self.dtype)
        return np.concatenate(parts)

    def _predictor(self, count: int) -> Plan:
        if count not in self._predictors:
            _, outputs, _ = self.expressions(count)
            _, prediction = main_output(outputs, self.objective)
            self._predictors[count] = compile(
                prediction, device=self.device, precision=self.precision
            )
        return self._predictors[count]

    def fit(
        self,
        data: Any,
        *more: Any,
        validation: Any = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        shuffle: bool = True,
        verbose: int | None = None,
        callbacks: Sequence[Callback] = (),
        checkpoint: Any = None,
        resume: bool = False,
        device: Device | str | int | None = None,
        parallel: Strategy | None = None,
        sample_weights: Any = None,
        class_weights: Any = None,
    ) -> History:
        """Train on data or on (x, y); gives back the history of losses and metrics.

        `validation` is data to evaluate on after each epoch, or the part of the data to hold out
        for that, such as 0.2: the same samples for the same seed. `checkpoint` is a folder to save
        to; with `resume=True` the run goes on from what is there. Ctrl-C ends it cleanly. `device`
        is where to train: the model is moved there, and stays. `parallel` is a strategy of
        `caldera.parallel`; without one, all processes that were started together share each batch.

        >>> import numpy as np
        >>> import caldera as cd
        >>> from caldera import nn
        >>> x = np.random.default_rng(0).normal(size=(200, 2)).astype("float32")
        >>> y = (x[:, 0] > x[:, 1]).astype("int64")
        >>> model = cd.NeuralNetwork([nn.Input((2,)), nn.Dense(2)], learning_rate=0.1)
        >>> history = model.fit((x, y), epochs=5, verbose=0)
        >>> history["accuracy"][-1] > 0.95
        True
        """
        if more:
            raise ConfigError.build(
                "fit", expected="one argument with the data", got=f"{1 + len(more)}",
                hint="write fit((x, y)), and options by name",
            )  # fmt: skip
        if device is not None:
            self.to(device)
        return fit(self, data, FitOptions(
            epochs=self.epochs if epochs is None else epochs,
            batch_size=batch_size or self.batch_size, validation=validation, shuffle=shuffle,
            verbose=verbose, callbacks=callbacks, checkpoint=checkpoint, resume=resume,
            parallel=parallel, sample_weights=sample_weights, class_weights=class_weights,
        ))  # fmt: skip

    def to(self, device: Device | str | int) -> Self:
        """Move everything to a device: parameters, states and what the optimizer keeps.

        >>> import caldera as cd
        >>> from caldera import nn
        >>> model = cd.NeuralNetwork([nn.Input((2,)), nn.Dense(3)]).to("loopback")
        >>> model.device, model.parameters()[0].tensor.device
        (<device loopback:0>, <device loopback:0>)
        """
        place = find_device(device)
        if place is not self.device:
            # An optimizer has variables once a step has been written down.
            kept = self.optimizer.variables() if self.optimizer.state else []
            for variable in (*self.parameters(), *self.states(), *kept):
                variable.move(place)
            self.device, self._predictors, self._evaluator = place, {}, None
        return self

    def evaluate(
        self, data: Any, *, batch_size: int | None = None, parallel: Strategy | None = None
    ) -> dict[str, Any]:
        """The mean loss and every metric on data or (x, y).

        Each process that calls this evaluates all of it; with a strategy they share the work, and
        all of them have to call it.

        >>> import numpy as np
        >>> import caldera as cd
        >>> from caldera import nn
        >>> model = cd.NeuralNetwork([nn.Input((2,)), nn.Dense(3)])
        >>> found = model.evaluate((np.zeros((4, 2), "float32"), np.zeros(4, "int64")))
        >>> sorted(found), round(found["loss"], 4)
        (['accuracy', 'loss'], 1.0986)
        """
        return evaluate(self, data, batch_size or self.batch_size, parallel)

    def evaluation_steps(self, data: Data | IterableData) -> Steps:
        """The plans for evaluating; made once."""
        if self._evaluator is None:
            self._evaluator = make_steps(self, data)
        return self._evaluator

    def sequence(self) -> Sequential | None:
        """The list of layers this model consists of; None if its class has its own `forward`."""
        return None

    def save(self, path: str | PathLike[str]) -> Path:
        """Write the model to one file, to share or to load with `cd.load`.

        >>> import tempfile
        >>> from pathlib import Path
        >>> import caldera as cd
        >>> from caldera import nn
        >>> model = cd.NeuralNetwork([nn.Input((4,)), nn.Dense(3)])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     again = cd.load(model.save(Path(folder) / "small.caldera"))
        >>> [p.shape for p in again.parameters()]
        [(4, 3), (3,)]
        """
        return save_model(self, path)

    def load_weights(self, path: str | PathLike[str]) -> None:
        """Take the parameters of a file, by name; any that does not fit is named in the error."""
        load_weights(self, path)

    def lr_find(self, data: Any, **settings: Any) -> LearningRates:
        """Try learning rates and suggest one; the model stays as it was."""
        return lr_find(self, data, **settings)

    def summary(self, show: bool = True) -> Summary:
        """Every layer with its shape, parameters, FLOPs, memory, work and depth; printed too.

        >>> import caldera as cd
        >>> from caldera import nn
        >>> cd.NeuralNetwork([nn.Input((4,)), nn.Dense(3)]).summary(show=False).parameters
        15
        """
        _, _, traced = self.expressions(self.samples_traced)
        found = summarise(self, traced, self.samples_traced)
        if show:
            print(found)
        return found

    def profile(
        self, data: Any, *, batch_size: int | None = None, trace: str | PathLike[str] | None = None
    ) -> Explanation:
        """Where time and memory of a training step go, on a batch of these data.

        The table is that of `Plan.explain`. `trace` is a .json file for what `Plan.trace` sees:
        every kernel, thread and copy on a time line. The model stays as it was.

        >>> import numpy as np
        >>> import caldera as cd
        >>> from caldera import nn
        >>> model = cd.NeuralNetwork([nn.Input((2,)), nn.Dense(3)])
        >>> found = model.profile((np.zeros((4, 2), "float32"), np.zeros(4, "int64")))
        >>> print(found)
        step  op ...
        >>> found.seconds > 0
        True
        """
        return profile(self, data, batch_size or self.batch_size, trace)

    def ensure_built(self, arrays: Sequence[np.ndarray]) -> None:
        """Build the model for a batch (inputs, perhaps then targets), or check that it fits."""
        if self._signature is None:
            count = len(inspect.signature(self.forward).parameters)
            self.build_for(*arrays[:count])
        count = len(self.signature.inputs)
        arrays = arrays[:count]
        for (shape, _), array in zip(self.signature.inputs, arrays, strict=True):
            if array.shape[1:] != shape:
                raise DataError.build(
                    type(self).__name__, expected=f"samples of shape {shape}",
                    got=f"{array.shape[1:]}", hint="the first axis counts the samples",
                )  # fmt: skip


def _padded(array: np.ndarray, count: int) -> np.ndarray:
    """The last samples filled up to a whole batch; what is computed for the filling is dropped."""
    missing = count - len(array)
    if not missing:
        return array
    return np.concatenate([array, np.repeat(array[-1:], missing, axis=0)])


def _optimizer(given: str | Optimizer, rate: float | optim.Schedule | None) -> Optimizer:
    if isinstance(given, Optimizer):
        if rate is not None:
            raise ConfigError.build(
                "optimizer", expected="the learning rate in one place",
                got="an optimizer object and learning_rate=", hint="give it to the optimizer alone",
            )  # fmt: skip
        return given
    return optim.get(given) if rate is None else optim.get(given, learning_rate=rate)


def _objective(
    given: str | Loss | Mapping[str, str | Loss], weights: Mapping[str, float]
) -> Objective:
    if not isinstance(given, Mapping):
        given = {MAIN: given}
    unknown = sorted(set(weights) - set(given))
    if unknown:
        raise ConfigError.build(
            "loss_weights", expected="weights for " + ", ".join(given), got=", ".join(unknown)
        )
    return Objective({name: losses.make(each) for name, each in given.items()}, dict(weights))


def _default_metrics(objective: Objective) -> list[str]:
    """Accuracy for classifiers, the mean absolute error for the rest."""
    first = type(next(iter(objective.losses.values()))).__name__
    return ["accuracy"] if "CrossEntropy" in first else ["mae"]
