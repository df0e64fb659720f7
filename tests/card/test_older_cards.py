"""What machine.cuh makes of plain arithmetic for cards that lack an instruction: the same."""

from __future__ import annotations

import re

import numpy as np
import pytest

from caldera.core.memory import Device
from caldera.core.memory.gpus import card_count
from caldera.kernels.cuda.codegen.kernel import (
    KernelLaunch,
    KernelSignature,
    const_pointer,
    pointer,
)
from caldera.kernels.cuda.runtime.driver import headers

pytestmark = pytest.mark.skipif(card_count() > 0, reason="a card has instructions of its own")

_FUNCTION = re.compile(
    r"^(?:template <[^>]*>\s*)?__device__ __forceinline__ [^\n]*(?:\}$|\{$.*?^\}$)",
    re.MULTILINE | re.DOTALL,
)


def _older(architecture: int) -> str:
    """The functions of machine.cuh for an architecture, without those that are instructions."""
    lines, taken = [], [True]
    for line in headers()["machine.cuh"].split("\n"):
        if line.startswith("#if "):
            taken.append(architecture >= int(line.split()[-1]))
        elif line == "#else":
            taken[-1] = not taken[-1]
        elif line == "#endif":
            taken.pop()
        elif all(taken):
            lines.append(line)
    found = _FUNCTION.findall("\n".join(lines))
    names = r"\b(\w+_pair\w*|pair_max|nearest_bfloat|tf32_bits|warp_mma|mma_\w+|copy_some)\("
    plain = [
        each
        for each in found
        if re.search(names, each.split("{")[0]) and not re.search("asm|mma_half", each)
    ]
    lane = "__device__ u32 lane_now() { return threadIdx.x; }\n"
    return "namespace older {\n" + lane + "\n".join(plain) + "\n}\n"


def _run(source: str, words: np.ndarray, results: int) -> np.ndarray:
    out = np.zeros(results, np.uint32)
    signature = KernelSignature({"in": const_pointer(words, "u32"), "out": pointer(out, "u32")})
    text = f"""#include "types.cuh"
{_older(750)}
extern "C" __global__ void compare({signature.declaration}) {{
    u32 lane = threadIdx.x;
    {source}
}}
"""
    KernelLaunch(text, "compare", 1, 32, signature)()
    return out


def _halves(kind: str) -> np.ndarray:
    """Pairs of all kinds of numbers in 16 bits: zeros, infinities, nans, neighbours."""
    infinity = {"half": 0x7C00, "bfloat": 0x7F80}[kind]
    some = [0, 1, 0x3C00, 0x3C01, 0x4400, infinity - 1, infinity, infinity + 1, 0x7FFF]
    signed = np.array([*some, *(n | 0x8000 for n in some)], np.uint32)
    pairs = np.array([a << 16 | b for a in signed for b in signed], np.uint32)
    return pairs[: len(pairs) // 32 * 32]


@pytest.mark.parametrize("kind", ["half", "bfloat"])
def test_pairs_are_compared_as_by_newer_cards(card: Device, kind: str) -> None:
    pairs = _halves(kind)
    turned = np.roll(pairs, 7)
    count = len(pairs)
    above = f"{'older::' if kind == 'bfloat' else ''}{kind}_pair_above"
    found = _run(
        f"for (u32 i = lane; i < {count}; i += 32) {{ u32 a = in[i], b = in[{count} + i];"
        f" out[4 * i] = {above}(a, b); out[4 * i + 1] = {kind}_pair_above(a, b);"
        f" out[4 * i + 2] = older::{kind}_pair_max(a, b);"
        f" out[4 * i + 3] = {kind}_pair_max(a, b); }}",
        np.concatenate([pairs, turned]),
        4 * count,
    ).reshape(count, 4)
    np.testing.assert_array_equal(found[:, 0], found[:, 1])
    # Of zeros with both signs a card may give either.
    zeros = ((pairs | turned) & 0x7FFF == 0) | ((pairs | turned) & 0x7FFF0000 == 0)
    np.testing.assert_array_equal(found[~zeros, 2], found[~zeros, 3])


def test_numbers_are_rounded_as_by_newer_cards(card: Device) -> None:
    draw = np.random.default_rng(1)
    bits = draw.integers(0, 1 << 32, 1 << 12, dtype=np.uint32)
    bits[:8] = [0, 0x80000000, 0x7F800000, 0xFF800000, 0x3F808000, 0x3F818000, 0x7F7FFFFF, 1]
    nan = np.isnan(bits.view(np.float32))
    bits[nan] = 0x7FC00000
    found = _run(
        f"for (u32 i = lane; i < {len(bits)}; i += 32) {{ float x = bits_to_float(in[i]);"
        " float y = bits_to_float(in[i ^ 1]);"
        " out[4 * i] = older::bfloat_pair(x, y); out[4 * i + 1] = bfloat_pair(x, y);"
        " out[4 * i + 2] = older::half_pair(x, y); out[4 * i + 3] = half_pair(x, y); }",
        bits,
        4 * len(bits),
    ).reshape(-1, 4)
    np.testing.assert_array_equal(found[:, 0], found[:, 1])
    np.testing.assert_array_equal(found[:, 2], found[:, 3])


@pytest.mark.parametrize("kind", ["tf32", "bfloat"])
def test_products_of_warps_without_tensor_cores(card: Device, kind: str) -> None:
    draw = np.random.default_rng(2)
    # Small whole numbers: sums are exact in any order.
    numbers = draw.integers(-8, 9, (32, 6, 2)).astype(np.float32).view(np.uint32)
    words = numbers[..., 0] if kind == "tf32" else numbers[..., 0] | numbers[..., 1] >> 16
    found = _run(
        "u32 a[4]; for (int i = 0; i < 4; i++) a[i] = in[6 * lane + i];"
        " float one[4] = {1.0f, 2.0f, 3.0f, 4.0f}, other[4] = {1.0f, 2.0f, 3.0f, 4.0f};"
        f" older::mma_{kind}(one, a, in[6 * lane + 4], in[6 * lane + 5]);"
        f" mma_{kind}(other, a, in[6 * lane + 4], in[6 * lane + 5]);"
        " for (int i = 0; i < 4; i++) { out[8 * lane + i] = float_to_bits(one[i]);"
        " out[8 * lane + 4 + i] = float_to_bits(other[i]); }",
        words,
        8 * 32,
    ).reshape(32, 2, 4)
    np.testing.assert_array_equal(found[:, 0], found[:, 1])
    assert len(np.unique(found)) > 20


def test_copies_bring_the_first_bytes_and_zeros(card: Device) -> None:
    words = np.arange(1, 33, dtype=np.uint32) * 0x10001
    found = (
        _run(
            "__shared__ u32 kept[128]; for (int i = 0; i < 4; i++) kept[4 * lane + i] = ~0u;"
            " older::copy_some<16>(kept + 4 * lane, in + 4 * (lane % 8), lane / 2 % 9 * 2);"
            " for (int i = 0; i < 4; i++) out[4 * lane + i] = kept[4 * lane + i];",
            words,
            128,
        )
        .view(np.uint16)
        .reshape(32, 8)
    )
    for lane, copied in enumerate(found):
        some = lane // 2 % 9
        whole = words.view(np.uint16).reshape(8, 8)[lane % 8]
        np.testing.assert_array_equal(copied, np.where(np.arange(8) < some, whole, 0))
