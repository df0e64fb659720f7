"""Whole steps as one persistent kernel whose blocks synchronise between phases.

A network whose layers are too small to fill a GPU spends its time on launches: inside a CUDA graph
an element-wise kernel takes about 2 us, of which almost no time is work. Here the calls of a plan
become phases of a kernel generated for exactly these arrays, and any number of steps is one launch.
All blocks must be resident simultaneously, so there is one block per multiprocessor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from caldera.core.graph.program import Body
from caldera.core.tensor.shape import size
from caldera.kernels.common.loops import LoopBody, loop_body_of, loop_shape, without_outputs
from caldera.kernels.common.product import Epilogue
from caldera.kernels.cuda.codegen import Array, KernelLaunch, computed_type, is_known
from caldera.kernels.cuda.persistent.classifier_head import ClassifierHead, fuse_classifier_heads
from caldera.kernels.cuda.persistent.convolutions import (
    CONVOLUTIONS,
    correlation,
)
from caldera.kernels.cuda.persistent.fusion import (
    FusedLoop,
    FusedProduct,
    Producer,
    Reduction,
    early_in,
    fuse_epilogues,
    in_phases,
    same,
)
from caldera.kernels.cuda.persistent.gather import Gather, fuse_gathers, gather
from caldera.kernels.cuda.persistent.image_fusion import FusedImages, fuse_images
from caldera.kernels.cuda.persistent.images import ImageTask, PixelProducer, image_sums, pool
from caldera.kernels.cuda.persistent.loops import (
    BUILDERS,
    RowWork,
    element_code,
    loop_task,
    reduction_task,
)
from caldera.kernels.cuda.persistent.products import ProductJob, gathered, is_product, operands
from caldera.kernels.cuda.persistent.program import STEPS, PersistentKernel
from caldera.kernels.cuda.persistent.tasks import (
    MASKS,
    THREADS,
    TileAccess,
    TileTask,
    dynamic_floats,
    shared_floats,
    units_of,
)
from caldera.kernels.cuda.product.problem import activation_lines
from caldera.kernels.cuda.runtime.driver import driver
from caldera.kernels.table import COPY, STEP_FUSERS, Call, Fresh, Steps

Piece = Gather | FusedLoop | Reduction | FusedProduct | RowWork | ImageTask | PixelProducer


def lower_copy(call: Call) -> FusedLoop:
    """Return a loop that copies an array of any shape."""
    (given,), (target,) = call.inputs, call.outputs
    if target.shape != given.shape:
        target = target.reshape(given.shape)
    name = given.dtype.name
    return FusedLoop(LoopBody((name,), (), ((name, ("in", 0)),)), target.shape, (given,), (target,))


def lower(call: Call, fresh: Fresh) -> list[Piece] | None:
    """Return the pieces of a call, in order; None if a persistent kernel does not support it.

    `fresh` allocates memory for intermediate values between the pieces of a call.
    """
    if not all(array.size for array in (*call.inputs, *call.outputs)):
        return None
    node = call.node
    if is_product(node):
        return (
            None if operands(call) is None else [FusedProduct(call.inputs, call.outputs[0], call)]
        )
    if node.op.name == "gather":
        found = gather(call)
        return None if found is None else [found]
    if node.op.name == "arrange" or (
        node.op.name == "reshape" and bool(call.outputs[0].flags.c_contiguous)
    ):
        return [lower_copy(call)]
    if node.op.name in CONVOLUTIONS:
        return correlation(call, fresh)
    if "pool" in node.op.name:
        pooled = pool(call)
        return None if pooled is None else [pooled]
    builder = BUILDERS.get(node.op.name)
    if builder is not None:
        work = builder(call)
        return None if work is None else [work]
    looping = node.op.kind in ("elementwise", "reduction") or node.op.name == "fused"
    if not looping or not is_known(node) or size(loop_shape(node)) >= 1 << 31:
        return None
    if node.op.kind != "reduction" and node.op.name != "fused":
        return [FusedLoop(loop_body_of(node), loop_shape(node), call.inputs, call.outputs)]
    pieces = _reduction(call) if node.op.kind == "reduction" else _fused(call)
    return None if pieces is None else [each for piece in pieces for each in _split(piece, fresh)]


def _split(piece: Piece, fresh: Fresh) -> list[Any]:
    """Return a reduction over images in two steps, everything else as it is."""
    found = image_sums(piece, fresh) if isinstance(piece, Reduction) else None
    return [piece] if found is None else found


def _reduction(call: Call) -> list[Piece] | None:
    node = call.node
    loop_body = loop_body_of(node)
    if loop_body.reductions[0][1] == "bool":
        return None
    axes = node.attrs["axis"]
    output = _without(call.outputs[0], axes, node.attrs["keepdims"])
    return [Reduction(call.inputs, output, loop_body, node.inputs[0].shape, axes)]


def _fused(call: Call) -> list[Piece] | None:
    body: Body = call.node.attrs["body"]
    shape = loop_shape(call.node)
    plain = loop_body_of(call.node)
    arrays = [
        array
        for array, part in zip(call.outputs, body.outputs, strict=True)
        if part.op.kind != "reduction"
    ]
    written = {
        reference: array for (_, reference), array in zip(plain.outputs, arrays, strict=True)
    }
    found: list[Piece] = []
    if written:
        found.append(FusedLoop(plain, shape, call.inputs, tuple(arrays)))
    for index, part in enumerate(body.outputs):
        if part.op.kind != "reduction":
            continue
        loop_body = without_outputs(loop_body_of(call.node, (index,)))
        op, dtype, _ = loop_body.reductions[0]
        if dtype == "bool":
            return None
        axes = part.attrs["axis"]
        output = _without(call.outputs[index], axes, part.attrs["keepdims"])
        inputs = call.inputs
        reference = loop_body_of(call.node, (index,)).reductions[0][2]
        if reference in written:
            # Values that the loop has written are not computed again.
            loop_body = LoopBody((dtype,), (), (), ((op, dtype, ("in", 0)),))
            inputs = (written[reference],)
        found.append(Reduction(inputs, output, loop_body, shape, axes))
    return found


def _without(output: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    """Return an output less the axes over which it was reduced."""
    if not keepdims:
        return output
    return output[tuple(0 if axis in axes else slice(None) for axis in range(output.ndim))]


Other = Gather | FusedLoop | Reduction | RowWork | FusedImages
"""Pieces that are not products."""
WAVES = 8
"""Maximum number of units per block and phase; with more, separate kernels are as fast."""
LEFT_TO_OTHERS = 8
"""Reciprocal of the maximum share of blocks that products leave to smaller parts."""
UNITS_OF_OTHERS = 2
"""Minimum number of units of smaller parts in such a block: a unit is much less work than a tile.
"""
MOST_POINTERS = 3000
"""A kernel's parameters may take 32 KiB."""
MOST_PARTS = 32 * MASKS


