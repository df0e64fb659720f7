"""What the generator of the documentation, which reads the package through griffe, would not see.

- Examples stand among the sentences of a docstring, as `doctest` finds them; griffe only knows them
  under a heading of their own.
- Where a function has the name of the module it comes from (`op.einsum`), the public name is the
  function's.
- A public value without a docstring is described by that of its class.
- A docstring without sections of arguments and results gets them, in Google's form: descriptions
  are taken from `shared_arguments.toml` or are the sentence that names the argument.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import griffe

_SHARED = tomllib.loads(Path(__file__).with_name("shared_arguments.toml").read_text())
_LIST = re.compile(r"^[-|*\d]", re.MULTILINE)


def fenced(docstring: str) -> str:
    """A docstring with its examples as blocks of code."""
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


def with_sections(text: str, room: str, arguments: Iterable[str], returns: str) -> str:
    """A docstring with sections of its arguments and result, before the first block of code.

    >>> text = "Return a part.\\n\\n`n` is its length."
    >>> print(with_sections(text, "op", ["x", "n"], "Expr"))
    Return a part.
    <BLANKLINE>
    `n` is its length.
    <BLANKLINE>
    Args:
        x: Tensor, array, number or expression.
        n: `n` is its length.
    <BLANKLINE>
    Returns:
        A part.
    """
    prose, example, rest = text.partition("\n```pycon\n")
    known = _SHARED["all"] | _SHARED.get(room, {})
    sections = ""
    if "\nArgs:\n" not in text:
        said = {each: _sentence(prose, each) or known.get(each) for each in arguments}
        lines = [f"    {each}: {words}" for each, words in said.items() if words]
        sections += "\n\nArgs:\n" + "\n".join(lines) if lines else ""
    found = re.match(r"Return (.*?\.)(?:\s|$)", prose, re.DOTALL)
    if found and returns not in ("", "None") and "\nReturns:\n" not in text:
        words = " ".join(found[1].split())
        sections += f"\n\nReturns:\n    {words[0].upper()}{words[1:]}"
    if not sections:
        return text
    return f"{prose.rstrip()}{sections}" + (f"\n{example}{rest}" if example else "")


def _sentence(prose: str, argument: str) -> str:
    """The first sentence of a text that names an argument."""
    body = " ".join(_LIST.split(prose.partition("\n")[2])[0].split())
    for each in re.split(r"(?<=[.;])\s+(?=[A-Z`])", body):
        if re.search(rf"`{argument}\b", each):
            return each[0].upper() + each[1:].rstrip(";.") + "."
    return ""


class Reference(griffe.Extension):
    """Called by griffe when it has read the package."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        found = list(_all_in(pkg))
        for each in found:
            if each.docstring is not None:
                each.docstring.value = fenced(each.docstring.value)
        modules = [each for each in found if isinstance(each, griffe.Module)]
        # Names lead through modules: whatever they stand for is found before a module is hidden.
        for module in modules:
            for member in module.members.values():
                if isinstance(member, griffe.Alias):
                    with suppress(griffe.AliasResolutionError, griffe.CyclicAliasError):
                        member.resolve_target()
        for module in sorted(modules, key=lambda each: each.path.count("."), reverse=True):
            for name, target in module.imports.items():
                # The second question takes long: griffe looks through all members for each answer.
                if target.startswith(f"{module.path}.") and name in module.modules:
                    function = module[target.removeprefix(f"{module.path}.")]
                    if not function.is_module:
                        module.set_member(name, griffe.Alias(name, function, parent=module))
        for module in modules:
            for name in module.exports or ():
                _describe(module, str(name))
                if module.path.startswith("caldera"):
                    _add_sections(module, str(name))


def _add_sections(module: griffe.Module, name: str) -> None:
    """Give a public function or class, and its methods, the sections that docstrings lack."""
    found = module.members.get(name)
    value = getattr(importlib.import_module(module.path), name)
    target = found.final_target if isinstance(found, griffe.Alias) else found
    room = module.path.partition(".")[2].partition(".")[0]
    if isinstance(target, griffe.Function):
        _complete(target, value, room)
    elif isinstance(target, griffe.Class):
        _complete(target, value, room)
        for each in target.members.values():
            if isinstance(each, griffe.Function) and not each.name.startswith("_"):
                _complete(each, getattr(value, each.name), room)


def _complete(each: griffe.Function | griffe.Class, value: Any, room: str) -> None:
    if isinstance(each, griffe.Class) and not _has_known_arguments(each, value):
        return
    with suppress(TypeError, ValueError):
        if each.docstring is not None and callable(value):
            names = [one for one in inspect.signature(value).parameters if one != "self"]
            returns = str(each.returns or "") if isinstance(each, griffe.Function) else ""
            each.docstring.value = with_sections(each.docstring.value, room, names, returns)


def _has_known_arguments(each: griffe.Class, value: Any) -> bool:
    """True unless arguments are fields that griffe does not see: of a base, of a named tuple."""
    if issubclass(value, tuple):
        return False
    written = any("dataclass" in str(decorator.value) for decorator in each.decorators)
    return written or not dataclasses.is_dataclass(value)


def _all_in(owner: griffe.Object) -> Iterator[griffe.Object]:
    yield owner
    for member in owner.members.values():
        if not member.is_alias:
            yield from _all_in(member)


def _describe(module: griffe.Module, name: str) -> None:
    """Give a value the docstring of its class; another name of a class is described as that is."""
    found = module.members.get(name)
    if found is not None and found.is_attribute and found.docstring is None:
        value = getattr(importlib.import_module(module.path), name)
        text = inspect.getdoc(value if inspect.isclass(value) else type(value)) or ""
        target = found.final_target if found.is_alias else found
        text = re.sub(r"\nArgs:\n(?:    .*\n|\n(?=    ))*", "\n", f"{text}\n")
        target.docstring = griffe.Docstring(fenced(text), parent=target)
