"""Lines that are rewritten in place, in a terminal and in a notebook."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from caldera.base.formatting import html_table, html_text, table_lines
from caldera.base.registry import optional_import


def live_line(console: Any) -> Any:
    """Start a live line; return None if the console does not support it, as in a log.

    `console` is a `rich.console.Console`. The result has `update(text, refresh=True)` and `stop()`,
    which clears the line.
    """
    if console.is_jupyter:
        return NotebookLine()
    if not console.is_terminal:
        return None
    live = optional_import("rich.live", "rich", "progress").Live
    made = live(console=console, auto_refresh=False, transient=True)
    made.start()
    return made


def print_line(console: Any, line: str) -> None:
    """Print a line that stays."""
    if console.is_jupyter:
        # One block of text in the output of a cell, and not a box for each line.
        print(line)
    else:
        # Not wrapped: a line of a log is one line, however long.
        console.print(line, markup=False, highlight=False, soft_wrap=True)


class NotebookLine:
    """Counterpart of `rich.live.Live` that requires only IPython, not widgets.

    Rows of results are one table above the line, in the same output. `stop` removes the line, so
    that a saved notebook keeps the table, and not the last state of a bar.
    """

    def __init__(self) -> None:
        shell = optional_import("IPython.display", "ipython", "progress")
        self._rows: list[Mapping[str, str]] = []
        self._handle = shell.display(self._shown(""), raw=True, display_id=True)

    def add(self, row: Mapping[str, str]) -> None:
        """Add a row of texts by the names of their columns, and clear the line."""
        self._rows.append(row)
        self.update("")

    def update(self, text: Any, *, refresh: bool = True) -> None:
        """Show this text, of `rich` or plain."""
        self._handle.update(self._shown(str(text)), raw=True)

    def stop(self) -> None:
        """Remove the line."""
        self.update("")

    def _shown(self, text: str) -> dict[str, str]:
        plain, html = [text] if text else [], html_text(text) if text else ""
        if self._rows:
            head = list(dict.fromkeys(name for row in self._rows for name in row))
            rows = [[row.get(name, "") for name in head] for row in self._rows]
            plain = [*table_lines([head, *rows]), *plain]
            html = html_table(head, rows, numbers=range(len(head))) + html
        return {"text/plain": "\n".join(plain), "text/html": html}
