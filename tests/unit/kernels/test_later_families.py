"""Families of native kernels that are imported with the first program that has one of their ops."""

from __future__ import annotations

import subprocess
import sys

_FOUND = """
import importlib, sys
import caldera
from caldera.kernels.table import TABLE

TABLE.load("cpu")
named = dict(TABLE.later)
assert named and not [name for name in sys.modules if "native.convolution" in name]
assert TABLE.has("conv2d", "cpu") and ("conv2d", "cpu") in TABLE.later
names = lambda: {key: [kernel.name for kernel in row] for key, row in TABLE._kernels.items()}
before = names()
assert "direct" in TABLE.names("conv2d", "cpu") and ("conv2d", "cpu") not in TABLE.later
for modules in set(named.values()):
    for module in modules:
        importlib.import_module(module)
changed = {key for key, row in names().items() if row != before.get(key)}
assert changed == set(named), changed ^ set(named)
"""


def test_their_ops_are_named_and_no_other_op_has_kernels_there() -> None:
    done = subprocess.run([sys.executable, "-c", _FOUND], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
