"""`caldera completion`: lets a shell complete commands, flags and their values."""

from __future__ import annotations

import argparse

from caldera.cli.command import Command
from caldera.cli.completion import SCRIPTS
from caldera.cli.completion.words import words_of
from caldera.cli.option_types import Choice
from caldera.cli.program import find_commands, make_parsers


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The argument of `completion`."""
    parser.add_argument("shell", metavar="SHELL", help=", ".join(SCRIPTS))


def run(arguments: argparse.Namespace) -> int:
    """Print the script."""
    shell = Choice("shell", lambda: SCRIPTS).from_text(arguments.shell, "SHELL")
    table = find_commands()
    _, parsers = make_parsers(table)
    print(
        SCRIPTS[shell]([words_of(command, parsers[name]) for name, command in table.items()]),
        end="",
    )
    return 0


COMMAND = Command(
    name="completion",
    takes="SHELL",
    summary="Print what lets bash, zsh or fish complete commands, flags and their values.",
    examples="""
        caldera completion bash > ~/.local/share/bash-completion/completions/caldera
        caldera completion zsh > ~/.zfunc/_caldera    (a folder of fpath)
        caldera completion fish > ~/.config/fish/completions/caldera.fish
        source <(caldera completion bash)    (for this shell alone)
    """,
    add_flags=add_flags,
    run=run,
    order=90,
    words=lambda: SCRIPTS,
)
