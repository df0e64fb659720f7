"""`Model`: a network that can be trained."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Never, Self

import numpy as np

from caldera import op, optim
from caldera.base.arguments import checked, guarded, refuse_unknown
from caldera.base.formatting import html_table, note
from caldera.compiler.lazy import Expr
from caldera.compiler.plan.explain import Explanation
from caldera.core.memory import Device
from caldera.core.tensor.dtype import canonical, is_float
from caldera.core.tensor.random import seeded
from caldera.data.datasets.tables import table_inputs
from caldera.data.sources.base import SCALE, scaled
from caldera.data.tables.reading import is_table
from caldera.errors import ConfigError, DataError
from caldera.nn.basic import Sequential
from caldera.nn.metrics import Metric
from caldera.nn.tracing import Context, trace
from caldera.optim import Optimizer
from caldera.train.arguments import folder, instances, truth, whole_number
from caldera.train.callbacks import Callback
from caldera.train.data_adapters import (
    as_ragged,
    joined,
    joined_validation,
    own_batch_size,
    predict_ragged,
    prediction_arrays,
)
from caldera.train.fit import FitOptions, evaluate, fit, make_steps
from caldera.train.lr_find import LearningRates, lr_find
from caldera.train.model_settings import GivenLoss, ModelSettings
from caldera.train.saving.model_file import load_weights, save_model
from caldera.train.step import StepPlans
from caldera.train.step_graph import (
    AFTER_PARAMETERS,
    ModelSignature,
    main_output,
    named_outputs,
)
from caldera.train.strategy import Strategy
from caldera.train.target_units import in_units
from caldera.train.tracking.history import History
from caldera.train.tracking.measure_run import profile
from caldera.train.tracking.summary import Summary, summarise
from caldera.train.training_data import TrainingData


@guarded
class Model(ModelSettings):
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

    samples_traced: int = 2
    """How many samples a batch has when only shapes are asked for."""

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
        # Its device is a setting, not a pin as that of other layers.
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
        # Where the last `fit` ended: another one goes on with new random numbers and new orders.
        self.epochs_done = 0
        self.steps_done = 0

    # --- shapes

    @property
    def signature(self) -> ModelSignature:
        """The inputs and outputs for one sample, once the model has been built."""
        if self._signature is None:
            raise ConfigError.build(
                type(self).__name__,
                expected="a model that knows its input shape",
                got="a new one",
                hint="call build_for(x), fit or predict first, or start with nn.Input",
            )
        return self._signature

    def input_specs(self) -> tuple[tuple[tuple[int, ...], str], ...] | None:
        """Shape and dtype of one sample of each input, if the model knows them by itself."""
        return None

    @property
    def open_lengths(self) -> bool:
        """Whether inputs are sequences of any length, each of which has plans of its own."""
        return self._open_lengths

    @property
    def takes_mask(self) -> bool:
        """Whether a second input says which steps of sequences are real."""
        inputs = self.signature.inputs
        return len(inputs) == 2 and inputs[1][1] == "bool"

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
        # Parameters take the model's seed, whatever was drawn before or is drawn by others.
        with seeded(self.seed):
            _, outputs, traced = self._expressions(specs, self.samples_traced)
        self._signature = ModelSignature.of(specs, outputs)
        return traced

    def expressions(self, count: int) -> tuple[list[Expr], dict[str, Expr], Context]:
        """The network for a batch of `count` samples: its inputs, outputs, and calls of layers.

        >>> import caldera as cd
        >>> from caldera import nn
        >>> inputs, outputs, traced = cd.NeuralNetwork([nn.Input((4,)), nn.Dense(3)]).expressions(5)
        >>> [each.shape for each in (*inputs, *outputs.values())]
        [(5, 4), (5, 3)]
        """
        return self.expressions_for(self.signature.inputs, count)

    def expressions_for(
        self, specs: Sequence[tuple[tuple[int, ...], str]], count: int
    ) -> tuple[list[Expr], dict[str, Expr], Context]:
        """The same for inputs of other shapes, where sequences may have any length."""
        with seeded(self.seed, AFTER_PARAMETERS):
            inputs, outputs, traced = self._expressions(specs, count)
        if self.target_scale is not None:
            name, prediction = main_output(outputs, self.objective)
            outputs[name] = in_units(prediction, self.target_scale)
        return inputs, outputs, traced

    def open_expressions(self, count: int) -> tuple[list[Expr], dict[str, Expr], Context]:
        """The same for those who let the number of samples vary, whichever axis they lie on."""
        return self.expressions(count)

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

    def predict(self, *inputs: Any, batch_size: int | None = None, **unknown: Never) -> np.ndarray:
        """What the network gives for each sample (of its main output).

        `batch_size` samples at most are computed at once. Fewer are filled up to one of a few
        sizes, each of which has a plan.

        >>> import numpy as np
        >>> import caldera as cd
        >>> from caldera import nn
        >>> model = cd.NeuralNetwork([nn.Input((4,)), nn.Dense(3)])
        >>> model.predict(np.zeros((5, 4), "float32")).shape
        (5, 3)

        Bytes are taken for images and divided by 255, as in `fit`, unless the network takes
        integers. A model that was trained on a table takes tables: a path, a frame, a dict of
        columns or a list of rows; `model.schema.decode` names what it gives. One that was trained
        on texts takes texts, on sequences of different lengths lists of those.
        """
        refuse_unknown(Model.predict, unknown)
        if self.schema is not None and self.schema.columns and len(inputs) == 1:
            inputs = (table_inputs(inputs[0], self.schema),) if is_table(inputs[0]) else inputs
        ragged = as_ragged(self, inputs)
        if ragged is not None:
            return predict_ragged(self, ragged, self._count(batch_size, "predict"))
        arrays = self._inputs(prediction_arrays(self, inputs))
        self._check_plans()
        return self._predictors.predict(self, arrays, self._count(batch_size, "predict"))

    def _inputs(self, arrays: list[np.ndarray]) -> list[np.ndarray]:
        """What `fit` would have made of such arrays: bytes are images (see `data.ArrayData`)."""
        arrays[0] = scaled(arrays[0], self._byte_scale())
        self.ensure_built(arrays)
        if len(arrays) != len(self.signature.inputs):
            raise DataError.build(
                "predict",
                expected=f"{len(self.signature.inputs)} inputs",
                got=f"{len(arrays)}",
                hint="targets are no inputs",
            )
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
        """Train on `x, y`, on `(x, y)` or on data; gives back the history of losses and metrics.

        Data are whatever `data.as_data` takes: among others a `Dataset` or `DataLoader` of PyTorch,
        a list of pairs, a generator, sequences of different lengths. Several inputs are a tuple,
        `fit((x1, x2), y)`, or a dict by the names that `forward` gives them. Targets of
        `cross_entropy` are the numbers of classes, or a row for each sample with the probability of
        each class, such as one-hot ones; the loss is then set to take those
        (`CrossEntropy(probabilities=True)`).

        `validation` is data to evaluate on after each epoch, or the part of the data to hold out
        for that, such as 0.2: the same samples for the same seed. `checkpoint` is a folder to save
        to; with `resume=True` the run goes on from what is there. Ctrl-C ends it cleanly. `device`
        is where to train: the model is moved there, and stays. `parallel` is a strategy of
        `caldera.parallel`; without one, all processes that were started together share each batch.
        `sample_weights` has a number for each sample, `class_weights` one for each class or a dict
        by numbers or names of classes; with "balanced" all classes count the same.

        >>> import numpy as np
        >>> import caldera as cd
        >>> from caldera import nn
        >>> x = np.random.default_rng(0).normal(size=(200, 2)).astype("float32")
        >>> y = (x[:, 0] > x[:, 1]).astype("int64")
        >>> model = cd.NeuralNetwork([nn.Input((2,)), nn.Dense(2)], learning_rate=0.1)
        >>> history = model.fit(x, y, epochs=5, verbose=0)
        >>> history["accuracy"][-1] > 0.95
        True
        """
        refuse_unknown(Model.fit, unknown)
        if more:
            raise ConfigError.build(
                "fit",
                expected="data, or inputs and targets",
                got=f"{2 + len(more)} arguments",
                hint="write fit(x, y) or fit((x1, x2), y), and options by name",
            )
        if device is not None:
            self.to(device)
        batch_size = own_batch_size(data) if batch_size is None else batch_size
        return fit(
            self,
            joined(self, data, targets, "fit"),
            FitOptions(
                epochs=self.epochs if epochs is None else whole_number(epochs, "epochs", 0),
                batch_size=self._count(batch_size, "fit"),
                validation=joined_validation(self, validation),
                shuffle=truth(shuffle, "shuffle"),
                verbose=verbose,
                callbacks=instances(callbacks, Callback, "callbacks"),
                checkpoint=folder(checkpoint, "checkpoint"),
                resume=truth(resume, "resume"),
                parallel=parallel,
                sample_weights=sample_weights,
                class_weights=class_weights,
            ),
        )

    def to(self, device: Device | str | int) -> Self:
        """Move everything to a device: parameters, states and what the optimizer keeps.

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
        """The mean loss and every metric on `x, y`, on `(x, y)` or on data.

        Each process that calls this evaluates all of it; with a strategy they share the work, and
        all of them have to call it.

        >>> import numpy as np
        >>> import caldera as cd
        >>> from caldera import nn
        >>> model = cd.NeuralNetwork([nn.Input((2,)), nn.Dense(3)])
        >>> found = model.evaluate(np.zeros((4, 2), "float32"), np.zeros(4, "int64"))
        >>> sorted(found), round(found["loss"], 4)
        (['accuracy', 'loss'], 1.0986)
        """
        refuse_unknown(Model.evaluate, unknown)
        given = joined(self, data, targets, "evaluate")
        return evaluate(self, given, self._count(batch_size, "evaluate"), parallel)

    def evaluation_steps(self, data: TrainingData) -> StepPlans:
        """The plans for evaluating; made once."""
        self._check_plans()
        if self._evaluator is None:
            self._evaluator = make_steps(self, data)
        return self._evaluator

    def sequence(self) -> Sequential | None:
        """The list of layers this model consists of; None if its class has its own `forward`."""
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

    def _repr_html_(self) -> str:
        # To look at a model changes nothing: one that does not know its inputs yet stays so.
        if self._signature is None:
            rows = [(name, repr(layer)) for name, layer in self.children()]
            return note(type(self).__name__, strong=True) + html_table(("layer", "is"), rows)
        return self.summary(show=False)._repr_html_()

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
        return profile(self, data, self._count(batch_size, "profile"), trace)

    def ensure_built(
        self,
        arrays: Sequence[np.ndarray],
        inputs: int | None = None,
        *,
        open_lengths: bool = False,
    ) -> None:
        """Build the model for a batch (inputs, perhaps then targets), or check that it fits.

        `inputs` is how many of the arrays are inputs, where the data know it; with `open_lengths`
        they are sequences of any length.
        """
        if self._signature is None:
            count = inputs or len(inspect.signature(self.forward).parameters)
            self._open_lengths = open_lengths
            self.build_for(*arrays[:count])
        count = len(self.signature.inputs)
        arrays = arrays[:count]
        first = 1 if self.open_lengths else 0
        for (shape, _), array in zip(self.signature.inputs, arrays, strict=True):
            if array.ndim != 1 + len(shape) or array.shape[1 + first :] != shape[first:]:
                shown: tuple[Any, ...] = (
                    ("steps", *shape[1:]) if self.open_lengths and shape else shape
                )
                raise DataError.build(
                    type(self).__name__,
                    expected=f"samples of shape {_shape_text(shown)}",
                    got=f"{array.shape[1:]}",
                    hint="sequences of different lengths begin with nn.Input((None, ...))"
                    if open_lengths and not self.open_lengths
                    else "the first axis counts the samples",
                )


def _shape_text(shape: Sequence[Any]) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"
