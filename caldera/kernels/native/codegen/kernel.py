"""Native kernels: functions that emit code and are called with arguments by name.

The parameters of such a function are the kernel's signature. Their annotations define how each
argument is passed:

- `Pointer` and `ElementPointer` are arrays; the code is compiled for their dtypes,
- `Integer` and `Real` are numbers that may differ from call to call,
- a dataclass with such fields is a group of arguments, passed as a dictionary,
- `Annotated[Any, integers("rows columns")]` is a group that contains only integers,
- a list of these is any number of such arguments,
- `X | None` is an optional argument, omitted by passing None,
- any other argument is a compile-time constant: a plain value fully described by its `repr`.

A kernel is compiled on its first call with given dtypes and constants. Numbers and addresses are
written to its slots once, when the call is created, and reused in every run.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, is_dataclass, make_dataclass
from functools import cache, cached_property, partial, update_wrapper
from itertools import chain, count
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    NoReturn,
    Protocol,
    TypeAlias,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np

from caldera.core.tensor.dtype import NAMES
from caldera.kernels.common.binding import ArgumentNames
from caldera.kernels.native.codegen.compiler import CodeAddress, compiled
from caldera.kernels.native.codegen.dtypes import MEMORY_TYPES, ElementPointer
from caldera.kernels.native.codegen.emitter import (
    F64,
    I64,
    POINTER,
    Emitter,
    Pointer,
    RegisterValue,
)
from caldera.kernels.native.codegen.target import is_foreign

Integer: TypeAlias = RegisterValue
"""An int64 that is given to a kernel."""
Real: TypeAlias = Annotated[RegisterValue, "real"]
"""A float64 that is given to a kernel."""


def integers(names: str) -> type:
    """Return a group of integers with these names, to annotate a kernel's argument with.

    >>> from caldera.kernels.native.codegen.kernel import integers
    >>> integers("rows columns")(rows=2, columns=3)
    Integers(rows=2, columns=3)
    """
    return make_dataclass("Integers", [(name, Integer) for name in names.split()], frozen=True)


ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
"""Signature of machine code: the address of the slots, the part, and the number of parts."""


@dataclass(frozen=True, eq=False)
class NativeCall:
    """A kernel with its arguments. `given` maps names to them and keeps their memory alive.

    A kernel that can fail has an argument `status`, an int64 array with a single element, and
    writes a non-zero value there. The program then stops before the next call, and `refuse` raises
    the error.
    """

    locate: Callable[[], int]
    slots: np.ndarray
    parts: int
    kernel: NativeKernel
    given: Mapping[str, Any]
    status: np.ndarray | None = None
    refuse: Callable[[], NoReturn] | None = None
    _known: list[int] = field(default_factory=list, init=False)

    @property
    def address(self) -> int:
        """The address of the code, compiled now if it is not compiled yet."""
        # Before Python 3.12 a cached property would let only one thread compile at a time.
        if not self._known:
            self._known.append(self.locate())
        return self._known[0]

    def values(self) -> list[Any]:
        """Return the value in each slot: an array, the address of code, or a number."""
        return self.kernel.values(self.given)


# --- kinds of arguments


class _Kind(Protocol):
    """Kind of argument: defines how an argument is packed into slots and how code reads it.

    All that the code depends on (dtypes, number of arguments, omitted arguments, constants) is
    appended to the form. A kernel is compiled once for each form.
    """

    def pack(self, given: Any, slots: list[int], form: list[Any]) -> None:
        """Append the values for slots, and the properties that the code depends on."""

    def unpack(self, k: Emitter, slots: Iterator[int], form: Iterator[Any]) -> Any:
        """Return the value that the emitting function receives for the argument."""

    def values(self, given: Any) -> Iterator[Any]:
        """Yield the value of each slot before it becomes a word: an array or a number."""


def address_of(array: np.ndarray) -> int:
    """Return the address of an array several times faster than `array.ctypes`."""
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(array.data))
    except (TypeError, ValueError):
        # It must not be written, is empty, or has gaps.
        return int(array.__array_interface__["data"][0])


INTEGERS = {size: np.dtype(f"int{8 * size}") for size in (1, 2, 4, 8)}
"""Integers by their size."""


def as_integers(array: np.ndarray) -> np.ndarray:
    """Return the same memory as integers: for kernels that only move elements of a size."""
    return array.view(INTEGERS[array.itemsize])


class AddressTable(np.ndarray):
    """An array of addresses, valid only in this process."""


def addresses_of(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Return the addresses of arrays, for a kernel that accepts a table of addresses."""
    return np.array([address_of(each) for each in arrays], np.int64).view(AddressTable)


