"""Attention and its gradient: each a kernel that takes whole heads."""

from __future__ import annotations

import math as constants

from caldera.kernels.native.attention.head import (
    BLOCK,
    TOGETHER,
    Mask,
    QueryBlock,
    ScratchMatrices,
    computed_name,
    each_block,
    lay_out,
    moved,
    rows_from,
    whole_vectors,
    write,
)
from caldera.kernels.native.codegen import (
    Emitter,
    Integer,
    Pointer,
    Real,
    RegisterValue,
    computed_type,
    itemsize,
    math,
    native_kernel,
    natural_lanes,
    vector,
)
from caldera.kernels.native.product.microkernel import PackedMatrix, multiply

# --- forward


@native_kernel
def forward(
    k: Emitter,
    table: Pointer,
    memory: Pointer,
    logarithms: Pointer,
    q: PackedMatrix,
    key: PackedMatrix,
    v: PackedMatrix,
    y: PackedMatrix,
    masks: list[Mask],
    heads: Integer,
    chunks: Integer,
    elements: Integer,
    queries: Integer,
    keys: Integer,
    depth: Integer,
    width: Integer,
    keys_apart: Integer,
    depth_apart: Integer,
    width_apart: Integer,
    scale: Real,
    dtype: str,
    causal: bool,
) -> None:
    """The table has for each head where q, key, v, y, the logarithms and the masks begin."""
    kind = computed_type(dtype)
    wide = TOGETHER * natural_lanes(kind)
    scale = k.convert(scale, kind)
    whole_width = whole_vectors(width, kind)
    workspace = ScratchMatrices(k, memory, elements)
    laid_keys = workspace.matrix(depth, keys_apart)
    laid_values = workspace.matrix(keys, width_apart)
    asked, scores = workspace.matrix(BLOCK, depth_apart), workspace.matrix(BLOCK, keys_apart)
    results = workspace.matrix(BLOCK, width_apart)
    totals, shifts = k.alloca(kind, BLOCK), k.alloca(kind, BLOCK)
    with k.loop(*k.part_range(heads * chunks)) as task:
        head, chunk = task // chunks, task % chunks
        offsets = table.at(head * (5 + len(masks)))
        lay_out(k, laid_keys, moved(key, offsets.load(1)).transposed, (depth, keys), dtype)
        lay_out(k, laid_values, moved(v, offsets.load(2)), (keys, width), dtype)
        here = [mask.at(offsets.load(5 + i)) for i, mask in enumerate(masks)]
        blocks = (queries + (BLOCK - 1)) // BLOCK
        first, last = blocks * chunk // chunks, blocks * (chunk + 1) // chunks
        with each_block(k, first, last, keys, queries, causal, wide) as block:
            rows = rows_from(q, offsets.load(0), block.top)
            lay_out(k, asked, rows, (block.lines, depth), dtype, scale)
            multiply(k, scores, asked, laid_keys, (block.lines, block.width, depth))
            block.mask(scores, here)
            _softmax(k, block, scores, totals, shifts)
            multiply(k, results, scores, laid_values, (block.lines, whole_width, block.seen))
            goal = rows_from(y, offsets.load(3), block.top)
            _divide(k, results, totals, (block.lines, whole_width))
            write(k, goal, results, (block.lines, width), dtype)
            for row, lanes in k.vectors(0, block.lines, natural_lanes(kind), 1):
                found = math.log(k, totals.load(row, lanes)) + shifts.load(row, lanes)
                logarithms.store(offsets.load(4) + block.top + row, found)


