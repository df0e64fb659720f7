"""What the generator of the documentation, which reads the package through griffe, would not see.

- Examples stand among the sentences of a docstring, as `doctest` finds them; griffe only knows them
  under a heading of their own.
- Where a function has the name of the module it comes from (`op.einsum`), the public name is the
  function's.
- A public value without a docstring is described by that of its class.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import griffe


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
        target.docstring = griffe.Docstring(fenced(text), parent=target)
