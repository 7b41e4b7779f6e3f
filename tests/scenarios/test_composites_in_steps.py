"""A composite SEND to many destinations goes out in steps: as one SEND all the same, whatever happens between two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sluiceway.protocols.stomp.sending import AT_ONCE_LEGS, Sender
from sluiceway.queues.names import parse
from sluiceway.queues.steps import AT_ONCE_COUNT, Line
from tests.scenarios.stage import Stage

LEGS = 100
NAMES = [f"/queue/{number}" for number in range(LEGS)]
ALL = ",".join(NAMES)


def at_leg(monkeypatch: pytest.MonkeyPatch, number: int, do: Callable[[], None]) -> None:
    """`do` this before the leg of this number."""
    send_leg = Sender._send_leg
    count = 0

    def counted(self: Sender, *arguments: Any) -> None:
        nonlocal count
        if count == number:
            do()
        count += 1
        send_leg(self, *arguments)

    monkeypatch.setattr(Sender, "_send_leg", counted)


async def depths(stage: Stage) -> list[int]:
    await stage.settled_down()
    return [stage.depth_count(name) for name in NAMES]


async def test_its_receipt_comes_when_all_have_it(stage: Stage) -> None:
    sender = await stage.connect()
    await sender.sent(ALL, b"x")
    assert [stage.depth_count(name) for name in NAMES] == [1] * LEGS
    await stage.drain_queues()


async def test_what_comes_behind_it_waits_for_it(stage: Stage) -> None:
    sender, reader = await stage.connect(), await stage.connect()
    await sender.send_raw(
        sender.encode("SEND", {"destination": ALL}, b"first")
        + sender.encode("SEND", {"destination": NAMES[-1]}, b"second")
    )
    await reader.subscribe(NAMES[-1])
    assert await reader.next_texts(2) == ["first", "second"]
    await stage.drain_queues()


async def test_others_have_their_turn_between(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    advance, send_leg = Line.advance, Sender._send_leg
    turns_count = 0
    turns: list[int] = []

    def counted(self: Line, count: int) -> int:
        nonlocal turns_count
        turns_count += 1
        return advance(self, count)

    def noted(self: Sender, *arguments: Any) -> None:
        turns.append(turns_count)
        send_leg(self, *arguments)

    monkeypatch.setattr(Line, "advance", counted)
    monkeypatch.setattr(Sender, "_send_leg", noted)
    sender = await stage.connect()
    await sender.sent(ALL, b"x")
    assert len(turns) == LEGS
    assert max(turns.count(each) for each in turns) <= AT_ONCE_COUNT
    await stage.drain_queues()


@pytest.mark.parametrize("ending", ["vanish", "disconnect", "error"])
@pytest.mark.parametrize("place", [0, AT_ONCE_LEGS, LEGS - 1])
async def test_a_connection_that_ends_in_the_middle_has_sent_all_of_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, ending: str, place: int
) -> None:
    sender = await stage.connect()
    session = next(connection.session for connection in stage.broker.connections)
    if ending == "vanish":
        at_leg(monkeypatch, place, session.close)
    if ending == "error":
        at_leg(monkeypatch, place, lambda: session._peer_is_dead(1.0))
    await sender.send(ALL, b"x")
    if ending == "disconnect":
        await sender.disconnect()
    assert await depths(stage) == [1] * LEGS
    await stage.drain_queues()


async def test_a_destination_that_is_deleted_in_the_middle_is_as_if_before_or_after(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = stage.broker.registry

    def delete() -> None:
        for name in (NAMES[20], NAMES[80]):
            registry.delete(registry.get(parse(name)), "a test")

    at_leg(monkeypatch, 50, delete)
    sender = await stage.connect()
    await sender.sent(ALL, b"x")
    await stage.settled_down()
    assert NAMES[20] not in registry.destinations, "it had the message when it was deleted"
    assert [stage.depth_count(name) for place, name in enumerate(NAMES) if place != 20] == [1] * (LEGS - 1)
    await sender.sent(ALL, b"y")
    assert stage.depth_count(NAMES[80]) == 2
    await stage.drain_queues()


async def test_lanes_that_are_let_go_in_the_middle_are_taken_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluiceway.protocols.stomp.lanes.LANES_MAX", 10)
    monkeypatch.setattr("sluiceway.protocols.stomp.lanes.LANES_KEPT", 5)
    sender = await stage.connect()
    session = next(connection.session for connection in stage.broker.connections)
    at_leg(monkeypatch, 30, session.lanes.trim)
    await sender.sent(ALL, b"x")
    await sender.sent(ALL, b"y")
    assert await depths(stage) == [2] * LEGS
    await stage.drain_queues()


async def test_what_can_not_go_to_all_goes_to_none(stage: Stage) -> None:
    sender = await stage.connect()
    await sender.send(f"{ALL[: ALL.rindex(',')]},/queue/*", b"x")
    await sender.expect_error("wildcard")
    assert sum(stage.depth_count(name) for name in NAMES if name in stage.broker.registry.destinations) == 0


async def test_a_long_run_to_one_destination_goes_at_once(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """However its SENDs are dated or grouped: nothing is multiplied there."""
    sender = await stage.connect()
    [connection] = stage.broker.connections
    before_count = connection.session.subscriptions.work.line.spent_count
    await sender.send_raw(sender.encode("SEND", {"destination": NAMES[0], "expires": "99999999999999"}, b"x") * 1000)
    await sender.sync()
    assert stage.depth_count(NAMES[0]) == 1000
    spent_count = connection.session.subscriptions.work.line.spent_count - before_count
    assert spent_count <= 1, "a step for the frame that asks, and none for the SENDs"
    await stage.drain_queues()
