"""Lines that are rewritten in place, in a terminal and in a notebook."""

from __future__ import annotations

from typing import Any

from caldera.base.formatting import html_text
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

    `stop` removes its output, so that a saved notebook keeps the printed lines, and not the last
    state of a bar.
    """

    def __init__(self) -> None:
        shell = optional_import("IPython.display", "ipython", "progress")
        self._handle = shell.display(_shown(""), raw=True, display_id=True)

    def update(self, text: Any, *, refresh: bool = True) -> None:
        """Show this text, of `rich` or plain."""
        self._handle.update(_shown(str(text)), raw=True)

    def stop(self) -> None:
        """Leave the place empty."""
        self.update("")


def _shown(text: str) -> dict[str, str]:
    return {"text/plain": text, "text/html": html_text(text) if text else ""}
