"""Transactions: nothing before COMMIT, then everything at once; they never lock anybody up. Checklist b42, b45-b47."""

from __future__ import annotations

from typing import Any

import pytest
import trio

import sluiceway.queues.steps
from sluiceway.protocols.stomp.escaping import Version
from sluiceway.protocols.stomp.lanes import LANES_MAX, Lanes
from sluiceway.protocols.stomp.transactions import AT_ONCE_COUNT
from sluiceway.queues.message import MESSAGE_OVERHEAD_BYTES
from tests.scenarios.client import Client
from tests.scenarios.stage import Stage

Q = "/queue/work"


async def begin(client: Client, name: str = "t") -> None:
    await client.request("BEGIN", {"transaction": name})


async def commit(client: Client, name: str = "t") -> None:
    await client.request("COMMIT", {"transaction": name})


async def abort(client: Client, name: str = "t") -> None:
    await client.request("ABORT", {"transaction": name})


# ---------------------------------------------------------------------- what they do


async def test_sends_arrive_with_commit_in_order(stage: Stage, version: Version) -> None:
    """b45: nobody sees any of them before."""
    producer, consumer = await stage.connect(version), await stage.connect(version)
    await consumer.subscribe(Q)
    await begin(producer)
    for n in range(3):
        await producer.send(Q, str(n), transaction="t")
    await producer.sent(Q, "outside")
    assert (await consumer.next_message()).text == "outside"
    await consumer.silence()
    await commit(producer)
    assert await consumer.next_texts(3) == ["0", "1", "2"]


async def test_sends_to_many_destinations_keep_their_order(stage: Stage) -> None:
    producer, consumer = await stage.connect(), await stage.connect()
    await consumer.subscribe("/queue/a,/queue/b,/topic/c")
    await begin(producer)
    for n in range(30):
        await producer.send(("/queue/a", "/queue/b", "/topic/c")[n % 3], str(n), transaction="t")
    await commit(producer)
    deliveries = await consumer.next_messages(30)
    for destination in ("/queue/a", "/queue/b", "/topic/c"):
        numbers = [int(d.text) for d in deliveries if d.headers["destination"] == destination]
        assert numbers == sorted(numbers) and len(numbers) == 10


async def test_transactions_of_one_connection_are_apart(stage: Stage) -> None:
    """They arrive in order of COMMIT, not of BEGIN."""
    client = await stage.connect()
    await client.subscribe(Q)
    await begin(client, "1")
    await begin(client, "2")
    await client.send(Q, "one", transaction="1")
    await client.send(Q, "two", transaction="2")
    await commit(client, "2")
    await commit(client, "1")
    assert await client.next_texts(2) == ["two", "one"]


async def test_same_name_on_two_connections_is_two_transactions(stage: Stage) -> None:
    one, two = await stage.connect(), await stage.connect()
    await begin(one)
    await begin(two)
    await one.sent(Q, "one", transaction="t")
    await abort(two)
    await commit(one)
    assert stage.depth_count(Q) == 1


async def test_aborted_sends_never_arrive(stage: Stage, version: Version) -> None:
    client = await stage.connect(version)
    await client.subscribe(Q)
    await begin(client)
    await client.sent(Q, "x", transaction="t")
    await abort(client)
    await client.silence()


async def test_receipt_of_a_send_in_a_transaction_comes_at_once(stage: Stage, version: Version) -> None:
    """Not at COMMIT: Perl's client waits for it before it goes on."""
    client = await stage.connect(version)
    await begin(client)
    await client.sent(Q, "x", transaction="t")
    assert stage.depth_count(Q) == 0
    await commit(client)
    assert stage.depth_count(Q) == 1


async def test_acks_settle_with_commit(stage: Stage, version: Version) -> None:
    """b42."""
    client = await stage.connect(version)
    await client.subscribe(Q, ack="client")
    await client.send_all(Q, range(3))
    deliveries = await client.next_messages(3)
    await begin(client)
    await client.ack(deliveries[1], transaction="t")
    assert stage.depth_count(Q) == 3
    await commit(client)
    assert stage.depth_count(Q) == 1


async def test_nacks_take_effect_with_commit(stage: Stage, later_version: Version) -> None:
    client = await stage.connect(later_version)
    await client.subscribe(Q, ack="client-individual")
    await client.send_all(Q, range(3))
    deliveries = await client.next_messages(3)
    await begin(client)
    await client.nack(deliveries[1], transaction="t")
    await client.ack(deliveries[0], transaction="t")
    await client.silence()
    await commit(client)
    again = await client.next_message()
    assert (again.text, again.delivery_count) == ("1", 2)
    assert stage.depth_count(Q) == 2


