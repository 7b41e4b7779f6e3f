"""What is counted beside messages (flow/upkeep.py) is uncounted when it goes: whatever a client does again and again,
the account stands still. What it kept of each time would one day be all the memory of the broker.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from tests.scenarios.client import Client
from tests.scenarios.stage import Stage

Act = Callable[[Stage, Client], Awaitable[None]]

TIMES = 20
QUEUE, TOPIC = "/queue/work", "/topic/news"


async def commit_nothing(_stage: Stage, client: Client) -> None:
    await client.request("BEGIN", {"transaction": "t"})
    await client.request("COMMIT", {"transaction": "t"})


async def commit_sends(_stage: Stage, client: Client) -> None:
    await client.request("BEGIN", {"transaction": "t"})
    await client.send(TOPIC, "one", transaction="t")
    await client.request("COMMIT", {"transaction": "t"})


async def commit_acks(_stage: Stage, client: Client) -> None:
    await client.subscribe(QUEUE, ack="client-individual")
    await client.send_all(QUEUE, range(3))
    await client.request("BEGIN", {"transaction": "t"})
    for delivery in await client.next_messages(3):
        await client.ack(delivery, transaction="t")
    await client.request("COMMIT", {"transaction": "t"})
    await client.unsubscribe()


async def abort_sends_and_acks(_stage: Stage, client: Client) -> None:
    await client.subscribe(QUEUE, ack="client-individual")
    await client.send(QUEUE, "one")
    delivery = await client.next_message()
    await client.request("BEGIN", {"transaction": "t"})
    await client.send(TOPIC, "two", transaction="t")
    await client.ack(delivery, transaction="t")
    await client.request("ABORT", {"transaction": "t"})
    await client.ack(delivery)
    await client.unsubscribe()


async def leave_with_open_transactions(stage: Stage, _client: Client) -> None:
    client = await stage.connect()
    await client.request("BEGIN", {"transaction": "t"})
    await client.send(TOPIC, "one", transaction="t")
    await client.disconnect()


async def send_to_what_is_deleted(stage: Stage, client: Client) -> None:
    """As idle queues are, and those of clients that went."""
    await client.send_all(QUEUE, ["one"])
    await client.sent(f"{QUEUE},{TOPIC}", "two")
    stage.broker.registry.delete(stage.broker.registry.destinations[QUEUE], "the test says so")
    await client.sent(QUEUE, "three")
    stage.broker.registry.delete(stage.broker.registry.destinations[QUEUE], "the test says so")


async def answer_in_temporary_queues(stage: Stage, client: Client) -> None:
    asking = await stage.connect()
    await asking.subscribe("/temp-queue/answers")
    await asking.sent(TOPIC, "why?", **{"reply-to": "/temp-queue/answers"})
    await asking.disconnect()


async def subscribe_in_many_ways(_stage: Stage, client: Client) -> None:
    for number, destination in enumerate((QUEUE, TOPIC, "/topic/a.*.b.>", "/queue/*")):
        await client.subscribe(destination, id=str(number))
    for number in range(4):
        await client.unsubscribe(id=str(number))


async def subscribe_for_good_and_end_it(_stage: Stage, client: Client) -> None:
    await client.subscribe(TOPIC, id="kept", durable="true")
    await client.request("UNSUBSCRIBE", {"id": "kept", "durable": "true", "destination": TOPIC})


ACTS: list[Act] = [
    commit_nothing,
    commit_sends,
    commit_acks,
    abort_sends_and_acks,
    leave_with_open_transactions,
    send_to_what_is_deleted,
    answer_in_temporary_queues,
    subscribe_in_many_ways,
    subscribe_for_good_and_end_it,
]


@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
async def test_what_is_done_again_and_again_adds_nothing(stage: Stage, act: Act) -> None:
    client = await stage.connect(**{"client-id": "me"})
    for _ in range(3):
        await act(stage, client)
    await client.sync()
    before_bytes = stage.upkeep_bytes
    for _ in range(TIMES):
        await act(stage, client)
    await client.sync()
    assert stage.upkeep_bytes == before_bytes, f"{(stage.upkeep_bytes - before_bytes) / TIMES} bytes each time"
