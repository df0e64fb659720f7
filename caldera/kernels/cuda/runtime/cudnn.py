"""Graphs of NVIDIA's cudnn-frontend: contexts, plans, workspaces and launches.

A graph is built and its plans are found once for each kind of problem; a run only launches one.
"""

from __future__ import annotations

import atexit
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, TypeVar
from weakref import WeakSet

from caldera.core.memory.cuda import launching_side_stream, launching_stream
from caldera.core.memory.software import address_of
from caldera.kernels.cuda.runtime import device
from caldera.kernels.table import Array

ALIGNMENT = 16
"""Bytes that cuDNN expects of the addresses of tensors."""
WORKSPACE_ALIGNMENT = 256
TYPES = {"float32": "FLOAT", "float64": "DOUBLE", "float16": "HALF", "bfloat16": "BFLOAT16"}
_graphs: WeakSet[CudnnGraph] = WeakSet()
_one_at_a_time = threading.Lock()
"""A context has one stream at a time: another thread must not change it before the launch."""


@atexit.register
def _release_handles() -> None:
    """The library complains about every object that is still there when Python has ended."""
    for graph in list(_graphs):
        graph.close()
    handle.cache_clear()
    device.cudnn.cache_clear()


@lru_cache
def handle(card: int, lane: int) -> Any:
    """Return cuDNN's context on a GPU: a separate one for each lane, since it has streams and
    memory.
    """
    return device.cudnn().create_handle()


def _refusals() -> tuple[type[Exception], ...]:
    """Return the exceptions that the library raises for unsupported graphs and plans."""
    return (
        device.cudnn().cudnnGraphNotSupportedError,
        RuntimeError,
        ValueError,
        NotImplementedError,
    )


class CudnnGraph(ABC):
    """Graph of a key, and its plans that can run, the best one first."""

    def __init__(self, key: Any, card: int) -> None:
        self._key = key
        self._library = device.cudnn()
        self._card = card
        self._graph = self._built()
        self._plans: list[int] = []
        self._next = 0
        _graphs.add(self)

    @abstractmethod
    def _built(self) -> Any:
        """Return the library's graph, with its plans created."""

    def _new_graph(self, dtype: str) -> Any:
        """Return a graph of tensors of this dtype, computed at least in float32."""
        kinds = self._library.data_type
        wide = kinds.DOUBLE if dtype == "float64" else kinds.FLOAT
        return self._library.pygraph(
            handle=handle(self._card, 0),
            io_data_type=getattr(kinds, TYPES[dtype]),
            intermediate_data_type=wide,
            compute_data_type=wide,
        )

    def _with_plans(self, graph: Any) -> Any:
        """Return the graph, once all that belongs to it was said."""
        modes = self._library.heur_mode
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([modes.A, modes.FALLBACK])
        return graph

    def close(self) -> None:
        """Release the library's objects."""
        self._graph = self._library = None

    def plan(self, rank: int) -> int | None:
        """Return the index of a plan that can run; None if there are at most `rank` such plans."""
        count = self._graph.get_execution_plan_count()
        while len(self._plans) <= rank and self._next < count:
            try:
                self._graph.build_plan_at_index(self._next)
                self._plans.append(self._next)
            except _refusals():
                # This one is not for this graph, or was deselected.
                pass
            self._next += 1
        return self._plans[rank] if rank < len(self._plans) else None

    def workspace(self, rank: int) -> int:
        """Return the bytes that a plan needs, at a suitable address."""
        needed = int(self._graph.get_workspace_size_plan_at_index(self.plan(rank)))
        return needed + WORKSPACE_ALIGNMENT if needed else 0

    def run(self, rank: int, tensors: dict[int, int], workspace: int) -> None:
        """Launch a plan on tensors at these addresses."""
        context = handle(self._card, launching_side_stream())
        with _one_at_a_time:
            self._library.set_stream(context, launching_stream())
            self._graph.execute_plan_at_index(tensors, workspace, self.plan(rank), context)


_Graph = TypeVar("_Graph", bound=CudnnGraph)


def supported(make: Callable[[], _Graph]) -> _Graph | None:
    """Return the graph that is made; None where the library has no plan for it."""
    try:
        found = make()
    except _refusals():
        return None
    return found if found.plan(0) is not None else None


class CudnnCall:
    """One launch of a plan, with the addresses of all it reads and writes."""

    def __init__(
        self, graph: CudnnGraph, rank: int, arrays: Mapping[int, Array], workspace: Array
    ) -> None:
        self._graph = graph
        self._rank = rank
        self._kept = (arrays, workspace)
        self._tensors = {role: address_of(array) for role, array in arrays.items()}
        self._workspace = 0
        if workspace is not None and workspace.nbytes:
            place = address_of(workspace)
            self._workspace = place + -place % WORKSPACE_ALIGNMENT

    def __call__(self) -> None:
        self._graph.run(self._rank, self._tensors, self._workspace)


def describe(
    graph: Any, role: int, shape: tuple[int, ...], strides: tuple[int, ...], kind: Any
) -> Any:
    """Return an input of a graph, called by its role; strides count elements."""
    found = graph.tensor(
        name=f"tensor{role}", dim=list(shape), stride=list(strides), data_type=kind
    )
    found.set_uid(role)
    return found


def set_output(
    found: Any, role: int, shape: tuple[int, ...], strides: tuple[int, ...], kind: Any
) -> None:
    """Make a tensor of a graph one of its results."""
    found.set_output(True)
    found.set_uid(role)
    found.set_dim(list(shape))
    found.set_stride(list(strides))
    found.set_data_type(kind)
