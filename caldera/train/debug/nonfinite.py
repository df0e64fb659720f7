"""Diagnosis of the op and the layer that produced the first nan or infinity of a run.

A training step whose loss is not finite changes no variable, and neither does any later step. So
the state before it is still available: the step is computed once more, op by op, and searched.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Hashable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from caldera.core.graph import ITEM, Node, Program, Symbol, describe, frozen, topological
from caldera.core.memory import PendingRead
from caldera.core.tensor.dtype import is_float
from caldera.data import Batch
from caldera.errors import CalderaError, NonFiniteError
from caldera.kernels.reference import evaluate
from caldera.nn.tracing import trace
from caldera.train.callbacks import Callback
from caldera.train.step import StepPlans
from caldera.train.tracking.summary import layer_nodes

if TYPE_CHECKING:
    from caldera.train.run import Run


class LayerProvenance:
    """Layers of a model, and the nodes that each layer writes.

    `like` is the batch that the graph is traced for, or its number of samples.
    """

    def __init__(self, steps: StepPlans, like: int | Batch) -> None:
        model = steps.model
        with trace(
            training=True, dtype=model.dtype, device=model.device, random=steps.random
        ) as traced:
            model.step_outputs(*steps.graph(like).inputs())
        self._numbers = _Numbers()
        self._path: dict[int, str] = {}
        # Inner layers come after the ones they are in, and know better.
        for call in traced.calls:
            for output in call.outputs:
                self._numbers.of(output.node)
            path = call.layer.path or type(call.layer).__name__
            for node in layer_nodes(call.inputs, call.outputs):
                # Leaves belong to no layer.
                if node.inputs:
                    self._path[self._numbers.of(node)] = path

    def wrote(self, node: Node) -> bool:
        """Return True if a layer wrote the node, rather than the loss or a gradient."""
        return self._numbers.of(node) in self._path

    def layer_of(self, node: Node) -> str:
        """Return the path of the layer that wrote the node, or of the nearest one it depends on."""
        pending = deque([node])
        seen = {node}
        while pending:
            each = pending.popleft()
            if self.wrote(each):
                return self._path[self._numbers.of(each)]
            fresh = [given for given in each.inputs if given not in seen]
            seen.update(fresh)
            pending.extend(fresh)
        return ""


class _Numbers:
    """Numbering of nodes in which nodes with the same computation have equal numbers.

    Usually these are one node. A layer with a constant array creates new nodes at each trace, and
    only the contents of the array show that they are equal.
    """

    def __init__(self) -> None:
        self._of_node: dict[Node, int] = {}
        self._of_key: dict[Hashable, int] = {}

    def of(self, node: Node) -> int:
        if node not in self._of_node:
            for each in topological([node]):
                if each not in self._of_node:
                    key = self._key(each)
                    self._of_node[each] = self._of_key.setdefault(key, len(self._of_key))
        return self._of_node[node]

    def _key(self, node: Node) -> Hashable:
        symbol = node.attrs.get("symbol")
        if isinstance(symbol, Symbol):
            return symbol.value.numpy().tobytes() if symbol.role == "array" else symbol
        attrs = tuple((name, frozen(node.attrs[name])) for name in sorted(node.attrs))
        return node.op, attrs, tuple(self._of_node[given] for given in node.inputs)


LOOK_EVERY = 8
"""Steps between two looks at whether all is well; a look takes some microseconds."""
LOOK_SELDOM = 256
"""The same where the value is on another device, from which it comes some steps later."""

Values = dict[Node, tuple[np.ndarray, ...]]

_HINTS = {
    "log": "keep its argument above 0, for example by adding 1e-6",
    "log1p": "keep its argument above -1",
    "sqrt": "keep its argument at 0 or above; its slope at 0 is infinite",
    "rsqrt": "keep its argument above 0, for example by adding 1e-6",
    "div": "keep the divisor away from 0",
    "reciprocal": "keep the divisor away from 0",
    "exp": "its argument is too large; subtract the maximum, or use softmax",
    "cross_entropy": "targets have to be classes from 0 on, one for each output",
    "power": "a negative base needs a whole exponent, and 0 one that is not negative",
}
_ROLES = {"x": "the input", "y": "the targets", "w": "the weights"}
_USUAL_HINT = "try a smaller learning rate, or clip=optim.ClipNorm(1.0)"


class StopAtNonFinite(Callback):
    """Ends a run with a `NonFiniteError` that names the source of the first nan or infinity."""

    def __init__(self) -> None:
        self._last: int | None = None
        self._every = LOOK_EVERY
        self._at_once = True
        self._reading: PendingRead | None = None
        self._steps_before = 0
        self._epoch = _Epoch(0, {})

    def run_begins(self, run: Run) -> None:
        # A trained model continues its step count; a run counts from 0.
        self._steps_before = int(run.steps.random.numpy()[1]) - run.step

    def epoch_begins(self, run: Run) -> None:
        self._last = run.batches
        self._every = LOOK_EVERY if run.model.device.is_host else LOOK_SELDOM
        # All ranks must end at the same step; a stream may end at any.
        self._at_once = self._last is None or run.steps.strategy.communicator.size > 1
        self._reading = None

    def batch_ends(self, run: Run) -> None:
        if self._last is None:
            self._epoch = _Epoch.of(run)
        # No variable changes after the bad step, so there is no hurry: the number is read when it
        # has arrived. But the epoch must not end before.
        is_due = run.batch % self._every == 0
        is_last = run.batch == self._last
        must_know = is_last or (is_due and self._at_once)
        if must_know or (is_due and self._reading is None):
            self._reading = run.steps.bad_step.tensor.memory.begin_read()
        if self._reading is not None and (must_know or self._reading.done()):
            bad, self._reading = int(self._reading.numbers()[0]), None
            if bad >= 0:
                self._epoch = _Epoch.of(run)
                raise self._explained(run, bad - self._steps_before)

    def epoch_ends(self, run: Run) -> None:
        # The last batch of a stream is not known in advance.
        bad = -1 if self._last is not None else int(run.steps.bad_step.numpy())
        if bad >= 0:
            raise self._explained(run, bad - self._steps_before)

    def _explained(self, run: Run, bad: int) -> CalderaError:
        if not run.steps.strategy.is_distributed:
            # The remaining ranks cannot take part: they end because this rank does.
            error, _ = self._explained_here(run, bad)
            rank, ranks = run.communicator.rank, run.communicator.size
            return error if ranks == 1 else NonFiniteError(f"rank {rank}: {error}")
        # All ranks are here: the loss is the same on each rank.
        run.steps.strategy.unshard()
        error, blamed = self._explained_here(run, bad)
        found = run.communicator.gather_objects([str(error), blamed])
        # Where only another rank's samples are to blame, this rank finds no cause.
        rank = next((r for r, (_, what) in enumerate(found) if what != "precision"), 0)
        text = found[rank][0]
        return error if len(found) == 1 else NonFiniteError(f"rank {rank}: {text}")

    def _explained_here(self, run: Run, bad: int) -> tuple[CalderaError, str]:
        try:
            like, feeds = _fed(run, self._epoch, bad)
        except CalderaError:
            if run.batches is not None:
                raise
            return _unexplained(bad), "data"
        error, blamed = explain(run.steps.fed(), like, feeds, bad)
        if blamed == "variable" and bad > self._epoch.first:
            # A finite loss can have gradients that are not: then the batch before is to be seen.
            _, earlier = _fed(run, self._epoch, bad - 1)
            for name, value in earlier.items():
                if not _all_finite(np.asarray(value)):
                    error = _bad_data(f"fit, step {bad - 1}", name, np.asarray(value))
                    return error, "data"
        return error, blamed


@dataclass(frozen=True)
class _Epoch:
    """The number of an epoch's first step, and where its loader was."""

    first: int
    loader: Mapping[str, Any]

    @classmethod
    def of(cls, run: Run) -> _Epoch:
        return cls(run.step - run.batch, run.loader.state())


