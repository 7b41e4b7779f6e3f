"""What a log promised, held against what it gives: the ledger of all rounds of crashes and power cuts.

Producers write down what they send and what RECEIPTs say, readers what they see. The ledger outlives the brokers; each
of them is a *life*. Checked at once:

    one place       a record has one index, an index one record and one date, in all lives: what a RECEIPT said and what
                    any reader saw; also if it was lost later
    whole           of one SEND all records are there, at consecutive indexes, or none
    settled         what a group's consumer acknowledged, confirmed by a RECEIPT, never comes to that group again
    one holder      what a living consumer of a group holds goes to no other one

And at the end, of one reader that reads all:

    nothing lost    what was receipted (`durability:disk` or `shared`) is there; so is what was seen, unless the power
                    failed: then it may be in a gap, which says `lost`
    accounted for   every index below the end is a record or in a gap; gaps are `lost`, and only after a power cut (or
                    `retention`, if they were at the beginning)
    taken           what a group did not acknowledge comes to it

A violation raises ClaimError.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs


class ClaimError(AssertionError):
    """The broker broke a promise."""


@attrs.define(eq=False)
class Sent:
    """One SEND: its records, in order."""

    values: list[bytes]
    life: int
    index: int | None = None
    """Of the first record, from a RECEIPT or because it was seen."""
    durable: bool = False
    """A RECEIPT said `disk`."""


@attrs.define(eq=False)
class GroupClaims:
    """What one group was given, and what it settled."""

    acknowledged: set[int] = attrs.field(factory=set)
    """ACKs are on their way, or were."""
    confirmed: set[int] = attrs.field(factory=set)
    """RECEIPTs said so."""
    held: dict[int, object] = attrs.field(factory=dict)
    came: set[int] = attrs.field(factory=set)


@attrs.define(eq=False)
class LogClaims:
    """Of one log."""

    name: str
    life: int = 0
    power_cuts_count: int = 0
    sends: list[Sent] = attrs.field(factory=list)
    of_value: dict[bytes, tuple[Sent, int]] = attrs.field(factory=dict)
    at: dict[int, bytes] = attrs.field(factory=dict)
    """What was ever known to be at an index."""
    dates: dict[int, int] = attrs.field(factory=dict)
    safe: set[int] = attrs.field(factory=set)
    """Indexes that a RECEIPT called durable, or that were seen and nothing but the process has died since."""
    receipted: set[int] = attrs.field(factory=set)
    groups: dict[str, GroupClaims] = attrs.field(factory=dict)
    seen_count: int = 0

    def group(self, name: str) -> GroupClaims:
        return self.groups.setdefault(name, GroupClaims())

    # ------------------------------------------------------------------ what happens

    def sending(self, values: list[bytes]) -> Sent:
        sent = Sent(values, self.life)
        self.sends.append(sent)
        for place, value in enumerate(values):
            assert value not in self.of_value, "each record is sent once"
            self.of_value[value] = sent, place
        return sent

    def receipt(self, sent: Sent, index: int, count: int, durability: str) -> None:
        if count != len(sent.values):
            raise ClaimError(f"{len(sent.values)} records were sent, the RECEIPT says {count}")
        self._placed(sent, index)
        sent.durable = sent.durable or durability in ("disk", "shared")
        if sent.durable:
            self.receipted.update(range(index, index + count))
        self.safe.update(range(index, index + count))

    def _placed(self, sent: Sent, index: int) -> None:
        if sent.index is not None:
            if sent.index != index:
                raise ClaimError(f"{sent.values[0]!r} was at {sent.index}, now it is at {index}")
            return
        for place, value in enumerate(sent.values, index):
            known = self.at.setdefault(place, value)
            if known != value:
                raise ClaimError(f"index {place} was given to {known!r}, now to {value!r}")
        sent.index = index

    def saw(self, index: int, value: bytes, date_ms: int) -> None:
        """Some reader did."""
        self.seen_count += 1
        found = self.of_value.get(value)
        if found is None:
            raise ClaimError(f"index {index} has what nobody sent: {value[:80]!r}")
        sent, place = found
        self._placed(sent, index - place)
        if self.dates.setdefault(index, date_ms) != date_ms:
            raise ClaimError(f"the date of index {index} was {self.dates[index]}, now it is {date_ms}")
        self.safe.add(index)

    def gap(self, start: int, end: int, reason: str) -> None:
        """Some reader was told."""
        if reason not in ("lost", "retention") or not self.power_cuts_count:
            raise ClaimError(f"{reason} from {start} to {end - 1} after {self.power_cuts_count} power cuts")
        gone = self.safe.intersection(range(start, end)) if end - start < len(self.safe) else {
            index for index in self.safe if start <= index < end
        }  # fmt: skip
        if gone:
            raise ClaimError(f"{start} to {end - 1} are {reason}, with what was safe: {sorted(gone)[:9]}")

    # ------------------------------------------------------------------ groups

    def came_to(self, group: str, holder: object, indexes: Iterable[int]) -> None:
        claims = self.group(group)
        for index in indexes:
            if index in claims.confirmed:
                raise ClaimError(f"index {index} comes to {group}, which has acknowledged it, with a RECEIPT")
            other = claims.held.get(index)
            if other is not None:
                raise ClaimError(f"index {index} comes to {holder} of {group}, and {other} holds it")
            claims.held[index] = holder
            claims.came.add(index)

    def settling(self, group: str, indexes: Iterable[int]) -> None:
        claims = self.group(group)
        for index in indexes:
            claims.acknowledged.add(index)
            claims.held.pop(index, None)

    def settled(self, group: str, indexes: Iterable[int]) -> None:
        self.group(group).confirmed.update(indexes)

    def let_go(self, group: str, holder: object, indexes: Iterable[int] | None = None) -> None:
        """Refused, or (None) all that this one holds: its connection ends."""
        held = self.group(group).held
        for index in list(held) if indexes is None else indexes:
            if held.get(index) is holder:
                del held[index]

    # ------------------------------------------------------------------ ends

    def next_life(self, *, power_cut: bool) -> None:
        self.life += 1
        for group in self.groups.values():
            group.held.clear()
        if power_cut:
            self.power_cuts_count += 1
            self.safe = set(self.receipted)

    def all_read(self, records: dict[int, bytes], gaps: list[tuple[int, int, str]], end: int) -> None:
        """One reader has read everything."""
        for start, stop, reason in gaps:
            self.gap(start, stop, reason)
        covered = sorted([(index, index + 1) for index in records] + [(start, stop) for start, stop, _reason in gaps])
        # What was lost at the beginning goes the way of old records: nothing older is left.
        place = covered[0][0] if covered else 0
        for start, stop in covered:
            if start != place:
                raise ClaimError(f"between {place} and {start} is nothing, or something twice")
            place = stop
        if place != end:
            raise ClaimError(f"the log ends at {end}, its reader at {place}")
        lost = [index for index in self.safe if index not in records]
        if lost:
            raise ClaimError(f"{len(lost)} are lost: {sorted(lost)[:9]} of {end}")
        for sent in self.sends:
            there = {value: index for index, value in (
                (index, records.get(index)) for index in range(sent.index, sent.index + len(sent.values))
            )} if sent.index is not None else {}  # fmt: skip
            found = [value for value in sent.values if value in there]
            if found and len(found) != len(sent.values):
                raise ClaimError(f"{len(found)} of the {len(sent.values)} records of one SEND are there")

    def all_taken(self, group: str, came: set[int], records: Iterable[int]) -> None:
        """The group's last consumer got these and no more, or it was acknowledged before."""
        missing = [index for index in records if index not in came]
        if missing:
            raise ClaimError(f"{group} never acknowledged {sorted(missing)[:9]}, and does not get them any more")
