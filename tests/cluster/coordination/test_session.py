"""What the clock of a session says, and what it tells of."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sluiceway.cluster.coordination.port import Hub, SessionState
from sluiceway.cluster.coordination.session import SessionClock
from sluiceway.dispatcher.timers import Timer, TimerHeap


class Hearer:
    """A process with a clock, timers that run when it does, and what it was told."""

    def __init__(self) -> None:
        self.now_seconds = 0.0
        self.told: list[str] = []
        self._timers = TimerHeap()

    def clock(self) -> float:
        return self.now_seconds

    def call_later(self, delay_seconds: float, callback: Callable[[], None]) -> Timer:
        return self._timers.add(self.now_seconds + delay_seconds, callback)

    def run_timers(self) -> None:
        self._timers.run_due(self.now_seconds, 100)

    def session_began(self, session: str) -> None:
        self.told.append("began")

    def session_uncertain(self) -> None:
        self.told.append("uncertain")

    def session_certain(self) -> None:
        self.told.append("certain")

    def session_ended(self, reason: str) -> None:
        self.told.append("ended")

    def hubs_changed(self, hubs: Mapping[str, Hub]) -> None:
        raise AssertionError("a session knows no hubs")


def begun() -> tuple[Hearer, SessionClock]:
    """A session of ten seconds, asked for at 0."""
    hearer = Hearer()
    session = SessionClock(hearer, hearer.clock, hearer, lambda _session, _reason: None)
    assert session.began("1", 10.0, 0.0)
    hearer.told.clear()
    return hearer, session


def test_a_process_that_stood_is_told_to_go_on_when_it_hears_before_its_timer() -> None:
    """Who has asked the clock in between has held back deliveries."""
    hearer, session = begun()
    hearer.now_seconds = 8.0
    assert session.certain_until_seconds < 8.0
    session.heard(5.0)
    assert hearer.told == ["uncertain", "certain"]
    assert session.state is SessionState.CERTAIN
    hearer.run_timers()
    assert hearer.told == ["uncertain", "certain"]


def test_an_answer_to_what_was_asked_long_ago_leaves_it_uncertain() -> None:
    hearer, session = begun()
    hearer.now_seconds = 8.0
    session.heard(1.0)
    assert hearer.told == ["uncertain"]
    session.heard(7.9)
    assert hearer.told == ["uncertain", "certain"]


def test_an_answer_in_time_tells_nothing() -> None:
    hearer, session = begun()
    for second in range(1, 60):
        hearer.now_seconds = float(second)
        session.heard(second - 0.5)
        hearer.run_timers()
    assert hearer.told == []


def test_an_answer_after_the_end_of_the_session_ends_it() -> None:
    hearer, session = begun()
    hearer.now_seconds = 30.0
    session.heard(1.0)
    assert hearer.told == ["uncertain", "ended"]
    assert session.session is None
