"""`Layer`: parameters and the function that uses them. Base of everything in `nn`.

A layer in ten lines:

    @nn.register
    @dataclass(eq=False)
    class Scale(nn.Layer):
        start: float = 1.0

        def build(self, x):
            self.factor = self.parameter("factor", (x.shape[-1],), fill=cd.constant(self.start))

        def forward(self, x):
            return x * self.factor

`build` is called once, with the expressions of the first call, and creates parameters; shapes are
inferred. `forward` computes the layer from its inputs and parameters. Model files store the fields,
under the registered name. Layers held as attributes, also in lists and dicts, are part of the
layer. A layer called several times uses the same parameters. With `device=` a layer and all layers
inside it are stored and computed on that device.
"""

from __future__ import annotations

import copy
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from caldera import op
from caldera.base.argument_kinds import kind_of, kinds_of
from caldera.base.arguments import checked, refusal, require
from caldera.base.assignment import check_attribute, is_inside
from caldera.base.foreign_names import missing_attribute
from caldera.compiler.lazy import Expr, Variable, sizes_open_in
from caldera.core.graph.node import Spec, Symbol, current_pin, pinned
from caldera.core.graph.opdef import scope
from caldera.core.memory import device as find_device
from caldera.core.tensor.dtype import canonical, is_float
from caldera.errors import ConfigError, ShapeError
from caldera.nn.assignment import Given, are_equal, check_change, inputs_of, too_late
from caldera.nn.complex_parameter import ComplexParameter, filled_parts
from caldera.nn.tracing import (
    Added,
    LayerCall,
    LayerWatch,
    as_input,
    as_named,
    called_later,
    context,
    is_tracing,
    outputs_of,
    resumed,
)

_FLAG = kind_of(bool)
_NO_LAYERS = frozenset({bool, int, float, str, type(None), Expr, Variable})
"""Types that are never layers; isinstance is slow."""


