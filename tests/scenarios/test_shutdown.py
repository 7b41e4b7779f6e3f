"""The broker stops in good order: everybody is told, what was written is delivered, nobody can hold it up for ever."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import trio

from sluiceway.protocols.stomp.escaping import Version
from sluiceway.queues.logs.batches import encode
from sluiceway.queues.logs.log import Log
from tests.scenarios.log_stage import LogStage
from tests.scenarios.stage import Stage

Q = "/queue/work"


async def test_every_client_is_told(stage: Stage, version: Version) -> None:
    clients = [await stage.connect(version) for _ in range(3)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.broker.stop)
        for client in clients:
            error = await client.expect_error("shutting down")
            assert b"Connect again" in error.body
    assert not stage.broker.connections


async def test_what_was_delivered_can_be_read(stage: Stage, version: Version) -> None:
    """Also what waited for the client to read on; the ERROR comes last."""
    consumer, producer = await stage.connect(version), await stage.connect(version)
    await consumer.subscribe(Q)
    for n in range(10):
        await producer.sent(Q, str(n).ljust(20_000))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.broker.stop)
        await consumer.expect_error("shutting down")
        await producer.expect_error("shutting down")
    assert [d.text.strip() for d in consumer.messages] == [str(n) for n in range(10)]
    assert consumer.received[-1].command == "ERROR"


async def test_client_that_does_not_read_is_cut(stage: Stage) -> None:
    consumer, producer = await stage.connect(), await stage.connect()
    await consumer.subscribe(Q)
    for _ in range(10):
        await producer.sent(Q, "x" * 20_000)
    await stage.broker.stop()
    assert trio.current_time() < 3
    assert not stage.broker.connections


async def test_deadline_cuts_who_lingers() -> None:
    """`shutdown_seconds` holds whatever clients do."""
    async with Stage(shutdown_seconds=0.5, linger_seconds=30.0) as stage:
        await stage.connect()
        began = trio.current_time()
        await stage.broker.stop()
        assert trio.current_time() - began == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("is_stopping", [True, False])
async def test_cut_ends_who_lingers_at_once(is_stopping: bool) -> None:
    """What a second signal does, also one that comes before connections are asked to end."""
    async with Stage(shutdown_seconds=100.0, linger_seconds=90.0) as stage:
        await stage.connect()
        began = trio.current_time()
        if not is_stopping:
            stage.broker.connections.cut()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.broker.stop)
            await trio.sleep(1)
            stage.broker.connections.cut()
        assert trio.current_time() - began == pytest.approx(1, abs=0.1)
        assert stage.broker.is_closed


async def test_no_new_connections_are_taken(stage: Stage) -> None:
    addresses = stage.broker.addresses
    assert addresses
    await stage.broker.stop()
    for address in addresses:
        host, port = address.split(":")
        with pytest.raises(OSError):
            await trio.open_tcp_stream(host, int(port))


async def test_stranger_is_told_as_well(stage: Stage) -> None:
    client = stage.stranger()
    await client.send_raw(client.machine.connect("x")[:5])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.broker.stop)
        await client.expect_error("shutting down")


async def test_connections_that_wait_in_every_way_end(version: Version) -> None:
    """Blocked on a queue, with a full stash, with an open transaction, with a waiting COMMIT."""
    async with Stage({Q: {"full": "block", "count_max": 10}}, stash_bytes_max=5_000) as stage:
        clients = [await stage.connect(version) for _ in range(4)]
        blocked, full, open_one, committing = clients
        await blocked.send_all(Q, range(30))
        await open_one.request("BEGIN", {"transaction": "t"})
        await open_one.sent(Q, "x", transaction="t")
        await committing.request("BEGIN", {"transaction": "t"})
        await committing.sent(Q, "x", transaction="t")
        await committing.frame("COMMIT", {"transaction": "t", "receipt": "r"})
        async with trio.open_nursery() as nursery:
            await full.stream.send_all(full.encode("SEND", {"destination": Q}, b"x" * 1_000) * 50)
            await trio.sleep(1)
            nursery.start_soon(stage.broker.stop)
            for client in clients:
                await client.expect_error("shutting down")
        assert not stage.broker.connections


async def test_pulse_beats_while_the_shard_is_closed(stage: Stage) -> None:
    """Else a supervisor would kill a broker whose disk takes long for the last batch."""
    beats: list[float] = []
    stage.broker.shards._parts.opened(partial(trio.sleep, 10.5))
    stage.broker.pulse.on_beat = lambda: beats.append(trio.current_time())
    await stage.broker.stop()
    assert len(beats) == 10


async def test_second_stop_waits_for_the_first(stage: Stage) -> None:
    client = await stage.connect()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.broker.stop)
        nursery.start_soon(stage.broker.stop)
        await client.expect_error("shutting down")
    assert not stage.broker.connections


async def test_log_that_comes_up_while_the_broker_stops_does_not_keep_it_from_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was parked of a connection that is gone may still make one."""
    async with LogStage() as stage:
        table = stage.broker.logs
        assert table is not None
        table.get("/log/first")
        wait = Log.when_written

        def wait_while_another_is_made(log: Log, callback: Callable[[], None]) -> None:
            table.get("/log/late").append([encode([b"x"])], 1)
            wait(log, callback)

        monkeypatch.setattr(Log, "when_written", wait_while_another_is_made)
        await stage.broker.stop()
        assert [log.closed for log in table] == [True, True]
