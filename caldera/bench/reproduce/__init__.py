"""Tables and figures of the reference papers, reproduced by `caldera reproduce`.

An experiment is one file in `experiments` with an `EXPERIMENT`: the claim of the paper, a function
that runs it here, and rows with a verdict. Experiments that cannot be run here are listed with the
reason and the nearest measurement.
"""

from __future__ import annotations