async def test_abort_leaves_deliveries_unsettled(stage: Stage, later_version: Version) -> None:
    """They stay with the client, which may acknowledge them after all."""
    client = await stage.connect(later_version)
    await client.subscribe(Q, ack="client-individual")
    await client.send_all(Q, range(2))
    first, second = await client.next_messages(2)
    await begin(client)
    await client.ack(first, transaction="t")
    await client.nack(second, transaction="t")
    await abort(client)
    await client.silence()
    assert stage.depth_count(Q) == 2
    await client.ack(first)
    await client.ack(second)
    assert stage.depth_count(Q) == 0


async def test_what_a_transaction_holds_is_out_of_reach_of_other_acks(stage: Stage, version: Version) -> None:
    """A cumulative ACK outside settles the rest; what the transaction holds waits for its end."""
    client = await stage.connect(version)
    await client.subscribe(Q, ack="client")
    await client.send_all(Q, range(4))
    deliveries = await client.next_messages(4)
    await begin(client)
    await client.ack(deliveries[1], transaction="t")
    await client.ack(deliveries[3])
    assert stage.depth_count(Q) == 2
    await commit(client)
    assert stage.depth_count(Q) == 0


@pytest.mark.parametrize("ending", ["vanish", "disconnect", "error"])
async def test_end_of_connection_aborts(stage: Stage, version: Version, ending: str) -> None:
    """b46: the SENDs are gone, the acknowledged come again, in order with the others."""
    client = await stage.connect(version)
    await client.subscribe(Q, ack="client")
    await client.send_all(Q, range(4))
    deliveries = await client.next_messages(4)
    await begin(client)
    await client.sent(Q, "never", transaction="t")
    await client.ack(deliveries[1], transaction="t")
    if ending == "vanish":
        client.vanish()
    elif ending == "disconnect":
        await client.disconnect()
    else:
        await client.frame("BEGIN", {"transaction": "t"})
        await client.expect_error("open already")
    heir = await stage.connect(version)
    await heir.subscribe(Q)
    again = await heir.drain()
    assert [(d.text, d.redelivered) for d in again] == [(str(n), True) for n in range(4)]


async def test_commit_after_the_subscription_ended_still_settles(stage: Stage, version: Version) -> None:
    client = await stage.connect(version)
    await client.subscribe(Q, ack="client")
    await client.send(Q, "x")
    delivery = await client.next_message()
    await begin(client)
    await client.ack(delivery, transaction="t")
    await client.unsubscribe()
    await commit(client)
    assert stage.depth_count(Q) == 0


async def test_empty_transaction_does_nothing(stage: Stage, version: Version) -> None:
    client = await stage.connect(version)
    await begin(client)
    await commit(client)
    await begin(client)
    await abort(client)


# ---------------------------------------------------------------------- credit


async def test_ack_in_a_transaction_opens_the_window(stage: Stage, later_version: Version) -> None:
    """So a transaction larger than the prefetch does not stall."""
    client = await stage.connect(later_version)
    await client.subscribe(Q, ack="client-individual", prefetch_count="2")
    await client.send_all(Q, range(10))
    await begin(client)
    for n in range(10):
        delivery = await client.next_message()
        assert delivery.text == str(n)
        await client.ack(delivery, transaction="t")
    await commit(client)
    assert stage.depth_count(Q) == 0


async def test_abort_takes_the_credit_back(stage: Stage, later_version: Version) -> None:
    """What was acknowledged in vain counts against the window again."""
    client = await stage.connect(later_version)
    await client.subscribe(Q, ack="client-individual", prefetch_count="2")
    await client.send_all(Q, range(6))
    deliveries = await client.next_messages(2)
    await begin(client)
    for delivery in deliveries:
        await client.ack(delivery, transaction="t")
    deliveries += await client.next_messages(2)
    await abort(client)
    await client.ack(deliveries[0])
    await client.ack(deliveries[1])
    await client.silence()
    await client.ack(deliveries[2])
    assert (await client.next_message()).text == "4"


# ---------------------------------------------------------------------- mistakes and limits


