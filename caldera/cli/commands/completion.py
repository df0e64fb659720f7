"""`caldera completion`: lets a shell complete commands, flags and their values.

shtab writes the scripts from the parsers; this module defines the possible values of each flag.
"""

from __future__ import annotations

import argparse
from typing import Any

from caldera.base.registry import optional_import
from caldera.cli.command import Command, flag, flags
from caldera.cli.option_types import NameOption
from caldera.cli.options import OPTIONS
from caldera.cli.program import find_commands, make_parsers
from caldera.cli.search_recipe import SEARCH_OPTIONS

SHELLS = ("bash", "zsh", "fish")
_EQUALS_SIGNS = """
# bash takes --flag=value apart at the equals sign.
_caldera() {
    local word words=()
    for word in "${COMP_WORDS[@]:0:COMP_CWORD+1}"; do
        [[ $word == "=" ]] || words+=("$word")
    done
    [[ ${COMP_WORDS[COMP_CWORD]} == "=" ]] && words+=("")
    local COMP_WORDS=("${words[@]}") COMP_CWORD=$((${#words[@]} - 1))
    _shtab_caldera
}
complete -o bashdefault -o default -F _caldera caldera
"""


add_flags = flags(
    flag("shell", metavar="SHELL", help=", ".join(SHELLS)),
)
"""The argument of `completion`."""


def run(arguments: argparse.Namespace) -> int:
    """Print the script."""
    shell = NameOption("shell", lambda: SHELLS).from_text(arguments.shell, "SHELL")
    shtab = optional_import("shtab", "shtab", "caldera completion")
    table = find_commands()
    parser, parsers = make_parsers(table)
    for name, own in parsers.items():
        _say_what_follows(own, table[name], shtab.FILE)
    print(shtab.complete(parser, shell), end=_EQUALS_SIGNS if shell == "bash" else "\n")
    return 0


def _say_what_follows(parser: argparse.ArgumentParser, command: Command, files: Any) -> None:
    """Tell shtab the values of a command's flags and arguments: names, or else files."""
    names = tuple(command.words())
    for action in parser._actions:
        if action.choices is not None or action.nargs == 0:
            continue
        values = _values(action)
        if values:
            action.choices = values
        elif names and not action.option_strings:
            _offer(action, _names_or_files(command.name, names))
            names = ()
        else:
            _offer(action, files)


def _offer(action: argparse.Action, what: Any) -> None:
    # shtab reads this attribute, which argparse does not declare.
    action.complete = what  # type: ignore[attr-defined]


def _values(action: argparse.Action) -> tuple[str, ...]:
    option = OPTIONS.get(action.dest) or SEARCH_OPTIONS.get(action.dest)
    if option is None or option.flag not in action.option_strings:
        return ()
    kind = option.kind
    # Another command may have a flag of this name that means something else.
    if not isinstance(kind, NameOption) or action.metavar != kind.placeholder:
        return ()
    return tuple(kind.names())


def _names_or_files(command: str, names: tuple[str, ...]) -> dict[str, Any]:
    """Return the completion of a first argument that is a name or a file.

    The names contain no characters that are special to a shell.
    """
    function, words = f"_caldera_names_or_files_{command}", " ".join(names)
    return {
        **dict.fromkeys(("bash", "zsh"), function),
        "fish": f"({function})",
        "preamble": {
            "bash": f'{function}() {{ compgen -W "{words}" -- "$1"; compgen -f -- "$1"; }}',
            "zsh": f"{function}() {{ _alternative 'names:name:({words})' 'files:file:_files'; }}",
            "fish": f"function {function}; printf '%s\\n' {words}; "
            "__fish_complete_path (commandline -ct); end",
        },
    }


COMMAND = Command(
    name="completion",
    takes="SHELL",
    summary="Print the completion script of commands, flags and values for bash, zsh or fish.",
    examples="""
        caldera completion bash > ~/.local/share/bash-completion/completions/caldera
        caldera completion zsh > ~/.zfunc/_caldera    (a folder of fpath)
        caldera completion fish > ~/.config/fish/completions/caldera.fish
        source <(caldera completion bash)    (for this shell alone)
    """,
    add_flags=add_flags,
    run=run,
    order=90,
    words=lambda: SHELLS,
)
