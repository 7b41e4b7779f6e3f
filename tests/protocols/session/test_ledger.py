"""What ACKs in any order settle, what transactions hold, what a ledger costs and what it keeps."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import pytest

from protocols.stomp.ledger import Ledger, Portion, UnknownDeliveryError
from tests.protocols.session.deliveries import origin, queue_of, slice_of


def sequences_of(portions: list[Portion]) -> list[int]:
    """What reaches the queues, in the order in which it does."""
    return [sequence for portion in portions for sequence in portion.sequences]


def ledger_with(count: int, *, per_slice: int | None = None, by_number: bool = False) -> Ledger:
    """So many deliveries of one queue; sequences and numbers are 1000 more than ordinals."""
    ledger = Ledger(by_number=by_number)
    subscription = origin()
    step = per_slice or count
    for first in range(1000, 1000 + count, step):
        ledger.add(subscription, slice_of(range(first, first + step), number=first))
    return ledger


# ---------------------------------------------------------------------- which deliveries


@pytest.mark.parametrize("per_slice", [1, 2, 6])
@pytest.mark.parametrize("wanted", [[0, 5, 2], [5, 4, 3], [2, 0, 1], [3, 3, 3], [4, 1, 4, 0]])
def test_individual_acks_settle_what_they_name_in_whatever_order(wanted: list[int], per_slice: int) -> None:
    ledger = ledger_with(6, per_slice=per_slice)
    assert sequences_of(ledger.take(wanted)) == [1000 + ordinal for ordinal in sorted(set(wanted))]
    left = [ordinal for ordinal in range(6) if ordinal not in wanted]
    assert sequences_of(ledger.take(range(6))) == [1000 + ordinal for ordinal in left]
    assert ledger.unsettled_count == 0


@pytest.mark.parametrize("wanted", [[0, 5, 2], [5, 4, 3], [4, 1, 4, 0]])
def test_transaction_holds_what_it_names_in_whatever_order(wanted: list[int]) -> None:
    ledger = ledger_with(6)
    held = ledger.hold(wanted, through=False)
    assert sequences_of(held) == [1000 + ordinal for ordinal in sorted(set(wanted))]
    assert ledger.held_count == len(set(wanted))
    left = [1000 + ordinal for ordinal in range(6) if ordinal not in wanted]
    assert sequences_of(ledger.take_through(5)) == left


def test_portion_says_the_bytes_of_its_deliveries() -> None:
    """Each message of the slice has another size: the windows must get back exactly what was charged."""
    ledger = ledger_with(6)
    (portion,) = ledger.take([4, 1])
    assert portion.wire_bytes == 14 + 11
    (portion,) = ledger.take_through(2)
    assert (list(portion.sequences), portion.wire_bytes) == ([1000, 1002], 10 + 12)


def test_neighbours_are_settled_as_a_range() -> None:
    """The form that queues settle at once, also when they were named in disorder."""
    ledger = ledger_with(6)
    assert [portion.sequences for portion in ledger.take([3, 1, 2])] == [range(1001, 1004)]
    assert [portion.sequences for portion in ledger.take_through(0)] == [range(1000, 1001)]


def test_settled_deliveries_are_skipped() -> None:
    ledger = ledger_with(4)
    ledger.take_through(1)
    assert ledger.take_through(1) == ledger.take([0]) == ledger.hold([1], through=False) == []
    assert sequences_of(ledger.take([1, 2])) == [1002]


@pytest.mark.parametrize("ordinal", [-1, 4, 10**17])
def test_what_was_never_given_out_is_refused_and_nothing_changes(ordinal: int) -> None:
    """It must not get as far as a queue, whose invariants would end the broker."""
    ledger = ledger_with(4)
    attempts: list[Callable[[], object]] = [
        lambda: ledger.take([0, ordinal]),
        lambda: ledger.take_through(ordinal),
        lambda: ledger.hold([ordinal, 1], through=False),
        lambda: ledger.hold([ordinal], through=True),
    ]
    for refused in attempts:
        with pytest.raises(UnknownDeliveryError, match=str(ordinal)):
            refused()
    assert (ledger.unsettled_count, ledger.held_count) == (4, 0)
    assert sequences_of(ledger.take_through(3)) == [1000, 1001, 1002, 1003]


def test_messages_are_found_by_number_until_they_are_settled() -> None:
    ledger = ledger_with(3, by_number=True)
    assert ledger.ordinal_of_number(1001) == 1
    held = ledger.hold([1], through=False)
    assert ledger.ordinal_of_number(1001) == 1
    ledger.finish_held(held[0])
    assert ledger.ordinal_of_number(1001) is None
    ledger.take_through(2)
    assert [ledger.ordinal_of_number(n) for n in (999, 1000, 1002)] == [None, None, None]


# ---------------------------------------------------------------------- queues that are gone


def test_forgotten_deliveries_need_no_answer_and_late_acks_are_no_mistakes() -> None:
    ledger = Ledger(by_number=False)
    stays, goes = origin(), origin()
    ledger.add(stays, slice_of(range(2)))
    ledger.add(goes, slice_of(range(3)))
    ledger.take([2])
    assert ledger.forget(lambda subscription: subscription is goes) == (2, 11 + 12)
    assert ledger.unsettled_count == 2
    assert ledger.take([2, 3, 4]) == []
    assert sequences_of(ledger.take_through(4)) == [0, 1]


@pytest.mark.parametrize("commits", [True, False])
def test_what_a_transaction_holds_of_a_queue_that_is_gone_is_done_when_it_ends(commits: bool) -> None:
    """An ABORT has nobody to give it back to: it is not unsettled again, and takes no credit."""
    ledger = Ledger(by_number=False)
    goes = origin()
    ledger.add(goes, slice_of(range(3)))
    (held,) = ledger.hold([0, 2], through=False)
    assert ledger.forget(lambda subscription: subscription is goes) == (1, 11)
    assert (ledger.unsettled_count, ledger.held_count) == (2, 2)
    if commits:
        ledger.finish_held(held)
    else:
        assert ledger.release_held(held) == []
    assert (ledger.unsettled_count, ledger.held_count) == (0, 0)
    assert list(ledger.take_all()) == []


def test_unsettled_deliveries_are_counted_by_queue() -> None:
    ledger = Ledger(by_number=False)
    one, other = origin(), origin()
    for subscription in (one, other, one):
        ledger.add(subscription, slice_of(range(3)))
    ledger.take([0, 4])
    ledger.hold([7], through=False)
    assert ledger.unsettled_of({queue_of(one)}) == 5
    assert ledger.unsettled_of({queue_of(one), queue_of(other)}) == 7


# ---------------------------------------------------------------------- what it costs, and keeps


def test_messages_are_not_kept() -> None:
    """What a topic drops must be gone, though a subscriber has not acknowledged it."""
    ledger = Ledger(by_number=True)
    part = slice_of(range(4))
    message = part.messages[2]
    before = sys.getrefcount(message), sys.getrefcount(part)
    ledger.add(origin(), part)
    assert (sys.getrefcount(message), sys.getrefcount(part)) == before


STEPS: dict[str, Callable[[Ledger, int], object]] = {
    "cumulative": lambda ledger, ordinal: ledger.take_through(ordinal),
    "individual": lambda ledger, ordinal: ledger.take([ordinal]),
    "cumulative in a transaction": lambda ledger, ordinal: ledger.hold([ordinal], through=True),
    "individual in a transaction": lambda ledger, ordinal: ledger.hold([ordinal], through=False),
}


@pytest.mark.parametrize("per_slice", [1, 1000])
@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS.keys())
def test_one_ack_per_message_looks_at_each_delivery_once(
    step: Callable[[Ledger, int], object], per_slice: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many are acknowledged or held already: the cost of N ACKs is linear in N."""
    looked_at_count = 0
    change = Ledger._change

    def counting(ledger: Ledger, chunk: object, ordinals: Sequence[int], old: int, new: int) -> Portion | None:
        nonlocal looked_at_count
        looked_at_count += len(ordinals)
        return change(ledger, chunk, ordinals, old, new)  # type: ignore[arg-type]

    monkeypatch.setattr(Ledger, "_change", counting)
    ledger = ledger_with(4000, per_slice=per_slice)
    for ordinal in range(4000):
        step(ledger, ordinal)
    assert looked_at_count == 4000
