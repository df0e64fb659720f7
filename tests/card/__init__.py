"""A card that is not there: the CUDA kernels of the package, run on the host."""
