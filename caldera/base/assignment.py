"""Assignments to attributes, rejected if they would have no effect."""

from __future__ import annotations

import sys
from typing import Any

from caldera.base.foreign_names import our_argument, ours
from caldera.base.registry import nearest
from caldera.errors import ConfigError


class AssignmentError(ConfigError, AttributeError):
    """An attribute that an object does not have, or that is only read: an AttributeError too."""


def is_inside(owner: object, depth: int = 2) -> bool:
    """Return True if the caller of the calling function is a method of this object.

    >>> class Point:
    ...     def moved(self):
    ...         return is_inside(self, depth=1)
    >>> Point().moved(), is_inside(Point(), depth=1)
    (True, False)
    """
    frame = sys._getframe(depth)
    code = frame.f_code
    if not code.co_argcount or not hasattr(type(owner), code.co_name):
        return False
    return frame.f_locals.get(code.co_varnames[0]) is owner


def check_attribute(where: str, owner: object, name: str, value: object) -> None:
    """Refuse an attribute that the object does not have, or that cannot be assigned.

    >>> class Point:
    ...     width = 1.0
    >>> check_attribute("Point", Point(), "widht", 2.0)
    Traceback (most recent call last):
    caldera.base.assignment.AssignmentError: Point: expected an attribute that it has,
    got widht = 2.0; did you mean 'width'?
    """
    there = getattr(type(owner), name, None)
    if isinstance(there, property) and there.fset is None:
        raise AssignmentError.build(
            where, expected="an attribute that can be assigned", got=_assigned(name, value)
        )
    if there is None and not hasattr(type(owner), name) and name not in vars(owner):
        known = sorted(each for each in {*vars(owner), *dir(type(owner))} if each[0] != "_")
        # As lr is short for learning_rate.
        meant = [each for each in known if name == "".join(part[0] for part in each.split("_"))]
        raise AssignmentError.build(
            where,
            expected="an attribute that it has",
            got=_assigned(name, value),
            hint=our_argument(name, known) or ours(name) or nearest((meant or [name])[0], known),
        )
    if hasattr(owner, "check_argument"):
        owner.check_argument(name, value)


def _assigned(name: str, value: Any) -> str:
    text = repr(value)
    return f"{name} = {text if len(text) <= 80 else type(value).__name__}"
