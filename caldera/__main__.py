"""`python -m caldera`: the command line without the installed `caldera` script."""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__" and not sys.flags.safe_path and sys.path[0] == str(Path.cwd()):
    # Python puts the current folder first, where a file may have the name of a library.
    del sys.path[0]

from caldera.cli.program import main

if __name__ == "__main__":
    sys.exit(main())
