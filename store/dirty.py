"""Dirty shelves, which have something to write, by the time when they are to be checked: so the cost of a batch depends
on its contents, not on the number of all shelves.

A shelf is *ready* (urgent, or due), or *hopes* that consumers spare it the disk until it is due, or waits until it is
due, or is *kept back* by a transaction that takes effect in steps.

*When everything is saved* that existed at some moment is answered in rounds. A round is over when each shelf that was
dirty at its beginning has been gathered to the end that it had then, or is gone; a question asked meanwhile waits for
the next round. So a question costs nothing, for any number of questions and shelves.

Bound: three entries for each shelf, and one for each that was dirty a delay ago; a callback for each question.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from itertools import count, islice
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from .together import Shelf

STALE_COUNT: Final = 64
"""Entries of the heap that may be found out of date when the next one is looked up."""


class Dirty:
    """The dirty shelves of one store."""

    __slots__ = (
        "_asked_to", "_asking", "_ends", "_entered", "_heap", "_hoping", "_kept_back", "_next_asking", "_numbers",
        "_ready", "_since",
    )  # fmt: skip

    def __init__(self) -> None:
        self._since: dict[Shelf, int] = {}
        """All, in the order in which they became dirty, with ever growing numbers."""
        self._ready: dict[Shelf, None] = {}
        self._hoping: dict[Shelf, None] = {}
        self._kept_back: dict[Shelf, None] = {}
        self._heap: list[tuple[float, int, Shelf]] = []
        """Times at which to check shelves that are not ready. An entry may be too early; a later one then
        replaces it.
        """
        self._entered: dict[Shelf, float] = {}
        """The earliest entry of each."""
        self._numbers = count(1)
        self._asking: list[Callable[[], None]] = []
        """Callbacks that wait for this round."""
        self._next_asking: list[Callable[[], None]] = []
        self._asked_to = 0
        """The round is about shelves up to this number."""
        self._ends: dict[Shelf, int] = {}
        """Ends that shelves had when first gathered in this round, where they did not fit into one batch."""

    def __contains__(self, shelf: object) -> bool:
        return shelf in self._since

    def __len__(self) -> int:
        return len(self._since)

    def __iter__(self) -> Iterator[Shelf]:
        return iter(self._since)

    # ------------------------------------------------------------------ what becomes of one

    def _enter(self, shelf: Shelf) -> None:
        if shelf not in self._since:
            self._since[shelf] = next(self._numbers)

    def press(self, shelf: Shelf) -> None:
        """Check a shelf with the next batch."""
        self._enter(shelf)
        self._hoping.pop(shelf, None)
        if shelf not in self._kept_back:
            self._ready[shelf] = None

    def wait(self, shelf: Shelf, until_seconds: float) -> None:
        """Check a shelf at `until_seconds`."""
        self._enter(shelf)
        self._ready.pop(shelf, None)
        self._hoping.pop(shelf, None)
        self._set_due(shelf, until_seconds)

    def hope(self, shelf: Shelf, until_seconds: float) -> None:
        """The same; it is urgent, and is gathered sooner if a batch is to be synced anyway."""
        self.wait(shelf, until_seconds)
        if shelf not in self._kept_back:
            self._hoping[shelf] = None

    def _set_due(self, shelf: Shelf, at_seconds: float) -> None:
        shelf.due_seconds = at_seconds
        entered_seconds = self._entered.get(shelf)
        if entered_seconds is None or entered_seconds > at_seconds:
            self._entered[shelf] = at_seconds
            heappush(self._heap, (at_seconds, next(self._numbers), shelf))

    def keep_back(self, shelf: Shelf) -> None:
        """Do not check the shelf until `put_back`."""
        self._ready.pop(shelf, None)
        self._hoping.pop(shelf, None)
        self._kept_back[shelf] = None

    def put_back(self) -> None:
        """Make all shelves that were kept back ready again."""
        self._ready.update(self._kept_back)
        self._kept_back.clear()

    def remove(self, shelf: Shelf) -> None:
        """Remove a shelf whose queue is deleted."""
        self._since.pop(shelf, None)
        self._ready.pop(shelf, None)
        self._hoping.pop(shelf, None)
        self._kept_back.pop(shelf, None)
        self._ends.pop(shelf, None)

    def gathered(self, shelf: Shelf, end: int) -> None:
        """Note that a batch has the changes of a shelf up to `end`, or as far as it had room; a shelf with further
        changes enters anew.
        """
        self._ready.pop(shelf, None)
        self._hoping.pop(shelf, None)
        self._kept_back.pop(shelf, None)
        number = self._since.get(shelf)
        if number is None:
            return
        if self._asking and number <= self._asked_to:
            end = self._ends.get(shelf, end)
            if shelf.saved_to < end:
                self._ends[shelf] = end
                return  # and keeps its number: the round is not over
            self._ends.pop(shelf, None)
        del self._since[shelf]

    # ------------------------------------------------------------------ due shelves

    @property
    def is_ready(self) -> bool:
        """Whether a shelf is ready to be checked."""
        return bool(self._ready)

    def wants(self, shelf: Shelf) -> bool:
        """Return whether `shelf` is ready to be checked."""
        return shelf in self._ready

    def first(self, count_max: int) -> list[Shelf]:
        """Return the ready shelves that have waited longest, at most `count_max`."""
        return list(islice(self._ready, count_max))

    def come_due(self, now_seconds: float, count_max: int) -> None:
        """Make shelves ready that are due, or that a round is about, at most `count_max` at a time."""
        heap, since, ready = self._heap, self._since, self._ready
        for _ in range(count_max):
            if not heap or heap[0][0] > now_seconds:
                break
            at_seconds, _number, shelf = heappop(heap)
            if self._entered.get(shelf) == at_seconds:
                del self._entered[shelf]
            if shelf not in since or shelf in ready or shelf in self._kept_back:
                continue
            if shelf.due_seconds > now_seconds:
                self._set_due(shelf, shelf.due_seconds)
            else:
                self.press(shelf)
        if self._asking:
            for shelf in list(islice(since, count_max)):
                if since[shelf] > self._asked_to:
                    break
                shelf.urgent = True
                self.press(shelf)

    def end_hopes(self, count_max: int) -> None:
        """Make up to `count_max` shelves ready that hope: a batch is synced anyway."""
        for shelf in list(islice(self._hoping, count_max)):
            self.press(shelf)

    @property
    def next_seconds(self) -> float:
        """Clock reading at which the next shelf is due; infinity: none will be."""
        heap = self._heap
        for _ in range(STALE_COUNT):
            if not heap:
                break
            at_seconds, _number, shelf = heap[0]
            if shelf in self._since and shelf not in self._ready and shelf not in self._kept_back:
                break
            heappop(heap)
            if self._entered.get(shelf) == at_seconds:
                del self._entered[shelf]
        return heap[0][0] if heap else float("inf")

    # ------------------------------------------------------------------ when all is saved

    @property
    def is_asked(self) -> bool:
        """Whether a callback waits until all is saved."""
        return bool(self._asking)

    def ask(self, callback: Callable[[], None]) -> None:
        """Give this to a batch with which all is on disk that is there now."""
        self._next_asking.append(callback)
        if not self._asking:
            self._begin_round()

    def _begin_round(self) -> None:
        self._asking, self._next_asking = self._next_asking, []
        self._asked_to = next(self._numbers)
        self._ends.clear()

    def answers(self) -> list[Callable[[], None]]:
        """Return the callbacks to run when everything gathered so far is synced: all of this round, if it is over."""
        if not self._asking or any(number <= self._asked_to for number in islice(self._since.values(), 1)):
            return []
        told = self._asking
        self._begin_round()
        return told

    def take_all_asking(self) -> list[Callable[[], None]]:
        """The broker stops."""
        told, self._asking, self._next_asking = [*self._asking, *self._next_asking], [], []
        return told
