"""Who asks where a message is, with ten thousand subscriptions there and a hundred thousand messages in their hands."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio

from tests.limits.law import CROWD_COUNT, LawStage
from tests.limits.test_crowds import crowd
from tests.limits.test_frames import MOST, Q
from tests.scenarios.client import Client

T = "/topic/t"

MESSAGES_COUNT = 20
"""Asked for at once: each has an entry for each subscription."""


async def asked(stage: LawStage, client: Client, name: str, **request: object) -> list[dict[str, Any]]:
    """The trails of some messages."""
    await client.subscribe("/temp-queue/r", id="r")
    with stage.law(name, limit="one request", crowd="10,000 subscriptions") as counting:
        counting.measures_with(stage.broker.answers._pace)
        await client.send("/sluiceway/trail", json.dumps(request).encode(), reply_to="/temp-queue/r")
        trails: list[dict[str, Any]] = json.loads((await client.next_message()).body)["trails"]
    return trails


def forget(stage: LawStage) -> None:
    """All that is known of messages by now."""
    assert stage.broker.trails is not None
    trails = stage.broker.trails.trails
    for each in trails.queue_trails():
        each.seal(give_back=True)
    trails.configure(bytes_max=1 << 20, keep_seconds=1)


@pytest.mark.slow
async def test_who_holds_a_message_whose_trail_is_forgotten(stage: LawStage) -> None:
    """Nobody but the ledgers knows: of ten thousand subscriptions with ten messages each."""
    readers = await crowd(stage, CROWD_COUNT, destination=Q, ack="client-individual", credit="10,67108864")
    await stage.filled(Q, MOST)
    await trio.sleep(1)
    assert sum(connection.session.unsettled_count for connection in stage.broker.connections) == MOST
    forget(stage)
    await trio.sleep(2)
    readers[-1].receive_now()
    last = readers[-1].messages[-1]
    client = await stage.client()
    [trail] = await asked(stage, client, "trail of a held message", message_id=last.headers["message-id"])
    holder = f"{last.headers['subscription']} of {readers[-1].name}"
    assert trail["words"] == f"It is in {Q}, in memory; not acknowledged by {holder}."


@pytest.mark.slow
@pytest.mark.parametrize("is_known", [True, False])
async def test_a_message_of_a_topic_with_a_crowd(stage: LawStage, is_known: bool) -> None:
    """Every one of them has it, and has not acknowledged it."""
    readers = await crowd(stage, CROWD_COUNT, destination=T, ack="client-individual")
    sender = await stage.client()
    for _ in range(MESSAGES_COUNT):
        await sender.send(T, b"x", correlation_id="c")
    await trio.sleep(1)
    if not is_known:
        forget(stage)
        await trio.sleep(2)
    name = f"trail of a topic's messages, {'known' if is_known else 'forgotten'}"
    trails = await asked(stage, sender, name, correlation_id="c", limit=MESSAGES_COUNT)
    assert [trail["place"]["needed_by_count"] for trail in trails] == [CROWD_COUNT] * MESSAGES_COUNT
    assert len(readers) == CROWD_COUNT // 1000
