"""A Caldera network as the identical network of another framework, to compare the two.

    from caldera.bench.translate import to_jax, to_torch

The translation has the same weights, accepts the same data and returns the same results and
gradients. It is written as a user of that framework would write it, with the framework's own layers
and functions, so that it is as fast as the framework can be. Each framework is optional.
"""

from __future__ import annotations

from caldera.bench.translate.networks import JaxNetwork, JaxState, TorchNetwork, to_jax, to_torch

__all__ = [
    "JaxNetwork",
    "JaxState",
    "TorchNetwork",
    "to_jax",
    "to_torch",
]