@dataclass(frozen=True)
class _Array:
    floats: bool

    def pack(self, given: Any, slots: list[int], form: list[Any]) -> None:
        slots.append(address_of(given))
        form.append(NAMES[given.dtype])

    def unpack(self, k: Emitter, slots: Iterator[int], form: Iterator[Any]) -> Any:
        name = next(form)
        pointer = Pointer(k, k.argument(next(slots), POINTER), MEMORY_TYPES[name])
        return ElementPointer(k, pointer, name) if self.floats else pointer

    def values(self, given: Any) -> Iterator[Any]:
        yield given


class _Integer:
    def pack(self, given: Any, slots: list[int], form: list[Any]) -> None:
        slots.append(given)

    def unpack(self, k: Emitter, slots: Iterator[int], form: Iterator[Any]) -> Any:
        return RegisterValue(k, k.argument(next(slots), I64))

    def values(self, given: Any) -> Iterator[Any]:
        yield given


class _Real:
    def pack(self, given: Any, slots: list[int], form: list[Any]) -> None:
        slots.append(struct.unpack("q", struct.pack("d", given))[0])

    def unpack(self, k: Emitter, slots: Iterator[int], form: Iterator[Any]) -> Any:
        return RegisterValue(k, k.argument(next(slots), F64))

    def values(self, given: Any) -> Iterator[Any]:
        yield float(given)


class _Constant:
    def pack(self, given: Any, slots: list[int], form: list[Any]) -> None:
        form.append(given)

    def unpack(self, k: Emitter, slots: Iterator[int], form: Iterator[Any]) -> Any:
        return next(form)

    def values(self, given: Any) -> Iterator[Any]:
        return iter(())


@dataclass(frozen=True)
class _Optional:
    kind: _Kind

    def pack(self, given: Any, slots: list[int], form: list[Any]) -> None:
        form.append(given is not None)
        if given is not None:
            self.kind.pack(given, slots, form)

    def unpack(self, k: Emitter, slots: Iterator[int], form: Iterator[Any]) -> Any:
        return self.kind.unpack(k, slots, form) if next(form) else None

    def values(self, given: Any) -> Iterator[Any]:
        return iter(()) if given is None else self.kind.values(given)


@dataclass(frozen=True)
class _Many:
    kind: _Kind

    def pack(self, given: Any, slots: list[int], form: list[Any]) -> None:
        form.append(len(given))
        for each in given:
            self.kind.pack(each, slots, form)

    def unpack(self, k: Emitter, slots: Iterator[int], form: Iterator[Any]) -> Any:
        return [self.kind.unpack(k, slots, form) for _ in range(next(form))]

    def values(self, given: Any) -> Iterator[Any]:
        return chain.from_iterable(map(self.kind.values, given))


@dataclass(frozen=True)
class _Group:
    """A dataclass whose fields are arguments."""

    type: type
    fields: ArgumentNames[_Kind]

    def pack(self, given: Any, slots: list[int], form: list[Any]) -> None:
        self.fields.check(given)
        for name, kind in self.fields.kinds.items():
            kind.pack(given[name], slots, form)

    def unpack(self, k: Emitter, slots: Iterator[int], form: Iterator[Any]) -> Any:
        kinds = self.fields.kinds.items()
        return self.type(**{name: kind.unpack(k, slots, form) for name, kind in kinds})

    def values(self, given: Any) -> Iterator[Any]:
        kinds = self.fields.kinds.items()
        return chain.from_iterable(kind.values(given[name]) for name, kind in kinds)


_CONSTANT = _Constant()
_SINGLE: dict[Any, _Kind] = {
    Pointer: _Array(floats=False),
    ElementPointer: _Array(floats=True),
    RegisterValue: _Integer(),
    Real: _Real(),
}


@cache
def _kind_of(hint: Any) -> _Kind:
    """Return the kind of argument for an annotation; cached because many kernels share groups."""
    if hint in _SINGLE:
        return _SINGLE[hint]
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _kind_of(inner[-1])
    if origin in (Union, UnionType):
        kinds = [_kind_of(each) for each in inner if each is not NoneType]
        kind = next((each for each in kinds if each is not _CONSTANT), _CONSTANT)
        return _Optional(kind) if NoneType in inner and kind is not _CONSTANT else kind
    if origin in (list, tuple, Sequence) and inner:
        kind = _kind_of(inner[0])
        return kind if kind is _CONSTANT else _Many(kind)
    if isinstance(hint, type) and is_dataclass(hint):
        hints = get_type_hints(hint, include_extras=True)
        members = {each.name: _kind_of(hints[each.name]) for each in fields(hint)}
        if any(kind is not _CONSTANT for kind in members.values()):
            return _Group(hint, ArgumentNames(hint.__name__, members))
    return _CONSTANT


