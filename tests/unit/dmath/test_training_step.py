"""Training through arrays of workers: one short message a step, and what one process computes."""

from __future__ import annotations

import numpy as np

from caldera import dmath as dm
from caldera import op
from caldera.dmath.protocol import FRAME_BYTES
from caldera.dmath.session import Session

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(12, 6)), RNG.normal(size=(12, 3))
WEIGHTS = [RNG.normal(size=(6, 5)), np.zeros(5), RNG.normal(size=(5, 3)), np.zeros(3)]


def _trained(session: Session, steps: int) -> tuple[list[float], list[float]]:
    """The losses, and the bytes of orders that each worker was sent for a step."""
    x, y = dm.array(X, layout=dm.Rows()), dm.array(Y, layout=dm.Rows())
    parameters = [dm.array(w, layout=dm.Columns() if w.ndim == 2 else None) for w in WEIGHTS]
    losses, sent = [], []
    for _ in range(steps):
        first, bias, second, last = parameters
        loss = op.mean((op.tanh(x @ first + bias) @ second + last - y) ** 2.0)
        gradients = op.grad(loss, parameters)
        changed = [p - 0.1 * g for p, g in zip(parameters, gradients, strict=True)]
        before = session.traffic.mark()
        loss, *parameters = dm.evaluate([loss, *changed])
        sent.append(session.traffic.since(before)["control"].bytes_sent / session.ranks)
        losses.append(loss)
    return [float(loss.item()) for loss in losses], sent


def test_a_step_is_one_message_and_the_losses_are_those_of_one_process() -> None:
    dm.disconnect()
    with dm.connect(1) as session:
        expected, _ = _trained(session, 5)
    with dm.connect(threads=3) as session:
        losses, sent = _trained(session, 5)
    np.testing.assert_allclose(losses, expected, rtol=1e-12)
    assert losses[-1] < losses[0]
    assert sent[2:] == [FRAME_BYTES] * 3
