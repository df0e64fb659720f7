"""What can be completed: commands, their flags, and what follows a flag."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from caldera.cli.command import Command
from caldera.cli.option_types import Choice
from caldera.cli.options import OPTIONS


@dataclass(frozen=True)
class FlagWords:
    """A flag; `values` are the words that may follow it, if they are known."""

    flag: str
    help: str
    placeholder: str
    """What stands for its value; empty if it has none."""
    values: tuple[str, ...]


@dataclass(frozen=True)
class CommandWords:
    """A command with its flags; `words` may be its first argument, and so may files."""

    name: str
    summary: str
    flags: tuple[FlagWords, ...]
    words: tuple[str, ...]


def words_of(command: Command, parser: argparse.ArgumentParser) -> CommandWords:
    """Everything that can be completed after a command."""
    flags = tuple(flag for action in parser._actions for flag in _flags(action))
    return CommandWords(command.name, command.summary, flags, tuple(command.words()))


def _flags(action: argparse.Action) -> Iterator[FlagWords]:
    placeholder = ""
    if action.nargs != 0:
        placeholder = action.metavar if isinstance(action.metavar, str) else action.dest
    for flag in action.option_strings:
        if flag.startswith("--"):
            help_text = (action.help or "").replace("%%", "%")
            yield FlagWords(flag, help_text, placeholder, _values(action, flag))


def _values(action: argparse.Action, flag: str) -> tuple[str, ...]:
    if action.choices is not None:
        return tuple(map(str, action.choices))
    option = OPTIONS.get(action.dest)
    if option is None or option.flag != flag or not isinstance(option.kind, Choice):
        return ()
    # Another command may have a flag of this name that means something else.
    return tuple(option.kind.names()) if action.metavar == option.kind.placeholder() else ()


def joined(words: Sequence[str]) -> str:
    """Words with blanks between them; none of ours has anything in it that a shell minds."""
    return " ".join(words)
