"""Links are sold in bits and files counted in bytes: the planner never takes one for the other."""

from __future__ import annotations

import pytest

from caldera.errors import ConfigError
from caldera.parallel.planner.cluster import bytes_of, flops_of, rate_of, rate_text, seconds_of


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("100Mb", 12.5e6),
        ("100Mbit", 12.5e6),
        ("100mbit", 12.5e6),
        ("1gbit/s", 125e6),
        ("100Gb", 12.5e9),
        ("100 Gbps", 12.5e9),
        ("12.5GB", 12.5e9),
        ("12.5 GB/s", 12.5e9),
        ("1GiB", 2**30),
        ("1e3Mb", 125e6),
        ("8b", 1.0),
        ("1.5TB", 1.5e12),
    ],
)
def test_bits_and_bytes_a_second(text: str, rate: float) -> None:
    assert rate_of(text) == rate


@pytest.mark.parametrize("text", ["100G", "100", "", "fast", "Gb", "-1Gb", "0Gb", "1Xb", "1e999Gb"])
def test_a_link_without_a_unit_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"link: expected a speed such as 100Gb.* b is for bits"):
        rate_of(text)


def test_memory_is_in_bytes() -> None:
    assert bytes_of("80GB") == 80 * 10**9
    assert bytes_of("512 MiB") == 2**29
    for text in ("80Gb", "80", "80G", "0GB", "much"):
        with pytest.raises(ConfigError, match="memory: expected bytes such as 80GB"):
            bytes_of(text)


def test_times_and_speeds() -> None:
    assert seconds_of("2us") == seconds_of("2µs") == 2e-6
    assert seconds_of("1.5 ms") == 1.5e-3
    assert flops_of("30T") == flops_of("30 TFLOP/s") == 30e12
    for text in ("2", "us", "2 m", "-2us"):
        with pytest.raises(ConfigError, match="latency: expected a time such as 2us"):
            seconds_of(text)
    for text in ("fast", "0T", "30X"):
        with pytest.raises(ConfigError, match="speed: expected operations a second"):
            flops_of(text)


@pytest.mark.parametrize("text", ["100 Gbit/s", "1 Tbit/s", "25 Mbit/s", "9 kbit/s"])
def test_rates_are_written_as_they_are_read(text: str) -> None:
    assert rate_text(rate_of(text)) == text
