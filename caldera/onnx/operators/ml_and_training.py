"""Two sets of operators in addition to the main one: classical models, and training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from caldera import op
from caldera.base.arguments import require
from caldera.compiler.lazy import Expr, lift
from caldera.core.graph.program import substitute
from caldera.errors import ConfigError
from caldera.onnx.library import STRING
from caldera.onnx.operators.registry import Value, evaluated, operator

CLASSICAL = "ai.onnx.ml"
TRAINING = "ai.onnx.preview.training"


@operator("Binarizer", domain=CLASSICAL)
def binarizer(x: Value, *, threshold: float = 0.0) -> Expr:
    """1 above a threshold, 0 below."""
    return op.cast(op.greater(x, threshold), x.dtype)


@operator("ArrayFeatureExtractor", domain=CLASSICAL, moves=True)
def array_feature_extractor(x: Value, indices: Value) -> Expr:
    """Return elements of the last axis."""
    chosen = op.gather(x, op.reshape(indices, (-1,)), axis=-1)
    return chosen if len(x.shape) > 1 else op.unsqueeze(chosen, 0)


@evaluated("LabelEncoder", domain=CLASSICAL)
def label_encoder(
    x: np.ndarray,
    *,
    keys_floats: Sequence[float] | None = None,
    keys_int64s: Sequence[int] | None = None,
    keys_strings: Sequence[str] | None = None,
    keys_tensor: np.ndarray | None = None,
    values_floats: Sequence[float] | None = None,
    values_int64s: Sequence[int] | None = None,
    values_strings: Sequence[str] | None = None,
    values_tensor: np.ndarray | None = None,
    default_float: float = -0.0,
    default_int64: int = -1,
    default_string: str = "_Unused",
    default_tensor: np.ndarray | None = None,
) -> np.ndarray:
    """Replace each element by its value in a table."""
    keys = next(
        each for each in (keys_tensor, keys_floats, keys_int64s, keys_strings) if each is not None
    )
    if values_tensor is not None:
        values, dtype = values_tensor, values_tensor.dtype
        other: Any = values.dtype.type(-1) if dtype != STRING else default_string
        if default_tensor is not None:
            other = default_tensor.reshape(-1)[0]
    elif values_floats is not None:
        values, other, dtype = np.array(values_floats), default_float, np.dtype(np.float32)
    elif values_int64s is not None:
        values, other, dtype = np.array(values_int64s), default_int64, np.dtype(np.int64)
    else:
        values, other, dtype = np.array(values_strings or (), STRING), default_string, STRING
    table = {_key(key): value for key, value in zip(keys, values, strict=True)}
    found = np.empty(x.size, dtype)
    found[:] = [table.get(_key(each), other) for each in x.reshape(-1)]
    return found.reshape(x.shape)


def _key(value: Any) -> Any:
    """Return a key that matches every NaN, and numbers of files as float32."""
    if isinstance(value, float | np.floating):
        return "nan" if np.isnan(value) else float(np.float32(value))
    return value


_COMPARISONS: tuple[Callable[[Any, Any], Any], ...] = (
    np.less_equal,
    np.less,
    np.greater_equal,
    np.greater,
    np.equal,
    np.not_equal,
)
_MEMBER = 6
_AVERAGE, _SUM, _MIN, _MAX = range(4)


@evaluated("TreeEnsemble", domain=CLASSICAL)
def tree_ensemble(
    x: np.ndarray,
    *,
    leaf_targetids: Sequence[int],
    leaf_weights: np.ndarray,
    nodes_falseleafs: Sequence[int],
    nodes_falsenodeids: Sequence[int],
    nodes_featureids: Sequence[int],
    nodes_modes: np.ndarray,
    nodes_splits: np.ndarray,
    nodes_trueleafs: Sequence[int],
    nodes_truenodeids: Sequence[int],
    tree_roots: Sequence[int],
    aggregate_function: int = _SUM,
    membership_values: np.ndarray | None = None,
    n_targets: int = 1,
    nodes_hitrates: np.ndarray | None = None,
    nodes_missing_value_tracks_true: Sequence[int] | None = None,
    post_transform: int = 0,
) -> np.ndarray:
    """Return the leaves that each sample reaches, summed up for each target."""
    require(not post_transform, "onnx TreeEnsemble", "post_transform NONE", post_transform)
    members = _member_sets(nodes_modes, membership_values)
    missing = nodes_missing_value_tracks_true or (0,) * len(nodes_featureids)

    def goes_true(node: int, sample: np.ndarray) -> bool:
        value = sample[nodes_featureids[node]]
        if np.isnan(value):
            return bool(missing[node])
        if nodes_modes[node] == _MEMBER:
            return float(value) in members[node]
        return bool(_COMPARISONS[nodes_modes[node]](value, nodes_splits[node]))

    def leaf(root: int, sample: np.ndarray) -> int:
        node = root
        # A path visits each node once: a longer one goes round in circles.
        for _ in nodes_featureids:
            if goes_true(node, sample):
                node, is_leaf = nodes_truenodeids[node], nodes_trueleafs[node]
            else:
                node, is_leaf = nodes_falsenodeids[node], nodes_falseleafs[node]
            if is_leaf:
                return int(node)
        raise ConfigError.build("onnx TreeEnsemble", expected="trees", got="a circle of nodes")

    result = np.zeros((len(x), n_targets), x.dtype)
    for row, sample in enumerate(x):
        held: list[list[float]] = [[] for _ in range(n_targets)]
        for root in tree_roots:
            reached = leaf(root, sample)
            held[leaf_targetids[reached]].append(float(leaf_weights[reached]))
        result[row] = [_aggregated(each, aggregate_function, len(tree_roots)) for each in held]
    return result


def _aggregated(values: list[float], how: int, trees: int) -> float:
    if how in (_AVERAGE, _SUM):
        return sum(values) / (trees if how == _AVERAGE else 1)
    return (min if how == _MIN else max)(values, default=0.0)


def _member_sets(modes: np.ndarray, values: np.ndarray | None) -> dict[int, set[float]]:
    """Return the sets for membership tests of nodes; NaN separates the sets in `values`."""
    flat = np.zeros(0) if values is None else values
    sets = [
        set(part[~np.isnan(part)].tolist()) for part in np.split(flat, np.flatnonzero(flat != flat))
    ]
    nodes = [node for node, mode in enumerate(modes.tolist()) if mode == _MEMBER]
    return dict(zip(nodes, sets, strict=False))


def _for_each(
    step: Callable[..., tuple[Expr, ...]], values: Sequence[Value], parts: int
) -> tuple[Expr, ...]:
    """Apply a step to each tensor; `values` are tensors, then their gradients, then their state."""
    count = len(values) // parts
    tensors = zip(*[values[i * count : (i + 1) * count] for i in range(parts)], strict=True)
    results = [step(*each) for each in tensors]
    return tuple(each for column in zip(*results, strict=True) for each in column)


@operator("Gradient", domain=TRAINING)
def gradient(
    *inputs: Value, xs: Sequence[str], y: str, zs: Sequence[str] = (), scope: Any
) -> tuple[Expr, ...]:
    """The derivatives of a value of the graph with respect to others, where these have `inputs`."""
    values = dict(zip((*xs, *zs), inputs, strict=True))
    stand_ins = {name: op.input(name, values[name].shape, values[name].dtype) for name in xs}
    target = scope.computed_from(y, {**values, **stand_ins})
    found = op.grad(op.sum(target), list(stand_ins.values()), unused="zero")
    places = {stand_ins[name].node: lift(values[name]) for name in xs}
    return tuple(Expr(node) for node in substitute([each.node for each in found], places))


@operator("Adagrad", domain=TRAINING)
def adagrad(
    rate: Value,
    steps: Value,
    *values: Value,
    decay_factor: float = 0.0,
    epsilon: float = 1e-6,
    norm_coefficient: float = 0.0,
) -> tuple[Expr, ...]:
    """Return a step of Adagrad."""
    own = op.div(rate, op.add(1.0, op.mul(op.cast(steps, rate.dtype), decay_factor)))

    def step(x: Value, gradient: Value, total: Value) -> tuple[Expr, ...]:
        slope = op.add(op.mul(x, norm_coefficient), gradient)
        squares = op.add(total, op.square(slope))
        change = op.div(op.mul(own, slope), op.add(op.sqrt(squares), epsilon))
        return op.sub(x, change), squares

    return _for_each(step, values, 3)


@operator("Adam", domain=TRAINING)
def adam(
    rate: Value,
    steps: Value,
    *values: Value,
    alpha: float = 0.9,
    beta: float = 0.999,
    epsilon: float = 1e-6,
    norm_coefficient: float = 0.0,
    norm_coefficient_post: float = 0.0,
) -> tuple[Expr, ...]:
    """Return a step of Adam."""
    count = op.cast(steps, rate.dtype)
    bias = op.div(op.sqrt(op.sub(1.0, op.pow(beta, count))), op.sub(1.0, op.pow(alpha, count)))
    own = op.mul(rate, op.where(op.greater(steps, 0), bias, 1.0))

    def step(x: Value, gradient: Value, mean: Value, squares: Value) -> tuple[Expr, ...]:
        slope = op.add(op.mul(x, norm_coefficient), gradient)
        mean = op.add(op.mul(mean, alpha), op.mul(slope, 1 - alpha))
        squares = op.add(op.mul(squares, beta), op.mul(op.square(slope), 1 - beta))
        change = op.div(op.mul(own, mean), op.add(op.sqrt(squares), epsilon))
        return op.mul(op.sub(x, change), 1 - norm_coefficient_post), mean, squares

    return _for_each(step, values, 4)


@operator("Momentum", domain=TRAINING)
def momentum(
    rate: Value,
    steps: Value,
    *values: Value,
    alpha: float,
    beta: float,
    mode: str,
    norm_coefficient: float,
) -> tuple[Expr, ...]:
    """Return a step of gradient descent with momentum, standard or Nesterov's."""
    share = op.where(op.greater(steps, 0), op.cast(beta, rate.dtype), 1.0)

    def step(x: Value, gradient: Value, speed: Value) -> tuple[Expr, ...]:
        slope = op.add(op.mul(x, norm_coefficient), gradient)
        speed = op.add(op.mul(speed, alpha), op.mul(slope, share))
        change = op.add(slope, op.mul(speed, alpha)) if mode == "nesterov" else speed
        return op.sub(x, op.mul(rate, change)), speed

    return _for_each(step, values, 3)
