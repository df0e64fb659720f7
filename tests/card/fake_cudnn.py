"""What cudnn-frontend does, on the host: a graph of one convolution and of what follows it, or of
one attention, run by the oracle on the memory that its tensors describe."""

from __future__ import annotations

import ctypes
import enum
from typing import Any

import numpy as np

from caldera.core.graph.node import Node, Spec
from caldera.core.graph.opdef import parameter
from caldera.core.graph.ops.attention import attention, attention_backward
from caldera.core.tensor.dtype import BY_NAME
from caldera.kernels.reference import FUNCTIONS, evaluate


class cudnnGraphNotSupportedError(Exception):
    """As the package names it."""


class data_type(enum.Enum):
    """Types of tensors."""

    FLOAT = "float32"
    DOUBLE = "float64"
    HALF = "float16"
    BFLOAT16 = "bfloat16"


class heur_mode(enum.Enum):
    """Who proposes plans."""

    A = 0
    B = 1
    FALLBACK = 2


class numerical_note(enum.Enum):
    """What plans may do."""

    DOWN_CONVERT_INPUTS = 0
    FFT = 1
    NONDETERMINISTIC = 2
    REDUCED_PRECISION_REDUCTION = 3
    TENSOR_CORE = 4
    WINOGRAD = 5
    WINOGRAD_TILE_13x13 = 6
    WINOGRAD_TILE_6x6 = 7


PLANS: list[tuple[frozenset[numerical_note], int]] = [
    (frozenset({numerical_note.NONDETERMINISTIC}), 0),
    (frozenset({numerical_note.TENSOR_CORE}), 1000),
    (frozenset({numerical_note.WINOGRAD, numerical_note.WINOGRAD_TILE_6x6}), 5000),
    (frozenset(), 3000),
    (frozenset({numerical_note.FFT}), 0),
]
"""The notes of each plan, and the workspace it needs for each image."""


class FakeTensor:
    """A tensor of a graph."""

    def __init__(self, dim: list[int] | None = None, stride: list[int] | None = None) -> None:
        self.dim, self.stride, self.uid, self.kind, self.is_output = dim, stride, -1, None, False

    def set_uid(self, uid: int) -> None:
        self.uid = uid

    def set_output(self, value: bool) -> None:
        self.is_output = value

    def set_dim(self, dim: list[int]) -> None:
        self.dim = dim

    def set_stride(self, stride: list[int]) -> None:
        self.stride = stride

    def set_data_type(self, kind: data_type) -> None:
        self.kind = kind

    def at(self, address: int) -> np.ndarray:
        """The memory that it describes."""
        assert address % 16 == 0, "tensors are aligned"
        dtype = BY_NAME[self.kind.value]
        reach = sum((n - 1) * step for n, step in zip(self.dim, self.stride, strict=True)) + 1
        memory = (ctypes.c_char * (reach * dtype.itemsize)).from_address(address)
        strides = [step * dtype.itemsize for step in self.stride]
        return np.lib.stride_tricks.as_strided(np.frombuffer(memory, dtype), self.dim, strides)


