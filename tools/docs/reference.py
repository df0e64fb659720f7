"""The reference: what a room of the package offers, from its docstrings."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

_WIDTH = 88
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


@dataclass(frozen=True)
class Entry:
    """Something with a name: how it is called, and what its docstring says."""

    name: str
    kind: str
    signature: str
    text: str
    members: tuple[Entry, ...] = ()


def short(room: str) -> str:
    """What a room is called in programs.

    >>> short("caldera"), short("caldera.nn.losses")
    ('cd', 'nn.losses')
    """
    return "cd" if room == "caldera" else room.removeprefix("caldera.")


def public_names(room: str) -> list[str]:
    """The names that a room offers."""
    module = importlib.import_module(room)
    if hasattr(module, "__all__"):
        return list(module.__all__)
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == room
    ]


def entries(room: str) -> list[Entry]:
    """Everything a room offers, without the rooms inside it."""
    module = importlib.import_module(room)
    found = []
    for name in sorted(public_names(room), key=str.lower):
        value = getattr(module, name)
        if not isinstance(value, ModuleType):
            found.append(_entry(name, value, short(room)))
    return found


def _entry(name: str, value: Any, room: str) -> Entry:
    full = f"{room}.{name}"
    if inspect.isclass(value):
        members = tuple(_members(value)) if value.__module__.startswith("caldera") else ()
        return Entry(full, "class", _signature(full, value), _text(value), members)
    if callable(value) and not _is_plain(value):
        return Entry(full, "function", _signature(full, value), _text(value))
    return Entry(full, "value", full, _text(type(value)))


def _is_plain(value: Any) -> bool:
    """Whether it is an object of ours that happens to be callable."""
    return not inspect.isroutine(value)


def _members(owner: type) -> Iterator[Entry]:
    """The methods and properties of a class that it describes itself."""
    for name, value in vars(owner).items():
        if name.startswith("_"):
            continue
        if isinstance(value, property):
            text = inspect.getdoc(value.fget) or ""
            kind, signature = "property", name
        elif isinstance(value, classmethod | staticmethod) or inspect.isfunction(value):
            function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
            text = inspect.getdoc(function) or ""
            kind, signature = "method", _signature(name, function, skip_first=True)
        else:
            continue
        if text:
            yield Entry(name, kind, signature, as_markdown(text))


def _signature(name: str, value: Any, *, skip_first: bool = False) -> str:
    """How it is called; one argument a line where it would be too long."""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return name
    parameters = list(signature.parameters.values())
    if skip_first and parameters and parameters[0].name in ("self", "cls"):
        parameters = parameters[1:]
    shown = [_ADDRESS.sub("", _parameter(each)) for each in _with_stars(parameters)]
    result = _annotation(signature.return_annotation)
    arrow = "" if inspect.isclass(value) or not result else f" -> {result}"
    line = f"{name}({', '.join(shown)}){arrow}"
    if len(line) <= _WIDTH or not shown:
        return line
    return f"{name}(\n" + "".join(f"    {each},\n" for each in shown) + f"){arrow}"


def _with_stars(parameters: list[inspect.Parameter]) -> list[inspect.Parameter | str]:
    """The parameters, with a star before the first that has to be given by name."""
    found: list[inspect.Parameter | str] = []
    starred = False
    for each in parameters:
        if each.kind == each.VAR_POSITIONAL:
            starred = True
        if each.kind == each.KEYWORD_ONLY and not starred:
            found.append("*")
            starred = True
        found.append(each)
    return found


def _parameter(parameter: inspect.Parameter | str) -> str:
    if isinstance(parameter, str):
        return parameter
    stars = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}.get(parameter.kind.name, "")
    annotation = _annotation(parameter.annotation)
    text = f"{stars}{parameter.name}" + (f": {annotation}" if annotation else "")
    if parameter.default is parameter.empty:
        return text
    equals = " = " if annotation else "="
    default = parameter.default
    shown = default.__name__ if inspect.isclass(default) else repr(default)
    return f"{text}{equals}{shown}"


def _annotation(annotation: Any) -> str:
    if annotation is inspect.Signature.empty:
        return ""
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _text(value: Any) -> str:
    return as_markdown(inspect.getdoc(value) or "")


def as_markdown(docstring: str) -> str:
    """A docstring with its examples as blocks of code.

    >>> print(as_markdown("Adds.\\n\\n>>> 1 + 1\\n2\\n\\nSo it does."))
    Adds.
    <BLANKLINE>
    ```pycon
    >>> 1 + 1
    2
    ```
    <BLANKLINE>
    So it does.
    """
    lines: list[str] = []
    inside = False
    for line in docstring.splitlines():
        if line.startswith(">>>") and not inside:
            lines.append("```pycon")
            inside = True
        elif inside and not line.strip():
            lines.append("```")
            inside = False
        lines.append(line)
    return "\n".join([*lines, "```"] if inside else lines)
