"""Convolutions of few channels through tensor cores: a block keeps all that its pixels see, and all
filters, in shared memory, so images are read once and not once for each tap."""
