"""What random sessions must not do: the books of one round, and the claims that are held against them.

A message is known by the number in its body. For each the books have what its sender and its receivers know, in two
columns where a connection that died leaves room for doubt: what *may* have happened, and what *has*, because a RECEIPT
said so. The claims:

- nothing arrives that was not sent, or not committed;
- what was acknowledged for certain never comes again, nor is it left in a queue;
- what was accepted for certain and may not have been acknowledged is left in its queue (but where policy drops, and
  what may be past its date);
- nothing is in a queue twice;
- messages of one sender, destination, priority and group are left in the order in which they were sent or committed,
  and a subscription gets them in this order for the first time, unless another consumer gave some back.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

Line = tuple[str, str, str, str | None]
"""Sender, destination, priority, group: what order holds within."""

KEEPS = ("/queue/few", "/queue/small", "/queue/plain")
"""Queues whose senders wait: nothing is dropped there."""

QUEUES = (*KEEPS, "/queue/oldest", "/queue/newest", "/queue/refusing")
TOPICS = ("/topic/lags", "/topic/waits")


class BrokenClaimError(AssertionError):
    """The broker did what it must not do."""


@attrs.define(eq=False)
class Entry:
    """One SEND to one destination; a SEND to several is several of these."""

    number: int
    sender: str
    destination: str
    priority: str
    group: str | None
    may_expire: bool
    transaction: str | None
    place: int = 0
    """Among all SENDs and COMMITs of the sender, when it took effect; 0: it has not."""
    is_accepted: bool = False
    """A RECEIPT said so."""
    may_be_settled: bool = False
    is_settled: bool = False
    """A RECEIPT said so."""
    is_left: bool = False
    """It was in its queue at the end."""

    @property
    def is_for_queue(self) -> bool:
        return self.destination in QUEUES

    @property
    def line(self) -> Line:
        return self.sender, self.destination, self.priority, self.group


@attrs.define(eq=False)
class Taken:
    """One delivery, until it is answered."""

    entry: Entry
    naming: dict[str, str]
    line: Reader
    is_open: bool = True
    """The client may still answer it."""


@attrs.define(eq=False)
class Reader:
    """One subscription."""

    name: str
    destination: str
    ack: str
    browses: bool = False
    is_live: bool = True
    """Until its UNSUBSCRIBE."""
    taken: list[Taken] = attrs.field(factory=list, repr=False)
    newest: dict[Line, int] = attrs.field(factory=dict, repr=False)
    """Places of what came last for the first time."""

    def may_read(self, queue: str) -> bool:
        """Whether it may get messages of this queue."""
        return queue in self.destination.split(",") or self.destination == "/queue/*"


@attrs.define
class Books:
    """All that one round has sent and received."""

    entries: dict[tuple[int, str], Entry] = attrs.Factory(dict)
    """By the number in the body, and destination."""
    disturbed: set[str] = attrs.Factory(set)
    """Queues to which consumers have given something back."""
    taken_count: int = 0
    left_count: int = 0
    settled_count: int = 0

    def sent(self, entry: Entry) -> None:
        """Or to be sent, with a transaction."""
        self.entries[entry.number, entry.destination] = entry

    def _entry(self, destination: str, body: bytes) -> Entry:
        entry = self.entries.get((int(body.split(b" ", 1)[0]), destination))
        if entry is None or not entry.place:
            raise BrokenClaimError(f"{body[:20]!r} to {destination} was never sent, or not committed")
        return entry

    def arrived(self, reader: Reader, headers: dict[str, str], body: bytes, *, alive: bool) -> Entry | None:
        """A MESSAGE; None: the end of browsing. `alive`: the connection was not about to end, so this is not stale."""
        if headers.get("browser") == "end":
            if body or not reader.browses:
                raise BrokenClaimError(f"an end marker for {reader.name}: {headers}")
            return None
        entry = self._entry(headers["destination"], body)
        self.taken_count += 1
        if reader.browses:
            return entry
        if alive and entry.is_for_queue and entry.is_settled:
            raise BrokenClaimError(f"{entry} came again to {reader}: {headers}")
        if "redelivered" not in headers:
            self._check_order(reader, entry)
        if reader.ack == "auto":
            entry.may_be_settled = True
        return entry

    def _check_order(self, reader: Reader, entry: Entry) -> None:
        """Unless somebody has given something back to this queue."""
        if entry.destination in self.disturbed:
            return
        newest = reader.newest.get(entry.line, 0)
        if entry.place <= newest:
            raise BrokenClaimError(f"{entry} came to {reader.name} after place {newest}")
        reader.newest[entry.line] = entry.place

    def gave_back(self, reader: Reader) -> None:
        """What this subscription had comes again, perhaps after later ones."""
        if not reader.browses:
            self.disturbed |= {name for name in QUEUES if reader.may_read(name)}

    def settled(self, entries: Iterable[Entry]) -> None:
        """A RECEIPT says that these were acknowledged."""
        for entry in entries:
            entry.is_settled = True
            self.settled_count += 1

    def close(self, left: list[tuple[str, bytes]], late: Iterable[Reader]) -> None:
        """What was left in the queues at the end, in order, with the destination that each was for. Nothing else will
        happen. `late`: subscriptions that gave back what they had when some of it had been looked at already.
        """
        disturbed = {name for reader in late for name in QUEUES if reader.may_read(name)}
        places: dict[Line, int] = {}
        for destination, body in left:
            entry = self._entry(destination, body)
            if entry.is_left:
                raise BrokenClaimError(f"{entry} is left twice")
            if entry.is_settled:
                raise BrokenClaimError(f"{entry} was acknowledged, and is left")
            entry.is_left = True
            self.left_count += 1
            if destination not in disturbed:
                place = places.get(entry.line, 0)
                if entry.place <= place:
                    raise BrokenClaimError(f"{entry} is left behind place {place}")
                places[entry.line] = entry.place
        for entry in self.entries.values():
            is_certain = entry.is_accepted and not entry.may_be_settled and not entry.may_expire
            if is_certain and entry.destination in KEEPS and not entry.is_left:
                raise BrokenClaimError(f"{entry} is lost")
