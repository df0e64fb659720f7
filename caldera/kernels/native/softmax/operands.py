"""Arrays of ops along one axis, the classes: those with a number for each class, or one a sample.

See `sample.py` for how samples and classes share the lanes of vectors.
"""

from __future__ import annotations

from dataclasses import dataclass

from caldera.kernels.native.codegen import (
    I64,
    ElementPointer,
    Emitter,
    Number,
    RegisterValue,
)


@dataclass(frozen=True)
class ClassOperand:
    """Numbers of one sample (or several, side by side in the lanes), one for each class.

    `step` is the distance between classes, `apart` that between samples; None: side by side.
    """

    k: Emitter
    base: ElementPointer
    step: RegisterValue | None
    apart: RegisterValue | None

    def load(self, index: Number, count: int) -> RegisterValue:
        """One class of `count` samples, or `count` classes of one."""
        place = self._place(index)
        if self.apart is None:
            return self.base.load(place, count)
        lanes = range(count)
        return self.k.vector_of([self.base.load(place + self._offset(lane)) for lane in lanes])

    def store(self, index: Number, value: RegisterValue) -> None:
        """Write what `load` would read."""
        place = self._place(index)
        if self.apart is None:
            self.base.store(place, value)
            return
        for lane in range(value.lanes):
            self.base.store(place + self._offset(lane), value.lane(lane))

    def load_at(self, index: RegisterValue) -> RegisterValue:
        """The class that `index` names for each sample."""
        places = [self._element(index.lane(lane), lane) for lane in range(index.lanes)]
        return self.k.vector_of([self.base.load(place) for place in places])

    def store_at(
        self, index: RegisterValue, value: RegisterValue, condition: RegisterValue
    ) -> None:
        """Write the class that `index` names for each sample, where the condition holds."""
        for lane in range(index.lanes):
            with self.k.if_then(condition.lane(lane)):
                place = self._element(index.lane(lane), lane)
                self.base.store(place, value.lane(lane))

    def _element(self, index: RegisterValue, lane: int) -> RegisterValue:
        place = self._place(index)
        return place + lane if self.apart is None else place + self._offset(lane)

    def _place(self, index: Number) -> RegisterValue:
        found = self.k.constant(index, I64)
        return found if self.step is None else found * self.step

    def _offset(self, lane: int) -> RegisterValue:
        assert self.apart is not None
        return self.apart * lane


@dataclass(frozen=True)
class Single:
    """Where the one number of each sample lies: a label, a loss, a loss's gradient."""

    k: Emitter
    base: ElementPointer
    apart: RegisterValue

    def load(self, count: int) -> RegisterValue:
        """That of this sample, or of the `count` samples in the lanes."""
        return self.k.vector_of([self.base.load(self.apart * lane) for lane in range(count)])

    def load_index(self, count: int) -> RegisterValue:
        """The same as int64."""
        return self.k.convert(self.load(count), I64, unsigned=self.base.name.startswith("u"))

    def store(self, value: RegisterValue) -> None:
        """Write it."""
        for lane in range(value.lanes):
            self.base.store(self.apart * lane, value.lane(lane))
