"""Completion for bash."""

from __future__ import annotations

from collections.abc import Sequence

from caldera.cli.completion.words import CommandWords, joined

_SCRIPT = """\
# Completion of caldera for bash; `caldera completion bash` writes it.
_caldera() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}}
    local command="" word words="" files=""
    COMPREPLY=()
    # bash takes --flag=value apart at the equals sign.
    if [[ $current == "=" ]]; then
        current=""
    elif [[ $previous == "=" ]]; then
        previous=${{COMP_WORDS[COMP_CWORD-2]}}
    fi
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        if [[ $word != -* ]]; then
            command=$word
            break
        fi
    done
    case "$command $previous" in
{values}
    esac
    if [[ $current == -* ]]; then
        case "$command" in
{flags}
            *) words="--help --version --debug" ;;
        esac
    else
        case "$command" in
{words}
            "") words="{commands}" ;;
            *) return ;;
        esac
        if [[ -n $command ]]; then
            files=$(compgen -f -- "$current")
        fi
    fi
    local IFS=$' \\t\\n'
    COMPREPLY=($(compgen -W "$words" -- "$current"))
    IFS=$'\\n'
    COMPREPLY+=($files)
}}
complete -o default -F _caldera caldera
"""


def bash_script(commands: Sequence[CommandWords]) -> str:
    """The script that tells bash what may follow `caldera`."""
    values = [
        f'        "{command.name} {flag.flag}")\n'
        f'            COMPREPLY=($(compgen -W "{joined(flag.values)}" -- "$current")); return ;;'
        for command in commands
        for flag in command.flags
        if flag.values
    ]
    # What has a value that nobody can list is completed as a file.
    free = [
        f'        "{command.name} {flag.flag}") return ;;'
        for command in commands
        for flag in command.flags
        if flag.placeholder and not flag.values
    ]
    flags = [
        f'            {command.name}) words="{joined([flag.flag for flag in command.flags])}" ;;'
        for command in commands
    ]
    words = [
        f'            {command.name}) words="{joined(command.words)}" ;;'
        for command in commands
        if command.words
    ]
    return _SCRIPT.format(
        values="\n".join(values + free),
        flags="\n".join(flags),
        words="\n".join(words),
        commands=joined([command.name for command in commands]),
    )
