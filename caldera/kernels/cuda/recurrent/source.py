"""A recurrent cell as CUDA: the struct `Cell` of include/recurrent/recurrent.cuh."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from caldera.core.graph.node import Node, Spec
from caldera.kernels.cuda.codegen import (
    STORED,
    Array,
    KernelSignature,
    computed_type,
    const_pointer,
    i32,
    i64,
    include_for,
    pointer,
    strides_of,
)
from caldera.kernels.cuda.recurrent.cell import Leaf, Phase, RecurrentCell


@dataclass(frozen=True)
class CellSource:
    """Writes the cell of a loop."""

    cell: RecurrentCell
    node: Node

    @property
    def _carries(self) -> int:
        return int(self.node.attrs["carries"])

    @property
    def _specs(self) -> tuple[Spec, ...]:
        return self.node.attrs["body"].parameters

    def _held(self, number: int) -> str:
        if number < self._carries:
            return "carry"
        return "given" if number < self._carries + self.node.attrs["sequences"] else "fixed"

    def _carried(self) -> list[Leaf]:
        """Return all values passed from step to step."""
        return [
            Leaf(number, vector)
            for number in range(self._carries)
            for vector in range(self._specs[number].shape[1] // self.cell.units)
        ]

    def _leaves(self, held: str) -> list[Leaf]:
        if held == "carry":
            return self._carried()
        return [leaf for leaf in self.cell.leaves if self._held(leaf.number) == held]

    def _found(self, phase: Phase) -> list[tuple[int, int, str]]:
        """Return numbers of outputs that are written at every step, vectors, and their values."""
        return [
            (number, vector, value)
            for number, values in enumerate(self.cell.outputs)
            for vector, (known, value) in enumerate(values)
            if number >= self._carries and known == phase
        ]

    # --- parameters

    def signature(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> KernelSignature:
        """Return the fields of the struct, with the arguments that a launch passes for them."""
        reverse = i32(self.node.attrs["reverse"])
        found = KernelSignature({"units": i32(self.cell.units), "reverse": reverse})
        numbers = {leaf.number for leaf in (*self._carried(), *self.cell.leaves)}
        for number in sorted(numbers):
            array, held = inputs[number], self._held(number)
            found |= {f"a{number}": const_pointer(array)}
            found |= _steps(f"a{number}", array, stacked=held == "given")
        for number, array in enumerate(outputs):
            found |= {f"y{number}": pointer(array)}
            found |= _steps(f"y{number}", array, stacked=number >= self._carries)
        return found

    # --- text

    def text(self, signature: KernelSignature) -> str:
        """Return the struct."""
        body = "\n".join(f"    {line}" for line in (*self._fields(signature), *self._functions()))
        return f"{include_for(body)}struct Cell {{\n{body}\n}};\n"

    def _fields(self, signature: KernelSignature) -> Iterator[str]:
        yield (
            f"static const int LEFT = {len(self.cell.left)}, RIGHT = {self.cell.right}, "
            f"AHEAD = {len(self.cell.ahead)};"
        )
        yield from (f"{each.kind} {name};" for name, each in signature.items())
        yield _struct("Cursor", ((signature[name].kind, name) for name in self._stacks()))
        for struct, held in (("Fixed", "fixed"), ("Carry", "carry"), ("Given", "given")):
            yield _struct(
                struct, ((self._type(leaf.number), leaf.name) for leaf in self._leaves(held))
            )
        yield _struct("Next", ((self._type(leaf.number), leaf.name) for leaf in self._direct()))
        yield _struct("Kept", ((kind, name) for name, kind in self.cell.kept.items()))
        for struct, phase in (("Early", "before"), ("Late", "after")):
            yield _struct(
                struct,
                (
                    (computed_type(self.node.outputs[n].dtype.name), f"y{n}_{v}")
                    for n, v, _ in self._found("before" if phase == "before" else "after")
                ),
            )

    def _type(self, number: int) -> str:
        return computed_type(self._specs[number].dtype.name)

    def _functions(self) -> Iterator[str]:
        at = "i64 n, i64 u"
        yield from _function(f"start(Cursor& at, i64 t, {at})", self._starts())
        yield from _function(f"read_fixed(Fixed& fixed, {at})", self._reads("fixed"))
        yield from _function(f"read_first(Carry& carry, {at})", self._reads("carry"))
        slots = "u32* slots, i32 apart"
        yield from _function(f"read(Next& next, Cursor& at, {slots})", self._reads_ahead())
        yield from _function(f"take(Given& given, const Next& next, const {slots})", self._takes())
        known = "const Fixed& fixed, {}Carry& carry, const Given& given, {}Kept& kept, "
        yield from _function(
            f"before({known.format('const ', '')}Early& early, float* left)", self._before()
        )
        yield from _function(
            f"after({known.format('', 'const ')}Late& late, const float* right)", self._after()
        )
        yield from _function("write_early(const Early& early, Cursor& at)", self._writes("before"))
        yield from _function("write_late(const Late& late, Cursor& at)", self._writes("after"))
        last = [
            f"y{each.number}[{_place(f'y{each.number}', each.vector)}] = "
            f"{self._stored(each.number, f'carry.{each.name}')};"
            for each in self._carried()
        ]
        yield from _function(f"write_last(const Carry& carry, {at})", last)

    def _stacks(self) -> list[str]:
        """Return the arrays that have a part for each step."""
        given = dict.fromkeys(f"a{leaf.number}" for leaf in self._leaves("given"))
        return [*given, *(f"y{n}" for n in range(self._carries, len(self.node.outputs)))]

    def _starts(self) -> Iterator[str]:
        for name in self._stacks():
            yield f"at.{name} = {name} + t * {name}_t + n * {name}_n + u * {name}_u;"

    def _reads(self, held: str) -> list[str]:
        return [
            f"{held}.{leaf.name} = wide(a{leaf.number}[{_place(f'a{leaf.number}', leaf.vector)}]);"
            for leaf in self._leaves(held)
        ]

    def _direct(self) -> list[Leaf]:
        """Return the data of a step that bypass shared memory."""
        return [leaf for leaf in self._leaves("given") if leaf not in self.cell.ahead]

    def _reads_ahead(self) -> Iterator[str]:
        """Yield the statements that request the data of the cursors' step; the cursors advance."""
        for slot, leaf in enumerate(self.cell.ahead):
            place = _here(f"a{leaf.number}", leaf.vector)
            yield f"copy_ahead4(slots + {slot} * apart, &{place}, true);"
        for leaf in self._direct():
            yield f"next.{leaf.name} = wide({_here(f'a{leaf.number}', leaf.vector)});"
        yield from _onwards(f"a{leaf.number}" for leaf in self._leaves("given"))

    def _takes(self) -> Iterator[str]:
        for slot, leaf in enumerate(self.cell.ahead):
            kind = STORED[self._specs[leaf.number].dtype.name]
            yield f"given.{leaf.name} = *(const {kind}*)(slots + {slot} * apart);"
        yield from (f"given.{leaf.name} = next.{leaf.name};" for leaf in self._direct())

    def _writes(self, phase: Phase) -> Iterator[str]:
        struct = "early" if phase == "before" else "late"
        for number, vector, _ in self._found(phase):
            value = self._stored(number, f"{struct}.y{number}_{vector}")
            yield f"{_here(f'y{number}', vector)} = {value};"
        yield from _onwards(f"y{number}" for number, _, _ in self._found(phase))

    def _stored(self, number: int, value: str) -> str:
        return f"Stored<{STORED[self.node.outputs[number].dtype.name]}>::from({value})"

    def _before(self) -> Iterator[str]:
        yield from self.cell.statements["before"]
        yield from (f"left[{k}] = {value};" for k, value in enumerate(self.cell.left))
        yield from (f"early.y{n}_{v} = {value};" for n, v, value in self._found("before"))
        yield from (f"kept.{name} = {name};" for name in self.cell.kept)

    def _after(self) -> Iterator[str]:
        yield from (f"{kind} {name} = kept.{name};" for name, kind in self.cell.kept.items())
        yield from self.cell.statements["after"]
        yield from (f"late.y{n}_{v} = {value};" for n, v, value in self._found("after"))
        # A new carry may read another part of an old one: all are read before the first is changed.
        carried = [
            (leaf, self.cell.outputs[leaf.number][leaf.vector][1]) for leaf in self._carried()
        ]
        yield from (
            f"{self._type(leaf.number)} next_{leaf.name} = {value};" for leaf, value in carried
        )
        yield from (f"carry.{leaf.name} = next_{leaf.name};" for leaf, _ in carried)