@dataclass(frozen=True)
class PersistentStep:
    """A step, or many, in one launch."""

    program: PersistentKernel
    counters: Array

    def launch(self, steps: int) -> KernelLaunch:
        """Return the launch that runs this number of steps."""
        program = self.program
        # Two blocks on the same multiprocessor would take turns, while another multiprocessor is
        # idle.
        return KernelLaunch(
            program.source,
            STEPS.name,
            driver().multiprocessors,
            THREADS,
            STEPS.bind(pointers=program.pointers, counters=self.counters, count=steps),
            shared=max(4 * program.shared_floats, driver().lonely_bytes),
            cooperative=True,
            kept=program.arrays,
        )

    @property
    def is_small(self) -> bool:
        """True if no phase keeps all blocks busy for long: persistent kernels serve such steps."""
        phases = self.program.phases
        most = max(sum(max(part.units, part.load) for part in phase) for phase in phases)
        fits = (
            len(self.program.pointers) <= MOST_POINTERS
            and sum(map(len, phases)) <= MOST_PARTS
            and self.program.shared_floats <= shared_floats()
        )
        return fits and most <= WAVES * driver().multiprocessors

    def __str__(self) -> str:
        return str(self.program)


def persistent_step(
    calls: Sequence[tuple[str, Call]], fresh: Fresh, is_scratch: Callable[[Array], bool]
) -> PersistentStep | None:
    """Return one kernel for all calls, each with the op of its kernel; None if one is not
    supported.

    `fresh` allocates zeroed memory on the GPU. `is_scratch` returns True for an array in memory
    that is not read after the step.
    """
    blocks = driver().multiprocessors
    pieces: list[Piece] = []
    for op, call in calls:
        found = [lower_copy(call)] if op == COPY else lower(call, fresh)
        if found is None:
            return None
        pieces += found
    fuse_gathers(pieces)
    # Products that no piece waits for (gradients of weights) run together at the end.
    phases = in_phases(
        fuse_classifier_heads(fuse_images(fuse_epilogues(pieces, is_scratch), is_scratch)),
        late=lambda piece: isinstance(piece, FusedProduct),
    )
    program = PersistentKernel(_tasks(phases, blocks), blocks, dynamic_floats())
    return PersistentStep(program, fresh((2,), "int32"))


