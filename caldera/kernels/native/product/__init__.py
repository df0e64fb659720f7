"""Matrix products: BLAS, small ones, and micro-kernels."""
