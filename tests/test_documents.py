"""The code in the README and in CONTRIBUTING runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from caldera.graph.opdef import OPS
from caldera.kernels.reference import FUNCTIONS
from caldera.kernels.table import TABLE

ROOT = Path(__file__).parent.parent


def _blocks(name: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / name).read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.usefixtures("own_layers")
def test_readme_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = _blocks("README.md")
    assert blocks
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks:
        exec(block, names)
    assert (tmp_path / "graph.svg").read_text().startswith("<svg")


def test_an_op_is_added_in_the_five_steps_of_contributing() -> None:
    names: dict[str, object] = {}
    try:
        for block in _blocks("CONTRIBUTING.md"):
            exec(block, names)
        assert "softsign" in OPS
        value = names["softsign_of"](np.array([1.0]))  # type: ignore[operator]
        assert value.numpy().tolist() == [0.5]
    finally:
        # The other tests must not meet an op that is not part of the package.
        OPS.pop("softsign", None)
        FUNCTIONS.pop("softsign", None)
        TABLE.forget("softsign")
