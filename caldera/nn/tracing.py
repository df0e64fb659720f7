"""State of the trace in which a network is recorded as a graph.

A network is traced once for training and once for evaluation; the two graphs differ. The context
stores which of the two it is and the source of random numbers. It collects the layers' new state
(running statistics) as updates of the step.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from caldera import op
from caldera.compiler.lazy import Expr, Variable, call_later, lift
from caldera.core.graph.node import Node, Symbol, describe
from caldera.core.tensor.dtype import is_complex, is_float
from caldera.errors import ConfigError, DtypeError

if TYPE_CHECKING:
    from caldera.nn.layer import Layer


@dataclass(frozen=True)
class LayerCall:
    """One call of a layer. `inside` is the number of calls of inner layers, which follow it.

    >>> from caldera import nn, op
    >>> with nn.trace() as traced:
    ...     _ = nn.Dense(3)(op.input("x", (5, 2)))
    >>> [(call.layer.path, call.outputs[0].shape) for call in traced.calls]
    [('Dense', (5, 3))]
    """

    layer: Layer
    inputs: tuple[Expr, ...]
    outputs: tuple[Expr, ...]
    inside: int = 0


@dataclass(frozen=True)
class Added:
    """Values that a layer adds to the loss or the metrics: one per sample, or a single one.

    `where` is the path of the layer.
    """

    where: str
    values: Expr


@dataclass
class Context:
    """Settings and results of a trace.

    `random` is the (seed, step) pair that random layers read. `first` is the number of the batch's
    first sample within the whole batch over all ranks, so that masks do not depend on how it is
    split; `several_ranks` is True if other ranks have samples of the batch too. Without `allocate`,
    parameters have shapes but neither memory nor values: enough to count them, not to run.
    `layer_output` receives each layer's output and returns its replacement.

    >>> from caldera import nn
    >>> nn.Context(training=True).updates
    []
    """

    training: bool = False
    dtype: Any = "float32"
    device: Any = None
    random: Variable | None = None
    first: Expr | int = 0
    several_ranks: bool = False
    allocate: bool = True
    layer_output: Callable[[Layer, Any], Any] | None = None
    calls: list[LayerCall] = field(default_factory=list)
    losses: list[Added] = field(default_factory=list)
    """Values that layers added to the loss; see `Layer.add_loss`."""
    metrics: dict[str, Added] = field(default_factory=dict)
    """Values that layers report as metrics; see `Layer.add_metric`."""
    _new_values: dict[Symbol, tuple[Variable, Expr]] = field(default_factory=dict, repr=False)
    _random_uses: Counter[str] = field(default_factory=Counter, repr=False)

    @property
    def updates(self) -> list[Expr]:
        """The assignments that belong to the step."""
        return [op.assign(variable, value) for variable, value in self._new_values.values()]

    def update(self, variable: Variable, value: Expr) -> None:
        """Let `variable` hold `value` after the step (training only)."""
        self._new_values[variable.symbol] = (variable, value)

    def latest(self, variable: Variable) -> Expr:
        """Return the value of `variable` after the step, including all updates until now.

        A layer that is used several times in a step bases each update on the previous one.
        """
        return self._new_values.get(variable.symbol, (variable, variable))[1]

    def random_source(self, path: str, elements_per_sample: int) -> dict[str, Any]:
        """Return the arguments of a random op that belongs to the layer at `path`."""
        if self.random is None:
            raise ConfigError.build(
                path,
                expected="a random state while training",
                got="none",
                hint="train with fit, or give nn.trace(random=op.random_state())",
            )
        use = self._random_uses[path]
        self._random_uses[path] += 1
        return {
            "state": self.random,
            "offset": self.first * elements_per_sample,
            # The same layer has the same stream in every plan, process and run; one that is used
            # several times draws new numbers each time.
            "stream": zlib.crc32(f"{path}#{use}".encode() if use else path.encode()),
        }


_current: ContextVar[Context | None] = ContextVar("caldera_nn_context", default=None)


def context() -> Context:
    """Return the context of the current trace; outside of a trace, a context of evaluation.

    >>> from caldera import nn
    >>> nn.context().training
    False
    """
    found = _current.get()
    return Context() if found is None else found


def is_tracing() -> bool:
    """Return True while a network is traced in an explicit context."""
    return _current.get() is not None


@contextmanager
def trace(**circumstances: Any) -> Iterator[Context]:
    """Record the layers called in the block, with these options (see `Context`).

    >>> import caldera as cd
    >>> from caldera import nn, op
    >>> x = op.input("x", (4, 3))
    >>> with nn.trace(training=True, random=op.random_state()) as traced:
    ...     y = nn.BatchNorm()(x)
    >>> len(traced.updates)
    2
    """
    with resumed(Context(**circumstances)) as made:
        yield made


@contextmanager
def resumed(now: Context) -> Iterator[Context]:
    """Record the layers called in the block in this context."""
    token = _current.set(now)
    try:
        yield now
    finally:
        _current.reset(token)


class LayerWatch:
    """Detector of changes to a layer or a layer below it since the last check.

    A layer's attributes may be assigned, or a layer inside it replaced, after plans were compiled
    for it.

    >>> from caldera import nn, op
    >>> layer = nn.Sequential([nn.LeakyReLU(0.1)])
    >>> _ = layer(op.input("x", (1, 2)))
    >>> watch = LayerWatch(layer)
    >>> layer.layers[0].slope = 0.2
    >>> watch.saw_change(layer), watch.saw_change(layer)
    (True, False)
    """

    _noted: ClassVar[int] = 0
    """Number of changes to all layers: while it is constant, no layer needs to be checked."""

    def __init__(self, layer: Layer) -> None:
        self._seen = LayerWatch._noted
        self._marks = _marks(layer)

    @classmethod
    def note(cls) -> int:
        """Return a layer changes; the number of the change."""
        cls._noted += 1
        return cls._noted

    def saw_change(self, layer: Layer) -> bool:
        """Return True if the layer has changed since the last call."""
        if self._seen == LayerWatch._noted:
            return False
        self._seen = LayerWatch._noted
        before, self._marks = self._marks, _marks(layer)
        return before != self._marks


def _marks(layer: Layer) -> tuple[tuple[int, int], ...]:
    return tuple((id(each), each._changed) for each in layer.walk())


# --- inputs and outputs of a call


def as_input(value: Any, dtype: Any) -> Expr | None:
    """Convert an argument of a layer to an expression; float data get the trace's dtype."""
    if value is None:
        return None
    if isinstance(value, Expr):
        _refuse_complex(value.node)
        return value
    if isinstance(value, list | tuple) and any(isinstance(each, Expr) for each in value):
        raise ConfigError.build(
            "layer",
            expected="each input as a separate argument",
            got=f"a {type(value).__name__} of {len(value)}",
            hint="call layer(a, b)",
        )
    node = lift(value)
    _refuse_complex(node)
    return op.cast(Expr(node), dtype) if is_float(node.dtype) else Expr(node)


def as_named(value: Any, dtype: Any) -> Any:
    """Return an input given by name; several values belong together there, such as a state's."""
    if isinstance(value, list | tuple) and any(isinstance(each, Expr) for each in value):
        return tuple(as_input(each, dtype) for each in value)
    return as_input(value, dtype)


def _refuse_complex(node: Node) -> None:
    if is_complex(node.outputs[0].dtype):
        raise DtypeError.build(
            "layer",
            expected="real numbers",
            got=describe(node),
            hint="give it op.view_as_real(x) or op.abs(x); forward itself may use complex values",
        )


def called_later(layer: Layer, inputs: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """Return a layer's result for inputs with open sizes; it is traced again for each size."""
    now = context()
    layer.require(not now.training, "inputs of known sizes in training", "open sizes")

    def call(*inputs: Any, **named: Any) -> Any:
        with resumed(now):
            return layer(*inputs, **named)

    return call_later(call, inputs, named)


def outputs_of(result: Any) -> tuple[Expr, ...]:
    """Return a layer's outputs as a tuple, from a single output, a sequence or a dict."""
    if isinstance(result, dict):
        return tuple(result.values())
    return tuple(result) if isinstance(result, tuple | list) else (result,)
