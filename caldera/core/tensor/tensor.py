"""`Tensor`: concrete numbers with a shape, in memory of any kind on any device.

Basic indexing, reshaping and transposing return views: other layouts of the same memory. Arithmetic
is lazy, and therefore defined on graphs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Self, cast

import numpy as np
from numpy.typing import NDArray

from caldera.base.arguments import checked, refusal
from caldera.base.formatting import html_text, note
from caldera.core.memory import MANAGED, Device, Kind, MemoryManager, find_device
from caldera.core.memory.devices import names_device
from caldera.core.tensor import dlpack
from caldera.core.tensor.dtype import DType, bool_, canonical, exactly, is_complex, little_endian
from caldera.core.tensor.fillers import Constant, as_filler, filled
from caldera.core.tensor.shape import (
    Shape,
    StridedView,
    as_shape,
    index_arrays,
    is_basic,
    is_element,
    normalise_axes,
    normalise_axis,
    normalise_permutation,
    picked,
    reshape_with_unknown,
    row_major_strides,
    size,
)
from caldera.core.tensor.strided import ScalarConversions, StridedArray
from caldera.errors import DeviceError, DtypeError, IndexingError, ShapeError

Array = NDArray[Any]
DeviceSpec = Device | str | int | None


class Tensor(StridedArray, ScalarConversions):
    """Array of numbers of one dtype.

    `fill` is a filler, a number, or an array of this shape; the default is zeros. The kind of
    memory may directly follow the shape or the filler.

    >>> import caldera as cd
    >>> t = cd.Tensor((2, 3), cd.constant(1), cd.MANAGED)
    >>> t[1, -1] = 8.0
    >>> t[1]
    Tensor([1., 1., 8.], shape=(3,), dtype=float32, kind=MANAGED, device=cpu)
    >>> t[1, 0].dtype, t[1, 0].item()
    (dtype('float32'), 1.0)
    >>> t.reshape(3, 2).T.tolist()
    [[1.0, 1.0, 1.0], [1.0, 1.0, 8.0]]
    """

    __slots__ = ()

    def __init__(
        self,
        shape: int | Sequence[int],
        fill: object = None,
        dtype: object = "float32",
        kind: Kind | Any = MANAGED,
        device: DeviceSpec = None,
        name: str = "",
    ) -> None:
        sizes = as_shape(shape, "Tensor")
        if type(fill) is Kind:
            if device is None and type(kind) is not Kind:
                device = cast(DeviceSpec, kind)
            fill, kind = None, fill
            if device is None and names_device(dtype):
                dtype, device = "float32", cast(DeviceSpec, dtype)
        elif isinstance(dtype, Kind):
            device = device if isinstance(kind, Kind) else kind
            dtype, kind = "float32", dtype
        self._dtype = canonical(dtype, stored=True)
        self._layout = StridedView(sizes, row_major_strides(sizes), 0)
        self._memory = MemoryManager(size(sizes), self._dtype, kind, device, owner=name)
        self.fill_(Constant(0) if fill is None else fill)

    @classmethod
    def _wrap(cls, memory: MemoryManager, shape: Shape, dtype: DType) -> Self:
        """Return a tensor over memory that exists, without any check; `dtype` is the memory's."""
        return cls._over(memory, StridedView(shape, row_major_strides(shape), 0), dtype)

    @classmethod
    def _over(cls, memory: MemoryManager, layout: StridedView, dtype: DType) -> Self:
        """Return the same for any layout."""
        self = cls.__new__(cls)
        self._dtype, self._layout, self._memory = dtype, layout, memory
        return self

    def _view(self, layout: StridedView) -> Tensor:
        return Tensor._over(self._memory, layout, self._dtype)

    @classmethod
    def from_numpy(
        cls,
        array: Array,
        kind: Kind = MANAGED,
        device: DeviceSpec = None,
        name: str = "",
        copy: bool = True,
    ) -> Self:
        """Return a tensor with the values and dtype of an array.

        With `copy=False` the array's memory is the tensor's host side, and writes to either are
        visible in both (on a device with separate memory, after the values have been copied back).

        >>> import numpy as np
        >>> import caldera as cd
        >>> a = np.zeros(3, np.float32)
        >>> cd.Tensor.from_numpy(a, copy=False)[1] = 5.0
        >>> a.tolist()
        [0.0, 5.0, 0.0]
        """
        where = "Tensor.from_numpy"
        if not isinstance(array, np.ndarray | np.generic):
            raise refusal(where, "array", "a NumPy array (cd.tensor takes lists)", array)
        if not isinstance(name, str) or not isinstance(copy, bool):
            raise refusal(where, "name", "text, and copy= True or False", (name, copy))
        if not copy:
            flat, layout = dlpack.flattened(array)
            memory = MemoryManager.adopt(flat, kind, device, name)
            return cls._over(memory, layout, flat.dtype)
        dtype = canonical(array.dtype, stored=True)
        memory = MemoryManager(array.size, dtype, kind, device, owner=name)
        memory.copy_from(np.ascontiguousarray(array, dtype).reshape(-1))
        return cls._wrap(memory, array.shape, dtype)

    def fill_(self, fill: object) -> Self:
        """Overwrite all elements with a filler, number or array; the tensor itself is returned.

        >>> import caldera as cd
        >>> cd.Tensor((2, 2)).fill_(cd.identity()).tolist()
        [[1.0, 0.0], [0.0, 1.0]]
        """
        filler = as_filler(fill, "Tensor")
        if isinstance(filler, Constant):
            # One number is enough: storing it broadcasts.
            self._store(filler.generate((), self._dtype, 0, 0))
        else:
            self._store(filled(filler, self.shape, self._dtype))
        return self

    # -- indexing --------------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> Any:
        items = key if type(key) is tuple else (key,)
        if is_element(items, len(self._layout.shape)):
            # As in NumPy a scalar of the tensor's dtype; `item` and `get` give Python numbers.
            return self._dtype.type(self._memory.get(self._layout.element(items)))
        if is_basic(items):
            return self._view(self._layout.indexed(items))
        selected = picked(self.numpy(), index_arrays(items))
        if not isinstance(selected, np.ndarray):
            return selected
        return Tensor.from_numpy(selected, self.kind, self.device, self.name)

    def __setitem__(self, key: Any, value: object) -> None:
        items = key if type(key) is tuple else (key,)
        values = exactly(value, self._dtype, "Tensor[...] =")
        if is_element(items, len(self._layout.shape)):
            self._memory.set(self._layout.element(items), _require_broadcast(values, ()))
        elif is_basic(items):
            target = self._view(self._layout.indexed(items))
            target._store(_require_broadcast(values, target.shape))
        else:
            arrays = index_arrays(items)
            selected = picked(np.broadcast_to(np.False_, self.shape), arrays)
            self._store(_require_broadcast(values, selected.shape), arrays)

    def get(self, index: int | Sequence[int]) -> Any:
        """Return the element at `index`, one number for each axis: `t[1, 3, 0]`.

        >>> import caldera as cd
        >>> cd.tensor([[1, 2], [3, 4]]).get((1, 0))
        3
        """
        return self._memory.get(self._layout.element(self._place(index, "get")))

    def set(self, index: int | Sequence[int], value: object) -> None:
        """Store a number at `index`, one number for each axis: `t[1, 3, 0] = 8.0`.

        >>> import caldera as cd
        >>> t = cd.Tensor((2, 2), fill=cd.constant(0.0))
        >>> t.set((0, 1), 8.0)
        >>> t.tolist()
        [[0.0, 8.0], [0.0, 0.0]]
        """
        self[self._place(index, "set")] = value

    def _place(self, index: int | Sequence[int], where: str) -> tuple[Any, ...]:
        place = tuple(index) if isinstance(index, Sequence) else (index,)
        if not is_element(place, self.ndim):
            raise IndexingError.build(
                f"Tensor.{where}",
                expected=f"an integer for each of {self.ndim} axes",
                got=repr(index),
                hint="t[...] takes slices and arrays as well",
            )
        return place

    def __len__(self) -> int:
        if not self.shape:
            raise ShapeError.build("len", expected="at least one axis", got="a scalar tensor")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return (self[position] for position in range(len(self)))

    # -- other shapes ----------------------------------------------------------------------------

    def reshape(self, *shape: int | Sequence[int]) -> Tensor:
        """Return the same elements in another shape; one size may be -1.

        A view if strides can express it, as they always can for a tensor that is not a view itself;
        otherwise (after a transpose, say) a copy.

        >>> import caldera as cd
        >>> cd.Tensor((32, 28, 28)).reshape(32, -1).shape
        (32, 784)
        """
        wanted = reshape_with_unknown(self.shape, _one_sequence(shape), "Tensor.reshape")
        layout = self._layout.reshaped(wanted)
        return self.copy().reshape(wanted) if layout is None else self._view(layout)

    @checked
    def squeeze(self, axis: int | Sequence[int] | None = None) -> Tensor:
        """Return a view without the axes of size 1, or without those named, which must have size 1.

        >>> import caldera as cd
        >>> cd.Tensor((1, 3, 1)).squeeze().shape, cd.Tensor((1, 3, 1)).squeeze(0).shape
        ((3,), (3, 1))
        """
        if axis is None:
            dropped: Shape = tuple(axis for axis, length in enumerate(self.shape) if length == 1)
        else:
            dropped = normalise_axes(axis, self.ndim, "Tensor.squeeze")
        for each in dropped:
            if self.shape[each] != 1:
                raise ShapeError.build(
                    "Tensor.squeeze", expected=f"axis {each} of size 1", got=str(self.shape)
                )
        key = tuple(0 if axis in dropped else slice(None) for axis in range(self.ndim))
        return self._view(self._layout.indexed(key))

    @checked
    def unsqueeze(self, axis: int) -> Tensor:
        """Return a view with a new axis of size 1 in this place.

        >>> import caldera as cd
        >>> cd.Tensor((2, 3)).unsqueeze(0).shape, cd.Tensor((2, 3)).unsqueeze(-1).shape
        ((1, 2, 3), (2, 3, 1))
        """
        place = normalise_axis(axis, self.ndim + 1, "Tensor.unsqueeze")
        return self._view(self._layout.indexed((*[slice(None)] * place, None)))

    def transpose(self, *axes: int | Sequence[int]) -> Tensor:
        """Return a view with the axes in another order; reversed if none is given.

        >>> import caldera as cd
        >>> cd.Tensor((2, 3, 4)).transpose(0, 2, 1).shape
        (2, 4, 3)
        """
        wanted = _one_sequence(axes) if axes else None
        return self._view(
            self._layout.permuted(normalise_permutation(wanted, self.ndim, "Tensor.transpose"))
        )

    @property
    def T(self) -> Tensor:
        """The view with all axes reversed.

        >>> import caldera as cd
        >>> cd.Tensor((2, 3)).T.shape
        (3, 2)
        """
        return self.transpose()

    # -- copies ----------------------------------------------------------------------------------

    def copy(self) -> Tensor:
        """Return a copy in separate memory of the same kind, on the same device.

        >>> import caldera as cd
        >>> t = cd.Tensor((2,))
        >>> t.copy()[0] = 1.0
        >>> t.tolist()
        [0.0, 0.0]
        """
        return self._copied(self.kind, self.device)

    def astype(self, dtype: object) -> Tensor:
        """Return a copy in another dtype; floats lose their fraction on the way to integers.

        "float8_e4m3fn" and "float8_e5m2" only store numbers, rounded to 4 and 3 binary digits: no
        operation takes them. Numbers beyond 448 become NaN in the first, and beyond 57344 infinite
        in the second.

        >>> import caldera as cd
        >>> cd.tensor([1.5, -2.5]).astype("int32").tolist()
        [1, -2]
        """
        wanted = canonical(dtype, stored=True)
        if wanted == self._dtype:
            return self.copy()
        if is_complex(self._dtype) and not is_complex(wanted) and wanted != bool_:
            raise DtypeError.build(
                "Tensor.astype",
                expected=f"real numbers to convert to {wanted}",
                got=str(self._dtype),
                hint="take op.real(x) or op.abs(x) first",
            )
        return Tensor.from_numpy(self.numpy().astype(wanted), self.kind, self.device, self.name)

    def to(self, device: DeviceSpec = None, kind: Kind | None = None) -> Tensor:
        """Return the tensor on another device or in another kind of memory.

        Itself if it is there already.

        >>> import caldera as cd
        >>> t = cd.tensor([1.0, 2.0]).to("loopback", kind=cd.DEVICE)
        >>> t.kind is cd.DEVICE, t.device, t.tolist()
        (True, <device loopback:0>, [1.0, 2.0])
        """
        place = self.device if device is None else find_device(device)
        wanted = self.kind if kind is None else kind
        same = place is self.device and wanted is self.kind
        return self if same else self._copied(wanted, place)

    def _copied(self, kind: Kind, device: Device) -> Tensor:
        memory = MemoryManager(self.size, self._dtype, kind, device, owner=self.name)
        result = Tensor._wrap(memory, self.shape, self._dtype)
        if not self._layout.is_dense:
            result._store(self.numpy())
        elif self.size:
            memory.copy_from(self._memory, self.size, source_offset=self.offset)
        return result

    # -- copies that Python makes: copy.deepcopy, pickle, joblib

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        return self.copy()

    def __reduce__(self) -> tuple[Any, ...]:
        raw = little_endian(np.ascontiguousarray(self.numpy())).tobytes()
        return Tensor.from_bytes, (
            raw,
            self._dtype.name,
            self.shape,
            self.kind.name,
            self.device.name,
            self.name,
        )

    @classmethod
    @checked
    def from_bytes(
        cls,
        raw: bytes,
        dtype: str,
        shape: Sequence[int],
        kind: str = "MANAGED",
        device: str | None = None,
        name: str = "",
    ) -> Self:
        r"""Return a tensor from its elements in row-major order and little-endian bytes, as in a
        pickle.

        If the device does not exist here, the default device is used.

        >>> import caldera as cd
        >>> cd.Tensor.from_bytes(b"\x01\x00\x02\x00", "int16", (2,)).tolist()
        [1, 2]
        """
        wanted, sizes = canonical(dtype, stored=True), as_shape(shape, "Tensor.from_bytes")
        if kind not in Kind.__members__:
            kinds = ", ".join(Kind.__members__)
            raise refusal("Tensor.from_bytes", "kind", f"one of {kinds}", kind)
        if len(raw) != size(sizes) * wanted.itemsize:
            raise ShapeError.build(
                "Tensor.from_bytes",
                expected=f"{size(sizes) * wanted.itemsize} bytes for {sizes}",
                got=f"{len(raw)}",
            )
        array = little_endian(np.frombuffer(raw, wanted)).reshape(sizes)
        try:
            return cls.from_numpy(array, Kind[kind], find_device(device), name)
        except DeviceError:
            return cls.from_numpy(array, name=name)

    # -- Python values ---------------------------------------------------------------------------

    def item(self) -> Any:
        """Return the only element, as a Python number.

        >>> import caldera as cd
        >>> cd.tensor([[3.0]]).item()
        3.0
        """
        if self.size != 1:
            raise ShapeError.build("Tensor.item", expected="one element", got=f"shape {self.shape}")
        return self._memory.get(self.offset)

    def tolist(self) -> Any:
        """Return the elements as nested lists of Python numbers.

        >>> import caldera as cd
        >>> cd.tensor([[1, 2], [3, 4]]).tolist()
        [[1, 2], [3, 4]]
        """
        return self.numpy().tolist()

    def __repr__(self) -> str:
        values = np.array2string(self.numpy(), separator=", ", prefix="Tensor(", threshold=100)
        return (
            f"Tensor({values}, shape={self.shape}, dtype={self._dtype}, "
            f"kind={self.kind.name}, device={self.device.name})"
        )

    def _repr_html_(self) -> str:
        shape = " \u00d7 ".join(map(str, self.shape)) or "scalar"
        title = f"Tensor {shape}, {self._dtype}, {self.kind.name} on {self.device.name}"
        return note(title, strong=True) + html_text(np.array2string(self.numpy(), threshold=100))

    def __str__(self) -> str:
        return str(self.numpy())


def _one_sequence(arguments: tuple[int | Sequence[int], ...]) -> Any:
    """Return the sequence of arguments: `f(2, 3)` and `f((2, 3))` are equivalent."""
    return arguments[0] if len(arguments) == 1 else arguments


def _require_broadcast(values: Array, shape: Shape) -> Array:
    """Return the values without the leading axes of size 1 that the target does not have."""
    surplus = max(values.ndim - len(shape), 0)
    wanted = (1,) * surplus + shape[len(shape) - values.ndim + surplus :]
    if any(given not in (1, size) for given, size in zip(values.shape, wanted, strict=True)):
        raise ShapeError.build(
            "Tensor[...] =", expected=f"values that broadcast to {shape}", got=str(values.shape)
        )
    return values.reshape(values.shape[surplus:])