# --- kernels


class NativeKernel:
    """A kernel: the function that emits it, with the signature by which it is called."""

    def __init__(self, emit: Callable[..., None]) -> None:
        update_wrapper(self, emit)
        self._emit = emit

    @cached_property
    def signature(self) -> ArgumentNames[_Kind]:
        """The parameters of the function but for the emitter."""
        hints = get_type_hints(self._emit, include_extras=True)
        hints.pop("return", None)
        _, *names = hints
        return ArgumentNames(
            self._emit.__qualname__, {name: _kind_of(hints[name]) for name in names}
        )

    @cached_property
    def _in_order(self) -> tuple[list[str], list[str], list[tuple[str, _Kind]]]:
        """The arguments in the order of their slots: arrays, integers, and all else."""
        kinds = self.signature.kinds
        arrays = [name for name, kind in kinds.items() if isinstance(kind, _Array)]
        integers = [name for name, kind in kinds.items() if isinstance(kind, _Integer)]
        first = {*arrays, *integers}
        return arrays, integers, [each for each in kinds.items() if each[0] not in first]

    def packed(self, given: Mapping[str, Any]) -> tuple[list[int], tuple[Any, ...]]:
        """Return the slot values of a call, and the form of its arguments."""
        self.signature.check(given)
        array_names, integer_names, others = self._in_order
        arrays = [given[name] for name in array_names]
        slots = [address_of(each) for each in arrays]
        slots += [given[name] for name in integer_names]
        form: list[Any] = [NAMES[each.dtype] for each in arrays]
        for name, kind in others:
            kind.pack(given[name], slots, form)
        return slots, tuple(form)

    def values(self, given: Mapping[str, Any]) -> list[Any]:
        """Return the arrays and numbers of a call in the order of its slots."""
        kinds = self.signature.kinds
        array_names, integer_names, others = self._in_order
        names = [*array_names, *integer_names, *(name for name, _ in others)]
        return [value for name in names for value in kinds[name].values(given[name])]

    def address(self, form: tuple[Any, ...]) -> CodeAddress:
        """Return the address of the code for arguments of this form; compile it if needed."""
        return compiled(self, form=form)

    def call(self, *, parts: int = 1, **given: Any) -> NativeCall:
        """Create a call with these arguments, split into `parts` that workers can share.

        The kernel is called once for each part. It is compiled now, or with other kernels at the
        end of `program.compiled_together`.
        """
        slots, form = self.packed(given)
        call = NativeCall(
            partial(self.address, form),
            np.array(slots, np.int64),
            max(1, parts),
            self,
            given,
            given.get("status"),
        )
        waiting = waiting_calls.get()
        if waiting is None or is_foreign():
            _ = call.address
        else:
            waiting.setdefault((self, form), []).append(call)
        return call

    def __call__(self, k: Emitter, form: tuple[Any, ...]) -> None:
        """Emit the code for arguments of this form."""
        array_names, integer_names, others = self._in_order
        names = [*array_names, *integer_names, *(name for name, _ in others)]
        slots, rest, kinds = count(), iter(form), self.signature.kinds
        self._emit(k, **{name: kinds[name].unpack(k, slots, rest) for name in names})


waiting_calls: ContextVar[dict[Any, list[NativeCall]] | None] = ContextVar("calls", default=None)
"""Calls whose code is compiled later, by kernel and form; None to compile in `call`."""


def native_kernel(emit: Callable[..., None]) -> NativeKernel:
    """Make a kernel of a function that emits its code.

    >>> import numpy as np
    >>> from caldera.kernels.native.codegen.emitter import Emitter, Pointer
    >>> from caldera.kernels.native.codegen.kernel import Integer, Real, native_kernel
    >>> from caldera.kernels.native.codegen.program import NativeRunner
    >>> @native_kernel
    ... def scale(k: Emitter, x: Pointer, count: Integer, factor: Real, twice: bool) -> None:
    ...     with k.loop(*k.part_range(count)) as i:
    ...         x.store(i, x.load(i) * factor * (2.0 if twice else 1.0))
    >>> numbers = np.arange(3.0)
    >>> NativeRunner([scale.call(x=numbers, count=3, factor=0.5, twice=True)])()
    >>> numbers
    array([0., 1., 2.])
    >>> scale.call(x=numbers, count=3, factor=0.5)
    Traceback (most recent call last):
        ...
    TypeError: kernel scale takes x, count, factor, twice: missing twice
    """
    return NativeKernel(emit)
