"""tests/fuzz/ranks.py: a few random networks, trained on ranks as one process trains them."""

from __future__ import annotations

import pytest

from caldera.parallel import DataParallel
from tests.fuzz import ranks as fuzz

SEEDS = (3, 7, 23, 24, 29, 39)
"""Among them networks of several inputs, layouts of blocks, servers and averaging."""


@pytest.mark.parametrize("seed", SEEDS)
def test_ranks_train_what_one_process_trains(seed: int) -> None:
    outcome = fuzz.compared(fuzz.case_of(seed))
    assert outcome.what == "agreed", outcome.detail


def test_a_wrong_sum_is_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    gradients = DataParallel.gradients
    case = fuzz.case_of(0)
    case = case._replace(ranks=2, way=fuzz.Way("DataParallel", {}))
    assert fuzz.compared(case).what == "agreed"

    def wrong(self, loss, parameters, share):  # type: ignore[no-untyped-def]
        return gradients(self, loss * 1.001, parameters, share)

    monkeypatch.setattr(DataParallel, "gradients", wrong)
    assert fuzz.compared(case).what == "difference"
