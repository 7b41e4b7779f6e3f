"""The ends of large transactions with a store: what each changes is one batch, and nobody waits for all of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from sluiceway.queues.logs.batches import CONTENT_TYPE, encode
from sluiceway.spool_recovery import SpoolRecovery
from sluiceway.store.memory import MemoryEngine
from sluiceway.store.recovery import RecoveredPiece, RecoveredTransaction
from sluiceway.store.spool import StoreSpool
from tests.how_often import crowd_of
from tests.limits.law import CROWD_COUNT, LawStage, frame
from tests.limits.test_frames import MANY, Q
from tests.scenarios.client import Client
from tests.scenarios.log_stage import LogStage

SENDS = 20_000
SPREAD = 2_000
QUEUES = crowd_of(20_000, 8_000)
"""That one COMMIT waits for."""
BOUND = crowd_of(CROWD_COUNT, 4_000)
"""Queues that one COMMIT binds together."""
"""Destinations of one transaction."""
PIECES = 10_000
"""Of spooled transactions that a start finds."""


@pytest.fixture
async def stored() -> AsyncIterator[LawStage]:
    """A broker with a store."""
    async with LawStage(engine=MemoryEngine()) as stage:
        yield stage


@pytest.fixture
async def spooling() -> AsyncIterator[LawStage]:
    """A broker with a store, that spools what the default would spool beyond 64 MiB."""
    async with LawStage(engine=MemoryEngine(), transaction_bytes_max=1 << 20) as stage:
        yield stage


def sends(count: int, *, spread: int = 1) -> bytes:
    """SENDs of a transaction, to so many queues."""
    return b"".join(
        frame("SEND", b"x", destination=f"/queue/q{n % spread}", transaction="t", persistent="true")
        for n in range(count)
    )


async def begun(stage: LawStage, data: bytes) -> Client:
    """A client with an open transaction."""
    client = await stage.client()
    await client.frame("BEGIN", {"transaction": "t"})
    await client.send_raw(data)
    await client.sync()
    return client


@pytest.mark.slow
@pytest.mark.parametrize("spread", [1, SPREAD])
async def test_commit_of_persistent_sends(stored: LawStage, spread: int) -> None:
    client = await begun(stored, sends(SENDS if spread == 1 else spread, spread=spread))
    with stored.law(f"COMMIT of persistent SENDs to {spread}", limit="20,000 SENDs, or so many queues"):
        await client.request("COMMIT", {"transaction": "t"})
        await trio.sleep(3)


@pytest.mark.slow
@pytest.mark.parametrize("end", ["COMMIT", "ABORT", "abrupt"])
async def test_the_end_of_acks_and_nacks_of_stored_messages(stored: LawStage, end: str) -> None:
    client = await stored.client()
    await client.subscribe(Q, ack="client-individual", credit=f"{MANY},67108864")
    sender = await stored.client()
    await sender.send_raw(frame("SEND", b"x", destination=Q, persistent="true") * MANY)
    await sender.sync()
    await client._until(lambda: len(client.messages) == MANY, "all messages")
    await client.frame("BEGIN", {"transaction": "t"})
    held = list(client.messages)[::2]
    data = (
        frame("ACK" if n % 4 < 2 else "NACK", id=each.headers["ack"], transaction="t") for n, each in enumerate(held)
    )
    await client.send_raw(b"".join(data))
    await client.sync()
    await trio.sleep(3)
    with stored.law(f"{end} of ACKs and NACKs of stored messages", limit="5,000 that lie apart"):
        if end == "abrupt":
            client.vanish()
            await trio.sleep(3)
        else:
            await client.request(end, {"transaction": "t"})
            await trio.sleep(3)


@pytest.mark.slow
@pytest.mark.parametrize("end", ["COMMIT", "ABORT"])
async def test_the_end_of_one_cumulative_ack(stored: LawStage, end: str) -> None:
    client = await stored.holding(MANY, ack="client")
    await client.frame("BEGIN", {"transaction": "t"})
    await client.frame("ACK", {"id": client.messages[-1].headers["ack"], "transaction": "t"})
    await client.sync()
    with stored.law(f"{end} of a cumulative ACK", limit="10,000 deliveries"):
        await client.request(end, {"transaction": "t"})
        await trio.sleep(3)


@pytest.mark.slow
async def test_commit_of_composites_and_topics_with_many_subscribers(stored: LawStage) -> None:
    for _ in range(10):
        reader = await stored.client()
        await reader.send_raw(b"".join(frame("SUBSCRIBE", id=n, destination="/topic/t") for n in range(100)))
        await reader.sync()
    names = ",".join(["/topic/t", *(f"/queue/{n}" for n in range(40))])
    data = b"".join(frame("SEND", b"x", destination=names, transaction="t", persistent="true", k=n) for n in range(20))
    client = await begun(stored, data)
    with stored.law("COMMIT of composites", limit="41 destinations", crowd="1,000 subscribers of a topic"):
        await client.request("COMMIT", {"transaction": "t"})
        await trio.sleep(3)


@pytest.mark.slow
@pytest.mark.parametrize("end", ["COMMIT", "ABORT"])
async def test_the_end_of_acks_of_a_group_of_a_log(tmp_path: Path, end: str) -> None:
    async with LogStage(folder=tmp_path) as stage:
        stage.__class__ = type("LogLawStage", (LawStage, LogStage), {})
        assert isinstance(stage, LawStage)
        sender = await stage.client()
        for start in range(0, 4_000, 500):
            await sender.send_raw(
                b"".join(frame("SEND", b"%d" % n, destination="/log/l") for n in range(start, start + 500))
            )
        await sender.sync()
        client = await stage.client()
        await client.subscribe(
            "/log/l", ack="client-individual", group="g", credit="4000,67108864", **{"from": "earliest"}
        )
        await client._until(lambda: len(client.messages) == 4_000, "all records")
        await client.frame("BEGIN", {"transaction": "t"})
        held = list(client.messages)[::2]
        await client.send_raw(b"".join(frame("ACK", id=each.headers["ack"], transaction="t") for each in held))
        await client.sync()
        with stage.law(f"{end} of ACKs of a group", limit="2,000 that lie apart"):
            await client.request(end, {"transaction": "t"})
            await trio.sleep(3)


@pytest.mark.slow
@pytest.mark.parametrize("spread", [1, 200])
async def test_commit_of_sends_to_logs(tmp_path: Path, spread: int) -> None:
    """Plain records, and batches of one record each, as many as one SEND may have."""
    count = 1_000
    async with LogStage(folder=tmp_path, engine=MemoryEngine(), in_engine=False) as stage:
        stage.__class__ = type("LogLawStage", (LawStage, LogStage), {})
        assert isinstance(stage, LawStage)
        plain = [frame("SEND", b"x", destination=f"/log/l{n % spread}", transaction="t", k=n % 7) for n in range(count)]
        one = encode([b"x"])
        batch = frame(
            "SEND",
            one * count,
            destination="/log/l0",
            transaction="t",
            content_type=CONTENT_TYPE,
            content_length=len(one) * count,
        )
        client = await begun(stage, b"".join(plain) + batch)
        with stage.law(f"COMMIT of SENDs to {spread} logs", limit=f"{count:,} SENDs, {count:,} batches in one"):
            await client.request("COMMIT", {"transaction": "t"})
        assert stage.broker.logs is not None
        assert sum(log.records.next_index for log in stage.broker.logs) == 2 * count


@pytest.mark.slow
@pytest.mark.parametrize("spread", [1, 500, SPREAD])
@pytest.mark.parametrize("end", ["COMMIT", "ABORT", "abrupt"])
async def test_transactions_that_are_spooled(spooling: LawStage, spread: int, end: str) -> None:
    count = 2 * SPREAD if spread == SPREAD else SENDS // 2
    with spooling.law("SENDs of a transaction that is spooled", limit="bytes of one read"):
        client = await begun(spooling, sends(count, spread=spread))
    with spooling.law(f"{end} of a spooled transaction to {spread}", limit=f"{count:,} SENDs, {spread:,} queues"):
        if end == "abrupt":
            client.vanish()
        else:
            await client.request(end, {"transaction": "t"})
        await trio.sleep(3)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("persistent", ["false", "true"])
async def test_a_commit_that_waits_for_one_of_many_queues(persistent: str) -> None:
    """It takes its place in all of them, is looked at whenever something happens, and leaves them."""
    full = {"/queue/full": {"count_max": 1, "full": "block"}}
    async with LawStage(full, engine=MemoryEngine()) as stage:
        other = await stage.filled("/queue/full", 1)
        client = await stage.client()
        await client.send_raw(frame("SEND", b"x", destination="/queue/full"))
        names = [*(f"/queue/q{n}" for n in range(QUEUES)), "/queue/full"]
        heads = ({"destination": name, "transaction": "t", "persistent": persistent} for name in names)
        await client.frame("BEGIN", {"transaction": "t"})
        await client.send_raw(b"".join(frame("SEND", b"x", **head) for head in heads))
        await client.sync()
        case = f"COMMIT that waits, persistent {persistent}"
        with stage.law(case, limit="20,000 queues at most, one of them full"):
            await client.send_raw(frame("COMMIT", transaction="t", receipt="done"))
            await trio.sleep(3)
        beside = await stage.client()
        with stage.law(f"SENDs beside a {case}", limit="20,000 lanes"):
            for _ in range(5):
                await beside.send_raw(frame("SEND", b"x", destination="/queue/other"))
                await stage.settled_down()
        assert "done" not in client.receipts
        with stage.law(f"end of a {case}", limit="20,000 queues at most"):
            await other.subscribe("/queue/full")
            await client._until(lambda: "done" in client.receipts, "the receipt of COMMIT")
            await trio.sleep(3)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("is_spooled", [False, True], ids=["in memory", "spooled"])
async def test_a_commit_that_acknowledges_and_sends_in_many_queues(is_spooled: bool) -> None:
    """Many queues are bound together, and what is sent goes to as many."""
    limits = {"transaction_bytes_max": 1 << 20} if is_spooled else {}
    async with LawStage(engine=MemoryEngine(), **limits) as stage:
        names = [f"/queue/q{n}" for n in range(BOUND)]
        sender = await stage.client()
        for first in range(0, BOUND, 1_000):
            some = names[first : first + 1_000]
            await sender.send_raw(b"".join(frame("SEND", b"x", destination=name, persistent="true") for name in some))
            await sender.sync()
        client = await stage.client()
        await client.subscribe("/queue/>", ack="client-individual", credit="100000,67108864")
        await client._until(lambda: len(client.messages) == BOUND, "all messages")
        await client.frame("BEGIN", {"transaction": "t"})
        acks = [frame("ACK", id=each.headers["ack"], transaction="t") for each in client.messages]
        await client.send_raw(b"".join(acks) + sends(BOUND, spread=BOUND))
        await client.sync()
        await trio.sleep(3)
        kind = "that is spooled" if is_spooled else "in memory"
        with stage.law(f"COMMIT of ACKs and SENDs {kind} in many queues", limit="10,000 queues"):
            await client.request("COMMIT", {"transaction": "t"})
            await client._until(lambda: len(client.messages) == 2 * BOUND, "all messages again")


@pytest.mark.timeout(120)
async def test_a_queue_that_is_deleted_in_front_of_a_spooled_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pieces are many, and nobody wants them any more."""
    monkeypatch.setattr("sluiceway.protocols.stomp.spooling.PIECE_COUNT", 1)
    full = {"/queue/q0": {"count_max": 1, "full": "block"}}
    async with LawStage(full, engine=MemoryEngine(), transaction_bytes_max=1 << 16) as stage:
        await stage.filled("/queue/q0", 1)
        client = await begun(stage, sends(4_000))
        await client.request("COMMIT", {"transaction": "t"})
        await trio.sleep(1)
        with stage.law("DELETE of a queue in front of a spooled COMMIT", limit="4,000 pieces"):
            stage.broker.registry.delete(stage.destination("/queue/q0"), "a test")
            await trio.sleep(5)
        assert stage.broker.store is not None
        client.vanish()


@pytest.mark.parametrize("spread", [1, 100, 10_000])
async def test_pieces_of_an_earlier_run_for_temporary_destinations_that_are_gone(stored: LawStage, spread: int) -> None:
    """At the start, while the admin port is asked already."""
    spools = stored.broker.shards.spools
    assert spools is not None
    targets = [(f"/remote-temp-queue/gone/{number}", 4, False) for number in range(spread)]
    pieces = {place: RecoveredPiece(targets[place % spread], 1000, []) for place in range(PIECES)}
    spools.left = [StoreSpool(spools, 7, RecoveredTransaction(7, 1, PIECES, pieces))]
    with stored.law(f"the start with pieces for {spread:,} that are gone", limit="10,000 pieces"):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(SpoolRecovery(spools, stored.broker.registry, None, clock=stored.broker.clock).run)
        await trio.sleep(60)
    assert not any(spooled.left_count for spooled in spools.left[0].targets.values())
    assert not spools.left[0]._left_count
    assert not stored.broker.registry.destinations
