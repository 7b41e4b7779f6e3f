"""Transfers of messages between queues at an operator's request: dead letters back to their origin, a backlog to
another queue.

A message is in its new queue before it leaves the old one, and on disk both happen in one write: so it is never lost,
and never in two places after a crash. Messages that a consumer holds stay with it. No queue drops messages for a
transfer: where there is no room the transfer waits, as a source of that queue like any other.

Everything here is synchronous: no dispatch runs between a message's arrival and its departure. But for messages that go
to another hub: no consumer gets them until they are there, and confirmed, or were refused.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping

from ..flow import Flow, FlowClosedError, SourceController
from .consumed import ConsumedQueue
from .dead_letters import Courier, FarQueue, Rewrite
from .full_actions import QueueFullError
from .message import Message
from .queue import MessageQueue
from .topic import Topic


class Outcome(enum.Enum):
    """Result for one message."""

    MOVED = "moved"
    GONE = "gone"
    """Left the queue, or held by a consumer."""
    NO_ROOM = "no room"
    """The other queue has no room now; `source` is blocked if it will tell when it has."""
    UNHEARD = "unheard"
    """Unheard, and not moved: the topic has no subscriber that would receive it."""


class Transfer:
    """Out of one queue. Close it at the end."""

    def __init__(
        self,
        queue: ConsumedQueue,
        *,
        rewrite: Rewrite,
        clock: Callable[[], float],
        now_ms: Callable[[], int],
        on_room: Callable[[], bool],
    ) -> None:
        """`rewrite`: changes headers, the protocol's part; `on_room`: a queue that had none has room again. True: it is
        waited for, and its turn is kept until `flush`.
        """
        self._queue = queue
        self._rewrite = rewrite
        self._now_ms = now_ms
        self._moved: dict[MessageQueue, list[int]] = {}

        self.source = SourceController(
            queue,
            Flow(f"moved out of {queue.name}"),
            on_resume=lambda _sink: on_room(),
            priority=queue.priority,
            clock=clock,
        )

    def move(self, sequence: int, message: Message, to: MessageQueue, changes: Mapping[str, str | None]) -> Outcome:
        """Move a message to `to`, with the headers in `changes` set (a string) or removed (None). Call `flush` before
        any other code runs.
        """
        if not self._queue.removal.may_leave(sequence):
            return Outcome.GONE
        if isinstance(to, Topic) and not to.is_heard:
            return Outcome.UNHEARD
        head, wire = self._rewrite(message, {**changes, **self._delay_left(message)})
        try:
            if not to.fits(1, len(wire)) and to.policy.full not in (None, "block"):
                return Outcome.NO_ROOM  # by its policy something else would have to go for it
            if not to.offer([message.rewritten(head, wire)], len(wire), self.source):
                return Outcome.NO_ROOM
        except (QueueFullError, FlowClosedError):
            return Outcome.NO_ROOM
        self._moved.setdefault(to, []).append(sequence)
        return Outcome.MOVED

    def carry(
        self,
        sequence: int,
        message: Message,
        to: FarQueue,
        changes: Mapping[str, str | None],
        courier: Courier,
        done: Callable[[str], None],
    ) -> bool:
        """Take a message to a queue of another hub; `done` gets the reason why it is not there, empty if it is. False:
        it has left the queue, a consumer has it, it is delayed, or its body is in a file.
        """
        removal, queue = self._queue.removal, self._queue
        if message.large is not None or not removal.hold(sequence):
            return False

        def carried(why_not: str, may_be_there: bool) -> None:
            if not queue.closed:
                if why_not:
                    removal.given_back(sequence)
                else:
                    removal.gone_far(sequence, to)
            done(f"{why_not}; some may be there already" if may_be_there else why_not)

        head, wire = self._rewrite(message, changes)
        courier.carry(to.name, head, wire, message.number, carried, is_letter=False)
        return True

    def _delay_left(self, message: Message) -> dict[str, str | None]:
        """Return the rest of a message's delay, but at most its original delay."""
        left_ms = max(0, message.due_at_ms - self._now_ms())
        return {
            "delay": str(left_ms) if left_ms else None,
            "AMQ_SCHEDULED_DELAY": None,
            "x-delay": None,
        }

    def flush(self) -> None:
        """Remove the messages that were moved from the queue."""
        moved, self._moved = self._moved, {}
        for to, sequences in moved.items():
            self._queue.removal.moved(sequences, to)
        self.source.end_turn()

    def close(self) -> None:
        """Flush, and stop waiting."""
        self.flush()
        self.source.close()
