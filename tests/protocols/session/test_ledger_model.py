"""Whatever is acknowledged, held, committed, aborted or forgotten, in whatever order: a ledger does what a list would.

The model is one entry per delivery with all that is known of it. What must agree: which sequences reach which queue,
with how many bytes; what is left, and what of it is found by number.
"""

from __future__ import annotations

import attrs
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sluiceway.protocols.stomp.ledger import Ledger, Portion
from sluiceway.queues.subscription import Subscription
from tests.how_often import rounds
from tests.protocols.session.deliveries import origin, queue_of, slice_of

ORDINALS = st.integers(0, 60)
ORIGINS = st.integers(0, 2)


@attrs.define(eq=False)
class Entry:
    """One delivery. `holder`: the transaction that holds it, None while it is unsettled."""

    subscription: Subscription
    sequence: int
    size_bytes: int
    number: int
    flushed: bool = False
    holder: int | None = None
    gone: bool = False
    done: bool = False

    def is_unsettled(self) -> bool:
        return not self.done and self.holder is None


class LedgerMachine(RuleBasedStateMachine):
    """See the module."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger(by_number=True)
        self.entries: list[Entry] = []
        self.origins = [origin() for _ in range(3)]
        self.next_sequences = [0, 0, 0]
        self.transactions: dict[int, list[Portion]] = {}
        self.transactions_count = 0

    # ------------------------------------------------------------------ deliveries

    @rule(place=ORIGINS, gaps=st.lists(st.integers(0, 2), min_size=1, max_size=6), size_bytes=st.integers(1, 9))
    def deliver(self, place: int, gaps: list[int], size_bytes: int) -> None:
        """A slice, with sequences missing here and there."""
        subscription = self.origins[place]
        sequences: list[int] = []
        for gap in gaps:
            self.next_sequences[place] += gap + 1
            sequences.append(self.next_sequences[place])
        whole = range(sequences[0], sequences[-1] + 1)
        part = slice_of(
            whole if len(whole) == len(sequences) else sequences,
            number=1000 + len(self.entries),
            size_bytes=size_bytes,
        )
        assert self.ledger.add(subscription, part) == len(self.entries)
        self.entries += [
            Entry(subscription, sequence, len(message.wire), message.number)
            for sequence, message in zip(part.sequences, part.messages, strict=True)
        ]

    @precondition(lambda self: self.entries)
    @rule(ordinal=ORDINALS)
    def flush(self, ordinal: int) -> None:
        """The kernel took everything before this."""
        self.ledger.flushed_ordinal = max(self.ledger.flushed_ordinal, min(ordinal, len(self.entries)))
        for entry in self.entries[: self.ledger.flushed_ordinal]:
            entry.flushed = True

    # ------------------------------------------------------------------ ACK and NACK

    def known(self, ordinals: list[int]) -> list[int]:
        return [ordinal % len(self.entries) for ordinal in ordinals]

    @precondition(lambda self: self.entries)
    @rule(ordinal=ORDINALS)
    def take_through(self, ordinal: int) -> None:
        (last,) = self.known([ordinal])
        expected = [entry for entry in self.entries[: last + 1] if entry.is_unsettled()]
        self.check_portions(self.ledger.take_through(last), expected)
        for entry in expected:
            entry.done = True

    @precondition(lambda self: self.entries)
    @rule(ordinals=st.lists(ORDINALS, min_size=1, max_size=8))
    def take(self, ordinals: list[int]) -> None:
        wanted = self.known(ordinals)
        expected = [entry for ordinal, entry in enumerate(self.entries) if ordinal in wanted and entry.is_unsettled()]
        self.check_portions(self.ledger.take(wanted), expected)
        for entry in expected:
            entry.done = True

    # ------------------------------------------------------------------ transactions

    @precondition(lambda self: self.entries)
    @rule(ordinals=st.lists(ORDINALS, min_size=1, max_size=8), through=st.booleans())
    def hold(self, ordinals: list[int], through: bool) -> None:
        wanted = range(max(self.known(ordinals)) + 1) if through else self.known(ordinals)
        expected = [entry for ordinal, entry in enumerate(self.entries) if ordinal in wanted and entry.is_unsettled()]
        portions = self.ledger.hold(self.known(ordinals), through=through)
        self.check_portions(portions, expected)
        for entry in expected:
            entry.holder = self.transactions_count
        self.transactions[self.transactions_count] = portions
        self.transactions_count += 1

    @precondition(lambda self: self.transactions)
    @rule(choice=st.integers(0, 60))
    def commit(self, choice: int) -> None:
        name = sorted(self.transactions)[choice % len(self.transactions)]
        for portion in self.transactions.pop(name):
            self.ledger.finish_held(portion)
        for entry in self.held_by(name):
            entry.holder = None
            entry.done = True

    @precondition(lambda self: self.transactions)
    @rule(choice=st.integers(0, 60))
    def abort(self, choice: int) -> None:
        name = sorted(self.transactions)[choice % len(self.transactions)]
        released: list[Portion] = []
        for portion in self.transactions.pop(name):
            released += self.ledger.release_held(portion)
        held = self.held_by(name)
        self.check_portions(released, [entry for entry in held if not entry.gone])
        for entry in held:
            entry.holder = None
            entry.done = entry.gone

    def held_by(self, name: int) -> list[Entry]:
        return [entry for entry in self.entries if entry.holder == name]

    # ------------------------------------------------------------------ ends

    @rule(place=ORIGINS)
    def forget(self, place: int) -> None:
        """A queue is gone; a new subscription takes its place."""
        goes = self.origins[place]
        self.origins[place] = origin()
        of_it = [entry for entry in self.entries if entry.subscription is goes]
        expected = [entry for entry in of_it if entry.is_unsettled()]
        found = list(self.ledger.forgetting(lambda subscription: subscription is goes))
        assert sum(count for count, _size_bytes in found) == len(expected)
        assert sum(size_bytes for _count, size_bytes in found) == sum(entry.size_bytes for entry in expected)
        for entry in of_it:
            entry.gone = True
            entry.done = entry.holder is None

    def teardown(self) -> None:
        """The connection ends: what is left comes out in order, with whether it had been handed over."""
        left = [entry for entry in self.entries if not entry.done]
        given = list(self.ledger.take_all())
        self.check_portions([portion for portion, _attempted in given], left)
        attempted = [attempted for portion, attempted in given for _ in portion.sequences]
        assert attempted == [entry.flushed for entry in left]
        assert (self.ledger.unsettled_count, self.ledger.held_count) == (0, 0)

    # ------------------------------------------------------------------ what must agree

    def check_portions(self, portions: list[Portion], expected: list[Entry]) -> None:
        found = [(portion.subscription, s) for portion in portions for s in portion.sequences]
        assert found == [(entry.subscription, entry.sequence) for entry in expected]
        for portion in portions:
            entries = [self.entries[ordinal] for ordinal in portion.ordinals]
            assert list(portion.sequences) == [entry.sequence for entry in entries]
            assert portion.wire_bytes == sum(entry.size_bytes for entry in entries)

    @invariant()
    def counts_agree(self) -> None:
        left = [entry for entry in self.entries if not entry.done]
        assert self.ledger.unsettled_count == len(left)
        assert self.ledger.held_count == sum(entry.holder is not None for entry in left)
        assert self.ledger.next_ordinal == len(self.entries)
        for subscription in self.origins:
            of_it = [entry for entry in left if entry.subscription is subscription]
            assert self.ledger.unsettled_of({queue_of(subscription)}) == len(of_it)

    @invariant()
    def numbers_are_found_while_they_are_not_settled(self) -> None:
        for ordinal, entry in enumerate(self.entries):
            assert self.ledger.ordinal_of_number(entry.number) == (None if entry.done else ordinal)


TestLedgerModel = LedgerMachine.TestCase
TestLedgerModel.settings = settings(max_examples=rounds(50), stateful_step_count=40, deadline=None)
