"""Generating machine code through LLVM: values, loops, mathematics, compiling."""
