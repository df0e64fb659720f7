"""The one limit on what a file may ask for.

A small file can say that it unpacks to terabytes. Before memory is taken for what a file says, it
is compared with what the file has: a hundred times as much is common (compressed masks, the
activations of a network), and `settings.file_limit` bytes may always be asked for.
"""

from __future__ import annotations

from caldera.base.amounts import bytes_text
from caldera.base.config import settings
from caldera.errors import DataError

USUAL_GROWTH = 100
"""How many times its own size a file may always ask for."""


def check_asked(wanted: int, where: str, *, held: int = 0) -> None:
    """Refuse a file of `held` bytes that asks for `wanted` bytes of memory, if that is too much.

    >>> check_asked(5 << 30, "load_npz bomb.npz", held=1000)
    Traceback (most recent call last):
    caldera.errors.DataError: load_npz bomb.npz: expected a file that asks for at most 1.0 GiB,
    got 5.0 GiB; if you trust it, set cd.settings.file_limit = 5368709120 (CALDERA_FILE_LIMIT)
    """
    allowed = max(settings.file_limit, USUAL_GROWTH * held)
    if wanted > allowed:
        raise DataError.build(
            where,
            expected=f"a file that asks for at most {bytes_text(allowed)}",
            got=bytes_text(wanted),
            hint=f"if you trust it, set cd.settings.file_limit = {wanted} (CALDERA_FILE_LIMIT)",
        )