def _softmax(
    k: Emitter, block: QueryBlock, scores: PackedMatrix, totals: Pointer, shifts: Pointer
) -> None:
    """exp(scores - shift), and each row's sum and shift; a sum of 0 is given as 1."""
    kind = scores.pointer.type
    several = vector(kind, block.wide)
    with k.loop(0, block.lines) as line:
        row = scores.row(line)
        limit = block.seen_by(line)
        reach = (limit + (block.wide - 1)) // block.wide * block.wide
        largest = k.variable(-constants.inf, several)
        with k.loop(0, reach, block.wide) as place:
            value = block.hidden(place, limit, row.load(place, block.wide))
            row.store(place, value)
            largest.value = k.maximum(value, largest.value)
        top = k.reduce_lanes(largest.value, k.maximum)
        # A row that is masked altogether has the largest score -inf; -inf - -inf would be nan.
        shift = k.select((top - top).equals(0.0), top, 0.0)
        total = k.variable(0.0, several)
        with k.loop(0, reach, block.wide) as place:
            value = math.exp(k, row.load(place, block.wide) - shift)
            row.store(place, value)
            total.value = total.value + value
        with k.loop(reach, block.width, block.wide) as place:
            row.store(place, k.constant(0.0, several))
        found = k.reduce_lanes(total.value, lambda a, b: a + b)
        totals.store(line, k.select(found.equals(0.0), 1.0, found))
        shifts.store(line, shift)


def _divide(
    k: Emitter, matrix: PackedMatrix, divisors: Pointer, shape: tuple[RegisterValue, RegisterValue]
) -> None:
    """Divide each row by its divisor in place."""
    lanes = natural_lanes(divisors.type)
    with k.loop(0, shape[0]) as line, k.loop(0, shape[1], lanes) as place:
        row = matrix.row(line)
        row.store(place, row.load(place, lanes) / divisors.load(line))


# --- backward


@native_kernel
def backward(
    k: Emitter,
    table: Pointer,
    memory: Pointer,
    common: Pointer,
    logarithm: Pointer,
    common_step: Integer,
    logarithm_step: Integer,
    g: PackedMatrix,
    q: PackedMatrix,
    key: PackedMatrix,
    v: PackedMatrix,
    dq: PackedMatrix,
    dk: PackedMatrix,
    dv: PackedMatrix,
    score_gradients: PackedMatrix,
    masks: list[Mask],
    heads: Integer,
    elements: Integer,
    queries: Integer,
    keys: Integer,
    depth: Integer,
    width: Integer,
    keys_apart: Integer,
    depth_apart: Integer,
    width_apart: Integer,
    scale: Real,
    dtype: str,
    causal: bool,
    keeps_scores: bool,
) -> None:
    """Compute the gradients of queries, keys and values.

    `keeps_scores` also writes the gradients of all scores, from which the gradients of added masks
    are computed.
    """
    kind = computed_type(dtype)
    wide = TOGETHER * natural_lanes(kind)
    scale = k.convert(scale, kind)
    apart = keys_apart, depth_apart, width_apart
    m = _HeadMatrices(ScratchMatrices(k, memory, elements), keys, depth, width, apart)
    with k.loop(*k.part_range(heads)) as head:
        offsets = table.at(head * (10 + len(masks)))
        start = [offsets.load(i) for i in range(10)]
        m.begin(k, moved(key, start[2]), moved(v, start[3]), dtype)
        here = [mask.at(offsets.load(10 + i)) for i, mask in enumerate(masks)]
        blocks = (queries + (BLOCK - 1)) // BLOCK
        with each_block(k, 0, blocks, keys, queries, causal, wide) as block:
            rows = rows_from(q, start[1], block.top), rows_from(g, start[0], block.top)
            m.compute_scores(k, block, rows, scale, dtype, here)
            with k.loop(0, block.lines) as line:
                row = block.top + line
                places = start[8] + row * logarithm_step, start[7] + row * common_step
                statistics = logarithm.load(places[0]), common.load(places[1])
                _score_gradients(k, block, line, m.scores, m.changes, *statistics)
            if keeps_scores:
                kept = rows_from(score_gradients, start[9], block.top)
                write(k, kept, m.changes, (block.lines, block.seen), computed_name(dtype))
            m.add_gradients(k, block)
            write(
                k, rows_from(dq, start[4], block.top), m.found, (block.lines, depth), dtype, scale
            )
        write(k, moved(dk, start[5]), m.for_keys, (keys, depth), dtype)
        write(k, moved(dv, start[6]), m.for_values, (keys, width), dtype)


