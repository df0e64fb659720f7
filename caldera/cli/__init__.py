"""The command line: `caldera train`, `eval`, `predict`, `summary`, `graph`, `bench`, `info`.

A command is one file in `caldera/cli/commands`; `program` finds it there.
"""

from __future__ import annotations

from caldera.cli.program import main

__all__ = ["main"]