@pytest.mark.parametrize("command", ["SEND", "ACK", "NACK", "COMMIT", "ABORT"])
async def test_unknown_transaction_is_an_error(stage: Stage, later_version: Version, command: str) -> None:
    """b47."""
    client = await stage.connect(later_version)
    await client.subscribe(Q, ack="client")
    await client.send(Q, "x")
    naming = client.naming(await client.next_message())
    headers: dict[str, str] = {"SEND": {"destination": Q}, "ACK": naming, "NACK": naming}.get(command, {})
    await client.frame(command, {**headers, "transaction": "none", "receipt": "r"})
    error = await client.expect_error("'none' is not open")
    assert (error.headers["receipt-id"], error.headers["command"]) == ("r", command)
    assert stage.depth_count(Q) == 1


@pytest.mark.parametrize("ending", ["COMMIT", "ABORT"])
async def test_ended_transaction_is_unknown(stage: Stage, ending: str) -> None:
    client = await stage.connect()
    await begin(client)
    await client.request(ending, {"transaction": "t"})
    await client.frame("SEND", {"destination": Q, "transaction": "t"})
    await client.expect_error("not open")


async def test_too_many_transactions_are_an_error() -> None:
    async with Stage(transactions_max=3) as stage:
        client = await stage.connect()
        for n in range(3):
            await begin(client, str(n))
        await commit(client, "0")
        await begin(client, "3")
        await client.frame("BEGIN", {"transaction": "4"})
        await client.expect_error("more than 3 open transactions")


async def test_too_many_bytes_in_transactions_are_an_error() -> None:
    """All open ones together; what was committed or aborted no longer counts."""
    async with Stage(transaction_bytes_max=10_000) as stage:
        client = await stage.connect()
        for ending in (commit, abort) * 3:
            await begin(client, "t")
            await client.sent(Q, "x" * 9_000, transaction="t")
            await ending(client, "t")
        await begin(client, "a")
        await begin(client, "b")
        await client.sent(Q, "x" * 6_000, transaction="a")
        await client.frame("SEND", {"destination": Q, "transaction": "b", "receipt": "r"}, "x" * 6_000)
        error = await client.expect_error("more than 10000 bytes")
        assert (error.headers["receipt-id"], error.headers["transaction"]) == ("r", "b")


async def test_bad_send_in_a_transaction_fails_the_commit(stage: Stage) -> None:
    """None of it is carried out, and the ERROR names the frame that got it: COMMIT."""
    client = await stage.connect()
    await client.subscribe(Q, ack="client")
    await client.send(Q, "x")
    delivery = await client.next_message()
    await begin(client)
    await client.ack(delivery, transaction="t")
    await client.send("/queue/other", "fine", transaction="t")
    await client.send("/queue/*", "wrong", transaction="t")
    await client.frame("COMMIT", {"transaction": "t", "receipt": "r"})
    error = await client.expect_error("wildcard")
    assert error.headers["receipt-id"] == "r"
    assert (stage.depth_count(Q), stage.depth_count("/queue/other")) == (1, 0)


# ---------------------------------------------------------------------- full destinations

REJECT: dict[str, dict[str, Any]] = {"/queue/small": {"full": "reject", "count_max": 3}}
BLOCK: dict[str, dict[str, Any]] = {"/queue/small": {"full": "block", "count_max": 10}}


async def test_commit_is_all_or_nothing_where_a_queue_rejects(version: Version) -> None:
    async with Stage(REJECT) as stage:
        client = await stage.connect(version)
        await client.subscribe(Q, ack="client")
        await client.send(Q, "x")
        delivery = await client.next_message()
        await begin(client)
        await client.ack(delivery, transaction="t")
        await client.send("/queue/other", "other", transaction="t")
        for n in range(4):
            await client.send("/queue/small", str(n), transaction="t")
        await client.frame("COMMIT", {"transaction": "t", "receipt": "r"})
        error = await client.expect_error("no room")
        assert (error.headers["receipt-id"], error.headers["command"]) == ("r", "COMMIT")
        depths = {name: stage.depth_count(name) for name in (Q, "/queue/other", "/queue/small")}
        assert depths == {Q: 1, "/queue/other": 0, "/queue/small": 0}


async def test_commit_that_fits_exactly_is_taken_where_a_queue_rejects() -> None:
    async with Stage(REJECT) as stage:
        client = await stage.connect()
        await begin(client)
        for n in range(3):
            await client.send("/queue/small", str(n), transaction="t")
        await commit(client)
        assert stage.depth_count("/queue/small") == 3


