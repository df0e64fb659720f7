"""What a block has in shared memory while it works on an image: images with a border, filters.

What the work on an image makes and reads again is written there too, and read from there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from caldera.core.tensor.shape import size
from caldera.kernels.cuda.codegen.signature import Array
from caldera.kernels.cuda.persistent.epilogue_fusion import same
from caldera.kernels.cuda.persistent.memory_access import Access, DelegatingAccess
from caldera.kernels.cuda.persistent.tasks import THREADS, units_of


@dataclass(frozen=True, eq=False)
class SharedTile(ABC):
    """An array of which a part is in shared memory."""

    array: Array

    @property
    @abstractmethod
    def floats(self) -> int:
        """How much that takes."""

    @property
    def padded_floats(self) -> int:
        """The same up to a multiple of 16 bytes, where the next one may begin."""
        return 4 * units_of(self.floats, 4)

    @abstractmethod
    def bring(self, places: Access, to: str) -> str:
        """The statement that begins to bring it."""


@dataclass(frozen=True, eq=False)
class SharedImage(SharedTile):
    """An image: `border` pixels of 0 before the first, `padded` in all, each `apart` floats."""

    border: tuple[int, int]
    padded: tuple[int, int]
    apart: int

    @property
    def floats(self) -> int:
        """With the border."""
        return size(self.padded) * self.apart

    @property
    def is_framed(self) -> bool:
        """Whether there is any border."""
        return self.padded != self.array.shape[2:]

    def bring(self, places: Access, to: str) -> str:
        """The statement that begins to bring `image`."""
        _, channels, down, across = self.array.shape
        strides = [stride // 4 for stride in self.array.strides[1:]]
        numbers = (
            channels,
            self.apart,
            down,
            across,
            *self.border,
            *self.padded,
            *strides,
            THREADS,
        )
        start = places.element(self.array, ["image", "0", "0", "0"])
        return f"block_bring_image<{', '.join(map(str, numbers))}>({to}, &{start});"

    def element(self, to: str, here: Sequence[str]) -> str:
        """An element, to be read or written; one pixel or channel may stand for all of a loop."""
        counts = self.array.shape[1:]
        channel, y, x = ("0" if n == 1 else at for n, at in zip(counts, here[1:], strict=True))
        top, left = self.border
        row = f"(({y}) + {top}) * {self.padded[1]}"
        return f"({to})[({row} + ({x}) + {left}) * {self.apart} + ({channel})]"


@dataclass(frozen=True, eq=False)
class SharedFilters(SharedTile):
    """Filters: a line for each tap; `turned` for the gradient of what they were applied to."""

    line: int
    turned: bool

    @property
    def floats(self) -> int:
        """A line has a number for each result."""
        results, channels, *taps = self.array.shape
        return (results if self.turned else channels) * size(tuple(taps)) * self.line

    def bring(self, places: Access, to: str) -> str:
        """The statement that begins to bring all of them."""
        strides = [stride // 4 for stride in self.array.strides]
        turned = str(self.turned).lower()
        numbers = (*self.array.shape, *strides, self.line, turned, THREADS)
        return f"block_bring_taps<{', '.join(map(str, numbers))}>({to}, {places.name(self.array)});"


class SharedAccess(DelegatingAccess):
    """Access to arrays some of which have copies in shared memory: these are read, and written too.

    Arrays that are `hidden` are only written there.
    """

    def __init__(
        self, places: Access, found: Sequence[tuple[SharedTile, str]], hidden: Sequence[Array]
    ) -> None:
        super().__init__(places)
        self._found = found
        self._hidden = hidden

    def over(self, places: Access) -> SharedAccess:
        """The same copies of memory that is reached through other places."""
        return SharedAccess(places, self._found, self._hidden)

    @property
    def beyond(self) -> Access:
        """The places without copies."""
        return self._places

    def place(self, near: SharedTile) -> str:
        """Where something lies."""
        return next(to for each, to in self._found if each is near)

    def load(self, array: Array, coordinates: Sequence[str]) -> str:
        copies = self._copies(array, coordinates)
        return f"(float){copies[0]}" if copies else super().load(array, coordinates)

    def store(self, array: Array, coordinates: Sequence[str], value: str) -> str:
        copies = [f"{each} = {value};" for each in self._copies(array, coordinates)]
        if not copies or not any(same(array, each) for each in self._hidden):
            copies.insert(0, super().store(array, coordinates, value))
        return " ".join(copies)

    def _copies(self, array: Array, coordinates: Sequence[str]) -> list[str]:
        return [
            near.element(to, coordinates)
            for near, to in self._found
            if isinstance(near, SharedImage) and same(near.array, array)
        ]
