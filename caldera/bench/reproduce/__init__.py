"""The seeds' own tables and figures, made again: what `caldera reproduce` runs.

An experiment is one file in `experiments` with an `EXPERIMENT`: what the seed says, a function that
runs it here, and rows with a verdict. What cannot be run here is listed with the reason and the
nearest thing that was.
"""

from __future__ import annotations
