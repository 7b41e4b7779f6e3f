"""Messages that the broker itself takes to a queue of another hub: dead letters, and what operators move.

A letter goes as a call, and is answered when it is in the queue as safely as a RECEIPT would say. Then it leaves the
queue from which it comes. What was lost on the way, or refused, is tried again by that queue
(`sluiceway.queues.dead_letters`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from sluiceway.cluster.calls import AWAY, Answered, Calls, Head
from sluiceway.flow import Flow, FlowClosedError, FlowManager, FlowResource, SourceController
from sluiceway.flow.kinds import ResourceKind
from sluiceway.protocols.stomp.header_codec import HeaderCodec
from sluiceway.queues.dead_letters import Carried, Unreachable
from sluiceway.queues.full_actions import QueueFullError
from sluiceway.queues.message import Envelope, Message
from sluiceway.queues.names import parse
from sluiceway.queues.queue import MessageQueue
from sluiceway.queues.registry import DestinationLimitError, DestinationRegistry
from sluiceway.queues.topic import Topic

LETTER: Final = "letter"
NO_ROOM: Final = "no-room"
UNREACHABLE: Final = "unreachable"


class _Desk(FlowResource):
    """Source of letters of other hubs, for the queues that take them."""

    passes_through = False

    def __init__(self, manager: FlowManager) -> None:
        super().__init__("letters of other hubs", ResourceKind.LINK, manager)


class Letters:
    """Takes letters to other hubs, and puts theirs into queues of this one. Satisfies `queues.dead_letters.Courier`."""

    def __init__(
        self,
        calls: Calls,
        registry: Callable[[], DestinationRegistry],
        *,
        manager: FlowManager,
        clock: Callable[[], float],
    ) -> None:
        """`registry` returns the destinations of this hub."""
        self._calls = calls
        self._registry = registry
        self._manager = manager
        self._clock = clock
        self._desk = _Desk(manager)
        calls.serve(LETTER, self._serve)

    def has(self, name: str) -> bool:
        """Do `Courier.has`."""
        home = self._calls.home_of(name)
        return bool(home.hub or home.why_not)

    def carry(
        self, name: str, head: Envelope, wire: bytes, number: int, done: Carried, *, is_letter: bool = True
    ) -> None:
        """Do `Courier.carry`."""
        dialect, block_bytes = HeaderCodec().describe(head)
        facts = {"to": name, "dialect": dialect, "block_bytes": block_bytes, "number": number, "is_letter": is_letter}
        answered = partial(_carried, name, done)
        self._calls.ask(lambda: self._calls.home_of(name), LETTER, facts, wire, answered, wait_seconds=0.0)

    def _serve(self, _peer_hub: str, facts: Head, wire: bytes, answered: Answered) -> None:
        name = str(facts["to"])
        if self.has(name):
            answered(AWAY, b"")
            return
        codec = HeaderCodec(self._manager.heads_account)  # no two letters have the same head
        head = codec.restore(int(facts["dialect"]), wire[: int(facts["block_bytes"])])
        source = SourceController(
            self._desk, Flow(f"letters to {name}"), on_resume=lambda _sink: False, clock=self._clock
        )
        try:
            queue = self._queue_for(name, head, len(wire), is_letter=bool(facts["is_letter"]))
            is_taken = queue.offer([Message(head, wire, int(facts["number"]))], len(wire), source)
        except (Unreachable, DestinationLimitError, QueueFullError, FlowClosedError) as error:
            answered({"error": UNREACHABLE, "message": str(error)}, b"")
            return
        finally:
            source.close()
        if not is_taken:
            answered({"error": NO_ROOM, "message": f"{name} has no room"}, b"")
        elif queue.keeps:
            queue.when_saved(queue.elements.next_sequence - 1, lambda _durability: answered({}, b""))
        else:
            answered({}, b"")

    def _queue_for(self, name: str, head: Envelope, size_bytes: int, *, is_letter: bool) -> MessageQueue:
        """Return the queue for a message. Raises Unreachable and DestinationLimitError."""
        registry = self._registry()
        if is_letter:
            return registry.queue_for_dead_letters(name, head)
        queue = registry.get(parse(name)).partition_for(head)
        if isinstance(queue, Topic) and not queue.is_heard:
            raise Unreachable("it has no subscribers")
        if not queue.fits(1, size_bytes) and queue.policy.full not in (None, "block"):
            raise Unreachable("it has no room")  # by its policy something else would have to go for it
        return queue


def _carried(name: str, done: Carried, head: Head, _body: bytes) -> None:
    if "error" in head:
        done(f"{name}: {head['message']}", bool(head.get("in_doubt")))
    else:
        done("", False)
