"""The command line: `caldera train`, `eval`, `report`, `predict`, `summary`, `graph` and others.

A command is one file in `caldera/cli/commands`; `program` finds it there.
"""

from __future__ import annotations

from caldera.cli.program import main

__all__ = ["main"]