class FakeGraph:
    """A graph of one convolution or attention."""

    def __init__(self, library: FakeCudnn, handle: str, **kinds: data_type) -> None:
        assert handle in library.handles
        self.library, self.kinds = library, kinds
        self.tensors: list[FakeTensor] = []
        self.stages: list[str] = []
        self.refused: set[numerical_note] = set()
        self.built: set[int] = set()
        self.following: list[tuple[str, FakeTensor | None, dict[str, Any]]] = []
        self.results: list[FakeTensor] = []

    def tensor(
        self, *, name: str, dim: list[int], stride: list[int], data_type: data_type
    ) -> FakeTensor:
        found = FakeTensor(dim, stride)
        found.kind = data_type
        self.tensors.append(found)
        return found

    def _operation(self, name: str, first: FakeTensor, second: FakeTensor, how: Any) -> FakeTensor:
        self.operation = (name, first, second, how)
        return self._result()

    def _result(self) -> FakeTensor:
        self.result = FakeTensor()
        self.results = [self.result]
        return self.result

    def _follows(
        self, input: FakeTensor, name: str, other: FakeTensor | None = None, **how: Any
    ) -> FakeTensor:
        assert input is self.result
        self.following.append((name, other, how))
        return self._result()

    def bias(self, *, input: FakeTensor, bias: FakeTensor) -> FakeTensor:
        return self._follows(input, "add", bias)

    def relu(self, *, input: FakeTensor, negative_slope: float = 0.0) -> FakeTensor:
        return self._follows(input, "leaky_relu", slope=negative_slope)

    def sigmoid(self, *, input: FakeTensor) -> FakeTensor:
        return self._follows(input, "sigmoid")

    def tanh(self, *, input: FakeTensor) -> FakeTensor:
        return self._follows(input, "tanh")

    def conv_fprop(self, *, image: FakeTensor, weight: FakeTensor, **how: Any) -> FakeTensor:
        return self._operation("conv2d", image, weight, how)

    def conv_dgrad(self, *, loss: FakeTensor, filter: FakeTensor, **how: Any) -> FakeTensor:
        return self._operation("conv2d_input", loss, filter, how)

    def conv_wgrad(self, *, image: FakeTensor, loss: FakeTensor, **how: Any) -> FakeTensor:
        return self._operation("conv2d_weight", image, loss, how)

    def sdpa(
        self, *, q: FakeTensor, k: FakeTensor, v: FakeTensor, is_inference: bool, **how: Any
    ) -> list[FakeTensor]:
        assert not is_inference
        return self._attention("sdpa", [q, k, v], 2, how)

    def sdpa_backward(
        self,
        *,
        q: FakeTensor,
        k: FakeTensor,
        v: FakeTensor,
        o: FakeTensor,
        dO: FakeTensor,
        stats: FakeTensor,
        **how: Any,
    ) -> list[FakeTensor]:
        self.library.ordered.append(how.pop("use_deterministic_algorithm"))
        return self._attention("sdpa_backward", [dO, q, k, v, o, stats], 3, how)

    def _attention(
        self, name: str, inputs: list[FakeTensor], results: int, how: dict[str, Any]
    ) -> list[FakeTensor]:
        first = 0 if name == "sdpa" else 1
        queries, keys = (each.dim[2] for each in inputs[first : first + 2])
        square = how.pop("use_causal_mask", False)
        corner = how.pop("use_causal_mask_bottom_right", False)
        assert not (square and corner)
        assert not square or queries == keys, "causality begins at the first key"
        self.operation = (name, *inputs, {"causal": square or corner, "scale": how["attn_scale"]})
        self.results = [FakeTensor() for _ in range(results)]
        return self.results

    def validate(self) -> None:
        self.tensors += self.results
        assert all(each.dim and each.stride and each.uid > 0 for each in self.tensors)
        assert all(each.is_output for each in self.results)
        if self.operation[0].startswith("sdpa") and any(
            n % 8 for each in self.operation[1:4] for n in each.dim[3:]
        ):
            raise cudnnGraphNotSupportedError("rows of 16 bytes")
        if any(
            map(self.library.refuses, (self.operation[0], *(each[0] for each in self.following)))
        ):
            raise cudnnGraphNotSupportedError("no engine")
        self.stages.append("validated")

    def build_operation_graph(self) -> None:
        assert self.stages == ["validated"]
        self.stages.append("built")

    def create_execution_plans(self, modes: list[heur_mode]) -> None:
        assert self.stages == ["validated", "built"]
        assert modes == [heur_mode.A, heur_mode.FALLBACK]
        self.stages.append("planned")

    def deselect_numeric_notes(self, notes: list[numerical_note]) -> None:
        assert self.stages[-1] == "planned", "notes are of plans"
        self.refused.update(notes)

    def get_execution_plan_count(self) -> int:
        return len(PLANS)

    def build_plan_at_index(self, index: int) -> None:
        if PLANS[index][0] & self.refused:
            raise RuntimeError("Deselecting execution plan")
        self.built.add(index)

    def get_workspace_size_plan_at_index(self, index: int) -> int:
        assert index in self.built
        images = [each for each in self.tensors if each.uid == 1]
        assert images[0].dim is not None
        return PLANS[index][1] * images[0].dim[0]

    def execute_plan_at_index(
        self, pack: dict[int, int], workspace: int, index: int, handle: str
    ) -> None:
        assert handle in self.library.handles
        assert index in self.built
        room = self.get_workspace_size_plan_at_index(index)
        if room:
            assert workspace % 256 == 0
            np.frombuffer((ctypes.c_char * room).from_address(workspace), np.uint8)[:] = 0xEE
        self.library.executed.append(index)
        if self.operation[0].startswith("sdpa"):
            self._attend(pack)
            return
        name, first, second, how = self.operation
        inputs = [each.at(pack[each.uid]) for each in (first, second)]
        image, filters = (
            next(each for each in self.tensors if each.uid == uid).dim for uid in (1, 2)
        )
        attributes: dict[str, Any] = {
            "stride": tuple(how["stride"]),
            "dilation": tuple(how["dilation"]),
            "padding": tuple(zip(how["pre_padding"], how["post_padding"], strict=True)),
            "groups": image[1] // filters[1],
        }
        if name != "conv2d":
            attributes["shape"] = tuple(self.result.dim)
        wide = [each.astype(self.kinds["compute_data_type"].value) for each in inputs]
        values = FUNCTIONS[name](*wide, **attributes)
        for then, other, more in self.following:
            if other is not None:
                values = values + other.at(pack[other.uid]).astype(values.dtype)
            elif then == "leaky_relu":
                values = np.where(values <= 0, values * more["slope"], values)
            else:
                values = FUNCTIONS[then](values)
        self.result.at(pack[self.result.uid])[...] = values

    def _attend(self, pack: dict[int, int]) -> None:
        name, *given, how = self.operation
        arrays = [each.at(pack[each.uid]).astype("float32") for each in given]
        if name == "sdpa":
            node = attention.node(*stand_ins(arrays), **how)
        else:
            arrays[-1] = arrays[-1][..., 0]
            node = attention_backward.node(*stand_ins(arrays), **how)
        for tensor, value in zip(self.results, evaluate(node, arrays), strict=True):
            tensor.at(pack[tensor.uid])[...] = value.reshape(tensor.dim)


def stand_ins(arrays: list[np.ndarray]) -> list[Node]:
    """Nodes with the shapes and dtypes of arrays."""
    return [parameter(i, Spec(each.shape, each.dtype)) for i, each in enumerate(arrays)]


class FakeCudnn:
    """Stands for the module cudnn."""

    cudnnGraphNotSupportedError = cudnnGraphNotSupportedError
    data_type, heur_mode, numerical_note = data_type, heur_mode, numerical_note

    def __init__(self, refused: tuple[str, ...] = ()) -> None:
        self._refused = refused
        self.handles: list[str] = []
        self.streams: list[int] = []
        self.executed: list[int] = []
        self.ordered: list[bool] = []
        """Of each backward attention, whether it was asked to be deterministic."""

    def refuses(self, op: str) -> bool:
        """Whether it has no engine for an op."""
        return op in self._refused

    def create_handle(self) -> str:
        self.handles.append(f"handle {len(self.handles)}")
        return self.handles[-1]

    def set_stream(self, handle: str, stream: int) -> None:
        assert handle in self.handles
        self.streams.append(stream)

    def pygraph(self, *, handle: str, **kinds: data_type) -> FakeGraph:
        return FakeGraph(self, handle, **kinds)
