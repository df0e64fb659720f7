"""`CustomModel`: several networks that are trained together, each with a separate optimizer."""

from __future__ import annotations

import weakref
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from itertools import islice
from types import SimpleNamespace
from typing import Any, Never, cast
from uuid import uuid4

import numpy as np

from caldera import op, optim
from caldera.base.arguments import guarded, refuse_unknown, require, shown
from caldera.comm import world
from caldera.compiler.lazy import Expr, Variable
from caldera.core.memory import Device
from caldera.errors import ConfigError, DataError
from caldera.nn.metrics import Metric
from caldera.nn.tracing import Added
from caldera.optim import EpochRule, Optimizer
from caldera.train.data_adapters import prediction_arrays
from caldera.train.metric_totals import AddedMetric
from caldera.train.model import Model
from caldera.train.network_graph import input_dtype, parameter_names
from caldera.train.step_graph import StepGraph, TrainingObjective
from caldera.train.strategy import Gradients
from caldera.train.tracking.history import History


class LayerOptimizers(Optimizer):
    """The optimizers of several layers, as one that takes all steps together.

    >>> from caldera import optim
    >>> both = LayerOptimizers({"left": optim.SGD(0.1), "right": optim.Adam()})
    >>> both.members["left"], both.known_rate()
    (SGD(0.1), None)
    """

    def __init__(self, members: Mapping[str, Optimizer]) -> None:
        self.members = dict(members)
        super().__init__()

    def update(self, *given: Any) -> Any:
        raise NotImplementedError("each optimizer updates the parameters of its layer")

    @property
    def changes(self) -> int:
        return sum(each.changes for each in self.members.values())

    @property
    def state(self) -> dict[Variable, dict[str, Variable]]:
        """The state of all parameters."""
        return {key: kept for each in self.members.values() for key, kept in each.state.items()}

    @state.setter
    def state(self, given: Any) -> None:
        """Leave it to the members."""

    @property
    def epoch_rules(self) -> list[EpochRule]:
        return [rule for each in self.members.values() for rule in each.epoch_rules]

    def known_rate(self) -> None:
        """Return None: each layer has a separate learning rate."""

    def after_epoch(self, metrics: Mapping[str, Any]) -> None:
        for each in self.members.values():
            each.after_epoch(metrics)

    def kept_for(self, variable: Variable) -> list[Variable]:
        return [kept for each in self.members.values() for kept in each.kept_for(variable)]

    def variables(self) -> list[Variable]:
        return [kept for each in self.members.values() for kept in each.variables()]

    def named_variables(self) -> dict[str, Variable]:
        return {
            f"{name}/{key}": kept
            for name, each in self.members.items()
            for key, kept in each.named_variables().items()
        }


class CustomStepGraph(StepGraph):
    """Step in which each loss trains its layer."""

    @property
    def _members(self) -> dict[str, Optimizer]:
        return self._steps.optimizer.members  # type: ignore[attr-defined]

    def loss(
        self, outputs: Mapping[str, Expr], terms: Mapping[str, Any], added: Sequence[Added] = ()
    ) -> tuple[Expr, Expr]:
        """Return the sum of all losses, finite only if each is, and the number of samples."""
        require(
            not added,
            type(self._model).__name__,
            "losses that are returned by name",
            f"add_loss in {added[0].where}" if added else "",
            "add the value to one of the losses",
        )
        dtype = self._model.dtype
        whole = sum((op.cast(each, dtype) for each in outputs.values()), op.cast(0.0, dtype))
        return whole, op.cast(float(self._count), dtype)

    def _batch_totals(
        self,
        loss: Expr,
        outputs: Mapping[str, Expr],
        added: Mapping[str, Added],
        more: Sequence[Expr],
    ) -> tuple[Expr, list[tuple[Metric, dict[str, Expr]]], list[Expr]]:
        where = type(self._model).__name__
        shown = {name: Added(where, value) for name, value in outputs.items()} | dict(added)
        metrics = [(AddedMetric(name), self._by_sample(each)) for name, each in shown.items()]
        return loss, [(metric, metric.sums(values, None)) for metric, values in metrics], []

    def _gradients(self, outputs: Mapping[str, Expr], loss: Expr) -> Gradients:
        scale = self._steps.loss_scale
        variables: list[Variable] = []
        values: list[Expr] = []
        for name in self._members:
            own = getattr(self._model, name).trainable()
            output = outputs[name] if scale is None else scale.scaled(outputs[name])
            variables += own
            values += op.grad(output, own, unused="zero")
        return Gradients(variables, values)

    def _applied(self, gradients: Gradients, ok: Expr, weight: Expr) -> list[Expr]:
        updates: list[Expr] = []
        values = iter(gradients.values)
        for name, optimizer in self._members.items():
            own = getattr(self._model, name).trainable()
            if own:
                gradient = list(islice(values, len(own)))
                updates += optimizer.apply(own, gradient, ok=ok, weight=weight)
        return updates


