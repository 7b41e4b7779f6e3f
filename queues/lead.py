"""Lead of senders over the foremost reader of a topic, and whether any reader leads.

A subscription *leads* once it has caught up since it came. While one does, senders wait for it at the lead's controller
(topic_intake.py). When one that may have led leaves, the others are asked some at a time whether they are as far.

Invariant: an element at or beyond `position` is charged to `controller`, if senders follow the fastest reader; no other
is.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf
from itertools import islice
from typing import Final

from ..flow import FlowController
from .chores import Chores
from .intake import Run
from .message import Message, size_of
from .queue import MessageQueue
from .slices import Slice
from .subscription import Subscription

LED_AT_ONCE: Final = 512
"""Subscriptions that are asked together whether they lead."""


class Lead:
    """Lead of senders over the readers of one topic.

    Attributes:
        controller: charged with the elements that no reader has been handed yet.
        is_led: whether a connected subscription has caught up since it was attached.
        position: the foremost position of any cursor.
        search: subscriptions that are still to be asked whether they lead; None: no search is under way. Plain, because
            the hot path reads it.
    """

    __slots__ = (
        "_chores", "_elements", "_follows_fastest", "_is_unsure", "_queue", "controller", "is_led",
        "position", "search",
    )  # fmt: skip

    def __init__(
        self, queue: MessageQueue, controller: FlowController[Run], chores: Chores, *, follows_fastest: bool
    ) -> None:
        """`follows_fastest`: senders wait for the foremost reader, at `controller`."""
        self._queue = queue
        self._elements = queue.elements
        self._chores = chores
        self._follows_fastest = follows_fastest
        self._is_unsure = False
        """A subscription that may have led has left, and the others have not been asked yet."""
        self.search: Iterator[Subscription] | None = None
        self.controller = controller
        self.is_led = False
        self.position = 0

    @property
    def is_sought(self) -> bool:
        """Whether the search for the leading reader is under way."""
        return self._is_unsure or self.search is not None

    def joined(self, position: int) -> None:
        """Note a new subscription whose cursor is at `position`.

        A subscription leads at once if it is at the tail, or beyond what any reader was handed. Another one leads as
        soon as it has caught up.
        """
        if position > self.position or position >= self._elements.next_sequence:
            self.is_led = True
            self.search = None
            self.move_to_end()

    def left(self, *, was_foremost: bool) -> None:
        """Note that a subscription is gone."""
        if not self._queue.subscriptions:
            self._lose()
        elif was_foremost:  # all others are asked once for all that leave together
            self._is_unsure = True
            self._chores.add(self._find)

    def caught_up(self) -> None:
        """Note that a subscription has nothing more to read: it leads, perhaps with others."""
        self.search = None
        if not self.is_led:
            self.is_led = True
            self.move_to_end()

    def advance(self, part: Slice) -> None:
        """Move on with the foremost cursor, which has passed this: senders may follow."""
        if part.first >= self.position:
            count, charge_bytes = len(part.messages), part.charge_bytes
        else:
            fresh = [m for s, m in zip(part.sequences, part.messages, strict=True) if s >= self.position]
            count, charge_bytes = len(fresh), size_of(fresh)
        self.position = part.end
        self.search = None
        if self._follows_fastest:
            self.controller.release(count, charge_bytes)

    def move_to_end(self) -> None:
        """Move behind all elements, and release their charge."""
        self.position = self._elements.next_sequence
        self.release_all()

    def release_all(self) -> None:
        """Release all that is charged."""
        limiter = self.controller.limiter
        if limiter.used_count:
            self.controller.release(limiter.used_count, limiter.used_bytes)

    def removed(self, sequences: SequenceOf[int], messages: SequenceOf[Message]) -> None:
        """Note elements, ascending, that left unread."""
        ahead = messages[bisect_left(sequences, self.position) :]
        if ahead and self._follows_fastest:
            self.controller.release(len(ahead), size_of(ahead))

    def _find(self, _budget: int) -> int:
        """Ask some of the subscriptions whether they lead."""
        if self._is_unsure:
            self._is_unsure = False
            self.search = iter(list(self._queue.subscriptions.values()))
        if self.search is None:
            return 0
        position, asked = self.position, None
        for asked in islice(self.search, LED_AT_ONCE):
            if asked.cursor is not None and asked.cursor.position >= position and not asked.closed:
                self.search = None
                return 0
        if asked is None:
            self._lose()
        else:
            self._chores.add(self._find)
        return 0

    def _lose(self) -> None:
        """Note that no subscription leads. One that is just a little behind leads again when it has caught up."""
        self.search = None
        self._is_unsure = self.is_led = False
        self.move_to_end()
