"""Assignments to attributes of layers: each takes effect or is rejected.

A value that a layer reads only in its constructor or when its parameters are created is fixed
afterwards. A copy of the layer shows which attributes these are: its parameters are created again,
without memory, while the attributes that are read are recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from caldera import op
from caldera.base.arguments import refusal, require
from caldera.compiler.lazy import Expr, Variable
from caldera.core.graph.node import Spec, Symbol
from caldera.core.tensor.dtype import int64
from caldera.errors import CalderaError, ConfigError
from caldera.nn.tracing import trace

if TYPE_CHECKING:
    from caldera.nn.layer import Layer

Given = Sequence[tuple[tuple[int, ...], Any] | None]
"""Shape and dtype of each input of a call."""


def inputs_of(values: Sequence[Any]) -> Given | None:
    """Return the shape and dtype of each input of a call; None if some are not expressions."""
    known = [each for each in values if each is None or isinstance(each, Expr)]
    if len(known) < len(values):
        return None
    return tuple(None if each is None else (each.shape, each.dtype) for each in known)


def check_change(layer: Layer, name: str, value: Any) -> None:
    """Raise if a built layer would ignore the value or would require other parameters for it."""
    before = vars(layer).get(name)
    parts = before if isinstance(before, list | tuple) else (before,)
    require(
        not any(isinstance(each, Variable) for each in parts),
        layer.path,
        "values that are assigned to the parameter itself",
        f"another {name}",
        hint=f"write layer.{name}.assign(values)",
    )
    may_be_none = value is None and name in getattr(layer, "__dataclass_fields__", ())
    if _holds_layers(before) and not (may_be_none or _holds_layers(value)):
        raise refusal(layer.path, name, "a layer, or several as it has now", value)
    given = layer._given
    if given is None or name not in vars(layer) or _holds_layers(before) or _holds_layers(value):
        return
    if not all(each.built for each in layer.walk()) or are_equal(before, value):
        return
    settled = _Probe(layer, name, value).is_read_when_made()
    now, then = _Probe(layer, name, before), _Probe(layer, name, value)
    try:
        shapes, _ = now.parameters(given)
        found, read_in_build = then.parameters(given)
    except CalderaError:
        raise
    except Exception:  # a custom layer, which raises its own error when it is called
        return
    is_used = then.read_in_forward
    if found != shapes or ((settled or read_in_build) and not is_used):
        raise too_late(layer, name, value)


def too_late(layer: Layer, name: str, value: Any) -> ConfigError:
    """Return the error about a setting that a layer has used already."""
    return ConfigError.build(
        layer.path,
        expected=f"{name}= when the layer is made, or before its first call",
        got=f"{name} = {value!r} when its parameters exist",
        hint=f"make a new layer with {name}={value!r}",
    )


class _Probe:
    """Copy of a layer with another value for one attribute; records reads of that attribute."""

    def __init__(self, layer: Layer, name: str, value: Any) -> None:
        kind = type(layer)
        self._reads = 0
        self.read_in_forward = False

        def watched(this: Any, attribute: str) -> Any:
            self._reads += attribute == name
            return kind.__getattribute__(this, attribute)

        watching: Any = type(kind.__name__, (kind,), {"__getattribute__": watched})
        self.layer: Any = watching.__new__(watching)
        vars(self.layer).update(vars(layer) | {name: value})

    def is_read_when_made(self) -> bool:
        """Return True if `__post_init__`, which may refuse the value, reads it."""
        if hasattr(self.layer, "__post_init__"):
            self.layer.__post_init__()
        return self._reads > 0

    def parameters(self, given: Given) -> tuple[list[Any], bool]:
        """Name and shape of all parameters, and whether the value is read when they are made."""
        self.layer.forget()
        state = Variable(Symbol("random state", Spec((2,), int64), "variable"))
        inputs = [
            None if each is None else op.input(f"x{place}", each[0], each[1])
            for place, each in enumerate(given)
        ]
        with trace(allocate=False, training=True, random=state):
            self.layer.place_children()
            self.layer.build(*inputs)
            in_build = self._reads
            self.layer._built = True
            self.layer.forward(*inputs)
        self.read_in_forward = self._reads > in_build
        kept = [*self.layer.parameters(), *self.layer.states()]
        return [(each.name, each.shape) for each in kept], in_build > 0


def _holds_layers(value: Any) -> bool:
    parts = value.values() if isinstance(value, dict) else value
    parts = parts if isinstance(value, list | tuple | dict) else (value,)
    return any(hasattr(each, "place_children") for each in parts)


def are_equal(first: Any, second: Any) -> bool:
    try:
        return bool(first == second)
    except ValueError:  # arrays
        return False
