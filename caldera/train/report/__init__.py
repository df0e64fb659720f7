"""A run as one HTML page that needs nothing else: `caldera report FOLDER`.

Everything on the page comes from the folder of a run, which is not trusted: texts are escaped, the
picture of the graph is taken apart and put together again, and only our own script may run.
"""

from __future__ import annotations

from caldera.base.arguments import guard as _guard
from caldera.train.report.compare import compare_page
from caldera.train.report.run import run_page

__all__ = ["compare_page", "run_page"]

_guard(globals())
