"""Sequences between one-dimensional convolutions, as images with a single row.

A convolution of sequences (N, C, L) is one of images (N, C, 1, L) between two reshapes. What lies
between two of these, such as biases, activations, gates, normalisations, residual sums and parts of
channels, is computed on the images too. All that passes do for images then serves sequences: ends
of convolutions, sums for normalisations, and channels last in memory.
"""

from __future__ import annotations

from typing import Any

from caldera.compiler.passes.constants import source_of
from caldera.compiler.passes.layout import FOLLOWING, IMAGES
from caldera.core.graph import ITEM, Node, Nodes, Program, item
from caldera.core.graph.ops import broadcast_to, reshape
from caldera.core.tensor import Shape

ROW = 2
"""The axis of length 1 that an image has and a sequence has not."""
SEQUENCE = 3
"""The number of axes of a sequence."""


def sequences(program: Program) -> Program:
    """Compute on images what lies between convolutions of sequences."""
    if not any(_makes_sequence(node, node.inputs) for node in program.order()):
        return program
    images: dict[Node, Node] = {}

    def convert(node: Node, inputs: Nodes) -> Node:
        image = _image_of(node, inputs, images)
        if image is None:
            return node.op.rebuild(node, inputs)
        if len(image.outputs) > 1:
            images[image] = image
            return image
        if image.shape == node.shape:
            return image
        sequence = reshape(image, node.shape)
        images[sequence] = image
        return sequence

    return program.mapped(convert)


def _with_row(shape: Shape) -> Shape:
    """Return a sequence's shape, or one that broadcasts to it, with the row."""
    return (*shape[:-1], 1, shape[-1]) if len(shape) >= ROW else shape


def _makes_sequence(node: Node, inputs: Nodes) -> bool:
    """Return True if a node makes a sequence of an image, which is not a filter."""
    if node.op.name != "reshape" or len(node.shape) != SEQUENCE:
        return False
    source = source_of(inputs[0], ("cast",))
    source = source.inputs[0] if source.op is ITEM else source
    is_image = source.op.name in IMAGES and source.op.name != "conv2d_weight"
    return is_image and inputs[0].shape == _with_row(node.shape)


def _image_of(node: Node, inputs: Nodes, images: dict[Node, Node]) -> Node | None:
    """Return the image that is the value of a node, if one of its inputs is an image."""
    if _makes_sequence(node, inputs):
        return inputs[0]
    if not any(given in images for given in inputs):
        return None
    if node.op is ITEM:
        return item(inputs[0], node.attrs["index"])
    attrs = dict(node.attrs)
    if node.op.name in IMAGES:
        if attrs.get("axis", 1) != 1:
            return None
    elif node.op.name in FOLLOWING:
        _add_row(attrs)
    elif node.op.kind != "elementwise":
        return None
    least = ROW if node.op.kind == "elementwise" else SEQUENCE
    changed = [_as_image(each, images) if each.spec.rank >= least else each for each in inputs]
    made = node.op.outputs(*changed, **attrs)
    return made[0].inputs[0] if len(made) > 1 else made[0]


def _add_row(attrs: dict[str, Any]) -> None:
    """Insert the row into the attributes of an op that moves elements."""
    for name, value in attrs.items():
        if name == "axis":
            axes = (value,) if isinstance(value, int) else value
            moved = tuple(axis + (axis >= ROW) for axis in axes)
            attrs[name] = moved[0] if isinstance(value, int) else moved
        elif name in ("bounds", "widths", "shape"):
            row = {"bounds": (0, 1, 1), "widths": (0, 0), "shape": 1}[name]
            attrs[name] = (*value[:ROW], row, *value[ROW:])


def _as_image(sequence: Node, images: dict[Node, Node]) -> Node:
    if sequence in images:
        return images[sequence]
    if sequence.op.name == "broadcast_to":
        (source,) = sequence.inputs
        return broadcast_to(reshape(source, _with_row(source.shape)), _with_row(sequence.shape))
    return reshape(sequence, _with_row(sequence.shape))
