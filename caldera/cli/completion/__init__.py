"""Shell completion: a script for each shell, written from what the commands say of themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from caldera.cli.completion.bash import bash_script
from caldera.cli.completion.fish import fish_script
from caldera.cli.completion.words import CommandWords
from caldera.cli.completion.zsh import zsh_script

SCRIPTS: Mapping[str, Callable[[Sequence[CommandWords]], str]] = {
    "bash": bash_script,
    "zsh": zsh_script,
    "fish": fish_script,
}

__all__ = ["SCRIPTS", "CommandWords"]
