"""Cases for collectives: alone, a sum over ranks is the value itself."""

from __future__ import annotations

from caldera import op
from tests.unit.ops.case import Case, numbers

CASES = [
    Case("all_sum", lambda x: op.all_sum(x) * x, (numbers(*shape),), lambda x: x * x, order=2)
    for shape in ((), (3,), (2, 0), (2, 3))
]