def _steps(name: str, array: Array, *, stacked: bool) -> KernelSignature:
    """Return the strides of steps, rows and units; 0 for missing axes."""
    steps = list(strides_of(array))
    of_step = steps.pop(0) if stacked else 0
    steps = [0] * (2 - len(steps)) + steps
    found = KernelSignature({f"{name}_n": i64(steps[0]), f"{name}_u": i64(steps[1])})
    return KernelSignature({f"{name}_t": i64(of_step), **found}) if stacked else found


def _place(name: str, vector: int) -> str:
    return f"n * {name}_n + ({max(vector, 0)} * (i64)units + u) * {name}_u"


def _here(name: str, vector: int) -> str:
    """Return a vector of a stack, at the step at which its cursor is."""
    return f"at.{name}[{vector} * (i64)units * {name}_u]" if vector > 0 else f"*at.{name}"


def _onwards(names: Iterable[str]) -> Iterator[str]:
    for name in dict.fromkeys(names):
        yield f"at.{name} += reverse ? -{name}_t : {name}_t;"


def _struct(name: str, fields: Iterable[tuple[str, str]]) -> str:
    return f"struct {name} {{ {' '.join(f'{kind} {each};' for kind, each in fields)} }};"


def _function(head: str, lines: Iterable[str]) -> Iterator[str]:
    yield f"__device__ __forceinline__ void {head} const {{"
    yield from (f"    {line}" for line in lines)
    yield "}"
