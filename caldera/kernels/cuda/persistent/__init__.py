"""Training steps of small networks as one kernel that stays on the GPU."""

from __future__ import annotations

from caldera.kernels.cuda.persistent.kernel import PersistentStep, persistent_step

__all__ = ["PersistentStep", "persistent_step"]
