"""Random networks, trained on the CPU beside a GPU or PyTorch: long runs by `python -m`."""
