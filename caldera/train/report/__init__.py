"""A run as one self-contained HTML page: `caldera report FOLDER`.

Everything on the page is read from the folder of a run, which is not trusted. Texts are escaped,
the picture of the graph is parsed and rebuilt, and only our own script may run.
"""

from __future__ import annotations

from caldera.base.arguments import guard as _guard
from caldera.train.report.compare import compare_page
from caldera.train.report.run import run_page

__all__ = ["compare_page", "run_page"]

_guard(globals())
