"""The passes in order. Each takes a program and returns an equivalent one."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import lru_cache

from caldera.compiler.passes import few_bits, fold, redundancy, reshapes, simplify, stable_losses
from caldera.compiler.passes.complex_parts import complex_parts
from caldera.compiler.passes.epilogue import epilogue, norm_epilogue, norm_sums
from caldera.compiler.passes.fuse import fuse
from caldera.compiler.passes.layout import layout
from caldera.compiler.passes.lower import HasKernel, lower
from caldera.compiler.passes.pattern import Rules
from caldera.compiler.passes.precision import lower_precision
from caldera.compiler.passes.redundancy import eliminate_dead_code, hoist
from caldera.compiler.passes.relu import pool_first, relu_mask
from caldera.compiler.passes.reshapes import packed_attention, row_products
from caldera.compiler.passes.residual_norm import residual_norm, rounded_results
from caldera.compiler.passes.sequences import sequences
from caldera.compiler.passes.weight_updates import update_product, update_rows
from caldera.core.graph import Body, Node, Program, rewrite
from caldera.core.graph.ops.attention import attention_backward_packed
from caldera.core.graph.ops.control import scan, with_body
from caldera.core.graph.ops.epilogue import ACTIVATIONS
from caldera.errors import ConfigError

NAMES = (
    "losses",
    "fold",
    "simplify",
    "sequences",
    "row_products",
    "pool_first",
    "epilogue",
    "relu_mask",
    "norm_epilogue",
    "norm_sums",
    "rounded_results",
    "residual_norm",
    "merge",
    "hoist",
    "dead",
    "update_product",
    "update_rows",
    "packed_attention",
    "fuse",
    "layout",
    "in_place",
)
"""Passes that can be switched off. (`in_place` is decided while a plan is laid out.)"""
NEEDED = {
    "update_product": "matmul_accumulate",
    "norm_epilogue": "batch_norm_relu",
    "norm_sums": "conv2d_moments",
    "rounded_results": "layer_norm_rounded",
    "residual_norm": "layer_norm_residual",
    "packed_attention": attention_backward_packed.name,
    "relu_mask": "relu_mask",
}
"""For each pass that needs it, the kernel that the device must have."""

Pass = Callable[[Program], Program]


def optimise(
    program: Program,
    *,
    has_kernel: HasKernel,
    without: Collection[str] = (),
    precision: str | None = None,
    channels_last: bool = False,
    adds_rows: bool = False,
) -> Program:
    """Run all passes except those named in `without`.

    `channels_last` is True if the device's kernels require images to be channels last in memory.
    `adds_rows` is True if adding rows to a few positions is as fast as adding them to many.
    """
    for name in without:
        if name not in NAMES:
            raise ConfigError.build("passes", expected="one of " + ", ".join(NAMES), got=repr(name))
    for _, run in passes(
        has_kernel, frozenset(without), precision, channels_last=channels_last, adds_rows=adds_rows
    ):
        program = run(program)
    return program


def narrowed(program: Program, precision: str, without: Collection[str] = ()) -> Program:
    """Return the program as it is after the passes that decide its precision, which come first."""
    if "losses" not in without:
        program = stable_losses.RULES(program)
    return lower_precision(program, precision)


def passes(
    has_kernel: HasKernel,
    without: frozenset[str] = frozenset(),
    precision: str | None = None,
    *,
    channels_last: bool = False,
    adds_rows: bool = False,
    in_loop: bool = False,
) -> list[tuple[str, Pass]]:
    """Return the passes with their names, in order of execution."""

    def is_kept(name: str) -> bool:
        # Activations are recognised while they are still one node.
        return name in ACTIVATIONS or has_kernel(name)

    def inside(program: Program) -> Program:
        for _, run in passes(has_kernel, without, in_loop=True):
            program = run(program)
        return program

    algebra = _algebra(without, in_loop)
    steps: list[tuple[str, Pass]] = [
        ("losses", stable_losses.RULES),
        ("few_bits", few_bits.RULES),
        # Before complex numbers are parts: their arithmetic keeps its precision.
        ("precision", lambda program: lower_precision(program, precision)),
        ("complex", complex_parts),
        ("sequences", sequences),
        ("algebra", algebra),
        ("row_products", row_products),
        ("pool_first", pool_first),
        ("lower all but activations", lambda program: lower(program, is_kept)),
        ("epilogue", lambda program: epilogue(program, has_kernel)),
        ("relu_mask", relu_mask),
        ("norm_epilogue", norm_epilogue),
        ("norm_sums", norm_sums),
        ("rounded_results", rounded_results),
        ("residual_norm", residual_norm),
        ("lower", lambda program: lower(program, has_kernel)),
        ("merge", redundancy.merge_loops),
        # What leaves a body has not been lowered there yet.
        ("hoist", lambda program: lower(hoist(program), has_kernel)),
        ("dead", eliminate_dead_code),
        ("update_product", update_product),
        ("update_rows", update_rows),
        ("algebra again", algebra),
        ("packed_attention", packed_attention),
        ("bodies of loops", lambda program: _in_bodies(program, inside)),
        ("fuse", fuse),
        ("layout", layout),
    ]
    missing = {name for name, kernel in NEEDED.items() if not has_kernel(kernel)}
    if not adds_rows:
        missing.add("row_products")
    if in_loop or not channels_last or "layout" in without:
        # Values passed between steps of a loop are row major, and so are all values inside. Sums
        # are computed while rows of channels are written.
        missing |= {"layout", "norm_sums"}
    return [(name, run) for name, run in steps if name not in without | missing]


@lru_cache
def _algebra(without: frozenset[str], in_loop: bool) -> Rules:
    """Return the passes that are lists of rules, as one list: their fixed point is a common one."""
    rules = Rules()
    if "fold" not in without:
        rules += fold.NUMBERS if in_loop else fold.ARRAYS
    if "simplify" not in without:
        rules += simplify.RULES + reshapes.RULES
    if "merge" not in without:
        rules += redundancy.RULES
    return rules


def _in_bodies(program: Program, run: Pass) -> Program:
    """Apply `run` to the body of every loop."""

    def rule(node: Node) -> Node | None:
        if node.op is not scan:
            return None
        body: Body = node.attrs["body"]
        return with_body(node, body.with_outputs(run(Program(body.outputs)).outputs))

    if not any(node.op is scan for node in program.order()):
        return program
    return program.with_roots(rewrite(program.roots, rule))
