"""`Model`: a network that can be trained."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Never, Self

import numpy as np

from caldera import optim
from caldera.base.arguments import checked, guarded, refuse_unknown, require
from caldera.base.formatting import html_table, note
from caldera.compiler.plan.explain import Explanation
from caldera.core.memory import Device
from caldera.core.tensor.dtype import canonical, is_float
from caldera.data.datasets.tables import table_rows
from caldera.data.decisions import ClassThreshold
from caldera.data.sources.as_data import as_data
from caldera.data.sources.base import SCALE, Data, scaled
from caldera.data.tables.reading import is_table
from caldera.errors import DataError
from caldera.nn.basic import Sequential
from caldera.nn.metrics import Metric
from caldera.optim import Optimizer
from caldera.train.arguments import folder, instances, truth, whole_number
from caldera.train.callbacks import Callback
from caldera.train.contributions import Contributions, explain
from caldera.train.data_adapters import (
    Predicted,
    as_ragged,
    joined,
    joined_validation,
    own_batch_size,
    predict_ragged,
    prediction_arrays,
)
from caldera.train.fit import FitOptions, evaluate, fit, make_steps
from caldera.train.lr_find import LearningRates, lr_find
from caldera.train.model_settings import GivenLoss
from caldera.train.network_graph import NetworkGraph
from caldera.train.saving.checkpointer import Checkpointer
from caldera.train.saving.model_file import load_weights, save_model
from caldera.train.step import StepPlans
from caldera.train.step_graph import (
    ModelSignature,
)
from caldera.train.strategy import Strategy
from caldera.train.tracking.evaluation import choose_threshold
from caldera.train.tracking.history import History
from caldera.train.tracking.measure_run import profile
from caldera.train.tracking.summary import Summary, summarise
from caldera.train.training_data import TrainingData


@guarded
class Model(NetworkGraph):
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

    A loss is a name, an object of `nn.losses` or a function of predictions and targets.

    `forward` may take several inputs, and give back a tuple or a dict of outputs; `loss` is then a
    dict from output names to losses, and `loss_weights` their weights in the sum.
    """

    def __init__(
        self,
        *,
        loss: GivenLoss = "cross_entropy",
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
        # The device is a setting here, not a pin as for other layers.
        self.name = name
        self._path = ""
        self._set(
            loss,
            optimizer,
            learning_rate,
            batch_size,
            epochs,
            metrics,
            loss_weights,
            dtype,
            precision,
            seed,
            device,
        )
        self._signature: ModelSignature | None = None
        self._open_lengths = False
        self._open_axes: frozenset[tuple[int, int]] = frozenset()
        # Counts at the end of the last `fit`: the next one continues with new random numbers and
        # orders.
        self.epochs_done = 0
        self.steps_done = 0

    def predict(self, *inputs: Any, batch_size: int | None = None, **unknown: Never) -> np.ndarray:
        """Return the main output of the network for each sample.

        Up to `batch_size` samples are computed in one batch; the default follows from the size of
        the network's values and the memory. Smaller batches are padded to one of a few sizes, each
        of which has a plan. Several inputs are `predict(a, b)`, or `predict((a, b))` as in `fit`.

        >>> import numpy as np
        >>> import caldera as cd
        >>> from caldera import nn
        >>> model = cd.NeuralNetwork([nn.Input((4,)), nn.Dense(3)])
        >>> model.predict(np.zeros((5, 4), "float32")).shape
        (5, 3)

        Bytes are treated as images and divided by 255, as in `fit`, unless the network takes
        integers. A model trained on a table accepts tables: a path, a frame, a dict of columns or a
        list of rows. `model.schema.decode` maps its predictions to names or units. Their `notes`
        list values that were filled in or are far outside the training data. A model trained on
        texts accepts texts; a model trained on sequences of different lengths accepts lists of
        sequences.
        """
        refuse_unknown(Model.predict, unknown)
        if len(inputs) == 1 and batch_size is None:
            self._check_plans()
            again = self._predictors.repeat(inputs[0])
            if again is not None:
                return again
        if batch_size is not None:
            batch_size = self._count(batch_size, "predict")
        if self._takes_table(inputs):
            rows = table_rows(inputs[0], self.schema)
            for each in rows.notes:
                warnings.warn(each, stacklevel=2)
            return Predicted.of(self.predict(rows.x, batch_size=batch_size), rows.notes)
        ragged = as_ragged(self, inputs)
        if ragged is not None:
            return predict_ragged(self, ragged, batch_size)
        arrays = self._inputs(prediction_arrays(self, inputs))
        self._check_plans()
        return self._predictors.predict(self, arrays, batch_size)

    @checked
    def explain(self, source: Any, batch_size: int | None = None) -> Contributions:
        """Return contributions of the columns of a table to the prediction of each row.

        A contribution is the prediction minus that with the column at its usual training value:
        the median of numbers and dates, the most frequent category, a text without words. In a
        linear model that is the weight times the distance from the median. Columns that only act
        together have contributions that do not add up to the prediction.

        >>> import caldera as cd
        >>> from caldera import nn
        >>> rows = [{"width": float(n), "height": float(n % 3), "area": 2.0 * n} for n in range(60)]
        >>> areas = cd.data.table(rows, "area")
        >>> model = cd.NeuralNetwork([nn.Input((2,)), nn.Dense(1)], loss="mean_squared")
        >>> _ = model.fit(areas.train, epochs=30, verbose=0)
        >>> model.explain([{"width": 50, "height": 1}]).largest(1)[0][0].column
        'width'
        """
        return explain(self, source, batch_size)

    @checked
    def choose_threshold(self, data: Any, probability: float | None = None) -> ClassThreshold:
        """Set the probability from which the rarer of two classes is predicted, and return it.

        It has the largest F1 on these samples, or is the `probability` given. Choose it on
        held-out samples, not on the test data. Class names, reports and services follow it; the
        plain outputs of `predict` and the metrics of `evaluate` do not.

        >>> import caldera as cd
        >>> from caldera import nn
        >>> rows = {"heat": range(100), "state": ["good"] * 90 + ["bad"] * 10}
        >>> parts = cd.data.table(rows, "state").hold_out()
        >>> model = cd.NeuralNetwork([nn.Input((1,)), nn.Dense(2)])
        >>> _ = model.fit(parts.train, epochs=3, verbose=0)
        >>> model.choose_threshold(parts.validation).name
        'bad'
        """
        inside = probability is None or 0 < probability < 1
        require(inside, "choose_threshold", "a probability between 0 and 1", probability)
        samples = as_data(data)
        if not isinstance(samples, Data):
            raise DataError.build("choose_threshold", expected="samples", got="a stream")
        return choose_threshold(self, samples, probability)

    def _takes_table(self, inputs: Sequence[Any]) -> bool:
        has_columns = self.schema is not None and bool(self.schema.columns)
        return has_columns and len(inputs) == 1 and is_table(inputs[0])

    def _inputs(self, arrays: list[np.ndarray]) -> list[np.ndarray]:
        """Convert arrays as `fit` does: bytes are images (see `data.ArrayData`)."""
        arrays[0] = scaled(arrays[0], self._byte_scale())
        self.ensure_built(arrays)
        wanted = len(self.signature.inputs)
        if len(arrays) != wanted:
            got, hint = str(len(arrays)), "targets are no inputs"
            raise DataError.build("predict", expected=f"{wanted} inputs", got=got, hint=hint)
        return arrays

    def _byte_scale(self) -> float | None:
        specs = self.input_specs() if self._signature is None else self._signature.inputs
        whole = specs is not None and not is_float(canonical(specs[0][1]))
        return None if whole else SCALE

    def _count(self, batch_size: int | None, where: str) -> int:
        if batch_size is None:
            return self.batch_size
        return whole_number(batch_size, "batch_size", 1, where)

    def fit(
        self,
        data: Any,
        targets: Any = None,
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
        **unknown: Never,
    ) -> History:
        """Train on `x, y`, on `(x, y)` or on data, and return the history of losses and metrics.

        `data` is anything `data.as_data` accepts; several inputs are a tuple, `fit((x1, x2), y)`,
        or a dict by the names of `forward`'s parameters. Targets of `cross_entropy` are class
        numbers, or class probabilities, which set the loss to `CrossEntropy(probabilities=True)`.

        `validation` is data to evaluate after each epoch, or the fraction of samples to hold out.
        `checkpoint` is a folder to save to, or a `Checkpointer`, and `resume=True` continues from
        it. `device` moves the model. `parallel` is a strategy of `caldera.parallel`; by default the
        processes of a job share each batch. `class_weights` are a number per class, a dict, or
        "balanced".

        Arrays are read during training and not copied: writing to them before the end affects
        training.

        >>> import numpy as np, caldera as cd
        >>> from caldera import nn
        >>> x = np.random.default_rng(0).normal(size=(200, 2)).astype("float32")
        >>> y = (x[:, 0] > x[:, 1]).astype("int64")
        >>> model = cd.NeuralNetwork([nn.Input((2,)), nn.Dense(2)], learning_rate=0.1)
        >>> model.fit(x, y, epochs=5, verbose=0)["accuracy"][-1] > 0.95
        True
        """
        refuse_unknown(Model.fit, unknown)
        _refuse_more(more)
        if device is not None:
            self.to(device)
        batch_size = own_batch_size(data) if batch_size is None else batch_size
        return fit(
            self,
            self._joined(data, targets, "fit"),
            FitOptions(
                epochs=self.epochs if epochs is None else whole_number(epochs, "epochs", 0),
                batch_size=self._count(batch_size, "fit"),
                validation=joined_validation(self, validation),
                shuffle=truth(shuffle, "shuffle"),
                verbose=verbose,
                callbacks=instances(callbacks, Callback, "callbacks"),
                checkpoint=checkpoint
                if isinstance(checkpoint, Checkpointer)
                else folder(checkpoint, "checkpoint"),
                resume=truth(resume, "resume"),
                parallel=parallel,
                sample_weights=sample_weights,
                class_weights=class_weights,
            ),
        )

    def _joined(self, data: Any, targets: Any, where: str) -> Any:
        return joined(self, data, targets, where)

    def to(self, device: Device | str | int) -> Self:
        """Move everything to a device: parameters, states and optimizer state.

        >>> import caldera as cd
        >>> from caldera import nn
        >>> model = cd.NeuralNetwork([nn.Input((2,)), nn.Dense(3)]).to("loopback")
        >>> model.device, model.parameters()[0].tensor.device
        (<device loopback:0>, <device loopback:0>)
        """
        self.device = device
        return self

    def evaluate(
        self,
        data: Any,
        targets: Any = None,
        *,
        batch_size: int | None = None,
        parallel: Strategy | None = None,
        **unknown: Never,
    ) -> dict[str, Any]:
        """Return the mean loss and every metric on `x, y`, on `(x, y)` or on data.

        Each process that calls this evaluates all samples; with a strategy, processes share the
        work, and each must call it.

        >>> import numpy as np
        >>> import caldera as cd
        >>> from caldera import nn
        >>> model = cd.NeuralNetwork([nn.Input((2,)), nn.Dense(3)])
        >>> found = model.evaluate(np.zeros((4, 2), "float32"), np.zeros(4, "int64"))
        >>> sorted(found), round(found["loss"], 4)
        (['accuracy', 'loss'], 1.0986)
        """
        refuse_unknown(Model.evaluate, unknown)
        given = self._joined(data, targets, "evaluate")
        return evaluate(self, given, self._count(batch_size, "evaluate"), parallel)

    def evaluation_steps(self, data: TrainingData) -> StepPlans:
        """Return the plans for evaluation, made on first use."""
        self._check_plans()
        if self._evaluator is None:
            self._evaluator = make_steps(self, data)
        return self._evaluator.centre_on(data)

    def sequence(self) -> Sequential | None:
        """Return the list of layers this model consists of.

        None if its class has its own `forward`.
        """
        return None

    @checked
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

    @checked
    def load_weights(self, path: str | PathLike[str]) -> None:
        """Take the parameters of a file, by name; any that does not fit is named in the error."""
        load_weights(self, path)

    def lr_find(self, data: Any, **settings: Any) -> LearningRates:
        """Try learning rates and suggest one; the model stays as it was."""
        return lr_find(self, data, **settings)

    @checked
    def summary(self, show: bool = True) -> Summary:
        """Return a summary of the layers, and print it if `show`.

        It has the shape, parameters, FLOPs, memory, work and depth of every layer.

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

    def _repr_html_(self) -> str:
        # Displaying a model must not build it: a model without known inputs stays so.
        if self._signature is None:
            rows = [(name, repr(layer)) for name, layer in self.children()]
            return note(type(self).__name__, strong=True) + html_table(("layer", "is"), rows)
        return self.summary(show=False)._repr_html_()

    def profile(
        self, data: Any, *, batch_size: int | None = None, trace: str | PathLike[str] | None = None
    ) -> Explanation:
        """Profile the time and memory of a training step on a batch of these data.

        The result has the table of `Plan.explain`. `trace` is a .json file for the output of
        `Plan.trace`: every kernel, thread and copy on a time line. The model stays as it was.

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
        return profile(self, data, self._count(batch_size, "profile"), trace)


def _refuse_more(arguments: Sequence[Any]) -> None:
    """Refuse positional arguments of `fit` after the targets."""
    require(
        not arguments,
        "fit",
        "data, or inputs and targets",
        f"{2 + len(arguments)} arguments",
        "write fit(x, y) or fit((x1, x2), y), and options by name",
    )
