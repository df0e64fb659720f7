"""Completion for fish."""

from __future__ import annotations

from collections.abc import Sequence

from caldera.cli.completion.words import CommandWords, FlagWords, joined


def fish_script(commands: Sequence[CommandWords]) -> str:
    """The script that tells fish what may follow `caldera`."""
    lines = ["# Completion of caldera for fish; `caldera completion fish` writes it."]
    top = "complete -c caldera -n __fish_use_subcommand"
    lines += [f"{top} -f -a {each.name} -d {_quoted(each.summary)}" for each in commands]
    lines += [
        f"{top} -l version -d 'show the version'",
        f"{top} -l debug -d 'show where an error comes from'",
    ]
    for command in commands:
        after = f"complete -c caldera -n '__fish_seen_subcommand_from {command.name}'"
        if command.words:
            lines.append(f"{after} -a {_quoted(joined(command.words))}")
        lines += [f"{after} {_flag(flag)}" for flag in command.flags]
    return "\n".join(lines) + "\n"


def _flag(flag: FlagWords) -> str:
    text = f"-l {flag.flag.removeprefix('--')} -d {_quoted(flag.help)}"
    if flag.values:
        return f"{text} -x -a {_quoted(joined(flag.values))}"
    return f"{text} -r" if flag.placeholder else text


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
