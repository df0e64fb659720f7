"""Imports in folders with files that are named like installed modules, such as random.py.

Python searches the folder of a script first, so that these files would be imported by Caldera.
"""

import os
import sys

_REQUIRED = {"PIL", "llvmlite", "ml_dtypes", "numpy", "rich", "scipy", "sklearn"}


def remove_hiding_folder() -> list[str]:
    """Remove the script's folder from `sys.path` if its files hide modules, and return it.

    `restore` puts it back.
    """
    if sys.flags.safe_path or not sys.path:
        return []
    try:
        files = os.listdir(sys.path[0] or os.curdir)
    except OSError:
        return []
    names = {each.removesuffix(".py") for each in files}
    if "caldera" in names or names.isdisjoint(_REQUIRED | sys.stdlib_module_names):
        return []
    removed, sys.path[:1] = sys.path[:1], []
    return removed


def restore(removed: list[str]) -> None:
    """Put folders back that `remove_hiding_folder` removed."""
    sys.path[:0] = removed
