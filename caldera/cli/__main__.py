"""`python -m caldera.cli`: the same as the `caldera` script."""

from __future__ import annotations

import sys

from caldera.cli.program import main

if __name__ == "__main__":
    sys.exit(main())
