"""Matrix products: cuBLAS, cuBLASLt, and tiles of our own."""