@dataclass(eq=False)
class Layer(ABC):
    """Base class of layers: holds parameters and other layers, and is called with expressions.

    >>> import caldera as cd
    >>> from caldera import nn, op
    >>> layer = nn.Dense(3)
    >>> layer(op.input("x", (5, 2))).shape
    (5, 3)
    >>> [(p.name, p.shape) for p in layer.parameters()]
    [('Dense/weight', (2, 3)), ('Dense/bias', (3,))]
    """

    name: str = field(default="", kw_only=True)
    device: Any = field(default=None, kw_only=True, repr=False)
    """Name of the device it is pinned to, such as "cpu" or "cuda"."""

    ranges: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    """Useful values of arguments, for `search.space_of`: ("around", factor) is an integer smaller
    or larger by up to a factor, ("uniform", low, high), ("log", low, high), ("choice", values).
    """

    frozen: bool = field(init=False, repr=False)
    _built: bool = field(init=False, repr=False)
    _path: str | None = field(init=False, repr=False)
    _own: dict[str, Variable] = field(init=False, repr=False)
    _states: dict[str, Variable] = field(init=False, repr=False)
    _changed: int = field(init=False, repr=False)
    _given: Given | None = field(init=False, repr=False)
    """Inputs with which the parameters were created."""

    untraced: ClassVar[frozenset[str]] = frozenset()
    """Attributes that `forward` never reads."""

    settled: ClassVar[frozenset[str]] = frozenset({"name", "device"})
    """Attributes that are fixed when the parameters are created."""

    if not TYPE_CHECKING:  # else any attribute would pass
        __getattr__ = missing_attribute

    def __new__(cls, *arguments: Any, **named: Any) -> Self:
        """Initialise the internal attributes, even if a subclass omits `super().__init__()`."""
        layer = super().__new__(cls)
        vars(layer).update(_changed=0, _path=None, _given=None, _own={}, _states={})
        vars(layer).update(_built=False, frozen=False)
        return layer

    def __setattr__(self, name: str, value: Any) -> None:
        is_own = name[0] == "_" or is_tracing() or is_inside(self)
        if not is_own:
            value = self._assignable(name, value)
        # Attributes set by `forward` belong to a trace and do not change the layer.
        if name[0] != "_" and self._built and not is_tracing() and name not in self.untraced:
            object.__setattr__(self, "_changed", LayerWatch.note())
        object.__setattr__(self, name, value)

    def _assignable(self, name: str, value: Any) -> Any:
        """Return an attribute's new value after `__post_init__`; raise if it would be ignored."""
        where = self.path or type(self).__name__
        check_attribute(where, self, name, value)
        make: Any = inspect.unwrap(type(self).__init__)
        kind = _FLAG if name == "frozen" else kinds_of(make).by_name.get(name)
        if kind is not None and not kind.holds(value):
            raise refusal(where, name, kind.words, value)
        if self._built:
            if name in self.settled and not are_equal(value, getattr(self, name)):
                raise too_late(self, name, value)
            check_change(self, name, value)
            return value
        if not type(self).__module__.startswith("caldera.nn.") or name not in vars(self):
            return value
        made: Any = new_layer(type(self))
        vars(made).update(vars(self) | {name: value})
        if hasattr(made, "__post_init__"):
            made.__post_init__()
        vars(self).update(vars(made))
        return vars(made)[name]

    @property
    def path(self) -> str:
        """Position of the layer in its model: the names of its parents, then its own."""
        return (self.name or type(self).__name__) if self._path is None else self._path

    @property
    def built(self) -> bool:
        """True if the parameters exist; the first call creates them."""
        return self._built

    @property
    def pin(self) -> str | None:
        """Full name of the device it is pinned to."""
        if self.device is None:
            return None
        require(
            isinstance(self.device, str),
            self.path,
            'device= a name such as "cpu" or "cuda:0"',
            repr(self.device),
        )
        return find_device(self.device).name

    # --- overridden by subclasses

    def build(self, *inputs: Any, **named: Any) -> None:  # noqa: B027 - most layers need none
        """Create the parameters for inputs like these; called once, before the first `forward`.

        Keyword inputs of the first call are not passed to `build`.
        """

    @abstractmethod
    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Compute the layer's outputs."""

    # --- called by subclasses

    @checked
    def parameter(
        self, name: str, shape: Sequence[int], fill: Any = None, *, is_complex: bool = False
    ) -> Any:
        """Create a trainable variable in `build`; a complex one is stored as its two parts."""
        if not is_complex:
            return self._make(self._own, name, shape, fill)
        first = filled_parts(tuple(shape), fill, context().dtype) if context().allocate else None
        return ComplexParameter(self._make(self._own, name, (*shape, 2), first))

    @checked
    def state(
        self, name: str, shape: Sequence[int], fill: Any = None, *, dtype: str | None = None
    ) -> Variable:
        """Create a variable that is saved but not trained, such as a running statistic."""
        return self._make(self._states, name, shape, fill, dtype)

    def _make(
        self,
        where: dict[str, Variable],
        name: str,
        shape: Sequence[int],
        fill: Any,
        dtype: str | None = None,
    ) -> Variable:
        # Each trace calls `forward`: training and evaluation would have separate variables.
        require(
            not self._built,
            self.path or type(self).__name__,
            "parameters and states to be made in build(self, x), which is called once",
            f"{name!r} in forward, or later",
            hint=f"write self.{name} = self.parameter({name!r}, ...) in build, not in forward",
        )
        now = context()
        path = f"{self.path}/{name}".lstrip("/")
        if now.allocate:
            place = current_pin() or now.device
            where[name] = op.var(path, shape, fill=fill, dtype=dtype or now.dtype, device=place)
        else:
            spec = Spec(tuple(shape), canonical(dtype or now.dtype))
            where[name] = Variable(Symbol(path, spec, "variable"))
        return where[name]

    def add_loss(self, values: Any) -> None:
        """Add values to the loss, in training and in evaluation. Call it in `forward`.

        With an axis of samples, the mean over all other axes is the loss of each sample, weighted
        and shared between ranks like other losses. A scalar, such as a penalty on parameters,
        counts once per batch.

        >>> import numpy as np
        >>> import caldera as cd
        >>> from caldera import nn, op
        >>> class Small(nn.Layer):
        ...     def forward(self, x):
        ...         self.add_loss(0.5 * op.square(x))
        ...         return x
        >>> model = cd.NeuralNetwork([nn.Input((1,)), Small()], loss="mse", metrics=[])
        >>> x = np.full((4, 1), 2.0, "float32")
        >>> model.evaluate((x, x))
        {'loss': 2.0}
        """
        context().losses.append(Added(self.path or type(self).__name__, _added(self, values)))

    @checked
    def add_metric(self, name: str, values: Any) -> None:
        """Record the mean of values in the history, under this name. Call it in `forward`.

        With an axis of samples it is their weighted mean; a scalar is one value per batch.
        """
        now, where = context(), self.path or type(self).__name__
        require(
            name not in now.metrics,
            where,
            "a distinct name for each metric",
            f"{name!r} twice",
            hint=f"call it {where}/{name}, where a layer is used several times",
        )
        now.metrics[name] = Added(where, _added(self, values))

    def refuse(self, expected: str, got: str, hint: str = "") -> ShapeError:
        """Return the error for unsuitable inputs."""
        return ShapeError.build(self.path, expected=expected, got=got, hint=hint)

    def require(self, ok: object, expected: str, got: str, hint: str = "") -> None:
        """Raise the error for unsuitable inputs unless the condition holds."""
        require(ok, self.path, expected, got, hint, ShapeError)

    # --- calling

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        if sizes_open_in(inputs) or (named and sizes_open_in(named)):
            return called_later(self, inputs, named)
        return self._called(self.forward, inputs, named)

    def _called(
        self, function: Callable[..., Any], inputs: Sequence[Any], named: Mapping[str, Any]
    ) -> Any:
        """The result of `forward`, or of another function of the layer, in the layer's scope."""
        now = context()
        given = tuple(as_input(value, now.dtype) for value in inputs)
        if given and given[0] is None:
            raise self.refuse("an input", "None")
        given_by_name = {key: as_named(value, now.dtype) for key, value in named.items()}
        step = self.path.rpartition("/")[2]
        pin = self.pin if now.allocate else None
        with scope(step) if step else nullcontext(), pinned(pin) if pin else nullcontext():
            if not self._built:
                self.place_children()
                self._given = inputs_of(given)
                self._answer(self.build, given, {})
                # Layers created by `build` are part of the model as well.
                self.place_children()
                self._built = True
            position = len(now.calls)
            result = self._answer(function, given, given_by_name)
            if now.layer_output is not None:
                result = now.layer_output(self, result)
        seen = [*given, *(each for value in given_by_name.values() for each in outputs_of(value))]
        inner = tuple(value for value in seen if isinstance(value, Expr))
        inside = len(now.calls) - position
        now.calls.insert(position, LayerCall(self, inner, outputs_of(result), inside))
        return result

    def _answer(
        self, function: Callable[..., Any], given: Sequence[Any], named: Mapping[str, Any]
    ) -> Any:
        """Return the result of `build` or `forward`, or raise an error about unsuitable inputs."""
        try:
            return function(*given, **named)
        except TypeError:
            # Checked only after an error: reading signatures is slow.
            try:
                inspect.signature(function).bind(*given, **named)
            except TypeError as error:
                known = f"{function.__name__}({', '.join(inspect.signature(function).parameters)})"
                where = self.path or type(self).__name__
                raise ConfigError.build(where, expected=known, got=str(error)) from None
            raise

    def make_parameters(self, *inputs: Any) -> None:
        """Create the parameters now, without tracing a call, if they do not exist yet.

        For layers used only in training: the model then has all parameters from any of its graphs.
        """
        if not self._built:
            with resumed(replace(context(), calls=[], losses=[], metrics={})):
                self(*inputs)

    def forget(self) -> None:
        """Make the next call create new parameters, as if this layer had never been called."""
        self._built, self._own, self._states = False, {}, {}

    def place_children(self) -> None:
        """Set the paths of the layers below; a shared layer keeps its first path."""
        for name, child in self.children():
            if child._path is None:
                child._path = f"{self.path}/{name}".lstrip("/")
                child.place_children()

    # --- contents

    def children(self) -> Iterator[tuple[str, Layer]]:
        """Yield layers held as attributes, also in lists, tuples and dicts, with names."""
        for name, value in vars(self).items():
            if type(value) in _NO_LAYERS:
                continue
            if isinstance(value, Layer):
                yield value.name or name, value
            elif isinstance(value, list | tuple):
                for index, each in enumerate(value):
                    if isinstance(each, Layer):
                        yield each.name or f"{name}{index}", each
            elif isinstance(value, dict):
                for key, each in value.items():
                    if isinstance(each, Layer):
                        yield each.name or str(key), each

    def walk(self) -> Iterator[Layer]:
        """Yield this layer and all layers below it, each once."""
        seen: set[int] = set()
        stack: list[Layer] = [self]
        while stack:
            layer = stack.pop()
            if id(layer) not in seen:
                seen.add(id(layer))
                yield layer
                stack.extend(child for _, child in reversed(list(layer.children())))

    def variables(self) -> dict[str, Variable]:
        """Return the parameters and states of this layer, without the layers below."""
        return self._own | self._states

    def parameters(self) -> list[Variable]:
        """Return all parameters, including frozen ones; shared ones once."""
        return _once(p for layer in self.walk() for p in layer._own.values())

    def states(self) -> list[Variable]:
        """Return all variables that are saved but not trained."""
        return _once(s for layer in self.walk() for s in layer._states.values())

    def trainable(self) -> list[Variable]:
        """Return the parameters that training changes."""
        return _once(p for layer in self.walk() if not layer.frozen for p in layer._own.values())

    def pinned_variables(self) -> set[Variable]:
        """Return the parameters and states of all layers below, or of this one, that are pinned."""
        pinned = [layer for layer in self.walk() if layer.pin is not None]
        return {each for layer in pinned for each in (*layer.parameters(), *layer.states())}

    @checked
    def freeze(self, frozen: bool = True) -> None:
        """Keep the parameters of this layer and all layers below unchanged in training.

        Frozen batch normalisation also keeps its running statistics, and uses them.

        >>> from caldera import nn, op
        >>> layer = nn.Dense(3)
        >>> _ = layer(op.input("x", (1, 2)))
        >>> layer.freeze()
        >>> layer.trainable()
        []
        """
        for layer in self.walk():
            layer.frozen = frozen

    # --- copies

    def __getstate__(self) -> dict[str, Any]:
        return dict(vars(self))

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        copied.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        return copied

    def __reduce__(self) -> Any:
        for name, value in vars(self).items():
            if callable(value) and "<" in getattr(value, "__qualname__", ""):
                where = f"pickling {self.path or type(self).__name__}"
                raise ConfigError.build(
                    where,
                    expected="functions defined in a module",
                    got=f"{name}={value.__qualname__}",
                    hint="define it with def at the top of a file, or copy with copy.deepcopy",
                )
        return new_layer, (type(self),), self.__getstate__()


def new_layer(kind: type[Layer]) -> Layer:
    """Return a layer without fields or parameters, the first step of unpickling.

    >>> from caldera import nn
    >>> new_layer(nn.Dense).built
    False
    """
    return kind.__new__(kind)


def _added(layer: Layer, values: Any) -> Expr:
    found = as_input(values, context().dtype)
    if found is None or not is_float(found.dtype):
        raise layer.refuse("numbers to add", "None" if found is None else str(found.dtype))
    return found


def _once(variables: Iterable[Variable]) -> list[Variable]:
    return list({id(variable): variable for variable in variables}.values())
