"""Exceptions of Caldera.

Every message has up to four parts: the location, the expected value, the actual value and a hint.
`CalderaError.build` combines them, so that all messages have the same form.
"""

from __future__ import annotations

from typing import Self


class CalderaError(Exception):
    """Base of every error that Caldera raises on purpose.

    >>> print(CalderaError.build("op.add", expected="equal dtypes", got="float32 and int8",
    ...                          hint="cast one operand with op.cast"))
    op.add: expected equal dtypes, got float32 and int8; cast one operand with op.cast
    """

    @classmethod
    def build(cls, where: str, *, expected: str = "", got: str = "", hint: str = "") -> Self:
        """Return an error whose message has the location, expected and actual value, and a hint."""
        middle = ", ".join(
            part for part in (expected and f"expected {expected}", got and f"got {got}") if part
        )
        return cls(where + (f": {middle}" if middle else "") + (f"; {hint}" if hint else ""))


class ShapeError(CalderaError, ValueError):
    """Shapes or axes that do not fit together.

    >>> issubclass(ShapeError, ValueError)
    True
    """


class IndexingError(ShapeError, IndexError):
    """An index outside an axis, more indices than axes, or something that is no index.

    >>> issubclass(IndexingError, IndexError)
    True
    """


class DtypeError(CalderaError, TypeError):
    """A dtype that an operation does not take, or a name that is no dtype.

    >>> issubclass(DtypeError, TypeError)
    True
    """


class DeviceError(CalderaError, RuntimeError):
    """A device that is not there, or memory used from the wrong side.

    >>> issubclass(DeviceError, RuntimeError)
    True
    """


class OutOfMemoryError(DeviceError, MemoryError):
    """A device is out of memory; the message has the request, the bytes in use and their owners.

    >>> issubclass(OutOfMemoryError, MemoryError)
    True
    """


class GradientError(CalderaError, ValueError):
    """A derivative was requested along a path that has none.

    >>> issubclass(GradientError, ValueError)
    True
    """


class NonFiniteError(CalderaError, ArithmeticError):
    """Training met a nan or an infinity; the message names the step and the op that produced it.

    >>> issubclass(NonFiniteError, ArithmeticError)
    True
    """


class DataError(CalderaError, ValueError):
    """A file or data set that is truncated, malformed, hostile or of the wrong kind.

    >>> issubclass(DataError, ValueError)
    True
    """


class FileWriteError(CalderaError, OSError):
    """A file that cannot be written, because the disk is full or refuses it.

    >>> issubclass(FileWriteError, OSError)
    True
    """


class CheckpointError(CalderaError, RuntimeError):
    """A checkpoint that is missing, damaged or made for another model.

    >>> issubclass(CheckpointError, RuntimeError)
    True
    """


class CommError(CalderaError, RuntimeError):
    """Ranks that disagree, or one that is gone.

    >>> issubclass(CommError, RuntimeError)
    True
    """


class RankLostError(CommError):
    """A rank has died, and this MPI supports continuing with the remaining ranks.

    `communicator.Shrink()` returns a new communicator of these ranks.

    >>> issubclass(RankLostError, CommError)
    True
    """


class ConfigError(CalderaError, ValueError):
    """A setting, name or option that does not exist or cannot have that value.

    >>> issubclass(ConfigError, ValueError)
    True
    """
