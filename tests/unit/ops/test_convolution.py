"""What a user of convolutions meets: paddings, dtypes, and errors that say what is wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from caldera import op
from caldera.compiler.lazy import Expr
from caldera.errors import ConfigError, ShapeError
from tests.unit.ops.case import numbers
from tests.unit.ops.cases.convolution import loops_conv2d


def _image(*shape: int, name: str = "x") -> Expr:
    return op.var(name, shape, fill=numbers(*shape).astype("float32"))


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (1, ((1, 1), (1, 1))),
        ((1, 0), ((1, 1), (0, 0))),
        ([2, 1], ((2, 2), (1, 1))),
        (((1, 0), (0, 2)), ((1, 0), (0, 2))),
        ("valid", ((0, 0), (0, 0))),
        # 2 x 3 kernels need one more row below and one more column on both sides.
        ("same", ((0, 1), (1, 1))),
    ],
)
def test_paddings_mean_what_they_say(written: Any, meant: Any) -> None:
    x, w = numbers(1, 2, 4, 4), numbers(3, 2, 2, 3)
    expected = loops_conv2d(x, w, stride=(1, 1), padding=meant, dilation=(1, 1), groups=1)
    np.testing.assert_allclose(op.conv2d(x, w, padding=written).numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("length", [1, 2, 5, 6, 7])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize(("kernel", "dilation"), [(1, 1), (2, 1), (3, 1), (3, 2), (4, 3)])
def test_same_padding_gives_the_length_over_the_stride(
    length: int, stride: int, kernel: int, dilation: int
) -> None:
    x, w = np.ones((1, 1, length)), np.ones((1, 1, kernel))
    y = op.conv1d(x, w, stride=stride, dilation=dilation, padding="same")
    assert y.shape == (1, 1, -(-length // stride))


def test_conv1d_pads_each_end_by_itself() -> None:
    x, w = np.array([[[1.0, 2.0]]]), np.array([[[1.0, 1.0]]])
    assert op.conv1d(x, w, padding=(1, 0)).tolist() == [[[1.0, 3.0]]]
    assert op.conv1d(x, w, padding=(0, 1)).tolist() == [[[3.0, 2.0]]]
    assert op.conv1d(x, w, padding=1).tolist() == [[[1.0, 3.0, 2.0]]]


def test_transposed_convolution_undoes_the_shape() -> None:
    x, w = numbers(1, 3, 8, 9), numbers(4, 3, 3, 3)
    small = op.conv2d(x, w, stride=2, padding=1)
    assert small.shape == (1, 4, 4, 5)
    back = op.conv_transpose2d(small, w, stride=2, padding=1, output_padding=(1, 0))
    assert back.shape == (1, 3, 8, 9)


@pytest.mark.parametrize("padding", [0, 1, 4])
def test_output_padding_below_the_dilation(padding: int) -> None:
    """What the padding cut off comes back first, then there are zeros."""
    x, w = numbers(1, 2, 3, 3), numbers(2, 1, 2, 2)
    whole = op.conv_transpose2d(x, w, stride=(3, 2), dilation=4).numpy()
    longer = np.pad(whole, ((0, 0), (0, 0), (0, 2), (0, 3)))
    found = op.conv_transpose2d(
        x, w, stride=(3, 2), padding=padding, output_padding=(2, 3), dilation=4
    )
    right = longer[:, :, padding : longer.shape[2] - padding, padding : longer.shape[3] - padding]
    np.testing.assert_allclose(found.numpy(), right, rtol=1e-12)


def test_integers_become_floats() -> None:
    x, w = np.arange(9).reshape(1, 1, 3, 3), np.ones((1, 1, 2, 2), "int64")
    y = op.conv2d(x, w)
    assert y.dtype == "float32"
    assert y.tolist() == [[[[8.0, 12.0], [20.0, 24.0]]]]


def test_operands_meet_in_one_dtype() -> None:
    y = op.conv2d(np.ones((1, 1, 2, 2), "float16"), np.ones((1, 1, 1, 1), "float64"))
    assert y.dtype == "float64"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_are_added_up_in_float32(dtype: str) -> None:
    # 4096 ones in float16 or bfloat16 arithmetic would stop growing at 2048 or 256.
    x = op.cast(np.ones((1, 4096, 1, 1), "float32"), dtype)
    w = op.cast(np.ones((1, 4096, 1, 1), "float32"), dtype)
    y = op.conv2d(x, w)
    assert y.dtype == dtype
    assert y.item() == 4096.0


def test_nan_and_infinity_stay_where_they_reach() -> None:
    x = np.ones((1, 1, 4, 4))
    x[0, 0, 0, 0] = np.nan
    x[0, 0, 3, 3] = np.inf
    y = op.conv2d(x, np.ones((1, 1, 2, 2))).numpy()[0, 0]
    assert np.isnan(y[0, 0])
    assert y[2, 2] == np.inf
    assert np.isfinite(y).sum() == 7


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: op.conv2d(_image(3, 4, 4), _image(1, 3, 2, 2, name="w")),
            ["op.conv2d", "(N, C, H, W)", "x (3, 4, 4) float32"],
        ),
        (
            lambda: op.conv2d(_image(1, 3, 4, 4), _image(3, 2, 2, name="w")),
            ["op.conv2d", "(K, C / groups, h, w)", "(3, 2, 2)"],
        ),
        (
            lambda: op.conv2d(_image(1, 3, 4, 4), _image(2, 4, 2, 2, name="kernel")),
            ["op.conv2d", "3 / 1 input channels", "kernel (2, 4, 2, 2)", "groups="],
        ),
        (
            lambda: op.conv2d(_image(1, 4, 4, 4), _image(3, 2, 2, 2, name="w"), groups=2),
            ["op.conv2d", "a multiple of 2 outputs"],
        ),
        (
            lambda: op.conv2d(_image(1, 1, 2, 4), _image(1, 1, 3, 3, name="w")),
            ["op.conv2d", "at least 3 x 3", "x (1, 1, 2, 4) float32", "smaller kernel"],
        ),
        (
            lambda: op.conv2d(_image(1, 1, 4, 4), _image(1, 1, 2, 2, name="w"), dilation=4),
            ["op.conv2d", "at least 5 x 5"],
        ),
        (
            lambda: op.conv2d(_image(1, 1, 4, 4), _image(1, 1, 0, 2, name="w")),
            ["op.conv2d", "at least one element"],
        ),
        (
            lambda: op.conv2d(_image(1, 1, 4, 4), _image(1, 1, 2, 2, name="w"), stride=0),
            ["op.conv2d", "stride=", ">= 1", "got 0"],
        ),
        (
            lambda: op.conv2d(_image(1, 1, 4, 4), _image(1, 1, 2, 2, name="w"), dilation=(1, 2, 3)),
            ["op.conv2d", "dilation=", "(1, 2, 3)"],
        ),
        (
            lambda: op.conv2d(_image(1, 1, 4, 4), _image(1, 1, 2, 2, name="w"), padding=-1),
            ["op.conv2d", "padding=", ">= 0", "got -1"],
        ),
        (
            lambda: op.conv2d(_image(1, 1, 4, 4), _image(1, 1, 2, 2, name="w"), groups=1.5),
            ["op.conv2d", "groups=", "1.5"],
        ),
        (
            lambda: op.conv1d(_image(1, 2, 4), _image(1, 3, 2, name="w")),
            ["op.conv1d", "2 / 1 input channels", "x"],
        ),
        (
            lambda: op.conv1d(_image(1, 2, 4, 4), _image(1, 2, 2, name="w")),
            ["op.conv1d", "(N, C, L)", "x (1, 2, 4, 4)"],
        ),
        (
            lambda: op.conv_transpose2d(_image(1, 2, 4, 4), _image(3, 2, 2, 2, name="w")),
            ["op.conv_transpose2d", "(C, K / groups, h, w)", "x (1, 2, 4, 4)", "(3, 2, 2, 2)"],
        ),
        (
            lambda: op.conv_transpose2d(_image(1, 1, 2, 2), _image(1, 1, 2, 2), output_padding=1),
            ["op.conv_transpose2d", "the stride (1, 1) or the dilation (1, 1)", "(1, 1)"],
        ),
        (
            lambda: op.conv_transpose2d(
                _image(1, 1, 1, 1), _image(1, 1, 2, 2, name="w"), padding=1
            ),
            ["op.conv_transpose2d", "at least one row and column", "0 x 0"],
        ),
    ],
)
def test_bad_use_fails_when_written_and_says_how(call: Any, words: list[str]) -> None:
    with pytest.raises(ShapeError) as caught:
        call()
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("convolve", [op.conv2d, op.conv_transpose2d])
def test_unknown_padding_names_are_refused(convolve: Any) -> None:
    with pytest.raises(ConfigError, match="'vaild'"):
        convolve(_image(1, 1, 4, 4), _image(1, 1, 2, 2, name="w"), padding="vaild")


@pytest.mark.parametrize("name", ["conv1d", "conv_transpose1d"])
@pytest.mark.parametrize("setting", ["stride", "dilation"])
def test_settings_of_sequences_are_one_number(name: str, setting: str) -> None:
    x, w = np.ones((1, 1, 5), "float32"), np.ones((1, 1, 2), "float32")
    words = rf"op\.{name}: expected {setting}= an integer >= 1, got 0"
    with pytest.raises(ShapeError, match=words):
        getattr(op, name)(x, w, **{setting: 0})
