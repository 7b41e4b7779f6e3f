"""What ACKs in any order settle, what transactions hold, what a ledger costs and what it keeps."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, permutations

import pytest

from sluiceway.flow.graph import at_once
from sluiceway.protocols.stomp.ledger import (
    BITE_COUNT,
    COUNT_PER_STEP,
    SEEK_CHUNKS_PER_STEP,
    Ledger,
    Portion,
    UnknownDeliveryError,
)
from sluiceway.queues.subscription import Subscription
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


def delivered_three_times(*, by_number: bool) -> Ledger:
    """Messages 7 and 8 of a group that was moved twice."""
    ledger = Ledger(by_number=by_number, repeats=True)
    for _ in range(3):
        ledger.add(origin(), slice_of(range(2), number=7))
    return ledger


@pytest.mark.parametrize("order", list(permutations([1, 3, 5])))
def test_what_is_delivered_while_it_is_out_has_a_name_of_its_own(order: tuple[int, ...]) -> None:
    """Its number is for the first of them only, and for nothing when that is settled."""
    ledger = delivered_three_times(by_number=True)
    repeats = ledger.repeats
    assert repeats is not None
    assert [repeats.has_own(ordinal) for ordinal in range(6)] == [False, False, True, True, True, True]
    assert [repeats.has_own_from(ordinal) for ordinal in (0, 5, 6)] == [True, True, False]
    left = [1, 3, 5]
    for ordinal in order:
        ledger.take([ordinal])
        left.remove(ordinal)
        assert ledger.ordinal_of_number(8) == (1 if 1 in left else None)
        assert [each for each in range(6) if repeats.is_own(8, each)] == [each for each in left if each != 1]
    ledger.take_through(5)
    assert not repeats
    ledger.add(origin(), slice_of(range(2), number=7))
    assert [ledger.ordinal_of_number(number) for number in (7, 8)] == [6, 7]


@pytest.mark.parametrize("order", list(permutations([1, 3, 5])))
def test_where_ids_stay_as_they_are_a_number_is_for_the_first_that_is_unsettled(order: tuple[int, ...]) -> None:
    ledger = delivered_three_times(by_number=False)
    deque(ledger.indexing_numbers(lambda _subscription, sequence: 7 + sequence), 0)
    left = [1, 3, 5]
    for ordinal in order:
        held = ledger.hold([ordinal], through=False)
        left.remove(ordinal)
        assert ledger.ordinal_of_number(8) == min(left, default=ordinal)
        ledger.release_held(held[0])
        ledger.take([ordinal])
        assert ledger.ordinal_of_number(8) == min(left, default=None)
    ledger.take_through(5)
    assert not ledger.repeats


# ---------------------------------------------------------------------- queues that are gone


def forget(ledger: Ledger, goes: Subscription) -> tuple[int, int]:
    """What came over this one is done: how many deliveries, and their bytes."""
    steps = list(ledger.forgetting(lambda subscription: subscription is goes))
    return sum(count for count, _size_bytes in steps), sum(size_bytes for _count, size_bytes in steps)


def forgetting_three_bites() -> tuple[Ledger, Iterator[tuple[int, int]]]:
    """A ledger, and the steps that forget all that is in it."""
    ledger = Ledger(by_number=False)
    goes = origin()
    for first in range(0, 3 * BITE_COUNT, BITE_COUNT):
        ledger.add(goes, slice_of(range(first, first + BITE_COUNT)))
    return ledger, ledger.forgetting(lambda subscription: subscription is goes)


@pytest.mark.parametrize("before", range(5))
def test_what_is_being_forgotten_may_be_settled_held_or_given_back_meanwhile(before: int) -> None:
    """Each delivery is counted once, whoever comes first, and nothing is after the end of the connection."""
    ledger, steps = forgetting_three_bites()
    forgotten_count = sum(count for count, _size_bytes in islice(steps, before))
    taken_count = sum(len(p.ordinals) for p in ledger.take([0, BITE_COUNT, 2 * BITE_COUNT]))
    held = ledger.hold([1, BITE_COUNT + 1, 2 * BITE_COUNT + 1], through=False)
    forgotten_count += sum(count for count, _size_bytes in steps)
    held_count = sum(len(portion.ordinals) for portion in held)
    assert forgotten_count + taken_count + held_count == 3 * BITE_COUNT
    assert ledger.unsettled_count == held_count
    for portion in held:
        assert ledger.release_held(portion) == []
    assert ledger.unsettled_count == 0


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("before", range(0, 2 * BITE_COUNT // COUNT_PER_STEP + 4, 8))
def test_a_transaction_may_end_between_two_bites_of_what_is_forgotten(before: int, commits: bool) -> None:
    """What it held of the bite before is not unsettled again: nobody would come by it, and its credit were lost."""
    ledger = Ledger(by_number=False)
    goes = origin()
    ledger.add(goes, slice_of(range(2 * BITE_COUNT)))
    held = ledger.hold([0, 1, BITE_COUNT - 1, BITE_COUNT, 2 * BITE_COUNT - 1], through=False)
    charged_count = 2 * BITE_COUNT - 5
    steps = ledger.forgetting(lambda subscription: subscription is goes)
    charged_count -= sum(count for count, _size_bytes in islice(steps, before))
    for portion in held:
        if commits:
            ledger.finish_held(portion)
        else:
            charged_count += sum(len(released.ordinals) for released in ledger.release_held(portion))
    charged_count -= sum(count for count, _size_bytes in steps)
    assert (charged_count, ledger.unsettled_count, ledger.held_count) == (0, 0, 0)


@pytest.mark.parametrize("before", [2, 40])
def test_what_is_being_forgotten_goes_with_an_unsubscribe_that_comes_between(before: int) -> None:
    """The subscription is settled then: nobody looks at it again when the rest is forgotten."""
    ledger = Ledger(by_number=False)
    goes = origin()
    ledger.add(goes, slice_of(range(3 * BITE_COUNT)))
    steps = ledger.forgetting(lambda subscription: subscription is goes)
    forgotten_count = sum(count for count, _size_bytes in islice(steps, before))
    taken = [each for each in ledger.taking_unsettled() if each is not None]
    assert ledger.unsettled_count == 0
    assert sum(len(portion.ordinals) for portion, _numbers in taken) == 3 * BITE_COUNT - forgotten_count
    assert sum(count for count, _size_bytes in steps) == 0


@pytest.mark.parametrize("before", range(4))
def test_a_connection_that_ends_while_something_is_being_forgotten(before: int) -> None:
    ledger, steps = forgetting_three_bites()
    count = sum(count for count, _size_bytes in islice(steps, before))
    given = ledger.take_all()
    count += len(next(given)[0].ordinals)
    assert sum(count for count, _size_bytes in steps) == 0
    count += sum(len(portion.ordinals) for portion, _attempted in given)
    assert count == 3 * BITE_COUNT
    assert ledger.unsettled_count == 0


def test_forgotten_deliveries_need_no_answer_and_late_acks_are_no_mistakes() -> None:
    ledger = Ledger(by_number=False)
    stays, goes = origin(), origin()
    ledger.add(stays, slice_of(range(2)))
    ledger.add(goes, slice_of(range(3)))
    ledger.take([2])
    assert forget(ledger, goes) == (2, 11 + 12)
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
    assert forget(ledger, goes) == (1, 11)
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


@pytest.mark.parametrize("order", ["ascending", "descending", "every other one first"])
def test_chunks_that_are_done_go_a_few_at_a_time(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many lie about as are left, at most, and a few more; what is left is found as before."""
    monkeypatch.setattr("sluiceway.protocols.stomp.ledger._DROP_CHUNKS", 64)
    count = 1000
    ledger = Ledger(by_number=False)
    one, other = origin(), origin()
    for ordinal in range(count):
        ledger.add((one, other)[ordinal % 2], slice_of(range(ordinal, ordinal + 1)))
    ordinals = list(range(count))
    if order == "descending":
        ordinals.reverse()
    elif order == "every other one first":
        ordinals = ordinals[::2] + ordinals[1::2]
    for left_count, ordinal in enumerate(ordinals[:-1]):
        before_count = len(ledger._chunks)
        assert sequences_of(ledger.take([ordinal])) == [ordinal]
        assert before_count - len(ledger._chunks) <= 64
        assert len(ledger._chunks) <= 2 * (count - left_count) + 64
    assert sequences_of(ledger.take(range(count))) == ordinals[-1:]
    assert not ledger._chunks


