"""`caldera tune`: times are measured on purpose, and remembered."""

from __future__ import annotations

from pathlib import Path

from caldera.base.config import settings
from caldera.kernels.tuning import database
from tests.cli.conftest import Caldera


def test_tune_remembers_the_times_of_every_kernel(caldera: Caldera, tmp_path: Path) -> None:
    words = "tune mlp --input-shape 37 --classes 11 --hidden 91 --batch-size 53 --seconds 20"
    with settings.override(cache_dir=tmp_path):
        done = caldera(*words.split())
        records = list(database.all_records())
    assert done.status == 0
    assert f"measured  {len(records)} nodes" in done.out
    products = [each for each in records if each.key["op"].startswith("matmul")]
    assert products
    for record in products:
        assert len(record.times) > 1
        assert set(record.features) <= set(record.times)


def test_seconds_have_to_be_a_number(caldera: Caldera) -> None:
    done = caldera("tune", "mlp", "--seconds", "soon")
    assert done.status == 2
    assert "--seconds" in done.err
