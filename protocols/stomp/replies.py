"""RECEIPTs of one connection, in its version.

Many wait for the disk. While they take more than `outbound_bytes_max` the session reads nothing: so a stalled disk does
not accumulate them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from ...flow.latch import Latch
from ...queues.logs.log import Log
from ...queues.storage import CONSUMED, DISK, SHARED, Confirms, StoredWork
from ..outbound import Outbound
from ..reading import CountedHold
from .encoder import BEHIND_NUL, indexed_receipts, receipt, receipts
from .escaping import Version

MEMORY: Final = "memory"
"""Promise of the RECEIPT of a SEND: the broker has the message, a restart would lose it."""

RECEIPT_OVERHEAD_BYTES: Final = 64
"""Memory of a receipt id beside its characters."""

LATER_BYTES: Final = 512
"""Memory for the later answer to one frame."""

NOTHING: Final[Mapping[str, str]] = MappingProxyType({})

ORDER: Final = (MEMORY, DISK, SHARED, CONSUMED)
"""Promises of RECEIPTs, the least first."""

DURABILITY: Final = {how: (("durability", how),) for how in ORDER}


class Owed:
    """Receipts that are due when several conditions hold: those of a SEND to several queues, or of one that must wait,
    or be written first. `durability` is the least of those of the legs.
    """

    __slots__ = ("durability", "indexes", "is_commit", "is_single", "legs_count", "receipt_ids")

    def __init__(self, receipt_ids: list[str], legs_count: int, *, is_commit: bool = False) -> None:
        self.receipt_ids = receipt_ids
        self.is_commit = is_commit
        """Whether the receipts are due for the COMMIT of a transaction, not for SENDs; there may be none."""
        self.legs_count = legs_count
        self.is_single = legs_count == 1
        self.durability = CONSUMED
        self.indexes: list[tuple[str, Sequence[tuple[int, int]]]] = []
        """Name of each log of several destinations, with the first index and the record count for each receipt."""

    @property
    def size_bytes(self) -> int:
        """Memory of the receipts. O(receipts)."""
        return sum(map(len, self.receipt_ids)) + RECEIPT_OVERHEAD_BYTES * len(self.receipt_ids)


class Leg:
    """One part of a SEND to several hubs: its own receipt, which the relay has asked for, is a part of the client's."""

    __slots__ = ("_name", "_replies", "owed")

    def __init__(self, replies: Replies, owed: Owed, name: str) -> None:
        """`owed`: the receipt of the client; `name`: destinations of the leg."""
        self._replies = replies
        self.owed = owed
        self._name = name

    def done(self, durability: str, indexes: Iterable[tuple[str, tuple[int, int]]] = ()) -> None:
        """Take the receipt of the leg. `indexes`: log (empty: the only one), first index and count of records."""
        for log, place in indexes:
            only = (name for name in self._name.split(",") if name.startswith("/log/"))
            self.owed.indexes.append((log or next(only, self._name), [place]))
        self._replies.leg_done(self.owed, durability)


