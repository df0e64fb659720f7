"""Check and convert the arguments of `Model`, `fit`, `evaluate` and `predict`."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from operator import index
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from caldera.base.arguments import require, shown
from caldera.core.tensor.dtype import real_array_of
from caldera.errors import ConfigError, DataError

T = TypeVar("T")


def whole_number(value: Any, name: str, least: int, where: str = "fit") -> int:
    """Return a whole number of at least `least`.

    >>> whole_number(1.5, "epochs", 0)
    Traceback (most recent call last):
    caldera.errors.ConfigError: fit: expected epochs= an integer >= 0, got 1.5
    """
    try:
        number = least - 1 if isinstance(value, bool | np.bool_) else index(value)
    except TypeError:
        number = least - 1
    require(number >= least, where, f"{name}= an integer >= {least}", shown(value))
    return number


def plain_number(value: Any, name: str, least: float, where: str = "fit") -> float:
    """Return a number of at least `least`, which may be infinite.

    >>> plain_number(float("nan"), "seconds", 0.0, "TimeLimit")
    Traceback (most recent call last):
    caldera.errors.ConfigError: TimeLimit: expected seconds= a number of at least 0, got nan
    """
    is_number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    limit = "" if least == -math.inf else f" of at least {least:g}"
    require(is_number and value >= least, where, f"{name}= a number{limit}", shown(value))
    return value


def truth(value: Any, name: str, where: str = "fit") -> bool:
    """Return a Boolean; other types are rejected, even if they convert to one.

    >>> truth("no", "shuffle")
    Traceback (most recent call last):
    caldera.errors.ConfigError: fit: expected shuffle= True or False, got 'no'
    """
    require(isinstance(value, bool | np.bool_), where, f"{name}= True or False", shown(value))
    return bool(value)


def folder(value: Any, name: str, where: str = "fit") -> Path | None:
    """Return the path of a folder, if one is given.

    >>> folder("", "checkpoint")
    Traceback (most recent call last):
    caldera.errors.ConfigError: fit: expected checkpoint= the path of a folder, got ''
    """
    if value is None:
        return None
    is_path = isinstance(value, str | os.PathLike) and str(value).strip()
    is_free = is_path and not Path(value).is_file()
    require(is_free, where, f"{name}= the path of a folder", shown(value))
    return Path(value)


def instances(given: Any, kind: type[T], name: str, where: str = "fit") -> Sequence[T]:
    """Return a list of objects of type `kind`.

    >>> import caldera as cd
    >>> instances(cd.EarlyStopping, cd.Callback, "callbacks")
    Traceback (most recent call last):
    caldera.errors.ConfigError: fit: expected callbacks= a list of Callback,
    got <class 'caldera.train.callbacks.EarlyStopping'>; write callbacks=[EarlyStopping(...)]
    """
    is_list = isinstance(given, Iterable) and not isinstance(given, str)
    found = list(given) if is_list else [given]
    wrong = [each for each in found if not isinstance(each, kind)]
    if wrong or not is_list:
        got = (wrong or found)[0]
        made = got if isinstance(got, type) else type(got)
        raise ConfigError.build(
            where,
            expected=f"{name}= a list of {kind.__name__}",
            got=repr(got),
            hint=f"write {name}=[{made.__name__}(...)]" if issubclass(made, kind) else "",
        )
    return found


def arrays(given: Sequence[Any], where: str = "predict") -> list[np.ndarray]:
    """Convert inputs to arrays with equal numbers of samples.

    >>> arrays([[[1.0]], [[1.0], [2.0]]])
    Traceback (most recent call last):
    caldera.errors.DataError: predict: expected inputs with equal numbers of samples,
    got shapes (1, 1), (2, 1)
    """
    found = [real_array_of(each, where) for each in given]
    shapes = [array.shape for array in found]
    require(
        found and () not in shapes and len({shape[0] for shape in shapes}) == 1,
        where,
        "inputs with equal numbers of samples",
        "shapes " + ", ".join(map(str, shapes)) if found else "none",
        "the first axis counts the samples" if () in shapes else "",
        DataError,
    )
    return found
