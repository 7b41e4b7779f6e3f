"""Selectors of a thousand words: read in steps, shared, and counted."""

from __future__ import annotations

import pytest
from attrs import evolve

from sluiceway.queues.selectors import grammar
from sluiceway.queues.steps import AT_ONCE_COUNT, Line
from tests.scenarios.stage import Stage


def dear(number: int = 0) -> str:
    """One that takes nothing with `color:blue`, and is different for each number."""
    return f"n = {number} OR color = 'red' OR " + " OR ".join(f"n{place % 7} = {place}" for place in range(200))


async def test_many_in_one_read_are_read_in_turns(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A counted clock: steps of a parser in one go."""
    steps_count = 0
    parsing = grammar.parsing

    def counted(*args: object, **options: object) -> object:
        nonlocal steps_count
        walk = parsing(*args, **options)  # type: ignore[arg-type]
        while True:
            try:
                next(walk)
            except StopIteration as end:
                return end.value
            steps_count += 1
            yield

    monkeypatch.setattr("sluiceway.queues.selectors.selector.parsing", counted)
    most_steps = 0
    advance = Line.advance

    def measured(self: Line, count: int) -> int:
        nonlocal most_steps
        before = steps_count
        done = advance(self, count)
        most_steps = max(most_steps, steps_count - before)
        return done

    monkeypatch.setattr(Line, "advance", measured)
    client = await stage.connect()
    for number in range(30):
        headers = {"id": str(number), "destination": "/queue/a", "selector": dear(number), "receipt": f"r{number}"}
        await client.send_raw(client.encode("SUBSCRIBE", headers))
    for number in range(30):
        await client.expect_receipt(f"r{number}")
    assert steps_count > 30 * 150
    assert most_steps <= AT_ONCE_COUNT


async def test_frames_behind_it_wait_for_it(stage: Stage) -> None:
    client = await stage.connect()
    await client.send_raw(
        client.encode("SUBSCRIBE", {"id": "s", "destination": "/topic/a", "selector": dear()})
        + client.encode("SEND", {"destination": "/topic/a", "color": "blue"}, b"not wanted")
        + client.encode("SEND", {"destination": "/topic/a", "color": "red"}, b"wanted")
    )
    assert await client.next_texts(1) == ["wanted"]


async def test_a_wrong_one_is_told_with_its_place_though_it_is_long(stage: Stage) -> None:
    client = await stage.connect()
    headers = {"id": "s", "destination": "/topic/a", "selector": dear() + " AND )", "receipt": "r"}
    await client.frame("SUBSCRIBE", headers)
    error = await client.expect_error()
    assert (error.headers["code"], error.headers["receipt-id"]) == ("bad-selector", "r")
    assert b"^" in error.body
    await client.expect_closed()
    assert not stage.broker.registry.selectors.used_bytes


@pytest.mark.parametrize("ending", ["vanish", "disconnect", "error"])
async def test_a_connection_that_ends_while_one_is_read_leaves_nothing(stage: Stage, ending: str) -> None:
    client = await stage.connect()
    for number in range(5):
        headers = {"id": str(number), "destination": "/queue/a", "selector": dear(number)}
        await client.frame("SUBSCRIBE", headers)
    if ending == "vanish":
        client.vanish()
    elif ending == "disconnect":
        await client.disconnect()
    else:
        await client.send_raw(b"NONSENSE\n\n\0")
        await client.expect_error()
    await stage.settled_down()
    assert stage.broker.registry.selectors.used_bytes == 0
    assert stage.broker.registry.attachments.used_count == 0


async def test_the_same_of_many_counts_once_and_until_the_last_has_gone(stage: Stage) -> None:
    table = stage.broker.registry.selectors
    one, other = await stage.connect(), await stage.connect()
    await one.subscribe("/queue/a", selector=dear())
    used_bytes = table.used_bytes
    assert used_bytes > 50_000
    await other.subscribe("/topic/b", selector=dear())
    assert table.used_bytes == used_bytes
    await one.unsubscribe()
    assert table.used_bytes == used_bytes
    other.vanish()
    await stage.settled_down()
    assert table.used_bytes == 0


async def test_that_of_a_durable_subscription_counts_until_it_is_removed(stage: Stage) -> None:
    table = stage.broker.registry.selectors
    reader = await stage.connect(**{"client-id": "c"})
    await reader.subscribe("/topic/a", id="d", durable="true", selector="color = 'red'")
    used_bytes = table.used_bytes
    await reader.disconnect()
    assert table.used_bytes == used_bytes > 0
    again = await stage.connect(**{"client-id": "c"})
    await again.subscribe("/topic/a", id="d", durable="true", selector="color = 'red'")
    assert table.used_bytes == used_bytes
    await again.frame("UNSUBSCRIBE", {"id": "d", "durable": "true", "receipt": "gone"})
    await again.expect_receipt("gone")
    await again.disconnect()
    assert table.used_bytes == 0


async def test_one_for_which_there_is_no_room_is_refused(stage: Stage) -> None:
    config = stage.broker.config
    stage.broker.reloading.reload(evolve(config, broker=evolve(config.broker, selectors_bytes_max=300_000)))
    client = await stage.connect()
    await client.subscribe("/queue/a", id="1", selector=dear(1))
    await client.frame("SUBSCRIBE", {"id": "2", "destination": "/queue/a", "selector": dear(2), "receipt": "r"})
    error = await client.expect_error("selectors_bytes_max")
    assert (error.headers["code"], error.headers["receipt-id"]) == ("too-many-selectors", "r")
