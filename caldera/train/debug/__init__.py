"""Finding what went wrong: non-finite values, wrong gradients."""
