"""What tests of sessions share: graphs whose leaves are arrays of a session."""

from __future__ import annotations

import numpy as np

import caldera as cd
from caldera.compiler.sharding.distributions import Replicated
from caldera.core.graph.node import Symbol
from caldera.core.graph.ops.base import tensor
from caldera.dmath.session import Handle, Session


def leaf(handle: Handle) -> cd.Expr:
    """An array of a session in an expression."""
    return cd.Expr(tensor(symbol=Symbol("", handle.spec, "tensor", handle)))


def everywhere(session: Session, array: np.ndarray) -> Handle:
    """An array that all ranks have."""
    return session.put(array, Replicated().of(array.shape, range(session.ranks)))


def computed(session: Session, expression: cd.Expr) -> np.ndarray:
    """The value of an expression."""
    return session.get(session.run([expression.node])[0])