def _fed(run: Run, epoch: _Epoch, step: int) -> tuple[int | Batch, dict[str, Any]]:
    """Return the batch, or its size, and the feeds of a step of an epoch.

    A batch depends only on its number, so any earlier batch can be read again.
    """
    spare = copy.copy(run.loader)
    place = {"position": (step - epoch.first) * run.loader.batch_size}
    spare.restore({**epoch.loader, **place})
    batch = next(iter(spare))
    # Where sizes are open, a plan is found by the batch and not by its number of samples.
    like = batch if run.model.open_axes else len(batch)
    return like, run.steps.feeds(batch.arrays, run.weights_of(batch))


def _unexplained(step: int) -> NonFiniteError:
    return NonFiniteError.build(
        f"fit, step {step}",
        expected="a finite loss",
        got="nan or infinity from a stream that cannot be read again to find the sample",
        hint="look for nan and for classes without an output in its samples; a function that "
        "returns a new iterator can be read again",
    )


@dataclass(frozen=True)
class NonFiniteOrigin:
    """Source of a value that is not finite."""

    node: Node
    value: np.ndarray
    in_gradients: bool


def explain(
    steps: StepPlans, like: int | Batch, feeds: Mapping[str, Any], step: int
) -> tuple[NonFiniteError, str]:
    """Return the error for a step that was not finite, and the kind of its cause.

    `like` is the batch or its number of samples. The cause is "precision", "data", "variable" or
    "op".
    """
    program = steps.training(like).original
    # The totals have seen the bad step, and are not to blame.
    totals = steps.training_totals.variables()
    values = computed(program, feeds, {each.symbol for each in totals.values()})
    found = find_source(program, values, totals["training/loss"].symbol)
    where = f"fit, step {step}"
    if found is None:
        narrow = steps.model.precision == "float16"
        error = NonFiniteError.build(
            where,
            expected="a finite loss",
            got=f"one that is finite in full precision, with values up to {_largest(values):.3g}",
            hint='use precision="bfloat16" (--precision bfloat16), which has the range of float32'
            if narrow
            else "values of this size overflow in squares and products: " + _USUAL_HINT,
        )
        return error, "precision"
    symbol = found.node.attrs.get("symbol")
    if isinstance(symbol, Symbol) and symbol.role == "input":
        return _bad_data(where, symbol.name, found.value), "data"
    if isinstance(symbol, Symbol):
        error = NonFiniteError.build(
            where,
            expected="finite values",
            got=f"{_kind(found.value)} already in {symbol.name}",
            hint="the gradients of the step before were not finite: " + _USUAL_HINT,
        )
        return error, "variable"
    inputs = [values[given][0] for given in found.node.inputs]
    return _bad_op(where, found, LayerProvenance(steps, like), inputs), "op"


