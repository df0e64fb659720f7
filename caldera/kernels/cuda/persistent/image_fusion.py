"""Chains of works on the same images as one part.

A block does all works for its image, without waiting for other blocks in between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from caldera.core.memory.software import address_of
from caldera.kernels.cuda.codegen.kernel import Array
from caldera.kernels.cuda.persistent.fusion import conflict, meet, same
from caldera.kernels.cuda.persistent.images import (
    AXES,
    Epilogue,
    ImageTask,
    ImageWork,
    image_work,
)
from caldera.kernels.cuda.persistent.program import (
    SharedAccess,
    SharedImage,
    SharedMemoryMap,
    SharedTile,
)
from caldera.kernels.cuda.persistent.tasks import (
    THREADS,
    Early,
    TaskText,
    TileAccess,
    TileTask,
    Zones,
    dynamic_floats,
    units_of,
)

LOAD = 1 << 18
"""Minimum number of multiplications for an image that count as a unit of other parts."""


@dataclass(eq=False)
class FusedImages:
    """Works on images in order."""

    works: list[ImageWork]
    hidden: list[Array] = field(default_factory=list)
    """Arrays that no other piece reads."""

    @property
    def images(self) -> int:
        """Number of images."""
        return self.works[0].images

    @property
    def reads(self) -> list[Array]:
        """Arrays that are read."""
        return [array for work in self.works for array in work.reads]

    @property
    def writes(self) -> list[Array]:
        """Arrays that are written."""
        return [array for work in self.works for array in work.writes]

    @property
    def common(self) -> list[Array]:
        """Arrays read not only at the position of the block's image."""
        return [array for work in self.works for array in work.common]

    def takes(self, work: ImageWork) -> bool:
        """Return True if a block can do this work for its image directly after its works."""
        if work.images != self.images:
            return False
        if meet(self.writes, work.common) or meet(work.writes, self.common):
            return False
        seen = [near.array for near in work.near if meet(self.writes, [near.array])]
        if not all(_among(array, self.writes) for array in seen):
            return False
        if not FusedImages([*self.works, work]).fits:
            return False
        touched = [(self.writes, [*work.reads, *work.writes]), (work.writes, self.reads)]
        return all(
            _same_images(one, other)
            for some, others in touched
            for one in some
            for other in others
            if meet([one], [other])
        )

    @property
    def fits(self) -> bool:
        """True if the data of its works fit into shared memory."""
        near = [each for work in self.works for each in work.near]
        return self._scratch + sum(each.padded_floats for each in near) <= dynamic_floats()

    @property
    def _scratch(self) -> int:
        return max(work.scratch for work in self.works)

    def _near(self) -> tuple[list[SharedTile], list[SharedImage]]:
        """Return the arrays loaded to shared memory, and the arrays written there.

        All results passed between works are written there, as long as they fit.
        """
        brought: list[SharedTile] = []
        made: list[SharedImage] = []
        written: list[Array] = []
        read: list[Array] = []
        for work in self.works:
            for near in work.near:
                if isinstance(near, SharedImage) and _among(near.array, written):
                    made.append(near)
                else:
                    brought.append(near)
            read += [array for array in work.reads if _among(array, written)]
            written += [
                array for array in work.writes if (array.ndim == AXES and array.dtype == np.float32)
            ]
        taken = sum(each.padded_floats for each in (*brought, *made))
        left = dynamic_floats() - self._scratch - taken
        for array in read:
            copy = SharedImage(array, (0, 0), array.shape[2:], array.shape[1])
            if not _among(array, [each.array for each in made]) and copy.padded_floats <= left:
                made.append(copy)
                left -= copy.padded_floats
        return brought, made

    def hide(self, is_scratch: Callable[[Array], bool], others: Sequence[Array]) -> None:
        """Record arrays that only its works read, if they read them as written."""
        for array in self.writes:
            seen = [each for each in self.reads if meet([each], [array])]
            if (
                is_scratch(array)
                and not meet([array], others)
                and all(same(array, each) for each in seen)
            ):
                self.hidden.append(array)

    def task(self, finish: Epilogue) -> TileTask:
        """Return a unit an image."""

        def code(places: TileAccess, early: Early, start: int | None) -> tuple[TaskText, Zones]:
            brought, made = self._near()
            layout = SharedMemoryMap(soon=False)
            layout.add("spare", self._scratch, early=False)
            for near in made:
                layout.add(f"{id(near)}", near.padded_floats, early=False)
            for each in brought:
                layout.add(f"{id(each)}", each.padded_floats, early=early(each.array))
            layout.end(start)
            found = [(each, layout.place(f"{id(each)}")) for each in (*made, *brought)]
            ahead, late = list[str](), list[str]()
            for each, to in found[len(made) :]:
                (ahead if early(each.array) else late).append(each.bring(places, to))
            lines = [f"float* spare = {layout.place('spare')};"]
            for near in made:
                if near.is_framed:
                    lines += [
                        f"for (i32 e = thread_now(); e < {near.floats}; e += {THREADS})",
                        f"    ({layout.place(f'{id(near)}')})[e] = 0.0f;",
                    ]
            lines += ["copies_done<1>();"]
            nearby = SharedAccess(places, found, self.hidden)
            for work in self.works:
                body = (f"    {line}" for line in work.code(nearby, finish))
                lines += ["__syncthreads();", "{", *body, "}"]
            texts = (["i32 image = unit;", *each] if each else [] for each in (lines, ahead, late))
            return TaskText(*texts), layout.zones

        load = sum(work.load for work in self.works)
        return TileTask(
            " ".join(getattr(work, "name", "pixels") for work in self.works),
            self.images,
            self.reads,
            self.writes,
            code,
            heavy=True,
            load=self.images * units_of(load, LOAD),
        )


