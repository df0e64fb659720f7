"""`CustomModel`: several networks that are trained together, each with an optimizer of its own."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import numpy as np

from caldera import op, optim
from caldera.base.arguments import checked, guarded, require
from caldera.base.config import settings
from caldera.comm import world
from caldera.compiler.lazy import Expr, Variable, compile
from caldera.compiler.plan.plan import Plan
from caldera.core.memory import Device
from caldera.core.memory import device as find_device
from caldera.core.tensor.dtype import canonical
from caldera.core.tensor.random import checked_seed, seeded
from caldera.data import Loader, Pipeline
from caldera.errors import NonFiniteError
from caldera.nn import Layer, trace
from caldera.optim import Optimizer
from caldera.train.arguments import whole_number
from caldera.train.batch_source import as_words
from caldera.train.network_graph import input_dtype
from caldera.train.step_graph import AFTER_PARAMETERS
from caldera.train.tracking.history import History, shown_number


@guarded
class CustomModel(Layer):
    """A model with several losses, each of which trains one of its layers with its own optimizer.

    `optimizers` has an optimizer for each layer that is trained, by the name of the attribute.
    `losses` takes the arrays of a batch and gives a scalar for each of these names, which trains
    that layer alone: a generator and a critic that work against each other, say. Scalars of other
    names are only written down. A step is one graph: all gradients are those before the step.

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
    >>> history = Rivals().fit(np.ones((8, 2), "float32"), epochs=3, verbose=0)
    >>> list(history)
    ['left', 'right', 'seconds']
    """

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
        super().__init__(name=name)
        self._path = ""
        where = type(self).__name__
        require(optimizers, where, "an optimizer for each layer")
        # Each layer has steps of its own, and so has each model.
        token = uuid4().hex
        self.optimizers = {
            each: optim.get(given).owned_by(f"{token}/{each}") for each, given in optimizers.items()
        }
        self.batch_size = whole_number(batch_size, "batch_size", 1, where)
        self.epochs = whole_number(epochs, "epochs", 0, where)
        self.dtype = canonical(dtype)
        self.precision = precision
        self.seed = checked_seed(seed)
        self.device = find_device(device)
        self._plans: dict[tuple[tuple[tuple[int, ...], str], ...], Plan] = {}
        self._changes: tuple[int, ...] = ()
        self._random: Variable | None = None
        self._sums: dict[str, Variable] = {}
        self._epochs_done = 0

    @abstractmethod
    def losses(self, *batch: Expr) -> Mapping[str, Expr]:
        """The losses by name, of the arrays of a batch."""

    def forward(self, *batch: Any) -> dict[str, Expr]:
        """What `losses` gives."""
        return dict(self.losses(*batch))

    @checked
    def fit(
        self,
        data: Any,
        *,
        epochs: int | None = None,
        batch_size: int | None = None,
        shuffle: bool = True,
        verbose: int | None = None,
    ) -> History:
        """Train on arrays or a data set: the mean of each loss over each epoch.

        `verbose=0` shows nothing. Batches that are not whole are left out, as losses of such a
        model often depend on their size.
        """
        where = type(self).__name__
        require(world().size <= 1, where, "one process", f"{world().size} of them")
        source = Pipeline.of((data,) if isinstance(data, np.ndarray) else data)
        size = whole_number(self.batch_size if batch_size is None else batch_size, "batch_size", 1)
        total = whole_number(self.epochs if epochs is None else epochs, "epochs", 0)
        size = size if source.is_stream else min(size, len(source))
        loader = Loader(source, size, shuffle=shuffle, seed=self.seed)
        loader.restore(loader.state() | {"epoch": self._epochs_done})
        history = History()
        for epoch in range(self._epochs_done, self._epochs_done + total):
            started = time.perf_counter()
            for variable in self._sums.values():
                variable.assign(np.zeros(()))
            for batch in loader:
                if len(batch) == size:
                    self._step(batch.arrays)
            results = self._results(epoch)
            self._epochs_done += 1
            history.add(epoch, results | {"seconds": time.perf_counter() - started})
            if verbose is None or verbose:
                shown = [f"{name} {shown_number(value)}" for name, value in results.items()]
                print("  ".join([f"epoch {epoch + 1}", *shown]), flush=True)
        return history

    def _results(self, epoch: int) -> dict[str, float]:
        counted = float(self._sums["steps"].numpy()) if self._sums else 0.0
        found = {
            name: float(each.numpy()) / max(counted, 1.0)
            for name, each in self._sums.items()
            if name != "steps"
        }
        bad = [name for name, value in found.items() if not np.isfinite(value)]
        if bad:
            raise NonFiniteError.build(
                type(self).__name__,
                expected="finite losses",
                got=f"{bad[0]} = {found[bad[0]]} in epoch {epoch + 1}",
                hint="lower the learning rate, or clip gradients with optim.Adam(clip=...)",
            )
        return found

    @property
    def pin(self) -> str | None:
        """None: its device is a setting, and not where its own layers are pinned."""
        return None

    # --- a step

    def _step(self, arrays: tuple[np.ndarray, ...]) -> None:
        key = tuple((each.shape, input_dtype(self.dtype, each)) for each in arrays)
        changes = tuple(optimizer.changes for optimizer in self.optimizers.values())
        if changes != self._changes:
            self._changes = changes
            self._plans.clear()
        if key not in self._plans:
            self._plans[key] = self._compiled(key)
        self._plans[key].run({f"b{i}": each for i, each in enumerate(arrays)})

    def _compiled(self, key: tuple[tuple[tuple[int, ...], str], ...]) -> Plan:
        if self._random is None:
            self._random = op.var(
                "random state", (2,), fill=as_words(self.seed, 0), dtype="int64", device=self.device
            )
        inputs = [op.input(f"b{i}", shape, dtype) for i, (shape, dtype) in enumerate(key)]
        now = {"training": True, "dtype": self.dtype, "device": self.device, "random": self._random}
        if not self.built:
            # Parameters take the model's seed, whatever is drawn after them.
            with seeded(self.seed, 0, self._random), trace(**now):
                self(*inputs)
        with seeded(self.seed, AFTER_PARAMETERS, self._random), trace(**now) as traced:
            found = self._checked(self(*inputs))
        updates = list(traced.updates)
        # One that is not a number changes nothing.
        ok = op.isfinite(sum(found.values(), op.cast(0.0, self.dtype)))
        for name, optimizer in self.optimizers.items():
            weights = getattr(self, name).trainable()
            slopes = op.grad(found[name], weights, unused="zero")
            updates += optimizer.apply(weights, slopes, ok=ok)
        updates.append(op.assign(self._random, self._random + np.array([0, 1])))
        updates += [self._added(name, value) for name, value in found.items()]
        updates.append(self._added("steps", op.cast(1.0, "float64")))
        place = self.device if settings.placement == "auto" else None
        return compile(updates, device=place, precision=self.precision, remember=False)

    def _added(self, name: str, value: Expr) -> Expr:
        if name not in self._sums:
            self._sums[name] = op.var(f"sum/{name}", (), dtype="float64", device=self.device)
        return op.assign(self._sums[name], self._sums[name] + op.cast(value, "float64"))

    def _checked(self, found: dict[str, Expr]) -> dict[str, Expr]:
        where = type(self).__name__
        layers = dict(self.children())
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
                isinstance(value, Expr) and not value.ndim and name not in ("steps", "seconds"),
                where,
                "a scalar for each loss, and no name 'steps' or 'seconds'",
                f"{name}: {getattr(value, 'shape', value)!r}",
                "take op.mean of it",
            )
        return found
