"""Wildcard consumers are attached to new destinations: the first at once, all others in steps, one destination after
the other.

What waits for its turn is the destination alone: the walk over the wildcards that match begins when it has come. A late
walk finds the right ones: those that are new by then have taken the destination by themselves, and are told by their
number; those that have gone are not there. Meanwhile the destination keeps what comes in for those who were there when
it was made (`PartitionedQueue.begin_welcome`).

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
    """Of all destinations."""

    __slots__ = ("_carefully", "_steps", "_waiting", "_welcomes", "_wildcards")

    def __init__(
        self,
        wildcards: PatternTrie[WildcardConsumer],
        steps: Steps,
        carefully: Callable[[Callable[[], None]], None],
    ) -> None:
        """`carefully`: contains what is raised about one of many."""
        self._wildcards = wildcards
        self._steps = steps
        self._carefully = carefully
        self._waiting: OrderedDict[Destination, None] = OrderedDict()
        self._welcomes = False

    def begin(self, destination: Destination, made_count: int) -> None:
        """A new destination, before which so many wildcards were made: attach those that match."""
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
        """It is deleted."""
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
        """Attach those that match it and that were there before it. Those that came since do it by themselves."""
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
                    yield from repeat(None, len(queue.partitions))
                else:
                    yield
        finally:
            destination.welcome = None
            queue.end_welcome()
