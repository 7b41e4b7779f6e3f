"""Asking again and again; a broker that goes away and comes back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from sluiceway.client.address import Address
from sluiceway.client.errors import (
    CannotConnectError,
    ClientError,
    ConnectionLostError,
    NotSluicewayError,
    RefusedError,
)
from sluiceway.top.feed import Answer, Gone, News, follow, gone_in_words, link_to, why_gone
from tests.sluiceway.scripted_broker import ScriptedBroker, frame

Step = Mapping[str, Any] | ClientError


class FakeLink:
    """Answers what a test says; the first step may be that there is no connection."""

    def __init__(self, steps: list[Step]) -> None:
        self._steps = steps

    def __enter__(self) -> FakeLink:
        if self._steps and isinstance(self._steps[0], CannotConnectError):
            raise self._steps.pop(0)  # type: ignore[misc]
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def ask(self, name: str) -> Mapping[str, Any]:
        step = self._steps.pop(0)
        if isinstance(step, ClientError):
            raise step
        return step


def told(steps: list[Step]) -> tuple[list[News], list[float]]:
    """What `follow` tells of these steps, and how long it waits in between."""
    heard: list[News] = []
    waits: list[float] = []
    stop = threading.Event()

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if not steps:
            stop.set()

    follow(lambda: FakeLink(steps), heard.append, 1.0, stop, wait=wait)
    return heard, waits


def test_answers_come_one_interval_apart() -> None:
    heard, waits = told([{"a": 1}, {"a": 2}])
    assert heard == [Answer({"a": 1}), Answer({"a": 2})]
    assert waits == [1.0, 1.0]


def test_a_broker_that_is_gone_is_tried_again_later_and_later() -> None:
    steps: list[Step] = [{"a": 1}, ConnectionLostError("stomp://x closed the connection")]
    steps += [CannotConnectError("no broker answers at stomp://x", "start one")] * 8
    heard, waits = told([*steps, {"a": 2}])
    assert heard[0] == Answer({"a": 1})
    assert heard[-1] == Answer({"a": 2})
    gone = [news for news in heard if isinstance(news, Gone)]
    assert len(gone) == 9
    assert gone[1].why == "no broker answers at stomp://x"
    assert waits[1] <= 0.5
    assert max(waits[5:10]) > 4.0
    assert max(waits) <= 10.0


def test_after_an_answer_the_waits_begin_anew() -> None:
    steps: list[Step] = [CannotConnectError("no")] * 6
    heard, waits = told([*steps, {"a": 1}, ConnectionLostError("lost"), {"a": 2}])
    assert waits[7] <= 0.5, "the first wait after an answer is a short one"
    assert isinstance(heard[-1], Answer)


def test_an_error_of_the_broker_is_told_in_its_words() -> None:
    error = RefusedError.of("stomp://x", {"message": "the broker is shutting down"}, b"Connect again")
    gone = Gone(why_gone(error), 2.0)
    assert gone_in_words(gone) == ("no answer: the broker answered ERROR: the broker is shutting down; next try in 2 s")


def test_the_reports_come_over_stomp() -> None:
    """As for `sluiceway stat`: no second port."""
    with ScriptedBroker(answering(b'{"taken_at": 7}')) as broker, link_to(Address.parse(broker.url)) as link:
        assert link.ask("stat") == {"taken_at": 7}
    [(headers, _body)] = broker.received("SEND")
    assert headers["destination"] == "/sluiceway/stat"


def test_somebody_who_does_not_answer_in_json_is_no_sluiceway() -> None:
    refused = pytest.raises(NotSluicewayError, match="is it a Sluiceway broker of this version")
    with ScriptedBroker(answering(b"hello")) as broker, link_to(Address.parse(broker.url)) as link, refused:
        link.ask("stat")


def answering(body: bytes) -> Callable[[str, Mapping[str, str], bytes], bytes | None]:
    def answer(command: str, headers: Mapping[str, str], _body: bytes) -> bytes | None:
        if command != "SEND":
            return None
        message = {"destination": "x", "message-id": "1", "subscription": "1"}
        return frame("MESSAGE", message, body)

    return answer