def _among(array: Array, others: Sequence[Array]) -> bool:
    return any(same(array, each) for each in others)


def _same_images(one: Array, other: Array) -> bool:
    """Return True if images of equal index share their memory in both arrays.

    Different images must not overlap.
    """
    return (
        address_of(one) == address_of(other)
        and one.shape[:1] == other.shape[:1]
        and one.strides[:1] == other.strides[:1]
        and all(_reach(each) <= each.strides[0] for each in (one, other))
    )


def _reach(array: Array) -> int:
    """Return the bytes from an image's first element to its end."""
    steps = zip(array.shape[1:], array.strides[1:], strict=True)
    return array.itemsize + sum((length - 1) * stride for length, stride in steps)


def fuse_images(pieces: Sequence[Any], is_scratch: Callable[[Array], bool]) -> list[Any]:
    """Return the pieces with works on images in chains."""
    found: list[Any] = []
    for piece in pieces:
        work = image_work(piece)
        if work is None:
            found.append(piece)
            continue
        chains = [each for each in found if isinstance(each, FusedImages)]
        for chain in reversed(chains):
            order = _moved(found, chain, work)
            if order is not None:
                found = order
                chain.works.append(work)
                break
        else:
            found.append(FusedImages([work]))
    for chain in found:
        if isinstance(chain, FusedImages):
            others = [array for each in found if each is not chain for array in each.reads]
            chain.hide(is_scratch, others)
    return [_alone(each) for each in found]


def _moved(pieces: list[Any], chain: FusedImages, work: ImageWork) -> list[Any] | None:
    """Return the pieces reordered such that the chain follows all requirements of the work.

    The result is None if a requirement of the work depends on the chain, or if the work cannot be
    part of the chain.
    """
    place = pieces.index(chain)
    ready: list[Any] = []
    waiting: list[Any] = []
    for each in pieces[place + 1 :]:
        waits = any(conflict(earlier, each) for earlier in (chain, *waiting))
        (waiting if waits else ready).append(each)
    if not chain.takes(work) or any(conflict(each, work) for each in waiting):
        return None
    return [*pieces[:place], *ready, chain, *waiting]


def _alone(piece: Any) -> Any:
    """Return the original loop or gather for a chain that consists only of this work."""
    if isinstance(piece, FusedImages) and len(piece.works) == 1:
        (work,) = piece.works
        if isinstance(work, ImageTask) and work.alone is not None:
            return work.alone
    return piece
