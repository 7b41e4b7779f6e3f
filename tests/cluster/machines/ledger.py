"""Ledger of messages that went through a cluster: what was sent, confirmed, delivered, and acknowledged."""

from __future__ import annotations

import attrs


@attrs.define(eq=False)
class Entry:
    """One message. Its sender sends it once, and never again, whatever happens."""

    name: str
    queue: str
    producer: str
    place: int
    """Place among the messages of its producer in this queue."""
    is_receipted: bool = False
    unmarked_count: int = 0
    """Deliveries that did not say that it may have come before."""
    marked_count: int = 0
    acknowledged_ids: set[str] = attrs.field(factory=set)
    """Message-ids whose ACK was confirmed: they are not to come again. A SEND in doubt may have made two messages."""
    came_after_ack_count: int = 0
    history: list[str] = attrs.field(factory=list)
    """What clients know of it, with times."""

    @property
    def delivered_count(self) -> int:
        """Number of deliveries."""
        return self.unmarked_count + self.marked_count


class Ledger:
    """All messages of a run."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.delivered_count = 0
        self.strangers: list[str] = []
        """Deliveries of messages that nobody sent."""

    def sending(self, queue: str, producer: str, place: int) -> Entry:
        """Note a message before it is written to a socket."""
        entry = Entry(f"{producer}/{queue}/{place}", queue, producer, place)
        self.entries[entry.name] = entry
        return entry

    def delivered(self, name: str, message_id: str, *, is_marked: bool, where: str) -> Entry | None:
        """Note a delivery. `where`: connection, for people."""
        self.delivered_count += 1
        entry = self.entries.get(name)
        if entry is None:
            self.strangers.append(name)
            return None
        entry.history.append(f"{where} gets {message_id}, {'marked' if is_marked else 'unmarked'}")
        if is_marked:
            entry.marked_count += 1
        else:
            entry.unmarked_count += 1
        entry.came_after_ack_count += message_id in entry.acknowledged_ids
        return entry

    # What came of it, when all is drained.

    @property
    def receipted_count(self) -> int:
        """Number of messages that were confirmed."""
        return sum(entry.is_receipted for entry in self.entries.values())

    @property
    def lost(self) -> list[Entry]:
        """Messages that were confirmed and never came."""
        return [entry for entry in self.entries.values() if entry.is_receipted and not entry.delivered_count]

    @property
    def twice_unmarked(self) -> list[Entry]:
        """Messages that came twice, and no consumer but one could know."""
        return [entry for entry in self.entries.values() if entry.unmarked_count > 1]

    @property
    def again_count(self) -> int:
        """Number of deliveries beyond the first of each message."""
        return sum(max(0, entry.delivered_count - 1) for entry in self.entries.values())

    @property
    def came_after_ack(self) -> list[Entry]:
        """Messages that came again though their ACK was confirmed."""
        return [entry for entry in self.entries.values() if entry.came_after_ack_count]
