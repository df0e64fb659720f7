"""Kernels compiled to machine code by LLVM. Importing this registers them for the CPU."""

from __future__ import annotations