def test_a_walk_over_what_is_unsettled_misses_nothing_that_stays_meanwhile() -> None:
    """Chunks that are done go in the midst of it."""
    ledger = Ledger(by_number=False)
    one, other = origin(), origin()
    for ordinal in range(2_000):
        ledger.add((one, other)[ordinal % 2], slice_of(range(ordinal, ordinal + 1)))
    taken: list[int] = []
    for place, each in enumerate(ledger.taking_unsettled(lambda subscription: subscription is one)):
        taken += [] if each is None else each[0].ordinals
        ledger.take([min(1_999, place * 2 + 1)])
    assert taken == list(range(0, 2_000, 2))


@pytest.mark.parametrize("looks_max", [0, 1, 7, 2_048])
def test_what_was_worked_on_is_found_however_much_is_held_before_it(looks_max: int) -> None:
    ledger = Ledger(by_number=False)
    one, other = origin(), origin()
    for ordinal in range(3_000):
        ledger.add((one, other)[ordinal % 2], slice_of(range(ordinal, ordinal + 1)))
    ledger.flushed_ordinal = 2_500
    ledger.hold(range(2_000), through=False)
    ledger.take(range(2_000, 2_400))
    assert ledger.note_worked_on(looks_max) <= looks_max
    for _step in ledger.seeking_worked_on():
        pass
    assert ledger.worked_on == 2_400
    ledger.take(range(2_400, 2_500))
    for _step in ledger.seeking_worked_on():
        pass
    assert ledger.worked_on is None, "the kernel had not taken what is left"


# ---------------------------------------------------------------------- who holds an element


@pytest.mark.parametrize(
    ("sequence", "holds"), [(1000, False), (1001, True), (1002, True), (1003, False), (999, False)]
)
def test_what_is_unsettled_or_held_is_found_by_its_sequence(sequence: int, holds: bool) -> None:
    ledger = ledger_with(4)
    ledger.take([0, 3])
    ledger.hold([1], through=False)
    queue = queue_of(ledger._chunks[0].subscription)
    assert at_once(ledger.seeking(queue, sequence)) is holds
    assert at_once(ledger.seeking(object(), sequence)) is False


def test_an_element_is_looked_for_in_steps() -> None:
    """Through chunks that are settled, and dropped, meanwhile."""
    ledger, subscription = Ledger(by_number=False), origin()
    last = 3 * SEEK_CHUNKS_PER_STEP - 1
    for number in range(last + 1):
        ledger.add(subscription, slice_of([number << 10], number=number))
    steps = ledger.seeking(queue_of(subscription), last << 10)
    next(steps)
    next(steps)
    ledger.take(range(last))
    with pytest.raises(StopIteration) as end:
        next(steps)
    assert end.value.value is True