class _HeadMatrices:
    """The matrices of a head in a part's memory, and the computations on them for a block."""

    def __init__(
        self,
        workspace: ScratchMatrices,
        keys: RegisterValue,
        depth: RegisterValue,
        width: RegisterValue,
        apart: tuple[RegisterValue, RegisterValue, RegisterValue],
    ) -> None:
        keys_apart, depth_apart, width_apart = apart
        self.lengths = keys, depth, width
        kind = workspace.rest.type
        self.whole = whole_vectors(depth, kind), whole_vectors(width, kind)
        self.across_keys = workspace.matrix(depth, keys_apart)
        self.keys = workspace.matrix(keys, depth_apart)
        self.across_values = workspace.matrix(width, keys_apart)
        self.asked, self.found, self.told = (
            workspace.matrix(BLOCK, n) for n in (depth_apart, depth_apart, width_apart)
        )
        self.scores, self.changes = (workspace.matrix(BLOCK, keys_apart) for _ in range(2))
        self.for_keys = workspace.matrix(keys, depth_apart)
        self.for_values = workspace.matrix(keys, width_apart)

    def begin(self, k: Emitter, key: PackedMatrix, v: PackedMatrix, dtype: str) -> None:
        """Lay out the keys and values of a head, and clear their gradients."""
        keys, depth, width = self.lengths
        lay_out(k, self.across_keys, key.transposed, (depth, keys), dtype)
        lay_out(k, self.keys, key, (keys, depth), dtype)
        lay_out(k, self.across_values, v.transposed, (width, keys), dtype)
        for gradient in (self.for_keys, self.for_values):
            nbytes = keys * gradient.down * itemsize(computed_type(dtype))
            k.clear_bytes(gradient.pointer, nbytes)

    def compute_scores(
        self,
        k: Emitter,
        block: QueryBlock,
        rows: tuple[PackedMatrix, PackedMatrix],
        scale: RegisterValue,
        dtype: str,
        masks: list[Mask],
    ) -> None:
        """Compute the scores, and the gradients of the probabilities.

        Both are computed from rows of the queries and of the results' gradients.
        """
        _, depth, width = self.lengths
        lay_out(k, self.asked, rows[0], (block.lines, depth), dtype, scale)
        lay_out(k, self.told, rows[1], (block.lines, width), dtype)
        multiply(k, self.scores, self.asked, self.across_keys, (block.lines, block.width, depth))
        multiply(k, self.changes, self.told, self.across_values, (block.lines, block.width, width))
        block.mask(self.scores, masks)

    def add_gradients(self, k: Emitter, block: QueryBlock) -> None:
        """Add to the gradients of values and keys; compute the gradient of the queries."""
        depth, width = self.whole
        for target, scores, rows, length in (
            (self.for_values, self.scores, self.told, width),
            (self.for_keys, self.changes, self.asked, depth),
        ):
            shape = block.seen, length, block.lines
            multiply(k, target, scores.transposed, rows, shape, accumulate=True)
        multiply(k, self.found, self.changes, self.keys, (block.lines, depth, block.seen))


def _score_gradients(
    k: Emitter,
    block: QueryBlock,
    line: RegisterValue,
    scores: PackedMatrix,
    changes: PackedMatrix,
    logarithm: RegisterValue,
    common: RegisterValue,
) -> None:
    """Replace scores by probabilities, and gradients of probabilities by gradients of scores."""
    several = vector(scores.pointer.type, block.wide)
    row, change = scores.row(line), changes.row(line)
    limit = block.seen_by(line)
    reach = (limit + (block.wide - 1)) // block.wide * block.wide
    with k.loop(0, reach, block.wide) as place:
        shifted = block.hidden(place, limit, row.load(place, block.wide)) - logarithm
        probability = math.exp(k, shifted)
        row.store(place, probability)
        change.store(place, probability * (change.load(place, block.wide) - common))
    with k.loop(reach, block.width, block.wide) as place:
        row.store(place, k.constant(0.0, several))
        change.store(place, k.constant(0.0, several))
