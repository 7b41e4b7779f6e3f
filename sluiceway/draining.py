"""Emptying of a broker before it stops: no new clients, consumers finish the present messages.

Listeners close at once, and connections that only send are ended: they would refill the queues. Consumers continue
until every queue with consumers is empty and they have acknowledged everything, or until the time is up. Then the
broker stops as usual. Persistent messages that were not consumed stay in the store.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import trio

from sluiceway.connections import Connections
from sluiceway.listeners import Listeners
from sluiceway.protocols.log import get_logger
from sluiceway.protocols.stomp.errors import ProtocolError
from sluiceway.queues.destination import Destination
from sluiceway.queues.queue import MessageQueue
from sluiceway.queues.topic import Topic
from sluiceway.shards import Shards

LOOK_SECONDS: Final = 0.2
DESTINATIONS_PER_LOOK: Final = 500
"""Number of destinations that one step looks at."""

log = get_logger("sluiceway.broker")


class Draining:
    """Draining of one broker, at most once."""

    def __init__(
        self,
        connections: Connections,
        listeners: Listeners,
        shards: Shards,
        *,
        drained: Callable[[], Awaitable[None]],
        contain: Callable[[Exception], None],
    ) -> None:
        """Prepare the drain. `drained` is called when consumers are done, or the time is up; `contain` is given
        exceptions of a check.
        """
        self._connections = connections
        self._listeners = listeners
        self._shards = shards
        self._drained = drained
        self._contain = contain
        self.is_under_way = False

    def begin(self, seconds: float, nursery: trio.Nursery) -> int:
        """Accept no more connections, and tell `drained` when consumers are through, or after `seconds`. Returns how
        many connections were ended for only sending. A second call does nothing.
        """
        if self.is_under_way:
            return 0
        self.is_under_way = True
        self._listeners.close()
        ended_count = self._end_senders()
        log.info("broker drains", ended_connections=ended_count, seconds=seconds)
        nursery.start_soon(self._finish, seconds)
        return ended_count

    def _end_senders(self) -> int:
        ended_count = 0
        for connection in list(self._connections):
            session = connection.session
            if not session.subscriptions.live and not session.unsettled_count and session.ending is None:
                session.fail(
                    ProtocolError("draining", "the broker is being drained", "Send to another, or wait for it."),
                    peers_fault=False,
                )
                ended_count += 1
        return ended_count

    async def _finish(self, seconds: float) -> None:
        with trio.move_on_after(seconds) as time:
            while True:
                if await self._looks_drained():
                    break
                await trio.sleep(LOOK_SECONDS)
        log.info("broker is drained" if not time.cancelled_caught else "broker is not drained in time, and stops")
        await self._drained()

    async def _looks_drained(self) -> bool:
        """A look that breaks has seen nothing: the next one follows, and the end comes in time."""
        try:
            self._end_senders()  # a consumer may have unsubscribed
            return await self._is_drained()
        except Exception as error:  # noqa: BLE001 - the shell of one look
            self._contain(error)
            return False

    async def _is_drained(self) -> bool:
        """Whether no message is left to consume or to acknowledge."""
        if not any(connection.session.connected for connection in self._connections):
            return True
        return not await self._any_left(list(self._shards.registry.destinations.values()))

    async def _any_left(self, destinations: Iterable[Destination]) -> bool:
        for place, destination in enumerate(destinations):
            if place % DESTINATIONS_PER_LOOK == DESTINATIONS_PER_LOOK - 1:
                await trio.lowlevel.checkpoint()
            if any(_has_left(queue, is_paused=destination.is_paused) for queue in destination.queues):
                return True
        return False


def _has_left(queue: MessageQueue, *, is_paused: bool) -> bool:
    """Whether consumers that are there have something to get from it, or to acknowledge."""
    if queue.unsettled_count or is_paused:
        return queue.unsettled_count > 0
    if not isinstance(queue, Topic):
        return bool(queue.subscriptions and queue.elements.live_count)
    end = queue.elements.next_sequence  # of a topic, each separately: others may be away
    return any(s.cursor is not None and s.cursor.position < end for s in queue.subscriptions.values())
