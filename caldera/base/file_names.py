"""Names that become files: one part of a path, whatever the text they are made of.

A data set, a class or a host may be called anything; as a file name it must not lead into another
folder, nor be one that some system refuses.
"""

from __future__ import annotations

import unicodedata

from caldera.errors import ConfigError

_ALLOWED = frozenset("._-+ ")
_LONGEST = 150
"""Bytes: less than any system takes, since endings are added."""
_DEVICES = frozenset(
    ["con", "prn", "aux", "nul", *[f"{port}{n}" for port in ("com", "lpt") for n in range(10)]]
)
"""What Windows takes for devices, with any ending."""


def file_name(text: str) -> str:
    """A file name made of any text; a text that is one already stays as it is.

    >>> file_name("iris"), file_name("../up"), file_name("a/b: c?"), file_name("")
    ('iris', 'up', 'a-b- c', 'unnamed')
    """
    composed = unicodedata.normalize("NFC", text)
    kept = "".join(c if c.isalnum() or c in _ALLOWED else "-" for c in composed)
    # A dot in front would hide it, a dash make an option of it, a dot or space at the end be lost.
    name = kept.encode(errors="ignore")[:_LONGEST].decode(errors="ignore").strip(".- ") or "unnamed"
    return f"_{name}" if name.partition(".")[0].lower() in _DEVICES else name


def checked_file_name(text: str, where: str) -> str:
    """The text, which has to be fit for a file name.

    >>> checked_file_name("a/b", "cache")
    Traceback (most recent call last):
    caldera.errors.ConfigError: cache: expected a name that can be a file's, got 'a/b';
    for example 'a-b'
    """
    fit = file_name(text)
    if fit != text:
        raise ConfigError.build(
            where,
            expected="a name that can be a file's",
            got=repr(text)[:100],
            hint=f"for example {fit!r}",
        )
    return text