def _tasks(
    phases: list[list[Other | FusedProduct | ClassifierHead]], blocks: int
) -> list[list[TileTask]]:
    """Return the pieces of each phase as parts; products get blocks in proportion to their work.

    Some blocks are left to the remaining pieces of a phase.
    """
    found = []
    for number, phase in enumerate(phases):
        early = early_in(phases, number)
        parts = [
            _task(piece) for piece in phase if not isinstance(piece, (FusedProduct, ClassifierHead))
        ]
        smaller = units_of(sum(part.units for part in parts), UNITS_OF_OTHERS)
        left = blocks - min(smaller, blocks // LEFT_TO_OTHERS)
        products = [(piece, _job(piece)) for piece in phase if isinstance(piece, FusedProduct)]
        total = sum(job.size(early).work for _, job in products)
        for piece, job in products:
            share = left * job.size(early).work // total
            parts.append(job.task(share, early, piece.reads, piece.writes))
        heads = [piece for piece in phase if isinstance(piece, ClassifierHead)]
        parts += [head.task(_job(head.first), _job(head.second), left) for head in heads]
        found.append(parts)
    return found


def _task(piece: Other) -> TileTask:
    if isinstance(piece, (Gather, RowWork)):
        return piece.task()
    if isinstance(piece, FusedImages):
        return piece.task(_followed)
    if isinstance(piece, FusedLoop):
        return loop_task(piece)
    return reduction_task(piece, lambda places, value, here: _followed(piece, places, value, here))


def _job(product: FusedProduct) -> ProductJob:
    matrices = operands(product.call)
    assert matrices is not None
    left, right = matrices
    rows = product.rows
    assert rows is None or isinstance(rows, Gather)
    return ProductJob(
        product.call.node,
        gathered(left, rows),
        right,
        product.call.outputs[0],
        lambda places, value: _finished(product, places, value),
    )


def _finished(product: FusedProduct, places: TileAccess, value: str) -> list[str]:
    """Return the statements after a sum: the op's epilogue, then the fused loops."""
    call = product.call
    here = ["row", "column"]
    lines = [f"float x = {value};"]
    result = "x"
    if call.node.op.name == "matmul_accumulate":
        before, _, _, alpha, beta = call.inputs
        # An operand multiplied by 0 is not read: a nan there has no influence.
        lines += [
            f"float alpha = {places.load(alpha, [])}, beta = {places.load(beta, [])};",
            f"float kept = beta == 0.0f ? 0.0f : beta * {places.load(before, here)};",
            "x = kept + (alpha == 0.0f ? 0.0f : alpha * x);",
        ]
    elif call.node.op.name == "matmul_epilogue":
        finish = Epilogue.of(call.node)
        if finish.bias:
            bias = call.inputs[2]
            lines.append(f"x = x + {places.load(bias, ['0'] * (bias.ndim - 1) + ['column'])};")
        if finish.activation is not None:
            more, result = activation_lines(finish.activation, finish.attributes, "float")
            lines += more
    return [*lines, *_followed(product, places, result, here)]


def _followed(producer: Producer, places: TileAccess, value: str, here: Sequence[str]) -> list[str]:
    """Return the statements that store the result, if required, and the loops that follow it."""
    lines = []
    result = producer.result
    if producer.stores:
        lines.append(places.store(result, here, value))
    for number, loop in enumerate(producer.epilogues):
        name = f"y{number}"
        lines.append(f"{computed_type(result.dtype.name)} {name} = {value};")
        known = {i: name for i, array in enumerate(loop.inputs) if same(array, result)}
        lines += ["{", *(f"    {line}" for line in element_code(places, loop, here, known)), "}"]
    return lines


def joined(
    calls: Sequence[tuple[str, Call]], fresh: Fresh, is_scratch: Callable[[Array], bool]
) -> Steps | None:
    """Return the launches of a small network's steps; None for large or unsupported steps."""
    step = persistent_step(calls, fresh, is_scratch)
    return None if step is None or not step.is_small else step.launch


STEP_FUSERS["cuda"] = joined
