"""Welcomes of new destinations: wildcard consumers are attached to them, the first at once, all others in steps, one
destination after the other.

Only the destination waits for its turn: the walk over the matching wildcards begins with the turn. A late walk finds
the right ones: wildcards made since have attached themselves, and are known by their number; closed ones are not there.
Meanwhile the destination keeps new messages for the wildcards that existed when it was made
(`PartitionedQueue.begin_welcome`).

Bound: one walk at a time, and an entry for each destination that waits. One that is deleted leaves the line.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice, repeat
from typing import TYPE_CHECKING

from .destination import Destination, Welcome
from .partitioned import ATTACH_AT_ONCE
from .steps import Steps
from .wildcards import PatternTrie, path_of

if TYPE_CHECKING:
    from .registry import WildcardConsumer


class Welcomes:
    """Welcomes of all destinations."""

    __slots__ = ("_carefully", "_steps", "_waiting", "_welcomes", "_wildcards")

    def __init__(
        self,
        wildcards: PatternTrie[WildcardConsumer],
        steps: Steps,
        carefully: Callable[[Callable[[], None]], None],
    ) -> None:
        """`carefully`: runs work for one of many objects and contains its errors."""
        self._wildcards = wildcards
        self._steps = steps
        self._carefully = carefully
        self._waiting: OrderedDict[Destination, None] = OrderedDict()
        self._welcomes = False

    def begin(self, destination: Destination, made_count: int) -> None:
        """Attach the wildcards that match a new destination, before which `made_count` wildcards were made."""
        matching = self._wildcards.matching(path_of(destination.name))
        for wildcard in islice(matching, ATTACH_AT_ONCE):
            if wildcard is not None:
                self._carefully(partial(wildcard.attach, destination))
        if next(matching, self) is self:
            return
        destination.queue.begin_welcome()
        destination.welcome = Welcome(made_count)
        self._waiting[destination] = None
        self._go_on()

    def forget(self, destination: Destination) -> None:
        """Forget a destination that is deleted."""
        if destination in self._waiting:
            del self._waiting[destination]
            destination.welcome = None

    def _go_on(self) -> None:
        if self._waiting and not self._welcomes:
            self._welcomes = True
            self._steps.do(self, self._welcoming())

    def _welcoming(self) -> Iterator[None]:
        try:
            while self._waiting:
                yield from self._welcoming_to(self._waiting.popitem(last=False)[0])
        except Exception:
            self._welcomes = False
            self._go_on()  # with the others
            raise
        self._welcomes = False

    def _welcoming_to(self, destination: Destination) -> Iterator[None]:
        """Attach the wildcards that match a destination and are older than it. Newer ones attach themselves."""
        queue, welcome = destination.queue, destination.welcome
        assert welcome is not None, "it has begun"
        try:
            for wildcard in self._wildcards.matching(path_of(destination.name)):
                if queue.closed:
                    return
                if (
                    wildcard is not None
                    and not wildcard.closed
                    and wildcard.number <= welcome.made_count
                    and destination not in wildcard.attachments
                ):
                    self._carefully(partial(wildcard.attach, destination))
                    yield from repeat(None, 1 + len(queue.partitions))
                else:
                    yield
        finally:
            destination.welcome = None
            queue.end_welcome()
