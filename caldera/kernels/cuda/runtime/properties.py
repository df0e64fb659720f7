"""What is fixed about a card: it decides which kernels can run there, and how these share work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from caldera.base.amounts import bytes_text
from caldera.errors import DeviceError


@dataclass(frozen=True)
class CardProperties:
    """A card as its driver describes it.

    >>> turing = CardProperties((7, 5), 46, 64 << 10, 1024)
    >>> turing.architecture, turing.has_bfloat16
    ('sm_75', False)
    """

    capability: tuple[int, int]
    multiprocessors: int
    shared_bytes: int
    """The most shared memory that a block may ask for."""
    threads: int
    """Threads that a multiprocessor holds."""
    registers: int = 65536
    """Registers of a multiprocessor: all cards from 5.0 on have as many."""
    memory: int = 0
    """Bytes of the card's memory; 0 if nobody has asked."""

    @classmethod
    def of(cls, capability: str, attributes: Mapping[str, Any], memory: int) -> CardProperties:
        """The card with these attributes, as CuPy names them, and a capability such as "90"."""
        return cls(
            (int(capability[:-1]), int(capability[-1])),
            int(attributes["MultiProcessorCount"]),
            int(attributes["MaxSharedMemoryPerBlockOptin"]),
            int(attributes["MaxThreadsPerMultiProcessor"]),
            memory=memory,
        )

    @property
    def architecture(self) -> str:
        """What compilers call it."""
        return f"sm_{self.capability[0]}{self.capability[1]}"

    @property
    def has_bfloat16(self) -> bool:
        """Whether its tensor cores multiply bfloat16."""
        return self.capability >= (8, 0)

    @property
    def has_tf32(self) -> bool:
        """Whether its tensor cores multiply float32 rounded to tf32."""
        return self.capability >= (8, 0)

    @property
    def has_float8(self) -> bool:
        """Whether its tensor cores multiply numbers of 8 bits."""
        return self.capability >= (8, 9)

    def refuse_precision(self, precision: str) -> None:
        """Raise where products in this precision would need tensor cores that the card has not."""
        if {"bfloat16": self.has_bfloat16, "tf32": self.has_tf32}.get(precision, True):
            return
        capability = ".".join(map(str, self.capability))
        raise DeviceError.build(
            "precision",
            expected=f"float16 on this card, whose compute capability is {capability}",
            got=repr(precision),
            hint="bfloat16 and tf32 need 8.0 or above: ask for float16, or leave precision out",
        )

    def rows(self) -> dict[str, int | str]:
        """What `caldera info` says of it.

        >>> CardProperties((8, 6), 84, 99 << 10, 1536).rows()["tensor cores multiply"]
        'float16, bfloat16, tf32'
        """
        known = {
            "float16": True,
            "bfloat16": self.has_bfloat16,
            "tf32": self.has_tf32,
            "float8": self.has_float8,
        }
        able = ["every family of our own"]
        if not self.has_tf32:
            able.append("convolutions of few channels in float16 alone")
        return {
            "compute capability": ".".join(map(str, self.capability)),
            "multiprocessors": self.multiprocessors,
            "shared memory of a block": bytes_text(self.shared_bytes),
            "memory": bytes_text(self.memory) if self.memory else "unknown",
            "tensor cores multiply": ", ".join(name for name, has in known.items() if has),
            "kernels": ", ".join(able),
        }

    def resident_blocks(self, shared: int, threads: int, registers: int) -> int:
        """Blocks on one multiprocessor, of which each takes so much shared memory, and so many
        registers a thread.

        >>> CardProperties((9, 0), 132, 227 << 10, 2048).resident_blocks(50 << 10, 256, 64)
        4
        """
        by_registers = self.registers // (threads * registers)
        return min(self.shared_bytes // (shared + RESERVED), by_registers, self.threads // threads)


RESERVED = 1 << 10
"""Bytes of shared memory that each block takes beside what it asks for."""
