"""Programs over arrays in layouts, run by a master's workers: equal to NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from caldera import dmath as dm
from caldera import op
from caldera.compiler.sharding.distributions import (
    BlockCyclic,
    Blocks,
    Columns,
    Grid,
    Replicated,
    Rows,
)
from tests.unit.dmath.programs import leaf

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("ranks", [1, 3])
def test_products_sums_and_elements_in_any_layouts(ranks: int) -> None:
    dm.disconnect()
    a, b = RNG.normal(size=(9, 6)), RNG.normal(size=(6, 7))
    layouts = [
        Rows(),
        Columns(),
        Grid(1, ranks),
        Replicated(),
        BlockCyclic(2, grid=(ranks, 1)),
        Blocks(rows=4, columns=3, owners=lambda *place: sum(place) % ranks),
    ]
    with dm.connect(threads=ranks) as session:
        everybody = range(session.ranks)
        for first in layouts:
            for second in layouts[::2]:
                x = leaf(session.put(a, first.of(a.shape, everybody)))
                y = leaf(session.put(b, second.of(b.shape, everybody)))
                product = x @ y + np.arange(7.0)
                wanted = second.of((9, 7), everybody)
                found = session.run([product.node, op.sum(product, axis=0).node], [wanted, None])
                assert found[0].layout == wanted
                np.testing.assert_allclose(session.get(found[0]), a @ b + np.arange(7), rtol=1e-12)
                np.testing.assert_allclose(
                    session.get(found[1]), (a @ b + np.arange(7)).sum(0), rtol=1e-12
                )
