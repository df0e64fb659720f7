"""What one rank has and does: its parts of all arrays, and the programs that it runs on them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from caldera.comm import Communicator
from caldera.dmath.codec import decode, decode_graph, encode
from caldera.dmath.lowering import Lowered, lower
from caldera.errors import CommError
from caldera.graph.node import Symbol
from caldera.lazy.compile import compile_nodes
from caldera.plan.plan import Plan
from caldera.sharding.layout import Layout
from caldera.tensor import Tensor

_LENGTH_BYTES = 8


@dataclass(frozen=True)
class Definition:
    """A program: a graph of whole values as `encode_graph` writes it, the layouts of its leaves
    (but constants), and those its outputs shall have, None where that may be chosen."""

    graph: bytes
    layouts: tuple[Layout, ...]
    wanted: tuple[Layout | None, ...]

    def to_bytes(self) -> bytes:
        """As it is sent."""
        head = encode((self.layouts, self.wanted))
        return len(head).to_bytes(_LENGTH_BYTES, "little") + head + self.graph

    @classmethod
    def from_bytes(cls, content: bytes) -> Definition:
        """What `to_bytes` wrote."""
        end = _LENGTH_BYTES + int.from_bytes(content[:_LENGTH_BYTES], "little")
        layouts, wanted = decode(content[_LENGTH_BYTES:end])
        return cls(content[end:], layouts, wanted)

    def lowered(self, rank: int, ranks: int) -> Lowered:
        """What a rank runs of it."""
        graph = decode_graph(self.graph)
        leaves = [leaf for leaf in graph.leaves if leaf.role != "array"]
        return lower(graph.outputs, leaves, self.layouts, self.wanted, rank, ranks)


class RankProgram:
    """A program on one rank, compiled when it first has values."""

    def __init__(self, definition: Definition, communicator: Communicator) -> None:
        found = definition.lowered(communicator.rank, communicator.size)
        self._outputs = found.outputs
        self._leaves: Sequence[Symbol] = found.leaves
        self._communicator = communicator
        self._plan: Plan | None = None

    def run(self, values: Sequence[Tensor]) -> list[Tensor]:
        """Its outputs for these values of its leaves."""
        for symbol, value in zip(self._leaves, values, strict=True):
            if symbol.value is not value:
                symbol.move(value)
        if self._plan is None:
            self._plan = compile_nodes(
                self._outputs, communicator=self._communicator, remember=False
            )
        return self._plan.run()

    def release(self, freed: Sequence[Tensor]) -> None:
        """Hold on to none of these values."""
        held = [leaf for leaf in self._leaves if any(leaf.value is each for each in freed)]
        for symbol in held:
            symbol.move(None)
        if held and self._plan is not None:
            self._plan.release()


class Rank:
    """Parts of arrays and programs, by the numbers that the master gives them."""

    def __init__(self, communicator: Communicator) -> None:
        self.communicator = communicator
        self.arrays: dict[int, Tensor] = {}
        self._definitions: dict[int, Definition] = {}
        self._programs: dict[int, RankProgram] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of all parts that are here."""
        return sum(part.nbytes for part in self.arrays.values())

    def renew(self, communicator: Communicator) -> None:
        """Go on with another communicator of the same ranks."""
        self.communicator = communicator
        self._programs.clear()

    def define(self, number: int, definition: Definition) -> None:
        """A program, from now on known by its number."""
        self._definitions[number] = definition

    def run(self, number: int, leaves: Sequence[int], first: int) -> None:
        """Run a program on arrays; its outputs are numbered from `first` on."""
        program = self._programs.get(number)
        if program is None:
            program = RankProgram(self._definitions[number], self.communicator)
            self._programs[number] = program
        results = program.run([self.part(leaf) for leaf in leaves])
        for place, result in enumerate(results):
            self.arrays[first + place] = result

    def put(self, number: int, part: np.ndarray) -> None:
        """Keep this rank's part of an array."""
        self.arrays[number] = Tensor.from_numpy(part)

    def part(self, number: int) -> Tensor:
        """This rank's part of an array."""
        found = self.arrays.get(number)
        if found is None:
            raise CommError.build(
                f"rank {self.communicator.rank}", expected=f"array {number}", got="none",
                hint="the run that should have computed it has failed",
            )  # fmt: skip
        return found

    def free(self, numbers: Iterable[int]) -> None:
        """Nobody holds these arrays any more."""
        freed = [self.arrays.pop(number) for number in numbers if number in self.arrays]
        if freed:
            for program in self._programs.values():
                program.release(freed)
