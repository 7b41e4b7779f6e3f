"""ACKs, NACKs and what comes back, where that is dearest: scattered, of many subscriptions, given up, due together."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio

from sluiceway.protocols.stomp.ledger import Ledger
from tests.limits.counting import STEP_UNITS_MAX, Counting
from tests.limits.law import LawStage, frame
from tests.limits.test_frames import MANY, MOST, Q
from tests.protocols.session.deliveries import origin, queue_of, slice_of

DEAD = {"dead_letter": "/queue/dead", "redeliveries_max": 0}
BACKOFF = {"redelivery_delay_ms": 5_000, "redeliveries_max": 1, "dead_letter": "/queue/dead"}


@pytest.mark.parametrize("command", ["ACK", "NACK"])
async def test_one_for_many_queues(stage: LawStage, command: str) -> None:
    """Each delivery came from another queue than the one before."""
    client = await stage.client()
    await client.subscribe("/queue/>", ack="client", credit="100000,67108864")
    sender = await stage.client()
    sends = (frame("SEND", b"x", destination=f"/queue/q{n % 200}") for n in range(MANY))
    await sender.send_raw(b"".join(sends))
    await client._until(lambda: len(client.messages) == MANY, "all messages")
    last = client.messages[-1]
    with stage.law(f"{command} cumulative over queues", limit="10,000 deliveries", crowd="200 queues"):
        await client.request(command, client.naming(last))
        await trio.sleep(3)


@pytest.mark.parametrize("command", ["ACK", "NACK"])
async def test_a_run_for_many_subscriptions(stage: LawStage, command: str) -> None:
    client = await stage.client()
    subscribes = (frame("SUBSCRIBE", id=n, destination=f"/queue/q{n}", ack="client-individual") for n in range(1000))
    await client.send_raw(b"".join(subscribes))
    await client.sync()
    await client.send_raw(b"".join(frame("SEND", b"x", destination=f"/queue/q{n % 1000}") for n in range(4000)))
    await client._until(lambda: len(client.messages) == 4000, "all messages")
    data = b"".join(frame(command, id=each.headers["ack"]) for each in client.messages)
    with stage.law(f"{command} over subscriptions", limit="bytes of one read", crowd="subscriptions_max"):
        await client.send_raw(data)
        await client.sync()
        await trio.sleep(1)


async def test_a_run_of_what_was_settled_before(stage: LawStage) -> None:
    """Named by message-id, and looked for wherever it may be."""
    client = await stage.client()
    subscribes = (frame("SUBSCRIBE", id=n, destination=f"/queue/q{n}", ack="client-individual") for n in range(999))
    await client.send_raw(b"".join(subscribes))
    await client.subscribe(Q, ack="client-individual", credit="100000,67108864")
    await stage.filled(Q, 2_000)
    await client._until(lambda: len(client.messages) == 2_000, "all messages")
    names = [each.headers["message-id"] for each in client.messages]
    await client.send_raw(b"".join(frame("ACK", id=each.headers["ack"]) for each in client.messages))
    await client.sync()
    with stage.law("ACK by message-id", limit="bytes of one read", crowd="subscriptions_max"):
        await client.send_raw(b"".join(frame("ACK", id=name) for name in names))
        await client.sync()


async def test_the_first_ack_by_message_id(stage: LawStage) -> None:
    """All that the connection holds is indexed for it."""
    client = await stage.holding(MANY)
    with stage.law("the first ACK by message-id", limit="10,000 deliveries"):
        await client.request("ACK", {"id": client.messages[5].headers["message-id"]})


@pytest.mark.parametrize("policy", [DEAD, BACKOFF], ids=["at once", "after a while"])
async def test_refused_to_the_dead_letters(policy: dict[str, object]) -> None:
    async with LawStage({Q: policy}) as stage:
        client = await stage.holding(MANY)
        data = b"".join(frame("NACK", id=each.headers["ack"]) for each in client.messages)
        client.messages.clear()
        name = "NACK to dead letters" if policy is DEAD else "NACK with back-off"
        with stage.law(name, limit="10,000 deliveries"):
            await client.send_raw(data)
            await client.sync()
            await trio.sleep(30)
        if policy is BACKOFF:
            data = b"".join(frame("NACK", id=each.headers["ack"]) for each in client.messages)
            with stage.law("NACK to dead letters after back-off", limit="10,000 deliveries"):
                await client.send_raw(data)
                await trio.sleep(30)


async def test_refused_in_many_queues_and_due_at_one_moment() -> None:
    async with LawStage({"/queue/>": BACKOFF}) as stage:
        client = await stage.client()
        await client.subscribe("/queue/>", ack="client-individual", credit="100000,67108864")
        await client.send_raw(b"".join(frame("SEND", b"x", destination=f"/queue/q{n % 200}") for n in range(MANY)))
        await client._until(lambda: len(client.messages) == MANY, "all messages")
        data = b"".join(frame("NACK", id=each.headers["ack"]) for each in client.messages)
        with stage.law("NACK with back-off in queues", limit="10,000 deliveries", crowd="200 queues"):
            await client.send_raw(data)
            await client.sync()
            await trio.sleep(10)


KINDS = {
    "groups": lambda n: {"group": n % 5000},
    "one group": lambda n: {"group": "g"},
    "priorities": lambda n: {"priority": n % 10},
    "persistent": lambda n: {"persistent": "true"},
    "dates": lambda n: {"expires": 4_102_444_800_000 + n},
}


@pytest.mark.parametrize("how", ["NACK", "ACK", "UNSUBSCRIBE", "abrupt"])
@pytest.mark.parametrize("kind", KINDS)
async def test_all_kinds(stage: LawStage, kind: str, how: str) -> None:
    """Half of them settled before, one by one, and another consumer that takes what comes back."""
    client = await stage.client()
    await client.subscribe(Q, ack="client", credit="100000,67108864")
    sender = await stage.client()
    await sender.send_raw(b"".join(frame("SEND", b"x", destination=Q, **KINDS[kind](n)) for n in range(MANY)))
    await client._until(lambda: len(client.messages) == MANY, "all messages")
    other = await stage.client()
    await other.subscribe(Q, ack="client", credit="100000,67108864")
    last = client.messages[-1]
    with stage.law(f"{how} with {kind}", limit="10,000 deliveries"):
        if how == "abrupt":
            client.vanish()
        elif how == "UNSUBSCRIBE":
            await client.unsubscribe()
        else:
            await client.request(how, client.naming(last))
        await trio.sleep(5)


def _see_who_worked(ledger: Ledger) -> None:
    ledger.note_worked_on()


def _ask_for_a_queue(ledger: Ledger) -> None:
    assert ledger.unsettled_of({queue_of(ledger._chunks[0].subscription)}) == MOST // 2


def _settle_until_half_are_done(ledger: Ledger) -> None:
    for ordinal in range(MOST // 2 - 8, MOST // 2 + 8):
        ledger.take([ordinal])


@pytest.mark.parametrize("act", [_see_who_worked, _ask_for_a_queue, _settle_until_half_are_done])
async def test_where_each_delivery_came_from_another_queue_than_the_one_before(act: Callable[[Ledger], None]) -> None:
    """What a connection does in one step with 100,000 deliveries, none of which can be taken together."""
    ledger = Ledger(by_number=False)
    origins = origin(), origin()
    for ordinal in range(MOST):
        ledger.add(origins[ordinal % 2], slice_of(range(ordinal, ordinal + 1)))
    ledger.flushed_ordinal = MOST
    if act is _settle_until_half_are_done:
        ledger.take(range(MOST // 2 - 8))
    else:
        ledger.hold(range(MOST - 1), through=False)
    with Counting() as counting, counting.called("one step"):
        act(ledger)
    assert counting.largest[0].units <= STEP_UNITS_MAX, counting.largest[0]
