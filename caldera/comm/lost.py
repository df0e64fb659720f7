"""A rank that is gone while the others are still there."""

from __future__ import annotations

from caldera.errors import CommError


class RankLostError(CommError):
    """A rank has died, and this MPI lets the others go on: `communicator.Shrink()` gives them a
    communicator of their own.

    >>> issubclass(RankLostError, CommError)
    True
    """
