"""The broker makes a mistake with a queue while a transaction that is spooled has to do with it: nothing of that stays
behind in this run, nothing of what was confirmed is lost, and no COMMIT comes apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import trio

from sluiceway.store.queue_records import QueueRecords
from sluiceway.store.spool import StoreSpool
from tests.scenarios.client import Client
from tests.scenarios.lives import Lives
from tests.scenarios.spooled import OUT, SMALL, body, commit, send_transaction, spooled_keys
from tests.scenarios.stage import Stage
from tests.scenarios.test_faults import BAD
from tests.scenarios.tiny_steps import tiny_steps

pytestmark = pytest.mark.usefixtures("small_pieces")
COUNT = 30


@pytest.fixture(params=[False, True], ids=["at once", "in steps"])
def _steps(request: pytest.FixtureRequest) -> Iterator[None]:
    if not request.param:
        yield
        return
    with tiny_steps():
        yield


def breaks(stage: Stage, name: str) -> None:
    """The next thing that is done for this queue raises."""
    self = stage.partitions(name)[0]  # whose mistake it is, is read from the frame

    def broken(_budget: int, self: object = self) -> bool:
        raise RuntimeError("a test: the broker made a mistake")

    self.context.dispatch = broken
    self.context.request_dispatch()


async def gone(stage: Stage, client: Client) -> None:
    """Nothing is left of its connection."""
    client.vanish()
    await trio.sleep(5)
    left = [each for each in stage.broker.manager.resources if each.kind in ("connection", "lanes")]
    assert not left, left
    assert not stage.broker.left_behind.connections_count


@pytest.mark.usefixtures("_steps")
@pytest.mark.parametrize("destination", [OUT, BAD], ids=["to others", "to itself"])
async def test_a_commit_that_acknowledged_there_is_undone(monkeypatch: pytest.MonkeyPatch, destination: str) -> None:
    """It was on its way to the disk."""
    lives = Lives(**SMALL)
    async with lives.life() as stage:
        client = await stage.connect()
        await client.sent(BAD, "in", persistent="true")
        await client.subscribe(BAD, ack="client-individual")
        delivery = await client.next_message()
        await send_transaction(client, COUNT, destination)
        await client.frame("ACK", {**client.naming(delivery), "transaction": "t"})
        real = StoreSpool.commit

        def commit_and_break(self: StoreSpool, *arguments: Any, **named: Any) -> None:
            real(self, *arguments, **named)
            breaks(stage, BAD)

        monkeypatch.setattr(StoreSpool, "commit", commit_and_break)
        await client.frame("COMMIT", {"transaction": "t", "receipt": "done"})
        await trio.sleep(3)
        assert stage.broker.faults.destinations_count == 1
        assert "done" not in client.receipts
        assert (await client.expect_error()).headers["code"] == "destination-failed"
        await gone(stage, client)
        assert not spooled_keys(lives.engine)
    monkeypatch.undo()
    async with lives.life() as stage:
        client = await stage.connect()
        await client.subscribe(BAD, id=BAD)
        assert [delivery.text for delivery in await client.drain(2)] == ["in"]
        await client.subscribe(OUT, id=OUT)
        assert not await client.drain(2)


@pytest.mark.usefixtures("_steps")
@pytest.mark.parametrize("parked_count", [1, 2])
@pytest.mark.parametrize("destinations", [(BAD,), (BAD, OUT)], ids=["to itself", "to others, too"])
async def test_a_commit_is_undone_while_its_connection_waits_there(
    monkeypatch: pytest.MonkeyPatch, destinations: tuple[str, ...], parked_count: int
) -> None:
    """What is parked before it goes with the destination, before the COMMIT is undone."""
    lives = Lives({BAD: {"full": "block", "count_max": 1}}, **SMALL)
    async with lives.life() as stage:
        client = await stage.connect()
        await client.sent(BAD, "in", persistent="true")
        await client.subscribe(BAD, ack="client-individual", prefetch_count="1")
        delivery = await client.next_message()
        for number in range(parked_count):
            await client.send(BAD, f"parked {number}", persistent="true")
        await send_transaction(client, COUNT, *destinations)
        await client.frame("ACK", {**client.naming(delivery), "transaction": "t"})
        real = StoreSpool.commit

        def commit_and_break(self: StoreSpool, *arguments: Any, **named: Any) -> None:
            real(self, *arguments, **named)
            breaks(stage, BAD)

        monkeypatch.setattr(StoreSpool, "commit", commit_and_break)
        await client.frame("COMMIT", {"transaction": "t", "receipt": "done"})
        await trio.sleep(3)
        assert (stage.broker.faults.count, stage.broker.faults.destinations_count) == (1, 1)
        assert "done" not in client.receipts
        await gone(stage, client)
        assert not spooled_keys(lives.engine)


@pytest.mark.usefixtures("_steps")
@pytest.mark.parametrize("when", ["it comes in", "others wait"])
async def test_pieces_for_it_come_with_the_next_start(monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    """COMMIT was confirmed."""
    lives = Lives({BAD: {"full": "block", "count_max": 10}}, **SMALL)
    async with lives.life() as stage:
        client = await stage.connect()
        await send_transaction(client, COUNT, BAD)
        if when == "it comes in":
            real = QueueRecords.attach

            def attach_and_break(self: QueueRecords, first: int, end: int, *arguments: Any, **named: Any) -> None:
                real(self, first, end, *arguments, **named)
                if first < end:
                    breaks(stage, BAD)

            monkeypatch.setattr(QueueRecords, "attach", attach_and_break)
        await commit(client)
        await trio.sleep(3)
        if when == "others wait":
            breaks(stage, BAD)
            await trio.sleep(3)
        assert stage.broker.faults.destinations_count == 1
        assert (await client.expect_error()).headers["code"] == "destination-failed"
        await gone(stage, client)
    monkeypatch.undo()
    async with lives.life() as stage:
        reader = await stage.connect()
        await reader.subscribe(BAD)
        assert [delivery.text for delivery in await reader.drain()] == [body(n) for n in range(COUNT)]
        await trio.sleep(3)
        assert not spooled_keys(lives.engine)