class _AllInputs(Model):
    """A model whose arrays are all inputs."""

    def ensure_built(
        self,
        arrays: Sequence[np.ndarray],
        inputs: int | None = None,
        *,
        open_lengths: bool = False,
    ) -> None:
        """Build the model for a batch, or check that it fits."""
        super().ensure_built(arrays, len(arrays), open_lengths=open_lengths)
        wanted = len(self.signature.inputs)
        require(
            len(arrays) == wanted,
            type(self).__name__,
            f"{wanted} arrays, as many as when it was built",
            len(arrays),
            error=DataError,
        )


class _Forward(_AllInputs):
    """Model that computes `forward` of a custom model, with the inputs of `predict`."""

    def __init__(self, owner: CustomModel) -> None:
        super().__init__(
            loss="mse",
            metrics=[],
            dtype=owner.dtype,
            precision=owner.precision,
            seed=owner.seed,
            device=owner.device,
        )
        self.owner = cast("CustomModel", weakref.proxy(owner))

    def forward(self, *inputs: Any) -> Any:
        return self.owner(*inputs)

    def input_names(self) -> list[str]:
        return parameter_names(self.owner.forward)


@guarded
class CustomModel(_AllInputs):
    """A model with several losses, each of which trains one of its layers with its own optimizer.

    `optimizers` maps the attribute name of each trained layer to its optimizer. `losses` accepts
    the arrays of a batch and returns a scalar for each of these names. Each scalar trains only that
    layer: for example a generator and a critic that work against each other. Scalars of other names
    are only recorded. A step is one graph, and all gradients are computed before any update.
    Incomplete batches are left out of training, as losses may depend on their size.

    `fit`, `evaluate`, `save` and `load_weights` work as in `Model`. The history has a column for
    each loss, and with `validation=` a second one with the prefix "val_". `predict` returns the
    result of `forward`, whose inputs may differ from the inputs of `losses`.

    >>> import numpy as np
    >>> import caldera as cd
    >>> from caldera import nn, op
    >>> class Rivals(cd.CustomModel):
    ...     def __init__(self):
    ...         super().__init__({"left": "sgd", "right": "adam"}, batch_size=4)
    ...         self.left, self.right = nn.Dense(1), nn.Dense(1)
    ...     def losses(self, x):
    ...         difference = op.mean(op.square(self.left(x) - self.right(x)))
    ...         return {"left": difference, "right": 1.0 - difference}
    ...     def forward(self, x):
    ...         return self.left(x)
    >>> rivals = Rivals()
    >>> history = rivals.fit(np.ones((8, 2), "float32"), epochs=3, verbose=0)
    >>> list(history), rivals.predict(np.ones((5, 2), "float32")).shape
    (['left', 'right', 'seconds'], (5, 1))
    """

    whole_batches = True
    step_graph = CustomStepGraph

    def __init__(
        self,
        optimizers: Mapping[str, str | Optimizer],
        *,
        batch_size: int = 32,
        epochs: int = 1,
        dtype: Any = "float32",
        precision: str | None = None,
        seed: int = 0,
        device: Device | str | int | None = None,
        name: str = "",
    ) -> None:
        require(optimizers, type(self).__name__, "an optimizer for each layer")
        # Each layer of each model has a separate step count.
        token = uuid4().hex
        members = {
            each: optim.get(given).owned_by(f"{token}/{each}") for each, given in optimizers.items()
        }
        super().__init__(
            optimizer=LayerOptimizers(members),
            batch_size=batch_size,
            epochs=epochs,
            metrics=[],
            dtype=dtype,
            precision=precision,
            seed=seed,
            device=device,
            name=name,
        )
        self._objective = TrainingObjective({}, {})
        self._viewed = SimpleNamespace(key=None, model=None)  # no list: it is none of its layers
        self.samples_traced = self.batch_size

    @property
    def optimizers(self) -> dict[str, Optimizer]:
        """The optimizer of each layer that is trained, by the layer's name."""
        return self.optimizer.members  # type: ignore[attr-defined]

    @abstractmethod
    def losses(self, *batch: Expr) -> Mapping[str, Expr]:
        """Return the losses by name, of the arrays of a batch."""

    def forward(self, *inputs: Any) -> Any:
        """Compute the result of `predict`; a subclass without it cannot predict."""
        raise self.refuse(
            "a model that defines forward",
            "none",
            "define forward(self, x), which returns the predictions",
        )

    def step_outputs(self, *inputs: Any) -> dict[str, Expr]:
        return self._checked(self._called(self.losses, inputs, {}))

    def check_argument(self, name: str, value: Any) -> None:
        """Refuse settings of models with one loss."""
        require(
            name not in ("optimizer", "loss", "metrics"),
            type(self).__name__,
            "losses from its own function, and an optimizer for each layer",
            f"{name} = {shown(value)}",
            "make a new model, or change attributes of model.optimizers[name]",
        )

    def lr_find(self, data: Any, **settings: Any) -> Never:
        """Raise: each layer has a separate learning rate."""
        raise ConfigError.build(
            "lr_find",
            expected="a model with one loss",
            got=type(self).__name__,
            hint="try rates for each layer with search.run",
        )

    def fit(self, data: Any, *more: Any, **options: Any) -> History:
        """Train on arrays or a data set, all arrays of which `losses` takes: see `Model.fit`.

        Callbacks, checkpoints and validation work as for every model. Weights of samples and
        classes and training on several processes are not supported.
        """
        where = type(self).__name__
        require(world().size <= 1, where, "one process", f"{world().size}")
        for name in ("parallel", "sample_weights", "class_weights"):
            require(
                options.get(name) is None,
                where,
                f"no {name}=",
                f"{name}=",
                "weigh the samples in losses",
            )
        if self._signature is None and options.get("batch_size") is not None:
            self.samples_traced = self._count(options["batch_size"], "fit")
        return super().fit(data, *more, **options)

    def predict(self, *inputs: Any, batch_size: int | None = None, **unknown: Any) -> np.ndarray:
        """Return the result of `forward` for each sample: see `Model.predict`."""
        refuse_unknown(Model.predict, unknown)
        _ = self.signature
        viewed = self._viewed.model or _Forward(self)
        arrays = prediction_arrays(viewed, inputs)
        specs = [(each.shape[1:], input_dtype(self.dtype, each)) for each in arrays]
        key = (specs, self.precision, self.device)
        if self._viewed.key not in (None, key):
            viewed = _Forward(self)
        self._viewed = SimpleNamespace(key=key, model=viewed)
        return viewed.predict(*arrays, batch_size=batch_size)

    def input_names(self) -> list[str]:
        return parameter_names(self.losses)

    def _joined(self, data: Any, targets: Any, where: str) -> Any:
        found = super()._joined(data, targets, where)
        return (found,) if isinstance(found, np.ndarray) else found

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_viewed": SimpleNamespace(key=None, model=None)}

    def _checked(self, found: Any) -> dict[str, Expr]:
        where = type(self).__name__
        layers = dict(self.children())
        require(isinstance(found, Mapping), where, "a dict of losses by name", repr(found)[:100])
        for name in self.optimizers:
            require(
                name in layers and name in found,
                where,
                f"a layer self.{name} and a loss {name!r}",
                f"the layers {', '.join(layers) or 'none'} and the losses "
                f"{', '.join(found) or 'none'}",
                "an optimizer goes by the name of the layer that it trains",
            )
        for name, value in found.items():
            require(
                isinstance(value, Expr) and not value.ndim and name != "seconds",
                where,
                "a scalar for each loss, and no name 'seconds'",
                f"{name}: {getattr(value, 'shape', value)!r}",
                "apply op.mean to it",
            )
        return dict(found)
