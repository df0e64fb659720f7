"""The command line itself: help, errors in one line with a hint, exit statuses."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import caldera as cd
from caldera.cli import commands
from caldera.cli.program import find_commands, listed_commands
from tests.cli.conftest import Caldera

COMMANDS = [
    "train",
    "search",
    "doctor",
    "eval",
    "report",
    "predict",
    "serve",
    "export",
    "summary",
    "graph",
    "tune",
    "run",
    "plan",
    "bench",
    "check",
    "reproduce",
    "info",
    "completion",
]


@pytest.mark.parametrize("words", ["--help", "--help train", "--debug -h train"])
def test_help_names_every_command_and_has_examples(caldera: Caldera, words: str) -> None:
    done = caldera(*words.split())
    assert done.status == 0
    assert all(re.search(rf"\n    {name}\s", done.out) for name in COMMANDS)
    assert "examples:" in done.out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_examples(caldera: Caldera, name: str) -> None:
    done = caldera(name, "--help")
    assert done.status == 0
    assert done.out.startswith(f"usage: caldera {name}")
    assert f"examples:\n  caldera {name}" in done.out


def test_version(caldera: Caldera) -> None:
    assert caldera("--version").out.startswith(f"caldera {cd.__version__} ")


def test_no_command_shows_the_help(caldera: Caldera) -> None:
    done = caldera()
    assert done.status == 2
    assert "commands:" in done.out


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ("trian", 2, "expected a command, got another word; did you mean 'train'?"),
        ("nosuch", 2, "known: train, search"),
        ("train --epoch 5", 2, "did you mean '--epochs'?"),
        ("train --epoch=5", 2, "did you mean '--epochs'?"),
        ("train --epochs many", 2, "--epochs: expected an integer >= 0, got 'many'"),
        ("train --epochs -1", 2, "--epochs: expected an integer >= 0"),
        ("train --learning-rate nan", 2, "--learning-rate: expected a number, got 'nan'"),
        ("train --hidden 3,x", 2, "integers >= 1"),
        ("train --optimizer adm", 2, "did you mean 'adam'?"),
        ("train --schedule cosin", 2, "did you mean 'cosine'?"),
        ("train --metrics accuracy,presicion", 2, "did you mean 'precision'?"),
        ("train --model lenet", 2, "did you mean 'lenet5'?"),
        ("train --data minst", 2, "did you mean 'mnist'?"),
        ("train --model lenet5 --hidden 3", 2, "model lenet5: expected an option it takes"),
        ("train --optimizer sgd --beta1 0.9", 2, "optimizer sgd: expected an argument it takes"),
        ("train --schedule exponential", 2, "expected schedule_factor"),
        ("train --optimizer sgd --schedule-factor 0.5", 2, "a schedule that it belongs to"),
        ("train --data-folder x", 2, "data digits: expected an option it takes"),
        ("train --resume", 2, "--checkpoint"),
        ("train one.toml two.toml", 2, "two.toml: got more than it takes"),
        ("train no.toml", 1, "no such file"),
        ("train --data no.csv", 1, "no.csv"),
        ("eval", 2, "see caldera eval --help"),
        ("fit --epochs 3", 2, "did you mean 'train'?"),
        ("mine.csv", 2, "did you mean caldera train mine.csv, or caldera doctor mine.csv?"),
        ("old.caldera", 2, "did you mean caldera predict old.caldera INPUT"),
        ("mine.toml", 2, "did you mean caldera train mine.toml?"),
        ("eval no.caldera", 1, "no.caldera"),
        ("summary lenet4", 2, "did you mean 'lenet5'?"),
        ("graph mlp --out graph.png", 2, "ends in .svg"),
        ("info --jsn", 2, "did you mean '--json'?"),
        ("train mine.csv", 1, "mine.csv"),
        ("train digits --data mnist", 2, "expected data once"),
        ("train old.caldera", 2, "got a model; see caldera eval --help"),
        ("train --data digits --columns a", 2, "data digits: expected an option it takes"),
        ("train --quiet --epochs 0 --out /dev/null/out", 1, "check the path"),
    ],
)
def test_mistakes_are_one_line_with_a_hint(
    caldera: Caldera,
    words: str,
    status: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    done = caldera(*words.split())
    assert done.status == status
    assert said in done.err
    assert done.err.count("\n") == 1
    assert done.err.startswith("caldera")
    assert not list(tmp_path.iterdir())


def test_debug_shows_where_an_error_comes_from(caldera: Caldera) -> None:
    assert "Traceback" not in caldera("train", "--data", "minst").err
    assert "Traceback" in caldera("train", "--data", "minst", "--debug").err
    assert "Traceback" in caldera("--debug", "train", "--data", "minst").err


def test_an_unexpected_error_is_one_line_too(
    caldera: Caldera, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise ZeroDivisionError("by\nzero")

    monkeypatch.setattr("caldera.cli.commands.info.environment", broken)
    done = caldera("info")
    assert done.status == 1
    assert done.err.startswith("caldera info: ZeroDivisionError: by zero;")
    assert done.err.count("\n") == 1


def test_ctrl_c_ends_with_130(caldera: Caldera, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("caldera.cli.commands.info.environment", interrupted)
    done = caldera("info")
    assert (done.status, done.err) == (130, "caldera info: interrupted\n")


def test_the_help_imports_no_command() -> None:
    listed, found = listed_commands(), find_commands()
    assert list(listed) == list(found)
    for name, command in listed.items():
        assert (command.takes, command.summary) == (found[name].takes, found[name].summary)
        assert command.examples == found[name].examples
    code = (
        "import sys; from caldera.cli import main; main(['--help']); "
        "sys.exit(any(name.startswith('caldera.cli.commands.') for name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0
    assert found["train"].summary.split(";")[0] in done.stdout


def test_one_new_file_makes_a_new_command(
    caldera: Caldera, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "greet.py").write_text(
        "from caldera.cli.command import Command\n"
        "def run(arguments):\n"
        "    print('hello')\n"
        "    return 0\n"
        "COMMAND = Command('greet', '', 'Say hello.', 'caldera greet', lambda p: None, run, 99)\n"
    )
    monkeypatch.setattr(commands, "__path__", [*commands.__path__, str(tmp_path)])
    assert list(find_commands()) == [*COMMANDS, "greet"]
    assert "Say hello." in caldera("--help").out
    assert caldera("greet").out == "hello\n"


def test_a_reader_that_goes_away_is_no_error() -> None:
    words = [sys.executable, "-m", "caldera", "info"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    said = process.stderr.read()
    process.stderr.close()
    assert (process.wait(60), said) == (141, b"")


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from caldera.cli import main; main(['--help']);"
        "names = ('sklearn', 'rich', 'PIL', 'scipy', 'optuna', 'uvicorn',"
        " 'caldera.kernels.native.families', 'caldera.kernels.cuda');"
        "print([n for n in names if n in sys.modules])"
    )
    out = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert out.splitlines()[-1] == "[]"


# --- terminals that are not UTF-8


def test_letters_that_a_terminal_lacks_become_question_marks(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caldera: Caldera
) -> None:
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / "K\u00f6ln.png")
    shown = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(shown, "ascii", "surrogateescape"))
    done = caldera("predict", trained / "digits.caldera", tmp_path)
    assert done.status == 0, done.err
    assert b"\nK?ln.png," in shown.getvalue()
    assert "--out FILE writes them" in done.err


def test_the_end_of_a_run_is_told_once(caldera: Caldera, tmp_path: Path) -> None:
    words = ["train", "--epochs", "50", "--hidden", "4", "--time-limit", "0.001", "--out"]
    for more in ([], ["--quiet"]):
        done = caldera(*words, tmp_path / "run", *more)
        assert done.status == 0, done.err
        assert done.out.count("stopped: ") == 1
