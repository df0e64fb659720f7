"""`caldera`: finds the commands, reads the command line, and turns errors into one line each.

Exit status: 0 done, 1 failed, 2 the command line or a setting is wrong, 130 interrupted (Ctrl-C),
141 the reader of the output has closed it, 143 terminated.
"""

from __future__ import annotations

import ast
import os
import platform
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import numpy as np

import caldera
from caldera.base.registry import nearest
from caldera.cli import commands
from caldera.cli.command import INTERRUPTED, Command, Parser, UsageError, flags
from caldera.data.tables.reading import is_table_file
from caldera.errors import CalderaError, ConfigError

_OTHER_NAMES = {
    "fit": "train",
    "evaluate": "eval",
    "test": "eval",
    "infer": "predict",
    "optimize": "search",
    "version": "--version",
    "help": "--help",
}
FAILED = 1
WRONG_USAGE = 2
NO_READER = 141


def find_commands(only: str | None = None) -> dict[str, Command]:
    """Return the commands by name, in the order of the help text.

    With `only`, the module of this name is imported without the rest, if it exists: importing all
    commands takes as long as importing the package.

    >>> list(find_commands())[:2]
    ['train', 'search']
    >>> list(find_commands("run"))
    ['run']
    """
    files = [found.name for found in iter_modules(commands.__path__)]
    modules = [
        import_module(f"{commands.__name__}.{name}")
        for name in ([only] if only in files else files)
    ]
    found = sorted((module.COMMAND for module in modules), key=lambda command: command.order)
    return {command.name: command for command in found}


def listed_commands() -> dict[str, Command]:
    """Return the commands with the texts of the help, and without flags and actions.

    The texts are read from the sources: importing all commands takes longer than all else. A
    command whose texts are not literal is imported.

    >>> list(listed_commands()) == list(find_commands())
    True
    """
    files = [
        (found.name, Path(folder, f"{found.name}.py"))
        for folder in commands.__path__
        for found in iter_modules([folder])
    ]
    known = [_described(file) or find_commands(name).popitem()[1] for name, file in files]
    return {each.name: each for each in sorted(known, key=lambda each: each.order)}


def _described(file: Path) -> Command | None:
    source = ast.parse(file.read_text(encoding="utf-8")) if file.is_file() else ast.Module([], [])
    texts: dict[str, Any] = {}
    for statement in source.body:
        if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Call):
            continue
        if [ast.unparse(each) for each in statement.targets] == ["COMMAND"]:
            texts = {
                str(each.arg): each.value.value
                for each in statement.value.keywords
                if isinstance(each.value, ast.Constant)
            }
    if not {"name", "takes", "summary", "examples", "order"} <= texts.keys():
        return None
    return Command(**(texts | {"add_flags": flags(), "run": lambda given: FAILED}))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line (without the word `caldera`); the exit status.

    >>> main(["--version"])
    caldera ...
    0
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            # A terminal without Unicode shows a question mark instead of a letter it lacks. The
            # latter is the default of the C locale.
            stream.reconfigure(errors="replace")
    where = "caldera"
    name = next((word for word in words if not word.startswith("-")), None)
    # The help of `caldera --help train` lists all commands.
    first = set(words if name is None else words[: words.index(name)])
    is_listing = name is None or not first.isdisjoint(("-h", "--help", "--version"))
    table = {} if is_listing else find_commands(name if first <= {"--debug"} else None)
    if name not in table:
        table = listed_commands()
    try:
        if name in table:
            where = f"caldera {name}"
        status = _run(words, name, table)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        print(f"{where}: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The remaining buffer must not raise again when the process ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NO_READER
    except Exception as error:
        if "--debug" in words:
            traceback.print_exc()
        print(f"{where}: {_one_line(error)}", file=sys.stderr)
        return WRONG_USAGE if isinstance(error, ConfigError) else FAILED


def _run(words: list[str], name: str | None, table: dict[str, Command]) -> int:
    parser, parsers = make_parsers(table)
    if name is not None and name not in table:
        raise UsageError.build(
            name, expected="a command", got="another word", hint=_meant(name, table)
        )
    try:
        given, unknown = parser.parse_known_args(words)
    except SystemExit:
        # argparse ends the process after --help and --version.
        return 0
    parsers.get(name or "", parser).refuse_unknown(unknown)
    if name is None:
        parser.print_help()
        return WRONG_USAGE
    given.words = words
    return table[name].run(given)


def _meant(word: str, table: dict[str, Command]) -> str:
    """Return the hint for a word that is no command: a file, another name, or a spelling.

    >>> _meant("fit", {}), _meant("my.csv", {})
    ("did you mean 'train'?", 'did you mean caldera train my.csv, or caldera doctor my.csv?')
    """
    if word in _OTHER_NAMES:
        return f"did you mean {_OTHER_NAMES[word]!r}?"
    suffix = Path(word).suffix.lower()
    if suffix == ".caldera":
        return f"did you mean caldera predict {word} INPUT, or caldera eval {word}?"
    if suffix == ".toml":
        return f"did you mean caldera train {word}?"
    if is_table_file(word):
        return f"did you mean caldera train {word}, or caldera doctor {word}?"
    return nearest(word, table)


def make_parsers(table: dict[str, Command]) -> tuple[Parser, dict[str, Parser]]:
    """Return the parser of the whole command line, and the parser of each command by name."""
    parser = Parser(
        prog="caldera",
        description="Caldera: deep learning for scientists.",
        epilog="examples:\n  caldera train\n  caldera train --data mnist --model lenet5\n"
        "  caldera info\n\n`caldera COMMAND --help` describes a command and its options.",
    )
    version = (
        f"caldera {caldera.__version__} "
        f"(Python {platform.python_version()}, NumPy {np.__version__})"
    )
    parser.add_argument("--version", action="version", version=version)
    parser.add_argument("--debug", action="store_true", help="print the traceback of an error")
    choose = parser.add_subparsers(metavar="COMMAND", title="commands", dest="command")
    parsers: dict[str, Parser] = {}
    for command in table.values():
        examples = "examples:\n" + "\n".join(
            f"  {line.strip()}" for line in command.examples.strip().splitlines()
        )
        own = choose.add_parser(
            command.name,
            usage=f"caldera {command.name} {command.takes} [options]".replace("  ", " "),
            help=command.summary,
            description=command.summary,
            epilog=examples,
        )
        command.add_flags(own)
        own.add_argument("--debug", action="store_true", help="print the traceback of an error")
        parsers[command.name] = own
    return parser, parsers


def _one_line(error: Exception) -> str:
    """Return an error as one line: what Caldera raises on purpose explains itself."""
    text = " ".join(str(error).split())
    if isinstance(error, CalderaError):
        return text
    if isinstance(error, OSError):
        # Without "[Errno 2]", which few users understand.
        said = f"{error.strerror}: {error.filename}" if error.filename else text
        return f"{said or type(error).__name__}; check the path and its permissions"
    if isinstance(error, MemoryError):
        return f"{text or 'not enough memory'}; try a smaller --batch-size"
    return f"{type(error).__name__}: {text}; this is a defect; --debug shows its traceback"
