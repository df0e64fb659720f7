"""Libraries that only some features need: imported when one is asked for, never before."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from caldera.errors import ConfigError


def optional_import(module: str, package: str, where: str) -> Any:
    """A module of a library that may not be installed; the error says what to install.

    >>> optional_import("math", "math", "data.digits").sqrt(4.0)
    2.0
    >>> optional_import("no_such_module", "no-such-package", "data.digits")
    Traceback (most recent call last):
    caldera.errors.ConfigError: data.digits: expected the package no-such-package,
    got No module named 'no_such_module'; install it with: pip install no-such-package
    """
    try:
        return import_module(module)
    except (ImportError, OSError) as error:
        # The latter where a library of the machine is missing under the package.
        raise ConfigError.build(
            where,
            expected=f"the package {package}",
            got=str(error),
            hint=f"install it with: pip install {package}",
        ) from None