class Replies:
    """Answers to the client. `version` is set when the connection has agreed on one."""

    __slots__ = (
        "_idle",
        "_outbound",
        "_owed",
        "_told_next",
        "_told_now",
        "legs",
        "unconfirmed",
        "unconfirmed_logs",
        "version",
    )

    def __init__(self, outbound: Outbound, owed: CountedHold) -> None:
        """`owed` counts about what those take that wait for the disk."""
        self._outbound = outbound
        self._owed = owed
        self._idle: Callable[[], None] | None = None
        self._told_now: list[Callable[[], None]] = []
        self._told_next: list[Callable[[], None]] = []
        self.version: Version = "1.0"
        self.legs: dict[str, Leg] = {}
        """Receipts that are not the client's, by receipt id: those of the legs of SENDs to several hubs."""
        self.unconfirmed = False
        """Whether a message was stored or acknowledged without a RECEIPT: DISCONNECT has to wait for it."""
        self.unconfirmed_logs: set[Log] = set()
        """Likewise, in which logs."""

    @property
    def is_confirmed(self) -> bool:
        """Whether everything that was done for this connection so far is on disk, if it has to be."""
        return not self.unconfirmed and not self._owed.used_bytes

    def when_even(self, callback: Callable[[], None]) -> None:
        """Call this when nothing waits for the disk any more: at once, or behind the last RECEIPT that does. One
        callback at a time."""
        if self._owed.used_bytes:
            self._idle = callback
        else:
            callback()

    def last(self, receipt_id: str | None, store: StoredWork | None, done: Callable[[], None]) -> None:
        """Answer DISCONNECT, behind all RECEIPTs that wait for the disk, then call `done`. If DISCONNECT asked for a
        RECEIPT, that says that all persistent work of the connection is on disk, whether it was asked for or not.
        """

        def stored() -> None:
            self.receipt(receipt_id)
            done()

        def logs_stored() -> None:
            if store is not None and receipt_id is not None and self.unconfirmed:
                store.when_all_saved(stored)
            else:
                stored()

        def even() -> None:
            logs = tuple(self.unconfirmed_logs) if receipt_id is not None else ()
            one_done = Latch(len(logs) + 1, logs_stored)
            for log in logs:
                log.when_settled(one_done)
            one_done()

        self.when_even(even)

    def owe(self, size_bytes: int) -> None:
        """Count an answer of `size_bytes` (at least 1) that waits for the disk, until `paid`."""
        self._owed.add(size_bytes)

    def paid(self, size_bytes: int) -> None:
        """The disk has it, and who waited for that was told."""
        self._owed.remove(size_bytes)
        if not self._owed.used_bytes and self._idle is not None:
            idle, self._idle = self._idle, None
            idle()

    def later(self, receipt_id: str | None, facts: Mapping[str, str] = NOTHING) -> Callable[[], None]:
        """Return a callback to call once, when the change is on disk: it answers the frame (receipt_id None: no
        answer). `facts`: further headers, which may be filled in until then.
        """
        size_bytes = LATER_BYTES + (0 if receipt_id is None else len(receipt_id))
        self.owe(size_bytes)

        def done() -> None:
            if receipt_id is not None and not self._is_of_leg(receipt_id):
                self._outbound.send_control(receipt(receipt_id, self.version, tuple(facts.items())))
            self.paid(size_bytes)

        return done

    def forgo(self, receipt_id: str | None) -> None:
        """Forget an answer, in place of calling what `later` returned: the change will never be on disk."""
        self.paid(LATER_BYTES + (0 if receipt_id is None else len(receipt_id)))

    def receipt(self, receipt_id: str | None) -> None:
        """Answer a frame other than SEND that asked for a receipt (None: it did not)."""
        if receipt_id is not None and not self._is_of_leg(receipt_id):
            self._outbound.send_control(receipt(receipt_id, self.version))

    def _is_of_leg(self, receipt_id: str) -> bool:
        """Return whether the relay has asked for a receipt, which it gets then."""
        leg = self.legs.pop(receipt_id, None) if self.legs else None
        if leg is not None:
            leg.done(MEMORY)
        return leg is not None

    def receipt_after(self, receipt_id: str, awaited: Iterable[Confirms]) -> None:
        """Answer a frame when what it settled in the `awaited` storages is on disk; without storages, at once."""
        waiting = list(awaited)
        if not waiting:
            self.receipt(receipt_id)
            return
        one_done = self.later_than(receipt_id, len(waiting))
        for one in waiting:
            one.when_settled(one_done)

    def later_than(self, receipt_id: str, count: int) -> Callable[[], None]:
        """Return a callback to call `count` times (at least once): the last call answers the frame."""
        return Latch(count, self.later(receipt_id))

    def receipt_when_all_saved(self, receipt_id: str, store: StoredWork) -> None:
        """Answer a frame when all that this connection did is on disk. One question to the store at a time: it costs
        as much as there are queues.
        """
        self._told_next.append(self.later(receipt_id))
        if not self._told_now:
            self._ask(store)

    def _ask(self, store: StoredWork) -> None:
        self._told_now, self._told_next = self._told_next, []

        def all_saved() -> None:
            told, self._told_now = self._told_now, []
            if self._told_next:
                self._ask(store)
            for done in told:
                done()

        store.when_all_saved(all_saved)

    def committed(self, receipt_id: str | None, changed: list[Confirms]) -> None:
        """Answer a COMMIT that was carried out, when what it `changed` is on disk."""
        if receipt_id is not None:
            self.receipt_after(receipt_id, changed)
        elif changed:
            self.unconfirmed = True

    def receipts(self, receipt_ids: list[str] | None, durability: str = MEMORY) -> None:
        """Answer SENDs that asked for receipts. Does nothing after the end of the connection."""
        if receipt_ids and self.legs:
            legs, receipt_ids = self._apart(receipt_ids)
            for leg in legs:
                leg.done(durability)
        if receipt_ids:
            self._outbound.send_control(receipts(receipt_ids, self.version, DURABILITY[durability]), len(receipt_ids))

    def _apart(self, receipt_ids: list[str]) -> tuple[list[Leg], list[str]]:
        """Take the legs out of these receipts. Returns them, and the receipts of the client."""
        legs: list[Leg] = []
        others: list[str] = []
        for receipt_id in receipt_ids:
            leg = self.legs.pop(receipt_id, None)
            if leg is None:
                others.append(receipt_id)
            else:
                legs.append(leg)
        return legs, others

    def appended(
        self,
        receipt_ids: list[str],
        durability: str,
        indexes: Sequence[tuple[int, int]],
        partition: int | None = None,
    ) -> None:
        """Answer SENDs to a log: each is told the index of its first record, and the number of records; and the number
        of the partition that the log is of another one.
        """
        if self.legs:
            of_client = []
            for receipt_id, place in zip(receipt_ids, indexes, strict=True):
                leg = self.legs.pop(receipt_id, None)
                if leg is None:
                    of_client.append((receipt_id, place))
                else:
                    leg.done(durability, (("", place),))
            if not of_client:
                return
            receipt_ids, indexes = [each for each, _place in of_client], [place for _each, place in of_client]
        told = indexed_receipts(receipt_ids, self.version, indexes, durability, partition)
        self._outbound.send_control(told, len(receipt_ids))

    def _appended_to_several(self, owed: Owed) -> None:
        durability = DURABILITY[owed.durability]
        told = []
        for place, receipt_id in enumerate(owed.receipt_ids):
            leg = self.legs.pop(receipt_id, None)
            if leg is not None:
                leg.done(owed.durability, [(name, found[place]) for name, found in owed.indexes])
                continue
            indexes = ",".join(f"{name}={found[place][0]}" for name, found in sorted(owed.indexes))
            count = owed.indexes[0][1][place][1]
            told.append(receipt(receipt_id, self.version, (("indexes", indexes), ("count", str(count)), *durability)))
        if not told:
            return
        self._outbound.send_control(BEHIND_NUL.join(told), len(told))

    def asked_for(self, receipt_id: str | None) -> str | None:
        """Return the receipt that the client has asked for, of that of a leg; others are returned as they are."""
        while receipt_id is not None and (leg := self.legs.get(receipt_id)) is not None:
            receipt_id = next(iter(leg.owed.receipt_ids), None)
        return receipt_id

    def leg_done(self, owed: Owed | None, durability: str = MEMORY) -> None:
        """Note that one of the queues has taken the messages, or never will; `durability`: how safe they are there."""
        if owed is not None:
            owed.legs_count -= 1
            if durability != owed.durability:
                owed.durability = min(durability, owed.durability, key=ORDER.index)
            if not owed.legs_count and owed.is_commit:
                for receipt_id in owed.receipt_ids:
                    self.receipt(receipt_id)
            elif not owed.legs_count and owed.indexes:
                self._appended_to_several(owed)
            elif not owed.legs_count:
                self.receipts(owed.receipt_ids, owed.durability)
