"""What a program holds of an array whose parts are on ranks."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from caldera.compiler.sharding.layout import ShardLayout
from caldera.core.graph.node import Spec

if TYPE_CHECKING:
    from caldera.dmath.session import Session


class Handle:
    """An array by its `number`: its `spec`, its `layout`, and the `session` whose ranks have it.

    When nobody holds it any more, its parts are freed.
    """

    __slots__ = ("__weakref__", "layout", "number", "session", "spec")

    def __init__(self, session: Session, number: int, spec: Spec, layout: ShardLayout) -> None:
        self.session = session
        self.number = number
        self.spec = spec
        self.layout = layout
        weakref.finalize(self, session.forget, number).atexit = False

    def __repr__(self) -> str:
        return f"<array {self.number} {self.spec} on {len(self.layout.ranks)} ranks>"
