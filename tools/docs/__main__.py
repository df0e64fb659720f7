"""`python -m tools.docs [folder]`: build the documentation, and check its links."""

from __future__ import annotations

import sys
from pathlib import Path

from tools.docs.links import broken
from tools.docs.site import Site


def main() -> int:
    """Build it; 1 if a link is broken."""
    out = Path(sys.argv[1] if len(sys.argv) > 1 else "out/docs").resolve()
    written = Site().build(out)
    wrong = broken(out)
    for each in wrong:
        print(each, file=sys.stderr)
    print(f"{len(written)} pages in {out}: open {out / 'index.html'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
