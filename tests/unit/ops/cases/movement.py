"""Cases for ops that move elements."""

from __future__ import annotations

import numpy as np

from caldera import op
from caldera.compiler.lazy import Expr
from caldera.core.graph.ops.movement import arrange, unslice
from tests.unit.ops.case import Case, numbers

_X = numbers(2, 3, 4)
_EMPTY = numbers(2, 0, 3)


def _unslice(x: Expr) -> Expr:
    return Expr(unslice(x.node, shape=(4, 5), bounds=((1, 4, 2), (0, 5, 2))))


def _unslice_by_numpy(x: np.ndarray) -> np.ndarray:
    result = np.zeros((4, 5))
    result[1:4:2, 0:5:2] = x
    return result


def _pieces(x: Expr) -> list[Expr]:
    first, second, third = op.split(x, (1, 0, 2), axis=1)
    return [first * first, second, third]


CASES = [
    Case("arrange", lambda x: Expr(arrange(x.node, (2, 0, 1))), (_X,), np.copy, order=2),
    Case("arrange", lambda x: Expr(arrange(x.node, (1, 0, 2))), (_EMPTY,), np.copy, name="empty"),
    Case("reshape", lambda x: op.reshape(x, (4, -1)), (_X,), lambda x: x.reshape(4, -1), order=2),
    Case("reshape", lambda x: op.reshape(x, (0, 7)), (_EMPTY,), lambda x: x.reshape(0, 7)),
    Case("reshape", lambda x: op.flatten(x), (_X,), np.ravel, name="flatten"),
    Case(
        "reshape",
        lambda x: op.flatten(x, -2),
        (_X,),
        lambda x: x.reshape(2, 12),
        name="flatten from an axis",
    ),
    Case("reshape", lambda x: op.flatten(x), (numbers(),), np.ravel, name="flatten a scalar"),
    Case("reshape", lambda x: op.squeeze(x), (numbers(1, 3, 1),), np.squeeze, name="squeeze"),
    Case(
        "reshape",
        lambda x: op.squeeze(x, -1),
        (numbers(1, 3, 1),),
        lambda x: x.squeeze(-1),
        name="squeeze an axis",
    ),
    Case(
        "reshape",
        lambda x: op.unsqueeze(x, (0, -1)),
        (numbers(2, 3),),
        lambda x: np.expand_dims(x, (0, -1)),
        name="unsqueeze",
    ),
    Case("transpose", lambda x: op.transpose(x), (_X,), np.transpose, order=2),
    Case(
        "transpose",
        lambda x: op.transpose(x, (1, -1, 0)),
        (_X,),
        lambda x: x.transpose(1, 2, 0),
        order=2,
        name="rotation",
    ),
    Case("transpose", lambda x: op.transpose(x), (_EMPTY,), np.transpose, name="empty"),
    Case(
        "broadcast_to",
        lambda x: op.broadcast(x, (2, 2, 3)),
        (numbers(2, 1),),
        lambda x: np.broadcast_to(x, (2, 2, 3)),
        order=2,
    ),
    Case(
        "broadcast_to",
        lambda x: op.broadcast(x, (2, 3)),
        (numbers(),),
        lambda x: np.broadcast_to(x, (2, 3)),
        order=2,
        name="scalar",
    ),
    Case(
        "broadcast_to",
        lambda x: op.broadcast(x, (0, 3)),
        (numbers(1, 3),),
        lambda x: np.broadcast_to(x, (0, 3)),
        name="to nothing",
    ),
    Case(
        "slice",
        lambda x: op.slice(x, (0, 1), (2, None), (1, 2)),
        (_X,),
        lambda x: x[0:2, 1::2],
        order=2,
    ),
    Case(
        "slice",
        lambda x: x[1, ::-2, None, 1:1],
        (_X,),
        lambda x: x[1, ::-2, None, 1:1],
        name="index, nothing left",
    ),
    Case(
        "flip", lambda x: x[:, ::-2, -1], (_X,), lambda x: x[:, ::-2, -1], order=2, name="backwards"
    ),
    Case("flip", lambda x: op.flip(x), (_X,), np.flip, order=2),
    Case(
        "flip",
        lambda x: op.flip(x, (0, 2)),
        (_X,),
        lambda x: np.flip(x, (0, 2)),
        order=2,
        name="some axes",
    ),
    Case("unslice", _unslice, (numbers(2, 3),), _unslice_by_numpy, order=2),
    Case(
        "pad",
        lambda x: op.pad(x, ((1, 0), (0, 2)), 7.0),
        (numbers(2, 3),),
        lambda x: np.pad(x, ((1, 0), (0, 2)), constant_values=7.0),
        order=2,
    ),
    Case("pad", lambda x: op.pad(x, 1), (numbers(0, 2),), lambda x: np.pad(x, 1), name="empty"),
    Case(
        "concat",
        lambda a, b, c: op.concat([a, b, c, a], axis=1),
        (numbers(2, 3), numbers(2, 1), numbers(2, 0)),
        lambda a, b, c: np.concatenate([a, b, c, a], 1),
        order=2,
    ),
    Case(
        "concat",
        lambda a, b: op.stack([a, b], axis=-1),
        (numbers(2, 3), numbers(2, 3, seed=1)),
        lambda a, b: np.stack([a, b], -1),
        order=2,
        name="stack",
    ),
    Case(
        "split", _pieces, (numbers(2, 3),), lambda x: [x[:, :1] ** 2, x[:, 1:1], x[:, 1:]], order=2
    ),
    Case(
        "split",
        lambda x: op.split(x, 3, axis=-1)[1],
        (numbers(2, 6),),
        lambda x: x[:, 2:4],
        order=2,
        name="one piece used",
    ),
    Case(
        "tile",
        lambda x: op.tile(x, (2, 1, 3)),
        (numbers(2, 2),),
        lambda x: np.tile(x, (2, 1, 3)),
        order=2,
    ),
    Case("tile", lambda x: op.tile(x, 2), (numbers(2, 2),), lambda x: np.tile(x, 2), name="last"),
    Case(
        "tile",
        lambda x: op.tile(x, (0, 2)),
        (numbers(2),),
        lambda x: np.tile(x, (0, 2)),
        name="to nothing",
    ),
    Case(
        "repeat",
        lambda x: op.repeat(x, 3, axis=0),
        (numbers(2, 2),),
        lambda x: np.repeat(x, 3, 0),
        order=2,
    ),
    Case(
        "repeat",
        lambda x: op.repeat(x, 2, axis=-1),
        (numbers(2, 2),),
        lambda x: np.repeat(x, 2, -1),
        name="last axis",
    ),
    Case(
        "repeat",
        lambda x: op.repeat(x, 2, axis=1),
        (_EMPTY,),
        lambda x: np.repeat(x, 2, 1),
        name="empty",
    ),
]
CASES += [
    Case(
        "transpose",
        lambda x: op.swapaxes(x, 0, -1),
        (_X,),
        lambda x: x.swapaxes(0, -1),
        order=2,
        name="swapaxes",
    ),
    Case(
        "transpose",
        lambda x: op.moveaxis(x, (0, -1), (1, 0)),
        (_X,),
        lambda x: np.moveaxis(x, (0, -1), (1, 0)),
        order=2,
        name="moveaxis",
    ),
    Case(
        "transpose",
        lambda x: op.moveaxis(x, 0, -1),
        (_X,),
        lambda x: np.moveaxis(x, 0, -1),
        name="moveaxis, one",
    ),
    Case(
        "concat",
        lambda x: op.roll(x, -5),
        (_X,),
        lambda x: np.roll(x, -5),
        order=2,
        name="roll over all axes",
    ),
    Case(
        "concat",
        lambda x: op.roll(x, (1, -1), (0, 2)),
        (_X,),
        lambda x: np.roll(x, (1, -1), (0, 2)),
        order=2,
        name="roll two axes",
    ),
    Case(
        "concat",
        lambda x: op.roll(x, 7, 1),
        (_X,),
        lambda x: np.roll(x, 7, 1),
        name="roll further than the axis",
    ),
    Case(
        "broadcast_to",
        lambda x, y: list(op.meshgrid(x, y)),
        (numbers(2), numbers(3)),
        lambda x, y: list(np.meshgrid(x, y)),
        order=2,
        name="meshgrid",
    ),
    Case(
        "broadcast_to",
        lambda x, y, z: list(op.meshgrid(x, y, z, indexing="ij")),
        (numbers(2), numbers(3), numbers(4)),
        lambda x, y, z: list(np.meshgrid(x, y, z, indexing="ij")),
        order=2,
        name="meshgrid ij",
    ),
]
