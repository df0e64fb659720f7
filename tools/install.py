"""Install what the tests need: with uv, which takes a third of pip's time, or else with pip.

    python -m tools.install --editable '.[dev]'

Packages come from where pip would take them: its settings are handed on. If there is one that uv
has no word for, if uv cannot be had or does not succeed, pip does it.
"""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

_PIP = (sys.executable, "-m", "pip")
_UV = (sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", sys.executable)
_VARIABLES = {
    "cert": "SSL_CERT_FILE",
    "default-timeout": "UV_HTTP_TIMEOUT",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "index-url": "UV_DEFAULT_INDEX",
    "proxy": "ALL_PROXY",
    "timeout": "UV_HTTP_TIMEOUT",
    "trusted-host": "UV_INSECURE_HOST",
}
"""What pip's settings are called by uv."""
_WITH_LIBRARY = ("soundfile",)
"""Packages of which uv takes the wheel for any machine, where pip takes the one that brings a
library for this machine."""
_WITHOUT_EFFECT = frozenset(
    {
        "cache-dir",
        "disable-pip-version-check",
        "no-cache-dir",
        "no-color",
        "no-compile",
        "no-input",
        "progress-bar",
        "quiet",
        "require-virtualenv",
        "retries",
        "root-user-action",
        "verbose",
    }
)
"""Settings that do not change what is installed."""


def pip_settings() -> dict[str, str]:
    """What files and variables tell `pip install`, by the settings' names."""
    listed = subprocess.run(
        [*_PIP, "config", "list"], stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    found: dict[tuple[int, str], str] = {}
    for line in listed.splitlines():
        place, value = line.split("=", 1)
        section, name = place.rsplit(".", 1)
        if section in _SECTIONS:
            found[_SECTIONS.index(section), name] = ast.literal_eval(value)
    return {name: found[place, name] for place, name in sorted(found)}


_SECTIONS = ("global", "install", ":env:")
"""Later ones are stronger."""


def uv_variables(settings: Mapping[str, str]) -> dict[str, str] | None:
    """pip's settings as uv's environment; None if uv could not do the same with them."""
    if settings.keys() - _VARIABLES.keys() - _WITHOUT_EFFECT:
        return None
    found = {
        _VARIABLES[name]: " ".join(settings[name].split())
        for name in settings
        if name in _VARIABLES
    }
    if "UV_FIND_LINKS" in found:
        found["UV_FIND_LINKS"] = found["UV_FIND_LINKS"].replace(" ", ",")
    # As pip: the best version of all that the indices have, whichever is named first.
    return {"UV_INDEX_STRATEGY": "unsafe-best-match", **found}


def with_uv(words: Sequence[str]) -> bool:
    """Install with uv; whether that went well."""
    variables = uv_variables(pip_settings())
    if variables is None:
        return False
    if importlib.util.find_spec("uv") is None:
        how = ("--quiet", "--no-compile", "--no-deps", "--only-binary", ":all:")
        got = subprocess.run([*_PIP, "install", *how, "uv"], check=False)
        if got.returncode:
            return False
    done = subprocess.run([*_UV, *words], env={**variables, **os.environ}, check=False)
    return done.returncode == 0


def with_their_libraries() -> int:
    """Let pip install again what uv took without its library; the exit status."""
    wanted = []
    for name in _WITH_LIBRARY:
        try:
            found = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        if "none-any" in (found.read_text("WHEEL") or ""):
            wanted.append(f"{name}=={found.version}")
    if not wanted:
        return 0
    how = ("--quiet", "--no-compile", "--no-deps", "--force-reinstall")
    return subprocess.run([*_PIP, "install", *how, *wanted], check=False).returncode


def main(words: Sequence[str]) -> int:
    """Install; the exit status."""
    if with_uv(words):
        return with_their_libraries()
    print("without uv: pip installs it, which takes longer", file=sys.stderr)
    done = subprocess.run([*_PIP, "install", "--quiet", "--no-compile", *words], check=False)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