async def test_acks_of_a_transaction_make_room_for_its_sends() -> None:
    """Settlements come first: replacing a message in a full queue is possible."""
    async with Stage(REJECT) as stage:
        client = await stage.connect()
        await client.subscribe("/queue/small", ack="client-individual")
        await client.send_all("/queue/small", range(3))
        for n in range(3, 9):
            delivery = await client.next_message()
            await begin(client)
            await client.ack(delivery, transaction="t")
            await client.send("/queue/small", str(n), transaction="t")
            await commit(client)
        assert stage.depth_count("/queue/small") == 3


async def test_commit_waits_for_a_full_destination(version: Version) -> None:
    """All of it waits together: nothing is visible, and the RECEIPT does not come, until there is room."""
    async with Stage(BLOCK) as stage:
        producer, consumer = await stage.connect(version), await stage.connect(version)
        await producer.send_all("/queue/small", range(10))
        await begin(producer)
        await producer.send("/queue/free", "f", transaction="t")
        await producer.send("/queue/small", "s", transaction="t")
        await producer.frame("COMMIT", {"transaction": "t", "receipt": "r"})
        await producer.silence()
        assert stage.depth_count("/queue/free") == 0
        await consumer.subscribe("/queue/small")
        assert await consumer.next_texts(11) == [str(n) for n in range(10)] + ["s"]
        await producer.expect_receipt("r")
        assert stage.depth_count("/queue/free") == 1


async def test_waiting_commit_is_carried_out_though_its_connection_ends() -> None:
    """b50: it was received whole."""
    async with Stage(BLOCK) as stage:
        producer, consumer = await stage.connect(), await stage.connect()
        await producer.send_all("/queue/small", range(10))
        await begin(producer)
        await producer.send("/queue/small", "s", transaction="t")
        await producer.frame("COMMIT", {"transaction": "t"})
        await stage.settled_down()
        producer.vanish()
        await consumer.subscribe("/queue/small")
        assert await consumer.next_texts(11) == [str(n) for n in range(10)] + ["s"]


async def test_commits_that_wait_are_carried_out_in_order() -> None:
    async with Stage(BLOCK) as stage:
        producer, consumer = await stage.connect(), await stage.connect()
        await producer.send_all("/queue/small", range(10))
        for n in range(10, 30):
            await producer.frame("BEGIN", {"transaction": str(n)})
            await producer.send("/queue/small", str(n), transaction=str(n))
            await producer.frame("COMMIT", {"transaction": str(n), "receipt": str(n)})
        await producer.silence()
        await consumer.subscribe("/queue/small", ack="client-individual", prefetch_count="1")
        for n in range(30):
            delivery = await consumer.next_message()
            assert delivery.text == str(n)
            await consumer.ack(delivery)
        await producer.expect_receipt("29")


async def test_commit_that_makes_room_never_waits_for_it() -> None:
    """The only consumer of a full queue moves messages within it: BEGIN, ACK, SEND, COMMIT."""
    async with Stage(BLOCK) as stage:
        client = await stage.connect()
        await client.subscribe("/queue/small", ack="client-individual")
        await client.send_all("/queue/small", range(10))
        for n in range(10, 200):
            delivery = await client.next_message()
            assert delivery.text == str(n - 10)
            await begin(client)
            await client.send("/queue/small", str(n), transaction="t")
            await client.ack(delivery, transaction="t")
            await commit(client)


async def test_commit_that_makes_room_goes_before_no_other_but_takes_them_along() -> None:
    """A COMMIT waits for a full queue; a later one acknowledges there. If that one waited behind it, both would
    forever."""
    async with Stage(BLOCK) as stage:
        client = await stage.connect()
        await client.subscribe("/queue/small", ack="client-individual", prefetch_count="10")
        await client.send_all("/queue/small", range(10))
        deliveries = await client.next_messages(10)
        await begin(client, "first")
        await client.send("/queue/small", "first", transaction="first")
        await client.frame("COMMIT", {"transaction": "first", "receipt": "first"})
        await client.silence()
        await begin(client, "second")
        for delivery in deliveries:
            await client.ack(delivery, transaction="second")
        await client.send("/queue/small", "second", transaction="second")
        await client.frame("COMMIT", {"transaction": "second", "receipt": "second"})
        await client.expect_receipt("second")
        await client.expect_receipt("first")
        assert await client.next_texts(2) == ["first", "second"]


