"""The memory of intermediate values, which plans use one after the other."""

from __future__ import annotations

import threading

from caldera.memory import Block, Device


class SharedArena:
    """The block that plans of one thread on one device use one after the other."""

    _of_thread = threading.local()

    def __init__(self, device: Device) -> None:
        self._device = device
        self.block: Block | None = None

    @classmethod
    def of(cls, device: Device) -> SharedArena:
        """The arena of a device for the calling thread."""
        arenas: dict[Device, SharedArena] = cls._of_thread.__dict__.setdefault("arenas", {})
        if device not in arenas:
            arenas[device] = cls(device)
        return arenas[device]

    def at_least(self, nbytes: int) -> Block:
        """The block, replaced by a larger one if it is too small."""
        if self.block is None or self.block.nbytes < nbytes:
            self.block = None
            if not self._device.is_host:
                # The memory of a device is scarce: the old block must not lie beside the new one.
                self._device.trim()
            self.block = self._device.allocate(nbytes, owner="arena")
        return self.block
