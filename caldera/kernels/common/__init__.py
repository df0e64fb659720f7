"""Utilities shared by kernels of all devices: geometry, operands, loops, workspaces, messages."""
