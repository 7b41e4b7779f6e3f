"""Memory of the broker as a whole, and the share that each limiter has of it.

Every limiter that counts memory has a `Share`: its bytes are charged to the `MemoryBudget`, in advance and in pieces. A
limiter holds up to its *lease* without telling its share; above it (or well below) it tells the share, which takes
another piece or gives some back. So adding and removing cost one comparison each, and the budget counts at least the
bytes held and at most a few pieces more for each limiter.

Back-pressure. Some limiters have senders that can wait or elements that can leave (queues, topics, logs, stashes): they
*yield*. Up to SOFT of the budget none has to. Beyond it the budget is *short*:

- The *allowance* is the level at which all leases, cut off there, would fill SOFT: max-min fairness. A limiter that
  holds less takes more as it needs it. A limiter that holds more is *refused*: it is throttled as if it were full, and
  its resource is pressed to send out what it can.
- The last RESERVE of the budget is for limiters of raised priority, and for those that hold little: each has a minimum,
  an equal part of the reserve among all that hold anything. Beyond the budget the minimum is FLOOR_BYTES, and beyond
  OVERDRAFT nothing.
- A refused limiter is admitted when it holds less than its allowance again: at once if its own elements left, otherwise
  by `step`, in line: by priority, and the longest-waiting first within one. Each turn is one piece.
- The resources that have filled the memory may themselves wait for refused ones: stashes and COMMITs wait for
  destinations. So in each step a few limiters that hold nothing and *drain* (a consumer takes from them, or the disk
  does) get a *waiver*: they take one element of any size, however full the memory is. Adding an element uses a waiver
  up, asking does not: a COMMIT asks all of its queues, and may find another one full. A limiter that holds nothing and
  has not asked for more is never refused: a connection with an empty stash is read, for its ACKs.

Limiters that do not yield (answers, frames under way) are counted, so the others get less.

`step` does a bounded part of the work while the budget is short: it takes back unused parts of leases, finds the
allowance, presses the largest holders, and admits refused limiters. The owner of the budget calls it after `on_short`
was called, as often as its result says.

Invariants: `used_bytes` is the sum of all leases; a lease is at least what its limiter holds; a refused share is in the
line, an admitted one is not; as long as a share is in line, memory is short, so `step` is called. Code that admits a
limiter resumes its sources: a release does so by itself, `step` and `ask` poll the controller, and an element added
while its limiter is refused admits none.

Levels: leases are kept by size in classes, four to a power of two, with a count and a sum each. So the allowance, the
largest holders and each change of a lease cost the same for any number of shares. The allowance is exact to a fifth, on
the low side.

Pure: no clock of its own, no timer.

Source: DESIGN section 6; max-min fairness as in any network textbook.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Final

from .errors import ThresholdError
from .kinds import ResourceKind
from .limiters import UNLIMITED, FlowLimiter
from .resource import FlowResource
from .source import PRIORITY_ORDINARY
from .waiting import WaitingLine
from .words import size_in_words

if TYPE_CHECKING:
    from .account import Account
    from .manager import FlowManager

SOFT: Final = 0.75
"""Share of the budget from which on it is short. The rest is room for limiters that hold little while the largest
yield.
"""
RESERVE: Final = 1 / 16
"""Share of the budget for raised priority and for minimums."""
PIECE_MIN_BYTES: Final = 16 * 1024
PIECE_MAX_BYTES: Final = 1024 * 1024
PIECE_SHARE: Final = 8
"""Divisor of what a limiter holds, which gives the size of a piece within the bounds above."""
MINIMUM_BYTES: Final = 64 * 1024
"""Bytes that each limiter may hold at most out of the reserve."""
FLOOR_BYTES: Final = 4 * 1024
"""Bytes that each limiter may hold when others have used up the reserve as well: a small message always gets through.
"""
OVERDRAFT: Final = 1.25
"""Limit of overdraft, in budgets."""

TRIM_COUNT: Final = 500
"""Shares that one step checks for unused parts of leases: about half a millisecond."""
TURNS_COUNT: Final = 100
"""Largest number of refused shares that one step admits."""
LOOK_COUNT: Final = 64
"""Holders of one class that one step checks for elements that can be sent out."""
WAIVERS_COUNT: Final = 4
"""Largest number of waivers per step: the memory may then be exceeded by that many runs of messages."""
PRESS_COUNT: Final = 4
"""Largest number of holders that one step presses: each may check all of its blocks."""
STEP_SECONDS: Final = 0.01
STEP_SECONDS_MAX: Final = 0.2
"""Between two steps, if the last one found nothing to do."""

_CLASSES: Final = 4


def _class_of(size_bytes: int) -> int:
    """Return the class of a size of at least 4 bytes: four classes to a power of two."""
    bits = size_bytes.bit_length()
    return bits * _CLASSES + (size_bytes >> (bits - 3) & 3)


class Share:
    """Share of one limiter in the budget.

    Attributes: `on_press` is called when the resource should send out what it can; None: it can't. `yields`: it may be
    refused. `drains`: returns whether elements added now will leave without help; None: they don't.  `waived`: the next
    element is accepted whatever its size, if nothing is held.
    """

    __slots__ = (
        "budget",
        "controller",
        "drains",
        "lease_bytes",
        "limiter",
        "on_press",
        "priority",
        "refused_since",
        "waived",
        "yields",
    )

    def __init__(self, budget: MemoryBudget, controller: Account, *, priority: int, yields: bool) -> None:
        self.budget = budget
        self.controller = controller
        self.limiter: FlowLimiter = controller.limiter
        self.priority = priority
        self.yields = yields
        self.on_press: Callable[[], None] | None = None
        self.drains: Callable[[], bool] | None = None
        self.waived = False
        self.lease_bytes = 0
        self.refused_since: float | None = None
        """Clock reading, while it is refused."""

    def follow(self) -> None:
        """The limiter holds more than its lease, or much less. Called by it."""
        self.budget.follow(self)

    def ask(self, more_bytes: int) -> None:
        """Refuse the next `more_bytes` if there is no room; for use when the budget is full. O(1). Sources that waited
        before may resume if room is found.
        """
        was_refused = self.limiter.refused
        self.budget.follow(self, more_bytes)
        if was_refused:
            self.controller.poll()


class MemoryBudget(FlowResource):
    """Memory budget of the broker: see the module. A resource on the flow map, on which refused limiters wait.

    Attributes, to be read and never written from outside:
        capacity_bytes: capacity of the budget.
        used_bytes: sum of all leases.
        allowance_bytes: what a limiter may hold before it has to yield; UNLIMITED while memory is not short.
        short: whether memory is short.
        full: at most the reserve is left: a resource asks its share before it takes an element in.
        on_short: called when memory becomes short; from then on call `step`, until it returns None.
        refused_count: number of times a share was refused.
    """

    __slots__ = (
        "_by_class",
        "_hand",
        "_hard_bytes",
        "_line",
        "_quiet_seconds",
        "_soft_bytes",
        "_sums",
        "allowance_bytes",
        "capacity_bytes",
        "full",
        "on_short",
        "refused_count",
        "short",
        "used_bytes",
    )

    def __init__(self, capacity_bytes: int, *, manager: FlowManager) -> None:
        """Raises ThresholdError for a capacity below 1."""
        if capacity_bytes < 1:
            raise ThresholdError(f"a memory of {capacity_bytes} bytes holds nothing; give at least 1")
        super().__init__("of the broker", ResourceKind.MEMORY, manager)
        self.used_bytes = 0
        self.allowance_bytes = UNLIMITED
        self.short = self.full = False
        self.on_short: Callable[[], None] | None = None
        self.refused_count = 0
        self._by_class: dict[int, OrderedDict[Share, None]] = {}
        self._sums: dict[int, int] = {}
        self._line: WaitingLine[Share] = WaitingLine()
        # All shares with a lease; the first is the one checked the longest ago.
        self._hand: OrderedDict[Share, None] = OrderedDict()
        self._quiet_seconds = STEP_SECONDS
        self.resize(capacity_bytes)

    def resize(self, capacity_bytes: int) -> None:
        """Another capacity, from now on."""
        self.capacity_bytes = capacity_bytes
        self._soft_bytes = int(capacity_bytes * SOFT)
        self._hard_bytes = capacity_bytes - int(capacity_bytes * RESERVE)
        self.full = self.used_bytes >= self._hard_bytes
        self._check_shortage()

    def join(self, controller: Account, *, priority: int, yields: bool) -> None:
        """Charge the budget from now on with what this controller's limiter holds."""
        limiter = controller.limiter
        limiter.share = Share(self, controller, priority=priority, yields=yields)
        limiter.lease_bytes = 0
        if limiter.used_bytes:
            self.follow(limiter.share)

    def leave(self, share: Share) -> None:
        """Stop counting this share: its controller is closed."""
        self._admit(share)
        self._lease(share, 0)
        limiter = share.limiter
        limiter.share = None
        limiter.lease_bytes = UNLIMITED
        limiter.spare_bytes = -1

    # ------------------------------------------------------------------ leases

    def follow(self, share: Share, more_bytes: int = 0) -> None:
        """Adapt the lease of a limiter that holds more than its lease, or much less, or is about to hold `more_bytes`
        more. O(1).
        """
        limiter = share.limiter
        used_bytes = limiter.used_bytes + more_bytes
        piece_bytes = min(max(used_bytes // PIECE_SHARE, PIECE_MIN_BYTES), PIECE_MAX_BYTES)
        if limiter.used_bytes:
            share.waived = False
        if not self.short:
            self._lease(share, used_bytes + piece_bytes)
            limiter.lease_bytes = share.lease_bytes
            limiter.spare_bytes = used_bytes - 2 * piece_bytes
            self._check_shortage()
            if not self.short:
                return
        room_bytes = self.allowed(share) - used_bytes if share.yields else PIECE_MIN_BYTES
        if limiter.used_bytes > share.lease_bytes and limiter.refused:
            room_bytes = 0  # the element is in all the same, and no other call would resume those that wait
        elif share.waived:
            used_bytes, piece_bytes = 0, 0  # the share is to be told of every element
            room_bytes = 1
        elif not limiter.used_bytes and not more_bytes:
            room_bytes = PIECE_MIN_BYTES
        elif not limiter.used_bytes:
            # An empty limiter takes one element of any size, if it fits: nothing would ever make more room for it.
            room_bytes = max(room_bytes, self.capacity_bytes - self.used_bytes - more_bytes)
        if room_bytes > 0:
            piece_bytes = min(piece_bytes, PIECE_MIN_BYTES, room_bytes)
            self._lease(share, used_bytes + piece_bytes)
            limiter.lease_bytes = share.lease_bytes
            limiter.spare_bytes = used_bytes - piece_bytes
            self._admit(share)
        else:
            used_bytes -= more_bytes
            self._lease(share, used_bytes)
            limiter.lease_bytes = used_bytes
            limiter.spare_bytes = used_bytes
            self._refuse(share)

    def _lease(self, share: Share, lease_bytes: int) -> None:
        before = share.lease_bytes
        if lease_bytes == before:
            return
        share.lease_bytes = lease_bytes
        self.used_bytes += lease_bytes - before
        self.full = self.used_bytes >= self._hard_bytes
        old = _class_of(before | 4) if before else -1
        new = _class_of(lease_bytes | 4) if lease_bytes else -1
        if old == new:
            self._sums[old] += lease_bytes - before
            return
        if before:
            self._sums[old] -= before
            members = self._by_class[old]
            del members[share]
            if not members:
                del self._by_class[old], self._sums[old]
        else:
            self._hand[share] = None
        if lease_bytes:
            self._by_class.setdefault(new, OrderedDict())[share] = None
            self._sums[new] = self._sums.get(new, 0) + lease_bytes
        else:
            del self._hand[share]

    # ------------------------------------------------------------------ who gives way

    @property
    def minimum_bytes(self) -> int:
        """Bytes that each limiter may hold out of the reserve now."""
        return min(MINIMUM_BYTES, int(self.capacity_bytes * RESERVE) // max(1, len(self._hand)))

    def allowed(self, share: Share) -> int:
        """Return the bytes that the limiter of `share` may hold now."""
        if self.used_bytes >= self.capacity_bytes:
            return FLOOR_BYTES if self.used_bytes < self.capacity_bytes * OVERDRAFT else 0
        if self.used_bytes >= self._hard_bytes and share.priority <= PRIORITY_ORDINARY:
            return min(self.allowance_bytes, self.minimum_bytes)
        return max(self.allowance_bytes, self.minimum_bytes)

    def _find_allowance(self) -> int:
        """Return the level at which all leases, cut off there, fill the usable memory. O(classes)."""
        left_bytes = self._soft_bytes
        left_count = len(self._hand)
        for size_class in sorted(self._by_class):
            count, size_bytes = len(self._by_class[size_class]), self._sums[size_class]
            if size_bytes * left_count >= left_bytes * count:  # the level is among sizes about as large as the rest
                return left_bytes // left_count
            left_bytes -= size_bytes
            left_count -= count
        return UNLIMITED

    def _check_shortage(self) -> None:
        """Check whether memory is short, and begin to press the limiters if so."""
        if not self.short and self.used_bytes > self._soft_bytes:
            self.short = True
            self.allowance_bytes = self._find_allowance()
            self._quiet_seconds = STEP_SECONDS
            if self.on_short is not None:
                self.on_short()

    def _refuse(self, share: Share) -> None:
        if not share.limiter.refused:
            self.refused_count += 1
            share.refused_since = self.manager.clock()
            share.limiter.refuse()
            self._line.add(share)

    def _admit(self, share: Share) -> None:
        if share.limiter.refused:
            if share.refused_since is not None:
                self.held_up_seconds += self.manager.clock() - share.refused_since
            share.refused_since = None
            self._line.discard(share)
            share.limiter.admit()

    def step(self) -> float | None:
        """Do a part of what there is to do while memory is short. Returns after how many seconds the next step is due,
        None if it is not short any more.
        """
        before_bytes = self.used_bytes
        self._trim()
        if self.used_bytes <= self._soft_bytes:
            self.allowance_bytes = UNLIMITED
        else:
            self.allowance_bytes = self._find_allowance()
            self._press()
        admitted = self._admit_waiting()
        if not self._line and self.used_bytes <= self._soft_bytes:
            self.short = False
            return None
        if admitted or self.used_bytes < before_bytes:
            self._quiet_seconds = STEP_SECONDS
        else:
            self._quiet_seconds = min(2 * self._quiet_seconds, STEP_SECONDS_MAX)
        return self._quiet_seconds

    def _trim(self) -> None:
        """Take back what some have leased and don't use."""
        for share in list(islice(self._hand, TRIM_COUNT)):
            self._hand.move_to_end(share)
            limiter = share.limiter
            used_bytes = limiter.used_bytes
            if share.lease_bytes > used_bytes and not limiter.refused:
                self._lease(share, used_bytes)
                limiter.lease_bytes = used_bytes
                limiter.spare_bytes = used_bytes - PIECE_MIN_BYTES

    def _press(self) -> None:
        """Make the largest holders above their allowance send out what they can."""
        pressed_count = 0
        for size_class in sorted(self._by_class, reverse=True):
            for share in list(islice(self._by_class.get(size_class, ()), LOOK_COUNT)):
                if share.lease_bytes <= self.allowance_bytes or pressed_count >= PRESS_COUNT:
                    return
                self._by_class[size_class].move_to_end(share)  # next time it is another one's turn
                if share.on_press is not None:
                    pressed_count += 1
                    share.on_press()

    def _admit_waiting(self) -> int:
        """Admit the next waiting limiters that have room. Returns their number."""
        admitted_count = 0
        waivers_count = WAIVERS_COUNT  # even if the budget is not full: resuming them would fill it
        for _ in range(min(TURNS_COUNT, len(self._line))):
            share = self._line.take()
            self._line.add(share)
            if waivers_count and not share.limiter.used_bytes and share.drains is not None and share.drains():
                waivers_count -= 1
                share.waived = True
            if share.waived or self.allowed(share) > share.limiter.used_bytes:
                self.follow(share)
                share.controller.poll()
                admitted_count += 1
        return admitted_count

    # ------------------------------------------------------------------ what people see

    @property
    def waiting_count(self) -> int:
        """Number of limiters that are refused now."""
        return len(self._line)

    def largest_holders(self, count: int) -> list[tuple[str, int]]:
        """Return name and bytes of the limiters that hold most."""
        found: list[Share] = []
        for size_class in sorted(self._by_class, reverse=True):
            found += islice(self._by_class[size_class], LOOK_COUNT)
            if len(found) >= count:
                break
        found.sort(key=lambda share: -share.limiter.used_bytes)
        return [
            (f"{share.controller.resource.kind} {share.controller.resource.name}", share.limiter.used_bytes)
            for share in found[:count]
        ]

    @property
    def words(self) -> str:
        """Usage of the budget: ``memory of the broker 900.0 MiB of 1.0 GiB``."""
        return f"memory of the broker {size_in_words(self.used_bytes)} of {size_in_words(self.capacity_bytes)}"

    def facts(self) -> Mapping[str, object]:
        facts: dict[str, object] = {
            "used": f"{size_in_words(self.used_bytes)} of {size_in_words(self.capacity_bytes)}",
        }
        largest = ", ".join(f"{name} ({size_in_words(size)})" for name, size in self.largest_holders(3))
        if largest:
            facts["the largest holders:"] = largest
        if self.short:
            facts["memory is short"] = True
            facts["held back"] = self.waiting_count
        return facts
