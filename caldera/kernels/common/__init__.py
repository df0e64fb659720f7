"""What kernels for the CPU share: the BLAS that NumPy brought along, and cutting up workspaces."""

from __future__ import annotations
