"""Compressors that send every value in fewer bits."""

from __future__ import annotations

from typing import Unpack

from caldera.compress._base import Options, compressors
from caldera.compress.codecs import (
    HalfPrecisionCodec,
    LosslessCodec,
    QsgdCodec,
    SignCodec,
    TernaryCodec,
)
from caldera.compress.dense import DenseCompressor


@compressors.register("cast")
class Cast(DenseCompressor):
    """16 bits a value: "bfloat16" or "float16". Sums are taken in float32.

    >>> import numpy as np
    >>> from caldera import comm, compress
    >>> def work(communicator):
    ...     gradient = np.array([1.0, 1e-8, 70000.0], np.float32)
    ...     compress.Cast("bfloat16").exchange("w", gradient, communicator)
    ...     return gradient.tolist()
    >>> comm.run_virtual_ranks(2, work)[0]
    [2.0, 2.0023435354232788e-08, 140288.0]
    """

    def __init__(
        self, dtype: str = "bfloat16", *, feedback: bool = False, **options: Unpack[Options]
    ) -> None:
        super().__init__(**options)
        self.code = HalfPrecisionCodec(dtype)
        self.sum_codec = HalfPrecisionCodec(dtype)
        self.feedback = feedback


@compressors.register("qsgd")
class QSGD(DenseCompressor):
    """2, 4 or 8 bits a value, rounded by chance and unbiased (Alistarh and others, 2017).

    `bucket` values share a scale. With `feedback` what rounding loses is kept for the next step:
    then it is no longer unbiased step by step, but nothing is ever lost.

    >>> from caldera import compress
    >>> compress.QSGD(bits=4).code.size(1024)
    520
    """

    def __init__(
        self,
        bits: int = 4,
        *,
        bucket: int = 512,
        feedback: bool = False,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(**options)
        self.code = QsgdCodec(bits, bucket)
        self.sum_codec = QsgdCodec(bits, bucket)
        self.feedback = feedback


@compressors.register("terngrad")
class TernGrad(DenseCompressor):
    """Three levels, 1.6 bits a value, clipped at `clip` deviations (Wen and others, 2017).

    A sum of n ranks has 2n + 1 levels, so sums travel in 8 bits.

    >>> from caldera import compress
    >>> compress.TernGrad().code.size(1000)
    204
    """

    def __init__(
        self, *, clip: float = 2.5, feedback: bool = False, **options: Unpack[Options]
    ) -> None:
        super().__init__(**options)
        self.code = TernaryCodec(clip)
        self.sum_codec = QsgdCodec(8)
        self.feedback = feedback


@compressors.register("one_bit")
class OneBit(DenseCompressor):
    """The signs, with two means for each `bucket` values; the error is kept and added to the next
    gradient, both of what a rank sends and of the sums (Seide and others, 2014). What is kept acts
    like momentum, of which an optimizer then needs none of its own; a learning rate and a weight
    decay that suit dense sums without momentum suit it too.

    >>> from caldera import compress
    >>> compress.OneBit(bucket=1024).code.size(8192)
    1088
    """

    def __init__(self, *, bucket: int = 512, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self.code = SignCodec(bucket)
        self.sum_codec = SignCodec(bucket)
        self.feedback = True


@compressors.register("lossless")
class Lossless(DenseCompressor):
    """Every bit of every value, packed where many are zero or repeated: equal to a plain sum.

    Gradients of embeddings, and those behind a ReLU that never fired, are mostly zeros.

    >>> import numpy as np
    >>> from caldera import comm, compress
    >>> def work(communicator):
    ...     gradient = np.zeros((1000, 64), np.float32)
    ...     gradient[communicator.rank] = 1.0
    ...     compress.Lossless().exchange("embedding", gradient, communicator)
    ...     return float(gradient.sum()), communicator.traffic.total.bytes_sent < 1000
    >>> comm.run_virtual_ranks(2, work)
    [(128.0, True), (128.0, True)]
    """

    def __init__(self, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self.code = LosslessCodec()
        self.sum_codec = LosslessCodec()
        self.feedback = False
