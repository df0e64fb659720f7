"""Kernel parameters by name: what a source declares is what a launch passes, in the same order."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from caldera.kernels.cuda.codegen.kernel import (
    KernelSignature,
    KernelTemplate,
    const_pointer,
    i64,
    kernel_source,
    pointer,
    u32,
)


def test_a_signature_declares_and_packs_in_one_order() -> None:
    x, y = np.zeros(2, np.float32), np.zeros(2)
    signature = KernelSignature({"y": pointer(y), "x": const_pointer(x), "step": i64(3)})
    signature |= {"count": u32(2)}
    assert signature.declaration == "double* y, const float* x, i64 step, u32 count"
    assert signature.names == "y, x, step, count"
    first, second, step, count = signature.arguments
    assert first is y
    assert second is x
    assert isinstance(step, ctypes.c_longlong)
    assert isinstance(count, ctypes.c_uint)
    assert (step.value, count.value) == (3, 2)
    assert f"void clear({signature.declaration})" in kernel_source(
        "types.cuh", "clear", None, signature, ""
    )


def test_a_template_wants_each_parameter_by_its_name() -> None:
    template = KernelTemplate("scale", {"y": "{kind}*", "by": "i32"}, "{{ *y *= by; }}")
    assert template.source(kind="float").startswith(
        'extern "C" __global__ void scale(float* y, i32 by)'
    )
    y = np.zeros(1, np.float32)
    given = template.bind(by=2, y=y)
    assert list(given) == ["y", "by"]
    assert isinstance(given["by"].argument, ctypes.c_int)
    with pytest.raises(AssertionError):
        template.bind(y=y)
    with pytest.raises(AssertionError):
        template.bind(y=y, by=2, more=3)
