"""Sizes and durations are read as written, and printed so that they read back the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluiceway.config.units import format_bytes, format_ms, parse_bytes, parse_ms, parse_seconds


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("67108864", 67_108_864),
        ("64 MiB", 67_108_864),
        ("64MiB", 67_108_864),
        ("1.5 KiB", 1536),
        ("2 kB", 2000),
        ("1_000", 1000),
    ],
)
def test_sizes(text: str, size_bytes: int) -> None:
    assert parse_bytes(text) == size_bytes


@pytest.mark.parametrize("text", ["", "MiB", "64 mib", "64 MiB/s", "-1", "0.3 B", "1e3", "ten"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"size|bytes"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("1.5", 1.5), ("1500 ms", 1.5), ("30 s", 30.0), ("2 min", 120.0), ("1 h", 3600.0)]
)
def test_durations_in_seconds(text: str, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize(("text", "ms"), [("1500", 1500), ("1.5 s", 1500), ("1 d", 86_400_000)])
def test_durations_in_milliseconds(text: str, ms: int) -> None:
    """A bare number is in the unit of the field, not in seconds."""
    assert parse_ms(text) == ms


def test_a_wrong_unit_lists_the_right_ones() -> None:
    with pytest.raises(ValueError, match="units: ms, s, min, h, d"):
        parse_seconds("3 weeks")


@given(st.integers(min_value=0, max_value=2**60))
def test_printed_sizes_read_back_the_same(size_bytes: int) -> None:
    assert parse_bytes(format_bytes(size_bytes)) == size_bytes


@given(st.integers(min_value=0, max_value=10**9))
def test_printed_durations_read_back_the_same(duration_ms: int) -> None:
    assert parse_ms(format_ms(duration_ms)) == duration_ms