async def test_sends_behind_a_waiting_commit_do_not_overtake_it() -> None:
    """Order of one producer to one queue holds, in transactions or not."""
    async with Stage(BLOCK) as stage:
        producer, consumer = await stage.connect(), await stage.connect()
        await producer.send_all("/queue/small", range(12))
        await begin(producer)
        await producer.send("/queue/small", "12", transaction="t")
        await producer.send("/queue/free", "12", transaction="t")
        await producer.frame("COMMIT", {"transaction": "t"})
        await producer.send_all("/queue/small", range(13, 16))
        await producer.send("/queue/free", "13")
        await producer.silence()
        await consumer.subscribe("/queue/small", id="small")
        await consumer.subscribe("/queue/free", id="free")
        deliveries = await consumer.next_messages(18)
        small = [d.text for d in deliveries if d.headers["subscription"] == "small"]
        free = [d.text for d in deliveries if d.headers["subscription"] == "free"]
        assert small == [str(n) for n in range(16)]
        assert free == ["12", "13"]


async def test_commits_to_a_full_queue_stop_the_socket_in_the_end() -> None:
    """Waiting COMMITs count like parked SENDs: the connection is held back, not cut for what its open transactions
    would hold."""
    async with Stage(BLOCK, stash_bytes_max=20_000, transaction_bytes_max=60_000) as stage:
        producer, consumer = await stage.connect(), await stage.connect()
        await producer.send_all("/queue/small", range(10))

        async def flood() -> None:
            for n in range(10, 100):
                await producer.frame("BEGIN", {"transaction": "t"})
                await producer.send("/queue/small", str(n).ljust(5_000), transaction="t")
                await producer.frame("COMMIT", {"transaction": "t"})
            await producer.sync()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(flood)
            await trio.sleep(5)
            (connection,) = [c for c in stage.broker.connections if c.session.peer == producer.name]
            assert connection.session.reading_blocked_by is not None
            await consumer.subscribe("/queue/small", ack="client")
            for n in range(100):
                delivery = await consumer.next_message()
                assert delivery.text.strip() == str(n)
                await consumer.ack(delivery)


async def test_a_refused_commit_takes_no_other_with_it() -> None:
    """The one that is refused is the one that the ERROR names; what was committed behind it is carried out."""
    policies = {"/queue/full": {"full": "block", "count_max": 10}, "/queue/small": {"full": "reject", "count_max": 1}}
    async with Stage(policies) as stage:
        client, other = await stage.connect(), await stage.connect()
        await client.subscribe("/queue/full", ack="client")
        await client.send_all("/queue/full", range(10))
        held = await client.next_messages(10)
        await other.sent("/queue/small", "fills it")
        for name in ("t1", "t2", "t3"):
            await client.frame("BEGIN", {"transaction": name})
            await client.send("/queue/full", name, transaction=name)
            if name == "t1":
                await client.send("/queue/small", name, transaction=name)
            if name == "t3":
                await client.frame("ACK", {**client.naming(held[-1]), "transaction": name})
            await client.frame("COMMIT", {"transaction": name, "receipt": f"receipt of {name}"})
            if name == "t2":
                await client.send("/queue/full", "plain, behind t2")
        error = await client.expect_error()
        assert (error.headers["transaction"], error.headers["receipt-id"]) == ("t1", "receipt of t1")
        await other.subscribe("/queue/full")
        # What it held and had not acknowledged comes again; t3 was carried out, its ACK included.
        assert await other.next_texts(3) == ["t2", "plain, behind t2", "t3"]


async def test_nacks_make_room_for_the_sends_of_their_transaction() -> None:
    """Somebody can take what was refused: a COMMIT that waited for that could wait for itself."""
    async with Stage({Q: {"full": "block", "count_max": 10}}) as stage:
        client = await stage.connect()
        await client.subscribe(Q, ack="client-individual")
        await client.send_all(Q, range(10))
        refused = await client.next_messages(10)
        await begin(client)
        for delivery in refused:
            await client.frame("NACK", {**client.naming(delivery), "transaction": "t"})
        await client.send(Q, "later", transaction="t")
        await commit(client)
        texts = []
        for _ in range(11):
            delivery = await client.next_message()
            texts.append(delivery.text)
            await client.ack(delivery)
        assert texts == [str(n) for n in range(10)] + ["later"]


async def test_acks_of_a_topic_promise_no_room_in_it() -> None:
    """Its other readers still hold what one acknowledged, so a queue that rejects refuses the whole transaction."""
    async with Stage({"/topic/t": {"full": "reject", "count_max": 3}}) as stage:
        client, slow, reader = await stage.connect(), await stage.connect(), await stage.connect()
        await client.subscribe("/topic/t", ack="client-individual")
        await slow.subscribe("/topic/t", ack="client-individual")
        await reader.subscribe(Q)
        await client.send_all("/topic/t", range(3))
        await begin(client)
        for delivery in await client.next_messages(3):
            await client.frame("ACK", {**client.naming(delivery), "transaction": "t"})
        await client.send(Q, "must not come alone", transaction="t")
        await client.send("/topic/t", "no room", transaction="t")
        await client.frame("COMMIT", {"transaction": "t"})
        await client.expect_error("has no room for the SENDs of transaction 't'")
        await reader.silence()


