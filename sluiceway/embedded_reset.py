"""Emptying a broker between two uses: what one test has left does not reach the next one. Runs in the broker's task."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import trio

from sluiceway.broker import Broker
from sluiceway.queues.consumed import ConsumedQueue
from sluiceway.queues.destination import Destination

LINGER_SECONDS_MAX: Final = 1.0
"""Seconds that `reset` waits for clients that do not close their sockets."""
LOOK_SECONDS: Final = 0.001
PURGES_COUNT: Final = 3


def open_sessions(broker: Broker) -> frozenset[str]:
    """Return the ids of the sessions of all connections."""
    return frozenset(connection.session.session_id for connection in broker.connections)


async def reset(broker: Broker, kept: frozenset[str]) -> None:
    """End all connections but those whose sessions are `kept`, and remove durable subscriptions, logs, and
    destinations with all messages. A destination with a consumer of a kept connection stays, without the messages that
    the consumer does not hold. Raises what the disk raised.
    """
    for connection in list(broker.connections):
        if connection.session.session_id not in kept:
            connection.session.end("the broker was reset")
            connection.session.close()  # gives back what the session holds
    with trio.move_on_after(LINGER_SECONDS_MAX):
        while not open_sessions(broker) <= kept:  # noqa: ASYNC110 - the end of a connection sets no event
            await trio.sleep(LOOK_SECONDS)
    for durable in list(broker.registry.durables):
        if not durable.attached:
            await _answered(partial(broker.registry.remove_durable, durable))
    if broker.logs is not None:
        for log in list(broker.logs):
            await _answered(partial(broker.logs.remove, log))
    for _again in range(PURGES_COUNT):
        for destination in list(broker.registry.destinations.values()):
            destination.unpause()
            purge(destination)
            if not _has_consumers(destination):
                broker.registry.delete(destination, "the broker was reset")
        await trio.lowlevel.checkpoint()  # pending SENDs of ended connections take the room


def _has_consumers(destination: Destination) -> bool:
    """Whether a consumer subscribed to the destination itself, not with a wildcard."""
    wildcards_count = 0 if destination.wildcards is None else len(destination.wildcards)
    return destination.queue.attachments_count > wildcards_count


def purge(destination: Destination) -> int:
    """Drop the messages that no consumer holds. Returns their number. O(messages)."""
    purged_count = 0
    for queue in (*destination.queues, *(destination.delay_queues or {}).values()):
        if isinstance(queue, ConsumedQueue):
            purged_count += queue.removal.purge(queue.elements.first_live(0), queue.elements.next_sequence)
    return purged_count


async def _answered(ask: Callable[[Callable[[Any], None]], None]) -> None:
    """Wait for the answer of the disk. Raises the answer if it is an error."""
    answers: list[Any] = []
    answered = trio.Event()

    def take(answer: Any) -> None:
        answers.append(answer)
        answered.set()

    ask(take)
    await answered.wait()
    if answers[0] is not None:
        raise answers[0]