def _bad_op(
    where: str, found: NonFiniteOrigin, layers: LayerProvenance, inputs: Sequence[np.ndarray]
) -> NonFiniteError:
    name = found.node.op.name
    layer = layers.layer_of(found.node)
    place = ""
    if layer and found.in_gradients:
        place = f" in the gradient of layer {layer}"
    elif layer:
        place = f" {'in' if layers.wrote(found.node) else 'after'} layer {layer}"
    ranges = " and ".join(each for each in map(_range, inputs) if each)
    return NonFiniteError.build(
        where,
        expected="finite values",
        got=f"{_kind(found.value)} from op.{name}{place}"
        + (f", whose inputs are {ranges}" if ranges else "")
        + f" ({describe(found.node, 1)})",
        hint=_HINTS.get(name, _USUAL_HINT),
    )


def _bad_data(where: str, name: str, value: np.ndarray) -> NonFiniteError:
    bad = ~np.isfinite(value)
    sample = int(np.argwhere(bad)[0][0])
    return NonFiniteError.build(
        where,
        expected="finite values",
        got=f"{_kind(value)} in {_ROLES[name[0]]} {name}: {int(bad.sum())} of {bad.size} values, "
        f"first in sample {sample} of the batch",
        hint="clean the data; np.isfinite(x).all() should be true",
    )


def computed(program: Program, feeds: Mapping[str, Any], zero: Set[Symbol] = frozenset()) -> Values:
    """Compute every node of a program with the oracle, from the current variables.

    The variables in `zero` count as zero.
    """
    values: Values = {}
    with np.errstate(all="ignore"):
        for node in program.order():
            symbol = node.attrs.get("symbol")
            if isinstance(symbol, Symbol):
                values[node] = (np.zeros(node.shape, node.dtype),)
                if symbol not in zero:
                    fed = symbol.role == "input"
                    given = feeds[symbol.name] if fed else symbol.value.numpy()
                    values[node] = (np.asarray(given).astype(node.dtype, copy=False),)
            elif node.op is ITEM:
                values[node] = (values[node.inputs[0]][node.attrs["index"]],)
            else:
                values[node] = evaluate(node, [values[given][0] for given in node.inputs])
    return values


def find_source(program: Program, values: Values, loss: Symbol) -> NonFiniteOrigin | None:
    """Return the first op with finite inputs and a non-finite result: forward, then gradients."""
    live = _live(program)
    for symbol, root in program.updates:
        if symbol is loss and not _finite(root, values):
            return NonFiniteOrigin(*_back(root, values, live), in_gradients=False)
    # Nodes are numbered as they were written: the forward part first.
    for node in sorted(program.order(), key=lambda each: each.serial):
        if node in live and not _finite(node, values):
            return NonFiniteOrigin(*_back(node, values, live), in_gradients=True)
    return None


def _live(program: Program) -> set[Node]:
    """Return the nodes that depend on data or variables; constants may be infinite (masks are)."""
    live: set[Node] = set()
    for node in program.order():
        symbol = node.attrs.get("symbol")
        if isinstance(symbol, Symbol):
            if symbol.role != "array":
                live.add(node)
        elif any(given in live for given in node.inputs):
            live.add(node)
    return live


def _back(node: Node, values: Values, live: set[Node]) -> tuple[Node, np.ndarray]:
    """Trace a value that is not finite to its source, following nan before infinity."""
    while True:
        bad = [x for x in node.inputs if x in live and not _finite(x, values)]
        if not bad:
            return node, next(each for each in values[node] if not _all_finite(each))
        node = next((x for x in bad if any(np.isnan(v).any() for v in values[x])), bad[0])


def _finite(node: Node, values: Values) -> bool:
    return all(_all_finite(value) for value in values[node])


def _all_finite(value: np.ndarray) -> bool:
    return not is_float(value.dtype) or bool(np.isfinite(value).all())


def _kind(value: np.ndarray) -> str:
    if np.isnan(value).any():
        return "nan"
    return "inf" if (value > 0)[~np.isfinite(value)].any() else "-inf"


def _range(value: np.ndarray) -> str:
    if not is_float(value.dtype) or not value.size:
        return ""
    return f"{np.nanmin(value):.3g} to {np.nanmax(value):.3g}"


def _largest(values: Values) -> float:
    sizes = [
        float(np.abs(each).max(initial=0))
        for is_distributed in values.values()
        for each in is_distributed
        if is_float(each.dtype)
    ]
    return max(sizes, default=0.0)
