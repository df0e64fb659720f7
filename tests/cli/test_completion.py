"""`caldera completion`: what real shells offer once they know the script."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from caldera.cli.commands.completion import SHELLS
from caldera.cli.program import find_commands
from caldera.optim import optimizers
from tests.cli.conftest import Caldera


@pytest.fixture
def scripts(caldera: Caldera, tmp_path: Path) -> dict[str, Path]:
    found = {}
    for shell in SHELLS:
        found[shell] = tmp_path / f"caldera.{shell}"
        found[shell].write_text(caldera("completion", shell).out)
    return found


def shell_or_skip(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed")
    return path


def in_bash(script: Path, line: str) -> list[str]:
    """What bash offers after a line; its last word is the one to complete."""
    words = line.split(" ")
    given = " ".join(f"'{word}'" for word in words)
    program = (
        f"source '{script}'; COMP_WORDS=({given}); COMP_CWORD={len(words) - 1}; _caldera;"
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        [shell_or_skip("bash"), "--norc", "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=script.parent,
    )
    assert not done.stderr
    return done.stdout.split()


def in_fish(script: Path, line: str) -> list[str]:
    done = subprocess.run(
        [shell_or_skip("fish"), "--no-config", "-c", f"source '{script}'; complete -C '{line}'"],
        capture_output=True,
        text=True,
        check=True,
        cwd=script.parent,
        env={"HOME": str(script.parent), "PATH": "/usr/bin:/bin"},
    )
    return [each.split("\t")[0] for each in done.stdout.splitlines()]


@pytest.mark.parametrize("offers", [in_bash, in_fish])
def test_commands_flags_and_values_are_offered(scripts: dict[str, Path], offers) -> None:  # type: ignore[no-untyped-def]
    script = scripts["bash" if offers is in_bash else "fish"]
    assert set(find_commands()) <= set(offers(script, "caldera "))
    assert offers(script, "caldera trai") == ["train"]
    assert {"--epochs", "--epsilon"} <= set(offers(script, "caldera train --ep"))
    assert set(offers(script, "caldera train --optimizer ada")) >= {"adam", "adamw", "adagrad"}
    assert set(offers(script, "caldera train --quiet --schedule cos")) == {"cosine"}
    assert "resnet50" in offers(script, "caldera summary res")
    assert offers(script, "caldera search --method gri") == ["grid"]
    assert set(SHELLS) <= set(offers(script, "caldera completion "))
    assert "--optimizer" not in offers(script, "caldera info --")


def test_bash_takes_equals_signs_apart(scripts: dict[str, Path]) -> None:
    assert in_bash(scripts["bash"], "caldera train --optimizer = lam") == ["lamb"]
    assert "lamb" in in_bash(scripts["bash"], "caldera train --optimizer =")


def test_bash_offers_files_beside_names(scripts: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "resolved net.caldera").touch()
    found = in_bash(scripts["bash"], "caldera summary reso")
    assert " ".join(found) == "resolved net.caldera"


def test_zsh_knows_the_function(scripts: dict[str, Path]) -> None:
    program = (
        f"autoload -Uz compinit && compinit -u -D; source '{scripts['zsh']}';"
        " print -r -- $_comps[caldera]; whence -w _shtab_caldera"
    )
    done = subprocess.run(
        [shell_or_skip("zsh"), "-f", "-c", program],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == ["_shtab_caldera", "_shtab_caldera: function"]
    assert not done.stderr


def test_zsh_has_every_flag_with_its_values(scripts: dict[str, Path]) -> None:
    text = scripts["zsh"].read_text()
    assert '"--optimizer[' in text
    assert f':NAME:({" ".join(optimizers)})"' in text
    assert all(f"    {name})" in text for name in find_commands())


def test_without_shtab_it_says_what_to_install(
    caldera: Caldera, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    done = caldera("completion", "bash")
    assert done.status == 2
    assert "pip install shtab" in done.err


def test_a_shell_nobody_knows(caldera: Caldera) -> None:
    done = caldera("completion", "bsh")
    assert done.status == 2
    assert "did you mean 'bash'?" in done.err
