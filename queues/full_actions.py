"""Actions of a queue on messages for which it has no room: one object for each value of the setting `full`.

`block` makes senders wait; the others never do (except for memory, while blocks that must leave it are written to the
disk). Each makes room as far as it may, and then decides which messages of a run are accepted.

The objects hold no state: all queues share them.

Source: seed 002 "Flow Control" (overflow policies).
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Final

from .message import Message, size_of

if TYPE_CHECKING:
    from ..flow import SourceController
    from .intake import Intake


class QueueFullError(Exception):
    """The destination is full and its policy is `reject`. The queue is unchanged."""


class FullAction(ABC):
    """One value of `full`.

    Class attributes:
        name: the value, as it is configured.
        holds_back: senders wait until there is room; `fit` is not asked.
        refuses: a run that does not fit is refused, and QueueFullError raised.
        drops_oldest: the oldest messages leave for new ones, and are lost.
        gives_up: the oldest messages leave for new ones, to the dead-letter queue.
    """

    name: ClassVar[str]
    holds_back: ClassVar[bool] = False
    refuses: ClassVar[bool] = False
    drops_oldest: ClassVar[bool] = False
    gives_up: ClassVar[bool] = False

    @property
    def lets_oldest_leave(self) -> bool:
        """The oldest messages leave for new ones."""
        return self.drops_oldest or self.gives_up

    @property
    def takes_together(self) -> bool:
        """A transaction comes in whole, over the limit if need be."""
        return self.holds_back or self.refuses

    def must_wait(self, intake: Intake, count: int, wire_bytes: int, source: SourceController) -> bool:
        """Return whether messages that are to make room are still on their way out; then `source` is blocked."""
        return False

    @abstractmethod
    def fit(self, intake: Intake, messages: list[Message], charge_bytes: int) -> tuple[list[Message], int]:
        """Make room for a run that does not fit. Returns the messages that are accepted (perhaps none), and their
        charge.

        Raises QueueFullError (`reject`); the queue is unchanged then.
        """


class BlockSenders(FullAction):
    """Senders wait."""

    name = "block"
    holds_back = True

    def fit(self, intake: Intake, messages: list[Message], charge_bytes: int) -> tuple[list[Message], int]:
        return messages, charge_bytes


class Reject(FullAction):
    """The sender gets an ERROR."""

    name = "reject"
    refuses = True

    def fit(self, intake: Intake, messages: list[Message], charge_bytes: int) -> tuple[list[Message], int]:
        limiter = intake.controller.limiter
        intake.queue.rejected_count += len(messages)
        raise QueueFullError(
            f"{intake.queue.name} is full ({limiter.used_count} messages, {limiter.used_bytes} bytes) and refuses new "
            "messages (policy reject): consume from it, or raise memory_bytes, count_max or bytes_max"
        )


class DropNewest(FullAction):
    """Drop new messages that do not fit."""

    name = "drop_newest"

    def fit(self, intake: Intake, messages: list[Message], charge_bytes: int) -> tuple[list[Message], int]:
        count, charge_bytes = intake.count_that_fits(messages)
        intake.drop_incoming(messages[count:])
        return messages[:count], charge_bytes


class DropOldest(FullAction):
    """Drop the oldest messages that no consumer holds; new ones only if that is not enough."""

    name = "drop_oldest"
    drops_oldest = True

    def fit(self, intake: Intake, messages: list[Message], charge_bytes: int) -> tuple[list[Message], int]:
        if charge_bytes > intake.policy.limit_bytes:
            messages, charge_bytes = self._without_oversize(intake, messages)
            if not messages:
                return messages, 0
        intake.queue.make_room(*intake.overhang(len(messages), charge_bytes))
        over_count, over_bytes = intake.overhang(len(messages), charge_bytes)
        if over_count <= 0 and over_bytes <= 0:
            return messages, charge_bytes
        count, charge_bytes = intake.count_that_fits(messages[::-1])
        missing_count = len(messages) - count
        intake.drop_incoming(messages[:missing_count])
        return messages[missing_count:], charge_bytes

    def _without_oversize(self, intake: Intake, messages: list[Message]) -> tuple[list[Message], int]:
        """Drop messages that would not fit into an empty queue either, before others are dropped for them without
        effect.
        """
        policy = intake.policy
        limit_bytes = policy.limit_bytes if intake.residency is None else policy.bytes_max or sys.maxsize
        fitting = [message for message in messages if message.size_bytes <= limit_bytes]
        intake.drop_incoming([message for message in messages if message.size_bytes > limit_bytes])
        return fitting, size_of(fitting)


class DeadLetter(FullAction):
    """The oldest messages that no consumer holds go to the dead-letter queue; meanwhile the next runs wait."""

    name = "dead_letter"
    gives_up = True

    def must_wait(self, intake: Intake, count: int, wire_bytes: int, source: SourceController) -> bool:
        return intake.queue.waits_for_dead_letters(count, wire_bytes, source)

    def fit(self, intake: Intake, messages: list[Message], charge_bytes: int) -> tuple[list[Message], int]:
        intake.queue.make_room(*intake.overhang(len(messages), charge_bytes))
        return messages, charge_bytes


ACTIONS: Final[Mapping[str, FullAction]] = MappingProxyType(
    {action.name: action for action in (BlockSenders(), DropOldest(), DropNewest(), Reject(), DeadLetter())}
)
"""Actions by name; `policy.FULL_ACTIONS` has the same names."""
