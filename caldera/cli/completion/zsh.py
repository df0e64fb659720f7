"""Completion for zsh."""

from __future__ import annotations

from collections.abc import Sequence

from caldera.cli.completion.words import CommandWords, FlagWords, joined

_SCRIPT = """\
#compdef caldera
# Completion of caldera for zsh; `caldera completion zsh` writes it.
_caldera() {{
    local state line
    local -a commands=(
{commands}
    )
    _arguments -C '--help[show the help]' '--version[show the version]' \\
        '--debug[show where an error comes from]' '1: :->command' '*:: :->rest'
    if [[ $state == command ]]; then
        _describe -t commands 'command' commands
        return
    fi
    case $line[1] in
{cases}
    esac
}}
# As a file of fpath it is run at once; where it is sourced, it is only made known.
if [[ $funcstack[1] == _caldera ]]; then
    _caldera "$@"
else
    compdef _caldera caldera
fi
"""


def zsh_script(commands: Sequence[CommandWords]) -> str:
    """The script that tells zsh what may follow `caldera`."""
    named = [f"        '{command.name}:{_quoted(command.summary)}'" for command in commands]
    return _SCRIPT.format(
        commands="\n".join(named), cases="\n".join(_case(command) for command in commands)
    )


def _case(command: CommandWords) -> str:
    first = "'1: :_files'"
    if command.words:
        names = f"names:name:({joined(command.words)})"
        first = f'\'1: :{{_alternative "{names}" "files:file:_files"}}\''
    lines = [_flag(flag) for flag in command.flags] + [first, "'*: :_files'"]
    listed = " \\\n".join(f"                {line}" for line in lines)
    return f"        {command.name})\n            _arguments \\\n{listed}\n            ;;"


def _flag(flag: FlagWords) -> str:
    text = f"{flag.flag}[{_quoted(flag.help)}]"
    if flag.placeholder:
        action = f"({joined(flag.values)})" if flag.values else "_files"
        text += f":{_quoted(flag.placeholder)}:{action}"
    return f"'{text}'"


def _quoted(text: str) -> str:
    """As it may stand in a description, inside of single quotes."""
    for letter in "\\[]:":
        text = text.replace(letter, f"\\{letter}")
    return text.replace("'", "'\\''")
