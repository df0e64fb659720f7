"""What kernels of every device share: geometry, operands, loop bodies, workspaces, messages."""
