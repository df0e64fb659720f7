"""What kernels of convolutions are told: the same structures as in implicit_gemm.cuh."""

from __future__ import annotations

import ctypes

from caldera.kernels.common.geometry import Correlation, steps
from caldera.kernels.cuda.codegen.loop_operands import divisor
from caldera.kernels.table import Array


class Divider(ctypes.Structure):
    """`Divider` of tiled_product.cuh."""

    _fields_ = [(name, ctypes.c_uint) for name in ("divisor", "magic", "shift")]

    @classmethod
    def by(cls, number: int) -> Divider:
        """What divides numbers below 2^31."""
        return cls(*divisor(number))


class Window(ctypes.Structure):
    """`Window` of implicit_gemm.cuh."""

    _fields_ = [
        *[(name, Divider) for name in ("area", "width", "channels", "taps")],
        *[
            (name, ctypes.c_int)
            for name in (
                "pixels",
                "terms",
                "source_height",
                "source_width",
                "stride_y",
                "stride_x",
                "dilation_y",
                "dilation_x",
                "start_y",
                "start_x",
            )
        ],
    ]


class Steps(ctypes.Structure):
    """`Images` and `Filters` of implicit_gemm.cuh: the strides of images and of filters."""

    _fields_ = [
        (name, ctypes.c_longlong) for name in ("first", "channel", "row", "column", "group")
    ]


def window_of(work: Correlation) -> Window:
    """How output pixels of a correlation meet those of the image."""
    height, width = work.target
    return Window(
        area=Divider.by(max(1, height * width)),
        width=Divider.by(max(1, width)),
        channels=Divider.by(max(1, work.channels)),
        taps=Divider.by(max(1, work.taps[1])),
        pixels=work.batch * height * width,
        terms=work.channels * work.taps[0] * work.taps[1],
        **by_axis("source_", work.source, ("height", "width")),
        **by_axis("stride_", work.stride),
        **by_axis("dilation_", work.dilation),
        **by_axis("start_", work.start),
    )


def by_axis(
    prefix: str, pair: tuple[int, int], names: tuple[str, str] = ("y", "x")
) -> dict[str, int]:
    """A number along rows and one along columns, by their names.

    >>> by_axis("stride_", (2, 3))
    {'stride_y': 2, 'stride_x': 3}
    """
    return {f"{prefix}{name}": each for name, each in zip(names, pair, strict=True)}


def image_steps(array: Array, channels: int) -> Steps:
    """Images (N, C, H, W), so many channels of them a group."""
    image, channel, row, column = steps(array)
    return Steps(first=image, channel=channel, row=row, column=column, group=channels * channel)


def filter_steps(array: Array, each: int, *, turned: bool) -> Steps:
    """Filters (K, C / groups, R, S), `each` of them a group; turned, their channels are results."""
    result, channel, row, column = steps(array)
    first, second = (channel, result) if turned else (result, channel)
    return Steps(first=first, channel=second, row=row, column=column, group=each * result)
