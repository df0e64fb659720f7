"""Which layers are split, and how."""

from __future__ import annotations

import numpy as np

from caldera import nn, op
from caldera.compiler.sharding.rank_graph import RankGraph
from caldera.core.graph.program import topological
from caldera.parallel.distributed_variables import AXIS, evenly
from caldera.parallel.tensor.candidates import layouts_of
from caldera.parallel.tensor.layer_layouts import chosen_layouts

RANKS = 2


def test_blocks_are_put_together_in_their_order() -> None:
    whole = np.arange(24).reshape(2, 12)
    layout = evenly((2, 12), 1, 3, unit=2, blocks=2)
    parts = [layout.part_of(whole, rank) for rank in range(3)]
    assert parts[1].tolist() == [[2, 3, 8, 9], [14, 15, 20, 21]]
    np.testing.assert_array_equal(layout.whole_of(parts), whole)


def test_the_layers_of_alexnet() -> None:
    """Convolutions keep their samples; the first dense layer begins with the only gather of
    features, the second ends with a sum, and the last gives parts of its outputs."""
    network = nn.Sequential(nn.models.alexnet(input_shape=(3, 224, 224), classes=1000))
    x = op.all_gather(op.input("x", (3, 3, 224, 224)), (3, 2), 0)
    with nn.trace(training=True, random=op.random_state(), allocate=False, several_ranks=True):
        y = network(x)
    chosen = chosen_layouts("splits", network, None, [], RANKS, dense_only=True).left
    layouts = layouts_of(chosen, [y], rank=0, ranks=RANKS)
    weights = [each.split_axes for variable, each in layouts.items() if variable.ndim == 2]
    assert weights == [(1,), (0,), (1,)]
    parts = {
        whole.node: (op.input(whole.name, layout.local_shape(0)).node, layout)
        for whole, layout in layouts.items()
    }
    (found,) = RankGraph(0, RANKS, parts, AXIS).written([y.node])
    moved = [node for node in topological([found]) if node.op.name in ("all_gather", "all_sum")]
    assert [(node.op.name, node.shape) for node in moved] == [
        ("all_gather", (5, 9216)),
        ("all_sum", (5, 4096)),
        ("all_gather", (5, 1000)),
    ]
