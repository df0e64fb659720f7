"""Definition of a command, and the shared argument parser."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import methodcaller
from typing import Any, NoReturn, TypeAlias

from caldera.base.registry import nearest
from caldera.errors import ConfigError

INTERRUPTED = 130
"""The exit status of a command that Ctrl-C ended."""


class UsageError(ConfigError):
    """A command line that cannot be understood.

    >>> issubclass(UsageError, ConfigError)
    True
    """


AddFlags: TypeAlias = Callable[[Any], object]
"""Adds flags and arguments to a parser, or to a group of its flags."""


def flag(*names: str, **settings: Any) -> AddFlags:
    """Return a flag, or an argument, as argparse's `add_argument` takes it."""
    return methodcaller("add_argument", *names, **settings)


def flags(*parts: AddFlags) -> AddFlags:
    """Combine several flags.

    >>> parser = Parser(prog="caldera greet")
    >>> flags(flag("name"), flag("--loud", action="store_true"))(parser)
    >>> parser.parse_args(["you", "--loud"])
    Namespace(name='you', loud=True)
    """

    def add(parser: Any) -> None:
        for part in parts:
            part(parser)

    return add


def group(title: str, *parts: AddFlags) -> AddFlags:
    """Combine several flags under a title of the help text."""
    return lambda parser: flags(*parts)(parser.add_argument_group(title))


def tell(line: str) -> None:
    """Print a progress line to stderr, separate from the command's output."""
    print(line, file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Command:
    """Subcommand of `caldera`: its purpose, its flags and its action.

    `run` returns the exit status. `order` is the position in the list of commands.
    """

    name: str
    takes: str
    """Arguments, as shown in the first line of the command's help."""
    summary: str
    examples: str
    add_flags: AddFlags
    run: Callable[[argparse.Namespace], int]
    order: int
    words: Callable[[], Iterable[str]] = tuple
    """Names accepted as first argument in addition to files, for shell completion."""


class Parser(argparse.ArgumentParser):
    """Argument parser without abbreviations that raises its errors.

    >>> parser = Parser(prog="caldera train")
    >>> _ = parser.add_argument("--epochs")
    >>> parser.refuse_unknown(["--epoch", "5"])
    Traceback (most recent call last):
    caldera.cli.command.UsageError: --epoch: got an unknown flag; did you mean '--epochs'?
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(
            allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **settings
        )

    def error(self, message: str) -> NoReturn:
        """Raise what argparse would print and exit for."""
        raise UsageError.build(
            message.removeprefix("argument "), hint=f"see {self.prog} --help"
        ) from None

    def refuse_unknown(self, unknown: list[str]) -> None:
        """Raise for arguments that were left over, with the flag that was probably meant."""
        flags = [argument for argument in unknown if argument.startswith("-")]
        if flags:
            # "-1" is also left over if the command expects no number.
            flag = flags[0].partition("=")[0]
            known = [name for name in self._option_string_actions if name.startswith("--")]
            hint = nearest(flag, known)
            if hint.startswith("known"):
                hint = f"see {self.prog} --help"
            raise UsageError.build(flag, got="an unknown flag", hint=hint)
        if unknown:
            raise UsageError.build(
                unknown[0], got="more than it takes", hint=f"see {self.prog} --help"
            )
