"""Kernels compiled to machine code by LLVM, for the CPU; `families` registers them."""
