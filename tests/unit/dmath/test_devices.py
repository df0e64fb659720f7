"""Arrays whose parts are on devices: the loopback device stands for a card that ranks share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from caldera import dmath as dm
from caldera.core.memory.gpus import card_count
from caldera.dmath.protocol import SERVICES
from caldera.errors import ConfigError, DeviceError

RNG = np.random.default_rng(0)
A, B = RNG.normal(size=(12, 8)), RNG.normal(size=(8, 12))
FAR = 50 * np.eye(12)


@pytest.mark.parametrize(
    "device",
    ["loopback", pytest.param("cuda", marks=pytest.mark.skipif(not card_count(), reason="a card"))],
)
@pytest.mark.parametrize("ranks", [1, 3])
def test_ranks_that_share_a_device_are_right(ranks: int, device: str, monkeypatch: Any) -> None:
    monkeypatch.setitem(
        SERVICES, "homes", lambda rank: tuple(each.device.name for each in rank.arrays.values())
    )
    with dm.connect(threads=ranks, device=device) as session:
        x, y = dm.array(A, layout=dm.Rows()), dm.array(B, layout=dm.Columns())
        product = (x @ y + 1.0).eval()
        cases = [
            (product.to(layout=dm.Columns()), A @ B + 1),
            (x.T + y, A.T + B),
            (np.sort(x, axis=0), np.sort(A, axis=0)),
            (np.fft.fft2(x), np.fft.fft2(A)),
            (np.linalg.solve(product + FAR, x), np.linalg.solve(A @ B + 1 + FAR, A)),
            (x.sum(axis=0), A.sum(axis=0)),
        ]
        for made, right in cases:
            np.testing.assert_allclose(made.numpy(), right, rtol=1e-9, atol=1e-9)
        homes = {home.partition(":")[0] for each in session.call("homes") for home in each}
        assert homes == {device}
        assert str((x @ y).explain()).endswith("messages: threads, through the host")
        drawn = dm.random((9, 5), seed=3).numpy()
    with dm.connect(threads=2):
        np.testing.assert_array_equal(drawn, dm.random((9, 5), seed=3).numpy())


def test_devices_that_are_not_there_are_refused() -> None:
    with pytest.raises(DeviceError, match="worker 0 of 2"):
        dm.connect(threads=2, device="abacus")
    assert dm.current().device == "cpu"
    with dm.spmd(device="loopback"):
        with pytest.raises(ConfigError, match="on loopback and the wish for 1 on cpu"):
            dm.connect(1, device="cpu")
        assert dm.ones((2, 2)).sum().item() == 4
        assert dm.ones((2, 2)).explain().route == "one process, through the host"
    assert dm.ones((2, 2)).explain().route == "one process"