async def test_a_transaction_over_many_destinations_is_held_back_like_any_other() -> None:
    """More destinations than a connection keeps lanes: the full one among them still blocks."""
    async with Stage({"/queue/full": {"full": "block", "count_max": 2}}) as stage:
        client = await stage.connect()
        await client.send_all("/queue/full", range(2))
        await begin(client)
        await client.send("/queue/full", "waits", transaction="t")
        head = {"transaction": "t"}
        names = [f"/queue/d{n}" for n in range(LANES_MAX + 10)]
        await client.send_raw(b"".join(client.encode("SEND", {"destination": name, **head}) for name in names))
        await client.frame("COMMIT", {"transaction": "t", "receipt": "done"})
        await stage.settled_down()
        assert stage.depth_count("/queue/full") == 2
        assert "done" not in client.receipts
        consumer = await stage.connect()
        await consumer.subscribe("/queue/full")
        assert await consumer.next_texts(3) == ["0", "1", "waits"]
        await client.expect_receipt("done")
        await consumer.subscribe("/queue/>", id="all")
        await consumer.next_messages(LANES_MAX + 10)


async def test_what_transactions_hold_is_on_the_flow_map() -> None:
    async with Stage() as stage:
        client = await stage.connect()
        await begin(client)
        before_bytes = stage.used_bytes
        for n in range(100):
            await client.send(Q, "x" * 100, transaction="t", correlation_id=str(n))
        await client.sync()
        held_bytes = stage.used_bytes - before_bytes
        assert held_bytes > 100 * (100 + MESSAGE_OVERHEAD_BYTES)
        await abort(client)
        assert stage.used_bytes == before_bytes


@pytest.mark.parametrize("count", [1, AT_ONCE_COUNT + 1])
@pytest.mark.parametrize("end", ["COMMIT", "COMMIT that waits", "COMMIT that makes room", "ABORT"])
async def test_nothing_is_kept_of_a_transaction_that_has_ended(end: str, count: int) -> None:
    """A connection that carries out thousands does not fill the memory of the broker, as it is counted."""
    async with Stage({Q: {"count_max": count}}) as stage:
        client, consumer = await stage.connect(), await stage.connect()
        lanes = next(each for each in stage.broker.manager.resources if isinstance(each, Lanes))
        kept_bytes = []
        for _ in range(3):
            await client.subscribe(Q, id="own", ack="client")
            if end != "COMMIT":
                await client.send(Q, "full", persistent="true")
                await client.sync()
            await begin(client)
            if end == "COMMIT that makes room":
                await client.ack(await client.next_message(), transaction="t")
            for _ in range(count):
                await client.send(Q, "x", transaction="t")
            await client.frame("ABORT" if end == "ABORT" else "COMMIT", {"transaction": "t", "receipt": "ended"})
            await client.unsubscribe(id="own")
            await consumer.subscribe(Q)
            await client.expect_receipt("ended")
            await trio.sleep(1)
            await consumer.unsubscribe()
            client.receive_now()
            client.messages.clear()
            kept_bytes.append(lanes.kept_bytes)
        assert kept_bytes[1] == kept_bytes[2]


@pytest.mark.parametrize("at_once", [0, 1, 5])
async def test_commits_of_many_go_on_in_one_moment(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    """Only the first of them may do their work at once."""
    async with Stage({Q: {"count_max": 1}}) as stage:
        clients = [await stage.connect() for _ in range(4)]
        for client in clients:
            for _ in range(2):
                await client.send(Q, "waits")
            for name in ("one", "two"):
                await begin(client, name)
                await client.send(Q, "x", transaction=name)
                await client.frame("COMMIT", {"transaction": name, "receipt": name})
        await trio.sleep(1)
        monkeypatch.setattr(sluiceway.queues.steps, "AT_ONCE_SUM", at_once)
        stage.broker.registry.steps._at_once_left = at_once
        consumer = await stage.connect()
        await consumer.subscribe(Q)
        for client in clients:
            await client.expect_receipt("one")
            await client.expect_receipt("two")
        await consumer.next_messages(16)
