"""`python -m caldera`: the command line without the installed `caldera` script."""

from __future__ import annotations

import sys

from caldera.cli.program import main

if __name__ == "__main__":
    sys.exit(main())
