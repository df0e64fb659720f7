"""Where a thread is in its program, for messages about ranks that are missing."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import FrameType

_BENEATH = (str(Path(__file__).parent), str(Path(threading.__file__)), "<frozen ")


def source_location(ident: int) -> str:
    """The innermost line of a thread that is the program's, not that of waiting.

    >>> import threading
    >>> source_location(threading.get_ident()).startswith("<doctest")
    True
    """
    frame = sys._current_frames().get(ident)
    return "ended" if frame is None else _place_of_frame(frame)


def _place_of_frame(frame: FrameType) -> str:
    found: FrameType | None = frame
    while found is not None and found.f_code.co_filename.startswith(_BENEATH):
        found = found.f_back
    found = found or frame
    return f"{found.f_code.co_filename}:{found.f_lineno} in {found.f_code.co_name}"
