"""The probe of failovers: what it makes of the times that it has seen."""

from __future__ import annotations

import math

from perf.probes.failover import Figures, Seen


def test_a_pause_ends_with_what_comes_first_behind_a_moment() -> None:
    seen = Seen([1.0, 2.0, 6.5, 6.6])
    assert seen.pause_seconds(2.0) == 4.5
    assert seen.pause_seconds(7.0) == math.inf


def test_figures_are_behind_the_session_and_say_who_noticed() -> None:
    figures = Figures(
        engine="postgresql",
        messages_count=1_000_000,
        session_seconds=4.0,
        receipts=[4.5, 4.25],
        deliveries=[4.75, 4.5],
        openings=[4.1, 4.2],
        before=[0.001] * 100,
        during=[0.002] * 99 + [0.05],
    )
    told = str(figures)
    assert "1,000,000 messages in the 2 shards" in told
    assert "producers continue, behind that  first  0.25 s, last  0.50 s" in told
    assert "p50 2.00 ms" in told and "longest 50.0 (100)" in told
