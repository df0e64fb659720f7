"""Kernels fixed by hand, for all nodes of an op on a family of devices."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import NamedTuple

from caldera.base.config import settings
from caldera.base.registry import nearest
from caldera.core.graph import OPS, Node
from caldera.errors import ConfigError
from caldera.kernels.table import TABLE, Kernel, KernelTable
from caldera.kernels.tuning.choice_store import ChoiceStore


class FixedKernel(NamedTuple):
    """A kernel fixed by the user; an optional one is skipped for nodes it cannot run."""

    name: str
    optional: bool = False


Fixed = Mapping[tuple[str, str], FixedKernel]
"""By op and family of devices, the kernel that was fixed by hand."""


def cannot_serve(node: Node, name: str, reason: str, candidates: Iterable[Kernel]) -> ConfigError:
    """Return the error for a fixed kernel that cannot run a node."""
    others = ", ".join(kernel.name for kernel in candidates if kernel.name != name)
    op = node.op.name
    return ConfigError.build(
        f"choices.fix({op!r}, {name!r})",
        expected=f"a kernel that can run {node!r}",
        got=f"{name}, {reason}",
        hint=f"fix another one ({others}), pass optional=True to let others run such nodes, or "
        f"call choices.unfix({op!r})",
    )


class FixedKernels(ChoiceStore):
    """Choices of which the user may fix some.

    >>> FixedKernels().fixed
    {}
    """

    def __init__(self, table: KernelTable = TABLE) -> None:
        super().__init__()
        self._table = table
        self._fixed: dict[tuple[str, str], FixedKernel] = {}
        self._generation = 0

    @property
    def version(self) -> Hashable:
        """Differs whenever choices made so far may no longer hold; part of the key of a plan.

        >>> from caldera.kernels.tuning.choose import Choices
        >>> choices = Choices()
        >>> before = choices.version
        >>> choices.fix("matmul", "reference")
        >>> choices.version == before
        False
        """
        limits = (settings.workspace_limit, settings.workspace_total)
        return self._generation, *limits, settings.accuracy

    @property
    def fixed(self) -> Fixed:
        """Kernels fixed by the user at this time; a plan stores them when it is built.

        >>> from caldera.kernels.tuning.choose import Choices
        >>> choices = Choices()
        >>> choices.fix("matmul", "reference")
        >>> choices.fixed["matmul", "cpu"].name
        'reference'
        """
        with self._lock:
            return dict(self._fixed)

    def fix(
        self, op: str, kernel_name: str, family: str = "cpu", *, optional: bool = False
    ) -> None:
        """Use this kernel for an op in this process, whichever is faster.

        Plans that exist keep their kernels; new ones follow. A node that the kernel cannot run is
        an error, which names both. With `optional=True` another kernel runs such a node:
        `plan.explain()` shows the kernel of each step.

        >>> from caldera.kernels.tuning.choose import choices
        >>> choices.fix("matmul", "blas")
        >>> choices.unfix("matmul")
        """
        _check_op("choices.fix", op)
        names = self._table.names(op, family)
        if kernel_name not in names:
            raise ConfigError.build(
                "choices.fix",
                expected=f"a kernel for op.{op}: {', '.join(names) or 'none'}",
                got=repr(kernel_name),
            )
        with self._lock:
            self._fixed[op, family] = FixedKernel(kernel_name, optional)
            self._generation += 1

    def unfix(self, op: str, family: str = "cpu") -> None:
        """Choose for this op by measuring again.

        >>> from caldera.kernels.tuning.choose import choices
        >>> choices.unfix("conv2d")
        """
        _check_op("choices.unfix", op)
        with self._lock:
            self._fixed.pop((op, family), None)
            self._generation += 1


def _check_op(where: str, op: str) -> None:
    if op not in OPS:
        raise ConfigError.build(where, expected="an op's name", got=repr(op), hint=nearest(op, OPS))
