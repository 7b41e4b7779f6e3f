"""The W3C header, and which traces are chosen."""

from __future__ import annotations

import pytest

from sluiceway.tracing.context import TraceContext, is_chosen, parse_traceparent

TRACE = "0af7651916cd43dd8448eb211c80319c"
SPAN = "b7ad6b7169203331"


def test_the_example_of_the_specification() -> None:
    assert parse_traceparent(f"00-{TRACE}-{SPAN}-01", "congo=t61rcWkgMzE") == TraceContext(
        int(TRACE, 16), int(SPAN, 16), True, "congo=t61rcWkgMzE"
    )


def test_flags_beyond_sampled_mean_nothing_yet() -> None:
    for flags, sampled in (("00", False), ("01", True), ("02", False), ("ff", True)):
        context = parse_traceparent(f"00-{TRACE}-{SPAN}-{flags}")
        assert context is not None and context.sampled is sampled


def test_a_later_version_may_have_more_behind_it() -> None:
    assert parse_traceparent(f"cc-{TRACE}-{SPAN}-01-what-the-future-brings") is not None


@pytest.mark.parametrize(
    "value",
    [
        "",
        "nonsense",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-01-more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f" 00-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01\n",
        f"00-{TRACE[:-1]}٣-{SPAN}-01",
        "00-" * 10_000,
    ],
)
def test_what_is_no_context_is_none(value: str) -> None:
    assert parse_traceparent(value) is None


def test_a_tracestate_that_is_too_long_is_left_out() -> None:
    context = parse_traceparent(f"00-{TRACE}-{SPAN}-01", "a=" + "x" * 600)
    assert context is not None and context.tracestate == ""


def test_a_share_of_the_traces_is_chosen_by_their_ids() -> None:
    """Always the same ones, and those of a smaller share are among those of a larger one."""
    ids = [number * 0x9E3779B97F4A7C15F39CC0605CEDC834 % (1 << 128) for number in range(1, 2000)]
    assert all(is_chosen(trace_id, 1.0) for trace_id in ids)
    assert not any(is_chosen(trace_id, 0.0) for trace_id in ids)
    tenth = {trace_id for trace_id in ids if is_chosen(trace_id, 0.1)}
    half = {trace_id for trace_id in ids if is_chosen(trace_id, 0.5)}
    assert 100 < len(tenth) < 300 and tenth < half
