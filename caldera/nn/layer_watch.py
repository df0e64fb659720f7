"""Whether a layer is another than it was: somebody may change one of which plans have been made."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from caldera.nn.layer import Layer


class LayerWatch:
    """Tells whether a layer, or one below it, is another than when it was last looked at.

    Somebody may assign to an attribute of a layer, or put another in its place, when plans have
    been made of it as it was.

    >>> from caldera import nn, op
    >>> layer = nn.Sequential([nn.LeakyReLU(0.1)])
    >>> _ = layer(op.input("x", (1, 2)))
    >>> watch = LayerWatch(layer)
    >>> layer.layers[0].slope = 0.2
    >>> watch.saw_change(layer), watch.saw_change(layer)
    (True, False)
    """

    _noted: ClassVar[int] = 0
    """Changes of all layers: as long as it stays, no layer has to be looked at."""

    def __init__(self, layer: Layer) -> None:
        self._seen = LayerWatch._noted
        self._marks = _marks(layer)

    @classmethod
    def note(cls) -> int:
        """A layer changes; the number of the change."""
        cls._noted += 1
        return cls._noted

    def saw_change(self, layer: Layer) -> bool:
        """Whether the layer has changed since this was last asked."""
        if self._seen == LayerWatch._noted:
            return False
        self._seen = LayerWatch._noted
        before, self._marks = self._marks, _marks(layer)
        return before != self._marks


def _marks(layer: Layer) -> tuple[tuple[int, int], ...]:
    return tuple((id(each), each._changed) for each in layer.walk())
