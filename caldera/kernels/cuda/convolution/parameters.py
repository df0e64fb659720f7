"""What kernels of convolutions are told: the same structures as in implicit_gemm.cuh."""

from __future__ import annotations

import ctypes

from caldera.kernels.common.geometry import Correlation, steps
from caldera.kernels.table import Array


class Divider(ctypes.Structure):
    """`Divider` of tiled_product.cuh."""

    _fields_ = [(name, ctypes.c_uint) for name in ("divisor", "magic", "shift")]

    @classmethod
    def by(cls, divisor: int) -> Divider:
        """What divides numbers below 2^31."""
        shift = (divisor - 1).bit_length()
        return cls(divisor, ((1 << 32) * ((1 << shift) - divisor)) // divisor + 1, shift)


class Window(ctypes.Structure):
    """`Window` of implicit_gemm.cuh."""

    _fields_ = [
        *[(name, Divider) for name in ("area", "width", "channels", "taps")],
        *[(name, ctypes.c_int) for name in (
            "pixels", "terms", "source_height", "source_width", "stride_y", "stride_x",
            "dilation_y", "dilation_x", "start_y", "start_x",
        )],
    ]  # fmt: skip


class Steps(ctypes.Structure):
    """`Images` and `Filters` of implicit_gemm.cuh: the strides of images and of filters."""

    _fields_ = [
        (name, ctypes.c_longlong) for name in ("first", "channel", "row", "column", "group")
    ]


def window_of(work: Correlation) -> Window:
    """How output pixels of a correlation meet those of the image."""
    height, width = work.target
    return Window(
        Divider.by(max(1, height * width)), Divider.by(max(1, width)),
        Divider.by(max(1, work.channels)), Divider.by(max(1, work.taps[1])),
        work.batch * height * width, work.channels * work.taps[0] * work.taps[1],
        *work.source, *work.stride, *work.dilation, *work.start,
    )  # fmt: skip


def image_steps(array: Array, channels: int) -> Steps:
    """Images (N, C, H, W), so many channels of them a group."""
    image, channel, row, column = steps(array)
    return Steps(image, channel, row, column, channels * channel)


def filter_steps(array: Array, each: int, *, turned: bool) -> Steps:
    """Filters (K, C / groups, R, S), `each` of them a group; turned, their channels are results."""
    result, channel, row, column = steps(array)
    lines = (channel, result) if turned else (result, channel)
    return Steps(*lines, row, column, each * result)
