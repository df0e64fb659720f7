"""Factorizations and solves: cuSOLVER, and batched kernels of our own."""
