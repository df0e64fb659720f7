"""Writing CUDA source: types, expressions, strided loops, operands."""
