"""Source of loops that reduce and may also write element-wise results.

Threads iterate over two groups of axes: kept axes and reduced axes. `along` means that the
innermost axis is reduced: neighbours add to the same total and the threads of a row share it.
Otherwise neighbours have separate totals, and the threads of a column share each total. Where few
totals are computed from many elements, the elements are split into parts. Totals of parts are
stored in the workspace until a second kernel joins them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from caldera.kernels.common.loops import LoopBody, Reduction
from caldera.kernels.cuda.codegen import (
    Array,
    KernelSignature,
    LaunchIntegers,
    LoopOperand,
    OffsetEmitter,
    Parameter,
    bounds_for,
    computed_type,
    const_pointer,
    element_function,
    lines,
    pointer,
    restricted,
)

_STRUCTS = {
    "sum": "Sum",
    "prod": "Prod",
    "max": "Max",
    "min": "Min",
    "argmax": "ArgMax",
    "argmin": "ArgMin",
}
_INCLUDES = '#include "reduce.cuh"\n#include "vector_access.cuh"'


def struct(reduction: Reduction) -> str:
    """Return the type of a reduction in reduce.cuh."""
    op, dtype, _ = reduction
    return f"{_STRUCTS[op]}<{computed_type(dtype)}>"


@dataclass(frozen=True)
class ReductionLoop:
    """Loop that reduces.

    Axes are given by their positions, the innermost last. Inputs and outputs have strides for all
    axes, results only for the kept axes.
    """

    loop_body: LoopBody
    lengths: tuple[int, ...]
    kept: tuple[int, ...]
    reduced: tuple[int, ...]
    operands: Sequence[LoopOperand]
    results: Sequence[LoopOperand]
    along: bool

    def axes(self, which: Sequence[int], lanes: int) -> list[int]:
        """Return the lengths of some axes, with the loop's innermost axis in items of `lanes`
        elements.
        """
        last = len(self.lengths) - 1
        return [self.lengths[axis] // (lanes if axis == last else 1) for axis in which]


@dataclass(frozen=True)
class Cut:
    """Division of a loop among threads.

    The fields are the elements of an item, the kept items, the reduced items, the reduced items of
    a part, the number of blocks per part, and the unroll factor of the loops.
    """

    lanes: int
    kept: int
    reduced: int
    chunk: int
    blocks: int
    unroll: int

    @property
    def parts(self) -> int:
        """Number of parts of the reduced items."""
        return -(-self.reduced // self.chunk)


def _some(operand: LoopOperand, axes: Sequence[int]) -> LoopOperand:
    return replace(operand, strides=tuple(operand.strides[axis] for axis in axes))


def reduce_source(
    loop: ReductionLoop,
    cut: Cut,
    block: tuple[int, int],
    arrays: Sequence[Array],
    results: Sequence[Array],
    numbers: LaunchIntegers,
) -> tuple[str, KernelSignature]:
    """The kernel `reduce` of inputs and outputs, which writes results, or the totals of parts."""
    loop_body, along = loop.loop_body, loop.along
    split = cut.parts > 1
    lying = [*(_some(each, loop.kept) for each in loop.operands), *loop.results]
    kept = OffsetEmitter(numbers, loop.axes(loop.kept, cut.lanes), lying, "" if along else "V")
    places, offsets = kept.statements("item", "a")
    places += [f"const Offset k{k} = {each};" for k, each in enumerate(offsets)]
    taking = _taking(loop, cut, numbers, kept.group)
    width = "1" if along else "V"
    totals, none, joined = _total_lines(loop, width)
    ending = _ending(loop, kept, numbers, split=split, kept_items=cut.kept)
    blocks, chunk, last, items = map(numbers.add, (cut.blocks, cut.chunk, cut.reduced, cut.kept))
    line, lane = ("y", "x") if along else ("x", "y")
    signature = KernelSignature(
        {"n": numbers.parameter, **_operands(loop, arrays), **_results(loop, results, split=split)}
    )
    source = f"""{_INCLUDES}
{numbers.declaration}
{element_function(loop_body)}
extern "C" __global__ void {bounds_for(*block)}reduce({signature.declaration}) {{
    const int V = {cut.lanes};
    const Index part = blockIdx.x / (Index){blocks}, group = blockIdx.x - part * (Index){blocks};
    const Index item = group * blockDim.{line} + threadIdx.{line};
    const Index first = part * (Index){chunk};
    const Index last = min(first + (Index){chunk}, (Index){last});
    const bool inside = item < (Index){items};
    {lines(totals, 4)}
#pragma unroll
    for (int w = 0; w < {width}; w++) {{
        {lines(none, 8)}
    }}
    {lines(places, 4)}
    const Index step = blockDim.{lane};
    {taking}
    if (inside) {{
        Index j = first + threadIdx.{lane};
        {_unrolled(cut.unroll)}
        for (; j < last; j += step) take(Size<1>(), j);
    }}
#pragma unroll
    for (int w = 0; w < {width}; w++) {{
        {lines(joined, 8)}
        if (inside && threadIdx.{lane} == 0) {{
            {lines(ending, 12)}
        }}
    }}
}}
"""
    return source, signature


def _total_lines(loop: ReductionLoop, width: str) -> tuple[list[str], list[str], list[str]]:
    """Return the lines that declare, clear and join the totals of a thread."""
    structs = list(enumerate(map(struct, loop.loop_body.reductions)))
    meet = "block_along" if loop.along else "block_across"
    return (
        [f"{each}::Total s{k}[{width}];" for k, each in structs],
        [f"s{k}[w] = {each}::none();" for k, each in structs],
        [f"s{k}[w] = {meet}<{each}>(s{k}[w]);" for k, each in structs],
    )


def _unrolled(count: int) -> str:
    if count == 1:
        return ""
    return f"for (; j + {count - 1} * step < last; j += {count} * step) take(Size<{count}>(), j);"


def _taking(loop: ReductionLoop, cut: Cut, numbers: LaunchIntegers, groups: Sequence[int]) -> str:
    """Return the function that processes U reduced items with stride `step`.

    All items are read before the first is used, so that a thread does not wait for each in turn.
    """
    loop_body, along, count = loop.loop_body, loop.along, len(loop.loop_body.inputs)
    offsets_of = OffsetEmitter(
        numbers,
        loop.axes(loop.reduced, cut.lanes),
        [_some(each, loop.reduced) for each in loop.operands],
        "V" if along else "",
    )
    steps = [numbers.add(each.strides[-1]) for each in loop.operands]
    split, offsets = offsets_of.statements("j", "b")
    places = [f"(k{g} + r{h}[u])" for g, h in zip(groups, offsets_of.group, strict=False)]
    read, written = loop.operands[:count], list(enumerate(loop.operands[count:], count))
    kept = [f"Offset r{k}[U];" for k in range(len(offsets))]
    kept += [f"Pack<{each.stored}, V> x{k}[U];" for k, each in enumerate(read)]
    reading = [*split, *(f"r{k}[u] = {each};" for k, each in enumerate(offsets))]
    reading += [
        f"x{k}[u] = {each.load(f'p{k}', places[k], steps[k])};" for k, each in enumerate(read)
    ]
    reductions = list(enumerate(loop_body.reductions))
    values = [f"wide(x{k}[u].v[k])" for k in range(count)] + [f"o{k}" for k, _ in written]
    values += [f"t{k}" for k, _ in reductions]
    computing = [f"{computed_type(each.dtype)} o{k};" for k, each in written]
    computing += [f"{computed_type(dtype)} t{k};" for k, (_, dtype, _) in reductions]
    computing.append(f"element({', '.join(values)});")
    computing += [f"y{k}.v[k] = Stored<{each.stored}>::from(o{k});" for k, each in written]
    where, own = ("(i64)j * V + k", "0") if along else ("(i64)j", "k")
    computing += [
        f"s{k}[{own}] = {struct(r)}::both(s{k}[{own}], {struct(r)}::of(t{k}, {where}));"
        for k, r in reductions
    ]
    results = [f"Pack<{each.stored}, V> y{k};" for k, each in written]
    writing = [each.store(f"p{k}", places[k], f"y{k}", steps[k]) for k, each in written]
    return f"""const auto take = [&](auto size, const Index begin) {{
        constexpr int U = decltype(size)::value;
        {lines(kept, 8)}
#pragma unroll
        for (int u = 0; u < U; u++) {{
            const Index j = begin + u * step;
            {lines(reading, 12)}
        }}
#pragma unroll
        for (int u = 0; u < U; u++) {{
            const Index j = begin + u * step;
            {lines(results, 12)}
#pragma unroll
            for (int k = 0; k < V; k++) {{
                {lines(computing, 16)}
            }}
            {lines(writing, 12)}
        }}
    }};"""


def _operands(loop: ReductionLoop, arrays: Sequence[Array]) -> dict[str, Parameter]:
    # No input of a reduction is written by it, so reads may be moved ahead of writes.
    return {
        f"p{k}": restricted(
            const_pointer(array) if k < len(loop.loop_body.inputs) else pointer(array)
        )
        for k, array in enumerate(arrays)
    }


def _results(loop: ReductionLoop, arrays: Sequence[Array], *, split: bool) -> dict[str, Parameter]:
    return {
        f"q{k}": restricted(pointer(array, f"{struct(reduction)}::Total" if split else ""))
        for k, (reduction, array) in enumerate(zip(loop.loop_body.reductions, arrays, strict=True))
    }


def _ending(
    loop: ReductionLoop,
    kept: OffsetEmitter,
    numbers: LaunchIntegers,
    *,
    split: bool,
    kept_items: int,
) -> list[str]:
    """Return the statements that write total number w of an item."""
    width = "1" if loop.along else "V"
    if split:
        total = f"(Index){numbers.add(kept_items)} * {width}"
        return [
            f"q{k}[part * ({total}) + item * {width} + w] = s{k}[w];"
            for k in range(len(loop.results))
        ]
    found = []
    first = len(loop.operands)
    for k, (reduction, each) in enumerate(
        zip(loop.loop_body.reductions, loop.results, strict=True)
    ):
        step = f" + w * {numbers.add(each.strides[-1])}" if not loop.along else ""
        value = f"Stored<{each.stored}>::from({struct(reduction)}::value(s{k}[w]))"
        found.append(f"q{k}[k{kept.group[first + k]}{step}] = {value};")
    return found


def join_source(
    loop: ReductionLoop,
    parts: int,
    totals: int,
    block: tuple[int, int],
    places: Sequence[tuple[Array, Array]],
    numbers: LaunchIntegers,
) -> tuple[str, KernelSignature]:
    """Return the kernel `join`; for each reduction the places of its totals and of its result."""
    kept = OffsetEmitter(numbers, [loop.lengths[axis] for axis in loop.kept], loop.results, "")
    split, offsets = kept.statements("item", "a")
    count, all_parts = map(numbers.add, (totals, parts))
    reductions = list(enumerate(loop.loop_body.reductions))
    signature = KernelSignature({"n": numbers.parameter})
    for k, reduction in reductions:
        found, result = places[k]
        total = const_pointer(found, f"{struct(reduction)}::Total")
        signature |= {f"s{k}": total, f"q{k}": pointer(result)}
    start = [f"{struct(r)}::Total t{k} = {struct(r)}::none();" for k, r in reductions]
    adding = [
        f"t{k} = {struct(r)}::both(t{k}, s{k}[part * (Index){count} + item]);"
        for k, r in reductions
    ]
    joined = [f"t{k} = block_across<{struct(r)}>(t{k});" for k, r in reductions]
    writing = [*split, *(f"const Offset k{k} = {each};" for k, each in enumerate(offsets))]
    for k, r in reductions:
        value = f"Stored<{loop.results[k].stored}>::from({struct(r)}::value(t{k}))"
        writing.append(f"q{k}[k{kept.group[k]}] = {value};")
    source = f"""{_INCLUDES}
{numbers.declaration}
extern "C" __global__ void {bounds_for(*block)}join({signature.declaration}) {{
    const Index item = (Index)blockIdx.x * blockDim.x + threadIdx.x;
    const bool inside = item < (Index){count};
    {lines(start, 4)}
    if (inside) {{
#pragma unroll 4
        for (Index part = threadIdx.y; part < (Index){all_parts}; part += blockDim.y) {{
            {lines(adding, 12)}
        }}
    }}
    {lines(joined, 4)}
    if (inside && threadIdx.y == 0) {{
        {lines(writing, 8)}
    }}
}}
"""
    return source, signature
