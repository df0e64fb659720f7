"""The documentation as a site, kept with all that it was made of as its name.

Building takes twenty seconds. Whoever changes a word of the documentation, or a file of the
package, builds it anew.
"""

from __future__ import annotations

import hashlib
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.object_cache import CACHE, cached_file
from tools import docs

_GENERATORS = ("zensical", "mkdocstrings", "mkdocstrings-python", "griffelib")


def unpack_site(folder: Path) -> None:
    """Write the site into a new folder."""
    kept = CACHE / "site"
    kept.mkdir(parents=True, exist_ok=True)
    archive = cached_file(kept / f"{_made_of()}.tar", _build)
    with tarfile.open(archive) as site:
        # As an attribute: Python before 3.11.4 knows no such argument.
        site.extraction_filter = getattr(tarfile, "data_filter", None)
        site.extractall(folder)


def _build(archive: Path) -> None:
    with TemporaryDirectory() as scratch, tarfile.open(archive, "w") as site:
        docs.build(Path(scratch, "site"))
        site.add(Path(scratch, "site"), arcname=".")


def _made_of() -> str:
    root = docs.ROOT
    files = [docs.CONFIG, *root.glob("tools/*.py"), *root.glob("tools/*.toml")]
    files += [path for path in root.glob("docs/**/*") if path.is_file()]
    files += root.glob("caldera/**/*.py")
    digest = hashlib.blake2b(f"{sys.version} {root}".encode(), digest_size=20)
    for name in _GENERATORS:
        digest.update(f"{name} {version(name)}".encode())
    for file in sorted(files):
        content = file.read_bytes()
        digest.update(f"{file.relative_to(root)} {len(content)} ".encode())
        digest.update(content)
    return digest.hexdigest()
