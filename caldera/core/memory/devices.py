"""Devices by name or number, the four kinds of memory, and a memory report of all devices."""

from __future__ import annotations

import difflib
import enum
import threading
from collections.abc import Callable

from caldera.base.arguments import checked
from caldera.base.config import settings
from caldera.base.formatting import bytes_text
from caldera.core.memory.cuda import CudaDevice
from caldera.core.memory.gpus import PACKAGE, card_count, own_card
from caldera.core.memory.host import HostDevice, LoopbackDevice
from caldera.core.memory.interface import Device
from caldera.errors import DeviceError

_cpu = HostDevice()
_devices: dict[str, Device] = {"cpu": _cpu}
_lock = threading.Lock()
_makers: dict[str, Callable[[int], Device]] = {
    "loopback": lambda index: LoopbackDevice(index, _cpu.pool),
    "cuda": lambda index: _card(index),
}


@checked
def register_device(kind: str, make: Callable[[int], Device]) -> None:
    """Register a device kind: `device("kind:n")` calls `make(n)` once, on first use."""
    _makers[kind] = make


def device(spec: Device | str | int | None = None) -> Device:
    """Return the device denoted by `spec`.

    None is the default device, a number n is accelerator n of `settings.accelerator`, and a name is
    "cpu", "loopback", "loopback:1" or "cuda:0". Where several ranks were started together on a
    machine with GPUs, None and "cuda" denote this rank's GPU. A `Device` is returned unchanged.

    >>> import caldera as cd
    >>> cd.device("loopback") is cd.device("loopback:0")
    True
    >>> with cd.settings.override(accelerator="loopback"):
    ...     cd.device(1)
    <device loopback:1>
    """
    if spec is None:
        return _numbered(None)
    # The first test is ten times as fast as the second, and every tensor passes here.
    if type(spec) is HostDevice or isinstance(spec, Device):
        return spec
    if isinstance(spec, str):
        return _named(spec)
    if isinstance(spec, int) and not isinstance(spec, bool):
        return _numbered(spec)
    raise DeviceError.build("device", expected="a name, a number, a device or None", got=repr(spec))


def names_device(spec: object) -> bool:
    """Return True for a number, a device, or the name of a device of any registered kind.

    >>> names_device("cuda:3"), names_device("float32"), names_device(0)
    (True, False, True)
    """
    if isinstance(spec, str):
        return spec.partition(":")[0] in ("cpu", *_makers)
    return type(spec) is int or isinstance(spec, Device)


def memory_report() -> str:
    """Return a table of every device's memory: bytes in use, cached, at the peak, and by owner.

    >>> import caldera as cd
    >>> print(cd.memory_report().splitlines()[0])
    memory                in use       cached         peak     capacity
    """
    lines = [_row("memory", "in use", "cached", "peak", "capacity")]
    for found in list(_devices.values()):
        for pool in found.pools:
            capacity = "system" if pool.capacity is None else bytes_text(pool.capacity)
            amounts = (
                bytes_text(pool.in_use),
                bytes_text(pool.cached),
                bytes_text(pool.peak),
                capacity,
            )
            lines.append(_row(pool.name, *amounts))
            lines += [_row(f"  {owner}", bytes_text(size)) for owner, size in pool.report().items()]
    return "\n".join([*lines, *(line() for line in _further_lines)])


_further_lines: list[Callable[[], str]] = []


def add_to_report(line: Callable[[], str]) -> None:
    """Let the memory report end with a line about something that holds memory."""
    _further_lines.append(line)


def empty_cache() -> int:
    """Return unused memory of every device to the system, and return the number of bytes.

    Freed memory is otherwise cached, which makes later allocations much faster. Other programs, and
    other libraries on the same GPU, can use it only after this call.

    >>> import caldera as cd
    >>> t = cd.Tensor((1000,))
    >>> del t
    >>> cd.empty_cache() >= 4000
    True
    >>> cd.device("cpu").pool.cached
    0
    """
    return sum(found.empty_cache() for found in list(_devices.values()))


def _row(name: str, *columns: str) -> str:
    return f"{name:<16}" + "".join(f"{column:>12} " for column in columns).rstrip()


def _numbered(index: int | None) -> Device:
    """Return accelerator number `index`, or the default one."""
    accelerator = settings.accelerator
    if accelerator == "auto":
        accelerator = "cuda" if card_count() else "cpu"
    if index is None:
        index = own_card() if accelerator == "cuda" else 0
    if accelerator == "cpu":
        if index == 0:
            return _cpu
        raise DeviceError.build(
            f"device {index}",
            expected="device 0, the only one with accelerator 'cpu'",
            got=str(index),
            hint=f'use "loopback:{max(index, 0)}" to test placement on several devices',
        )
    return _named(f"{accelerator}:{index}")


def _named(name: str) -> Device:
    known = _devices.get(name)
    if known is not None:
        return known
    kind, _, number = name.partition(":")
    if kind in _makers and (name == kind or (number.isascii() and number.isdigit())):
        index = int(number) if number else own_card() if kind == "cuda" else 0
        full = f"{kind}:{index}"
        with _lock:
            if full not in _devices:
                _devices[full] = _makers[kind](index)
            return _devices[full]
    close = difflib.get_close_matches(kind, ("cpu", *_makers), n=1)
    raise DeviceError.build(
        f"device {name!r}",
        expected='"cpu", "loopback", "loopback:1" or "cuda:0"',
        got=repr(name),
        hint=f"did you mean {close[0]!r}?" if close and close[0] != kind else "",
    )


def _card(index: int) -> Device:
    found = card_count()
    if index >= found:
        raise DeviceError.build(
            f"device 'cuda:{index}'",
            expected=f"one of {found} GPUs" if found else "an NVIDIA GPU",
            got="none that CuPy finds" if not found else f"number {index}",
            hint=f"pip install '{PACKAGE}' on a machine with a GPU; see caldera info"
            if not found
            else "the first GPU is cuda:0",
        )
    return CudaDevice(index)


class Kind(enum.Enum):
    """Location of memory and its permitted users.

    >>> import caldera as cd
    >>> cd.MANAGED
    <Kind.MANAGED: 'a host and a device side, copied when the side that is read is stale'>
    """

    HOST = "host memory only"
    DEVICE = "memory of the device only"
    MANAGED = "a host and a device side, copied when the side that is read is stale"
    CUDA_MANAGED = "one allocation that host and device both reach, moved by the driver"


HOST = Kind.HOST
DEVICE = Kind.DEVICE
MANAGED = Kind.MANAGED
CUDA_MANAGED = Kind.CUDA_MANAGED
