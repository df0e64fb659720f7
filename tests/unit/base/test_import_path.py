"""`import caldera` takes installed modules, whatever files lie next to a script."""

import subprocess
import sys
from pathlib import Path

import pytest

NAMES = ("numpy", "json", "random", "typing", "types", "dataclasses", "queue", "string", "rich")


def test_files_named_like_installed_modules_are_not_imported(tmp_path: Path) -> None:
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text(f"raise ImportError('the file {name}.py')")
    (tmp_path / "mine.py").write_text("from caldera import data\nword = data.digits().name")
    script = tmp_path / "main.py"
    script.write_text(
        "import caldera as cd, sys\nimport mine\n"
        "print(cd.tensor([1.0]).numpy(), mine.word, sys.path[0])"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.stdout == f"[1.] digits {tmp_path}\n", done.stderr


@pytest.mark.parametrize("name", ["mine.py", "caldera"])
def test_other_folders_stay_where_they_are(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from caldera.base.import_path import remove_hiding_folder, restore

    monkeypatch.setattr(sys, "path", [str(tmp_path), "/elsewhere"])
    (tmp_path / name).touch()
    assert remove_hiding_folder() == []
    (tmp_path / "json.py").touch()
    removed = remove_hiding_folder()
    assert removed == ([] if name == "caldera" else [str(tmp_path)])
    restore(removed)
    assert sys.path == [str(tmp_path), "/elsewhere"]
