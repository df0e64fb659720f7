"""Programs in the layouts in which they are given out: POJ-104."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike, fspath
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np

from caldera.base.arguments import require
from caldera.base.file_cache import write_file
from caldera.code.llvm_ir import Function, compile_c, read_ir
from caldera.errors import DataError

PARTS = {"ir_train": "train", "ir_val": "validation", "ir_test": "test"}
"""Folders of inst2vec's own division."""
SHARES = (0.6, 0.2)
"""Of a problem's programs, for training and for validation, as in inst2vec's division (3:1:1)."""
HEADERS = ("cstdio", "cstdlib", "cstring", "cmath", "iostream", "iomanip", "string", "algorithm")
PRELUDE = "".join(f"#include <{name}>\n" for name in HEADERS) + "using namespace std;\n#line 1\n"
"""Headers that the programs require and the archive omits."""


class SourceProgram(NamedTuple):
    """A program with its problem and its part: train, validation or test.

    >>> from pathlib import Path
    >>> from caldera import code
    >>> code.Program(Path("ProgramData/7/12.txt"), 7, "train").problem
    7
    """

    path: Path
    problem: int
    part: str

    def functions(self, flags: Sequence[str] = ("-O1",)) -> list[Function]:
        """Return the functions; a source is first compiled to LLVM IR as C++ with usual headers."""
        if self.path.suffix == ".ll":
            return read_ir(self.path.read_text(errors="replace"))
        with TemporaryDirectory() as folder:
            whole = Path(folder) / f"{self.problem}-{self.path.stem}.cpp"
            write_file(whole, PRELUDE.encode() + self.path.read_bytes())
            return read_ir(compile_c(whole, ["-std=c++11", *flags]))


def poj104(folder: str | PathLike[str], *, seed: int = 0) -> list[SourceProgram]:
    """Return the programs of POJ-104 (Mou and others, 2016), 500 for each of 104 problems.

    Two layouts are supported. The authors' `ProgramData/PROBLEM/NUMBER.txt` contains sources in C
    and C++, which are divided 3:1:1 at random for each problem. The inst2vec layout
    `ir_train/PROBLEM/*.ll`, `ir_val` and `ir_test` contains LLVM IR that is already divided.

    >>> from pathlib import Path
    >>> from caldera import code
    >>> for number in range(5):
    ...     Path("poj/ProgramData/1").mkdir(parents=True, exist_ok=True)
    ...     _ = Path(f"poj/ProgramData/1/{number}.txt").write_text("int main() { return 0; }")
    >>> [each.part for each in code.poj104("poj")]
    ['validation', 'train', 'test', 'train', 'train']
    """
    root = Path(fspath(folder))
    divided = {part: root / name for name, part in PARTS.items() if (root / name).is_dir()}
    if divided:
        found = [
            SourceProgram(path, problem, part)
            for part, place in divided.items()
            for problem, inside in _problems(place)
            for path in sorted(inside.glob("*.ll"), key=_number)
        ]
    else:
        inner = root / "ProgramData"
        found = [
            each
            for problem, inside in _problems(inner if inner.is_dir() else root)
            for each in _drawn(sorted(inside.glob("*.txt"), key=_number), problem, seed)
        ]
    require(
        found,
        f"code.poj104 {root}",
        "ProgramData/PROBLEM/*.txt, or ir_train/PROBLEM/*.ll",
        hint="unpack the archive there",
        error=DataError,
    )
    return found


def _problems(place: Path) -> list[tuple[int, Path]]:
    """Return the folders of problems, whose names are numbers."""
    inside = place.iterdir() if place.is_dir() else ()
    return sorted((int(each.name), each) for each in inside if each.name.isdecimal())


def _number(path: Path) -> tuple[int, str]:
    digits = "".join(each for each in path.stem if each.isdecimal())
    return int(digits or 0), path.name


def _drawn(paths: Sequence[Path], problem: int, seed: int) -> list[SourceProgram]:
    """Return programs of a problem with the part that each is drawn into."""
    order = np.random.default_rng([seed, problem]).permutation(len(paths))
    train, validation = (round(share * len(paths)) for share in SHARES)
    names = ["train"] * train + ["validation"] * validation
    names += ["test"] * (len(paths) - len(names))
    parts = dict(zip(order.tolist(), names, strict=True))
    return [SourceProgram(path, problem, parts[place]) for place, path in enumerate(paths)]
