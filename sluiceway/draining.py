"""Emptying a broker before it stops: nobody new comes in, consumers finish what is there.

Listeners close at once, and connections that only send are ended: they would fill what is to become empty. Those that
consume go on until every queue that has consumers is empty and they have acknowledged all they got, or until the time
is up. Then the broker stops as ever. What is persistent and was not consumed stays in the store.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import trio

from sluiceway.protocols.log import get_logger
from sluiceway.protocols.stomp.errors import ProtocolError
from sluiceway.queues.destination import Destination
from sluiceway.queues.queue import MessageQueue
from sluiceway.queues.readers import ReaderQueue

if TYPE_CHECKING:
    from sluiceway.broker import Broker

LOOK_SECONDS: Final = 0.2
DESTINATIONS_PER_LOOK: Final = 500
"""Between two looks at other tasks."""

log = get_logger("sluiceway.broker")


class Draining:
    """Of one broker, which may be drained once."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.is_under_way = False

    def begin(self, seconds: float, nursery: trio.Nursery) -> int:
        """Take nobody in any more, and stop when consumers are through, or after `seconds`. Returns how many
        connections were ended for only sending. A second call does nothing.
        """
        if self.is_under_way or self._broker.is_stopping:
            return 0
        self.is_under_way = True
        self._broker.doors.close()
        ended_count = self._end_senders()
        log.info("broker drains", ended_connections=ended_count, seconds=seconds)
        nursery.start_soon(self._finish, seconds)
        return ended_count

    def _end_senders(self) -> int:
        ended_count = 0
        for connection in list(self._broker.connections):
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
        await self._broker.stop()
        self._broker.stop_wanted.set()

    async def _looks_drained(self) -> bool:
        """A look that breaks has seen nothing: the next one follows, and the end comes in time."""
        try:
            self._end_senders()  # somebody may have unsubscribed
            return await self._is_drained()
        except Exception as error:  # noqa: BLE001 - the shell of one look
            self._broker.faults.contain(error)
            return False

    async def _is_drained(self) -> bool:
        """Nobody has anything left to consume or to acknowledge."""
        if not any(connection.session.connected for connection in self._broker.connections):
            return True
        return not await self._any_left(list(self._broker.registry.destinations.values()))

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
    if not isinstance(queue, ReaderQueue):
        return bool(queue.subscriptions and queue.elements.live_count)
    end = queue.elements.next_sequence  # of a topic, each for itself: others may be away
    return any(s.cursor is not None and s.cursor.position < end for s in queue.subscriptions.values())
