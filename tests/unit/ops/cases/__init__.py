"""All cases, from every module in this folder that has a CASES list."""

from __future__ import annotations

import importlib
import pkgutil

from tests.unit.ops.case import Case

ALL: list[Case] = []
for _module in sorted(module.name for module in pkgutil.iter_modules(__path__)):
    ALL.extend(importlib.import_module(f"{__name__}.{_module}").CASES)
