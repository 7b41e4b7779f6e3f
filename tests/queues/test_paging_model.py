"""A queue that pages, against a plain list: whatever is in memory, on disk or on its way, and however often the broker
starts anew, it is the same queue.

The machine drives one queue on a real StoreQueue with everything at once: producers that offer, consumers with tiny
windows that settle, return, leave and die, groups, expiry, all full policies, a disk that answers late, fails or loses
power, restarts in order and not. Blocks have two or four places, and memory is for a handful of messages.

Conservation: each message is in the list exactly as long as it is in the queue; limiters hold exactly that, in memory
and in all. Order: of those that may go, the first goes. Liveness: when all is idle, nothing waits that somebody with
credit could have, and no block stays in memory that should be on disk. Durability: what was said to be on disk is there
after any crash; what was said to be settled does not come back; what a consumer has seen is marked. At the end a
willing consumer gets all, and nothing is left on the disk.
"""

from __future__ import annotations

from contextlib import ExitStack
from enum import Enum
from functools import partial
from random import Random
from typing import Any
from unittest.mock import patch

import attrs
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import sluiceway.queues.cursored as cursored
from sluiceway.flow import ResidencyLimiter
from sluiceway.queues.blocks import bits_of
from sluiceway.queues.consumed import ConsumedQueue
from sluiceway.queues.exclusive import SingleDistribution
from sluiceway.queues.exclusivity import Exclusivity
from sluiceway.queues.groups import GroupTable
from sluiceway.queues.message import MESSAGE_OVERHEAD_BYTES, Message
from sluiceway.queues.policy import QueuePolicy
from sluiceway.queues.selectors import Selection, Selector, compile_selector
from sluiceway.queues.shared import SharedDistribution
from sluiceway.queues.subscription import Subscription
from tests.how_often import rounds
from tests.queues.rig import Delivery, FakeConsumer, Head, make_policy
from tests.store.faulty import Failure, FaultyEngine
from tests.store.rig import OfferingProducer, StoreWorld, tight

POLICIES: list[dict[str, Any]] = [
    {"memory_bytes": 1500},
    {"memory_bytes": 2500},
    {"memory_bytes": 6000},
    {"memory_bytes": 1500, "paging": "offload"},
    {"memory_bytes": 2500, "paging": "offload"},
]
TIGHTNESS: list[dict[str, Any]] = [
    {"block_bits": 1, "lease_count": 3, "blocks_min": 1},
    {"block_bits": 2, "lease_count": 8, "batch_bytes": 500, "blocks_min": 1},
    {"block_bits": 2, "lease_count": 1000, "block_bytes_max": 600, "blocks_min": 1, "seal_count": 8},
]


WHICH = st.integers(0, 3)
PLACES = st.sampled_from([0, 0, 1, 2, 0b110, 0b1011, 0b11110000])


class Mark(Enum):
    """Whether the next delivery of a message says that it was delivered before."""

    NO = 0
    YES = 1
    MAYBE = 2
    """Only a crash knows: what is near what was delivered is marked, too."""


@attrs.define(eq=False)
class Entry:
    """An element of the list."""

    sequence: int
    message: Message
    keeps: bool
    """Persistent, in a queue that keeps what is persistent."""
    on_disk: bool = False
    """It was said to be."""
    held_by: FakeConsumer | None = None
    is_returning: bool = False
    """On its way back from a consumer: while the queue drops those past their date others may come in."""
    seen: bool = False
    """A consumer has it, or had it and says so, and the disk could know."""
    mark: Mark = Mark.NO
    charged_count: int = 0
    charged_exactly: bool = True

    @property
    def group(self) -> str | None:
        return self.message.head.group


class _Party:
    """A consumer and its subscription."""

    def __init__(self, consumer: FakeConsumer, subscription: Subscription, selector: Selector | None) -> None:
        self.consumer = consumer
        self.subscription = subscription
        self.selector = selector

    def takes(self, entry: Entry) -> bool:
        return self.selector is None or self.selector.takes(entry.message)

    @property
    def is_open(self) -> bool:
        return not self.subscription.closed


class PagingMachine(RuleBasedStateMachine):
    """See the module."""

    exclusive_queue = False
    policies = POLICIES
    selectors: tuple[str, ...] = ("",)

    def __init__(self) -> None:
        super().__init__()
        self.patches = ExitStack()

    def teardown(self) -> None:
        try:
            if hasattr(self, "world"):
                self.everything_drains()
        finally:
            self.patches.close()

    @initialize(
        policy=st.integers(0, 99),
        tightness=st.sampled_from(TIGHTNESS),
        later=st.booleans(),
        budget=st.sampled_from([1, 3, 1024]),
        seed=st.integers(0, 99),
        lasting=st.sampled_from([True, True, True, False]),
    )
    def start(self, policy: int, tightness: dict[str, Any], later: bool, budget: int, seed: int, lasting: bool) -> None:
        self.patches.enter_context(tight(**tightness))
        self.policy: QueuePolicy = make_policy(**self.policies[policy % len(self.policies)])
        self.full = self.policy.full or "block"
        self.later, self.budget, self.lasting = later, budget, lasting
        self.engine = FaultyEngine(Random(seed))
        self.alive: dict[int, Entry] = {}
        self.gone: dict[int, Entry] = {}
        """Left since the start, and may come back with the next: the disk did not say that it knows."""
        self.numbers: set[int] = set()
        self.made_count = 0
        self.now_seconds = 100.0
        self._live_on()

    def _live_on(self) -> None:
        """A broker starts with what is on the disk."""
        world = self.world = StoreWorld(
            self.engine, later=self.later, budget_count=self.budget, now_seconds=self.now_seconds
        )
        world.made_count = self.made_count
        distribution = (
            SingleDistribution
            if self.exclusive_queue
            else partial(SharedDistribution, groups=GroupTable(), exclusivity=Exclusivity())
        )
        self.queue = WatchedQueue("/queue/a", self.policy, world.environment, distribution, lasting=self.lasting)
        self.queue.machine = self
        self.parties: list[_Party] = []
        self.producers = [
            OfferingProducer(world, self.queue, on_taken=self._taken, on_refused=self._refused) for _ in range(2)
        ]
        self.receipts_wanted: set[int] = set()
        self.appended_count = self.taken_count = self.refused_count = self.left_unsettled_count = 0
        self.settled_count = 0
        self.is_approximate = False
        """Bytes of blocks that are outside are a share of a total."""

    # ------------------------------------------------------------------ what happens

    @rule(
        producer=st.integers(0, 1),
        group=st.sampled_from([None, None, None, "k", "l"]),
        sizes=st.lists(st.sampled_from([10, 10, 50, 300]), min_size=1, max_size=6),
        ttl_ms=st.sampled_from([0, 0, 0, 2000, 5000]),
        delay_ms=st.sampled_from([0, 0, 0, 0, 1500]),
        persistent=st.booleans(),
        receipt=st.booleans(),
        color=st.sampled_from(["", "red", "blue"]),
    )
    def send(
        self,
        producer: int,
        group: str | None,
        sizes: list[int],
        ttl_ms: int,
        delay_ms: int,
        persistent: bool,
        receipt: bool,
        color: str,
    ) -> None:
        head = Head(group=group, ttl_ms=ttl_ms, delay_ms=delay_ms, persistent=persistent, color=color)
        run = [self.world.messages(1, wire_bytes=size, head=head)[0] for size in sizes]
        if receipt and persistent and self.queue.keeps:
            self.receipts_wanted.add(run[0].number)
        self.producers[producer].send(run)

    def _taken(self, run: list[Message], first: int) -> None:
        """A run went in (what of it was not dropped)."""
        self.taken_count += len(run)
        self._find_who_left()
        if self.full == "drop_oldest" and sum(sequence >= first for sequence in self.alive) < len(run):
            older = [s for s, e in self.alive.items() if s < first and not (e.held_by is not None or e.is_returning)]
            assert not older, f"{run} was dropped in place of {older}"
        if run[0].number in self.receipts_wanted:
            end = self.queue.elements.next_sequence
            entries = [entry for s, entry in self.alive.items() if first <= s < end]
            self.queue.when_saved(first, lambda how: self._saved(entries, how))

    def _refused(self, run: list[Message]) -> None:
        assert self.full == "reject"
        self.refused_count += len(run)

    def _saved(self, entries: list[Entry], how: str) -> None:
        alive = [entry for entry in entries if self.queue.elements.is_alive(entry.sequence)]
        assert how == "disk" or not alive or self.queue.closed
        for entry in alive:
            entry.on_disk = True

    def appended(self, sequences: list[int], messages: list[Message]) -> None:
        """The queue put these in."""
        assert len(sequences) == len(messages)
        self._find_who_left()
        assert sequences[0] > max(self.alive, default=-1)
        for sequence, message in zip(sequences, messages, strict=True):
            self.alive[sequence] = Entry(sequence, message, message.head.persistent and self.lasting)
        self.appended_count += len(messages)

    @precondition(lambda self: len(self.parties) < 4)
    @rule(
        window=st.sampled_from([1, 2, 3, None]),
        size_bytes=st.sampled_from([None, None, 1, 150]),
        auto=st.sampled_from([False, False, True]),
        modest=st.booleans(),
        which_selector=st.integers(0, 4),
    )
    def subscribe(
        self, window: int | None, size_bytes: int | None, auto: bool, modest: bool, which_selector: int = 0
    ) -> None:
        if self.exclusive_queue and any(party.is_open for party in self.parties):
            return
        consumer = self.world.consumer(window, size_bytes, auto=auto, modest=modest)
        selector = compile_selector(self.selectors[which_selector % len(self.selectors)])
        selection = None if selector is None else Selection(selector)
        party = _Party(consumer, self.queue.subscribe(consumer, selection=selection), selector)
        consumer.on_delivery = lambda delivery: self._delivered(party, delivery)
        self.parties.append(party)

    def _delivered(self, party: _Party, delivery: Delivery) -> None:
        entry = self.alive.get(delivery.sequence)
        assert entry is not None, "delivered after it left"
        assert entry.held_by is None, "in two hands"
        assert party.is_open, "a delivery after unsubscribe"
        assert party.takes(entry), "not what it asked for"
        assert not 0 < entry.message.expires_at_ms <= self.world.now_ms, "handed out past its date"
        assert entry.message.due_at_ms <= self.world.now_ms, "handed out before its time"
        wanted, message = entry.message, delivery.message
        assert message.number == wanted.number
        assert (message.wire, message.expires_at_ms) == (wanted.wire, wanted.expires_at_ms)
        assert message.due_at_ms == wanted.due_at_ms
        assert (message.head.group, message.head.persistent) == (wanted.head.group, wanted.head.persistent)
        before = [
            other.sequence
            for other in self.alive.values()
            if other.held_by is None
            and other.sequence < entry.sequence
            and not other.message.due_at_ms
            and (self.exclusive_queue or other.group == entry.group)
            and party.takes(other)
            and self.queue.elements.is_alive(other.sequence)
        ]
        assert not before, f"{entry.sequence} is out of order: {before} come before it"
        if entry.group is not None and not self.exclusive_queue:
            holders = {other.held_by for other in self.alive.values() if other.group == entry.group and other.held_by}
            assert holders <= {party.consumer}, "a group in two hands"
        marked = delivery.sequence in (party.consumer.slices[-1].attempts or {})
        assert entry.mark is Mark.MAYBE or marked == (entry.mark is Mark.YES), f"{entry}: marked {marked}"
        if entry.charged_exactly:
            assert delivery.attempts_count == entry.charged_count
        else:
            assert delivery.attempts_count <= entry.charged_count
        entry.mark = Mark.YES if marked else Mark.NO
        entry.charged_count, entry.charged_exactly = delivery.attempts_count, True
        entry.seen = entry.seen or not self.world.store.is_failing  # readers do not wait for a disk that fails
        entry.held_by = party.consumer
        if party.consumer.auto:
            self._settled(entry)

    def _settled(self, entry: Entry) -> None:
        self.settled_count += 1
        self._left(entry)

    def _left(self, entry: Entry) -> None:
        del self.alive[entry.sequence]
        entry.held_by = None
        if entry.keeps:
            self.gone[entry.sequence] = entry

    @precondition(lambda self: any(party.consumer.held for party in self.parties))
    @rule(which=WHICH, places=PLACES, receipt=st.booleans())
    def settle(self, which: int, places: int, receipt: bool) -> None:
        """`receipt`: and be told when the disk knows."""
        party, chosen = self._choose_held(which, places)
        for delivery in chosen:
            block = self.queue.elements.block(self._index(delivery.sequence))
            self.is_approximate = self.is_approximate or (block is not None and block.outside is not None)
            self._settled(self.alive[delivery.sequence])
        party.consumer.settle(chosen)
        if receipt and self.queue.storage is not None:
            self._find_who_left()
            settled = list(self.gone.values())
            self.queue.storage.when_settled(lambda: self._confirmed(settled))

    def _confirmed(self, settled: list[Entry]) -> None:
        for entry in settled:
            if self.gone.get(entry.sequence) is entry:
                del self.gone[entry.sequence]

    @precondition(lambda self: any(party.consumer.held for party in self.parties))
    @rule(which=WHICH, places=PLACES, attempted=st.booleans())
    def requeue(self, which: int, places: int, attempted: bool) -> None:
        party, chosen = self._choose_held(which, places)
        self._return(party, chosen, attempted)

    def _choose_held(self, which: int, places: int) -> tuple[_Party, list[Delivery]]:
        """One that holds something, and some of that: those whose bit is set in `places`; all if none is."""
        party = self._choose([party for party in self.parties if party.consumer.held], which)
        held = party.consumer.held
        chosen = [delivery for place, delivery in enumerate(held) if places >> place & 1] or list(held)
        return party, sorted(chosen, key=lambda delivery: delivery.sequence)

    @staticmethod
    def _choose(parties: list[_Party], which: int) -> _Party:
        return parties[which % len(parties)]

    def _return(self, party: _Party, chosen: list[Delivery], attempted: bool) -> None:
        for delivery in chosen:
            entry = self.alive[delivery.sequence]
            entry.held_by = None
            entry.is_returning = True
            if attempted:
                entry.mark = Mark.YES
                entry.charged_count += 1
            elif entry.mark is Mark.NO:
                entry.seen = False
        party.consumer.requeue(chosen, attempted=attempted)
        for entry in self.alive.values():
            entry.is_returning = False

    @precondition(lambda self: any(party.is_open for party in self.parties))
    @rule(which=WHICH)
    def unsubscribe(self, which: int) -> None:
        """What it holds stays with it."""
        self._choose([party for party in self.parties if party.is_open], which).subscription.close()

    @precondition(lambda self: self.parties)
    @rule(which=WHICH, attempted=st.booleans())
    def die(self, which: int, attempted: bool) -> None:
        self._die(self._choose(self.parties, which), attempted)

    def _die(self, party: _Party, attempted: bool) -> None:
        party.subscription.close()
        self._return(party, sorted(party.consumer.held, key=lambda delivery: delivery.sequence), attempted)
        self.parties.remove(party)

    @rule(seconds=st.sampled_from([0.001, 0.3, 1.0, 3.0]))
    def let_time_pass(self, seconds: float) -> None:
        self.world.now_seconds += seconds

    @rule()
    def turn(self) -> None:
        self.world.core.run_turn()

    @rule()
    def idle(self) -> None:
        self.world.run()

    @rule(read=st.booleans())
    def disk_does_one_thing(self, read: bool) -> None:
        self.world.worker.step(read=read)

    @rule()
    def disk_does_all(self) -> None:
        self.world.settle_down()

    @rule(failure=st.sampled_from([Failure.DISK_FULL, Failure.WRITE, Failure.SYNC, Failure.READ]))
    def disk_fails(self, failure: Failure) -> None:
        self.engine.fail_next(failure)

    @rule(how=st.sampled_from(["crash", "power cut"]))
    def die_and_start_anew(self, how: str) -> None:
        """At any moment, with anything under way."""
        self._find_who_left()
        was_clean = self._is_clean
        self.engine = self.engine.crash() if how == "crash" else self.engine.power_cut()
        for entry in [*self.alive.values(), *self.gone.values()]:
            entry.mark = Mark.YES if entry.seen else Mark.MAYBE
            entry.charged_exactly = entry.charged_exactly and was_clean and how == "crash"
            entry.held_by = None
        self._start_anew(
            must={
                s for s, entry in self.alive.items() if entry.on_disk or (entry.keeps and was_clean and how == "crash")
            },
            may={s for s, entry in [*self.alive.items(), *self.gone.items()] if entry.keeps},
        )

    @rule()
    def stop_and_start_anew(self) -> None:
        """In good order: consumers are gone before the store is closed."""
        for party in list(self.parties):
            self._die(party, attempted=False)
        self._find_who_left()
        for failure in Failure:
            self.engine.fail_next(failure, 0)
        for producer in self.producers:
            producer.outbox.clear()  # connections are gone, too
        self.world.close_in_order()
        for entry in self.alive.values():
            if entry.message.due_at_ms and entry.mark is Mark.NO:
                entry.mark = Mark.MAYBE  # after a crash: what became due since then counts as seen
        self._find_who_left()  # answers that the disk owed may have let some expire
        kept = {s for s, entry in self.alive.items() if entry.keeps}
        self._start_anew(must=kept, may=kept)

    @property
    def _is_clean(self) -> bool:
        """The disk knows all there is to know."""
        return self.world.is_flushed and self.world.is_idle

    def _start_anew(self, *, must: set[int], may: set[int]) -> None:
        known = {**self.gone, **self.alive}
        self.made_count, self.now_seconds = self.world.made_count, self.world.now_seconds
        self._live_on()
        self.is_approximate = True
        self.queue.open_stored()
        elements = self.queue.elements
        back = set(elements.live_sequences(0, elements.next_sequence))
        assert must <= back, f"lost: {sorted(must - back)}"
        assert back <= may, f"back from the dead: {sorted(back - may)}"
        self.alive = {sequence: known[sequence] for sequence in sorted(back)}
        self.gone = {}
        for entry in self.alive.values():
            entry.on_disk = True
        self.appended_count = self.taken_count = len(self.alive)

    # ------------------------------------------------------------------ what always holds

    def _index(self, sequence: int) -> int:
        return sequence >> cursored.BLOCK_BITS

    def _find_who_left(self) -> None:
        """Without a consumer: expired, or dropped. Look at who is not there any more."""
        elements = self.queue.elements
        left = [entry for entry in self.alive.values() if not elements.is_alive(entry.sequence)]
        for entry in left:
            assert entry.held_by is None, "taken away from a consumer"
            date_ms = entry.message.expires_at_ms
            assert self.full == "drop_oldest" or 0 < date_ms <= self.world.now_ms, f"{entry} was lost"
        dropped = [e.sequence for e in left if not 0 < e.message.expires_at_ms <= self.world.now_ms]
        waiting = [
            e.sequence for e in self.alive.values() if not (e.held_by is not None or e.is_returning or e in left)
        ]
        assert not dropped or not waiting or max(dropped) < min(waiting), "older ones stay than those that were dropped"
        self.left_unsettled_count += len(left)
        self.is_approximate = self.is_approximate or bool(left and elements.outside_count)
        for entry in left:
            self._left(entry)

    @invariant()
    def the_queue_is_the_list(self) -> None:
        if not hasattr(self, "world"):
            return
        self._find_who_left()
        queue = self.queue
        elements = queue.elements
        assert elements.live_count == len(self.alive)
        by_block: dict[int, list[Entry]] = {}
        for entry in self.alive.values():
            by_block.setdefault(self._index(entry.sequence), []).append(entry)
        assert [index for index, _block in elements.blocks()] == sorted(by_block)
        inside: list[Entry] = []
        outside_count = outside_bytes = 0
        for index, block in elements.blocks():
            entries = by_block[index]
            assert block.live_count == len(entries)
            assert block.live_bits() == bits_of(entry.sequence - block.base for entry in entries)
            if block.outside is None:
                inside += entries
                continue
            outside_count += 1
            outside_bytes += block.outside.wire_bytes + len(entries) * MESSAGE_OVERHEAD_BYTES
            if not self.is_approximate:
                assert block.outside.wire_bytes == sum(len(entry.message.wire) for entry in entries)
        assert elements.outside_count == outside_count
        limiter = queue.controller.limiter
        assert isinstance(limiter, ResidencyLimiter)
        assert limiter.used_count == len(inside)
        assert limiter.used_bytes == sum(entry.message.size_bytes for entry in inside)
        assert limiter.total_count == len(self.alive)
        assert limiter.total_bytes == limiter.used_bytes + outside_bytes

    @invariant()
    def all_is_accounted_for(self) -> None:
        if not hasattr(self, "world"):
            return
        self._find_who_left()
        queue = self.queue
        held = [entry for entry in self.alive.values() if entry.held_by is not None]
        assert queue.unsettled_count == len(held) == sum(len(party.consumer.held) for party in self.parties)
        assert queue.settled_count == self.settled_count
        dropped_on_the_way_count = self.taken_count - self.appended_count
        assert queue.dropped_count + queue.expired_count == self.left_unsettled_count + dropped_on_the_way_count
        assert queue.rejected_count == self.refused_count
        limiter = queue.controller.limiter
        assert isinstance(limiter, ResidencyLimiter)
        if self.full != "block":
            assert limiter.total_count <= (self.policy.count_max or 1 << 60)
            assert self.is_approximate or limiter.total_bytes <= (self.policy.bytes_max or 1 << 60)

    @invariant()
    def nobody_waits_for_nothing(self) -> None:
        if hasattr(self, "world") and self.world.is_idle and not self.world.store.is_failing:
            self._check_nothing_waits()

    def _check_nothing_waits(self, *, reading: bool = False) -> None:
        """`reading`: reads that failed have been tried again."""
        queue, elements, pager = self.queue, self.queue.elements, self.queue.pager
        assert pager is not None
        limiter = queue.controller.limiter
        if pager.is_over and limiter.throttled and pager._timer is None:  # consumers are not waited for, or no longer
            assert not pager._farthest(near=True), "memory is used up, and nobody sends blocks out"
        assert not pager._leaving_bytes or not self.world.is_flushed
        for producer in self.producers:
            assert not producer.is_blocked or limiter.throttled or not self.world.store.accepting
        if not reading and any(
            block.outside is not None and block.outside.wanted for _index, block in elements.blocks()
        ):
            return  # a read failed, and will be tried again
        if not reading and isinstance(queue.distribution, SharedDistribution) and queue.distribution.scan.is_reading:
            return  # likewise, one for a search
        ready = [party for party in self.parties if party.is_open and party.consumer.has_credit]
        for entry in self.alive.values():
            if entry.held_by is not None:
                continue
            if entry.message.due_at_ms > self.world.now_ms:
                continue
            assert not 0 < entry.message.expires_at_ms <= self.world.now_ms, f"{entry} is past its date and still there"
            owner = None
            if entry.group is not None and isinstance(queue.distribution, SharedDistribution):
                owner = queue.distribution._groups.owner(entry.group)
            who = [party for party in ready if owner in (None, party.consumer) and party.takes(entry)]
            assert not who, f"{entry} waits for nothing"

    def everything_drains(self) -> None:
        """Everybody leaves, a willing consumer comes, and the disk works: it gets all that is left."""
        for failure in Failure:
            self.engine.fail_next(failure, 0)
        self.world.flush(seconds=12.0)
        self.the_queue_is_the_list()
        self._check_nothing_waits(reading=True)
        for party in list(self.parties):
            self._die(party, attempted=True)
        self.subscribe(None, None, auto=True, modest=False)
        self.world.flush(seconds=12.0)
        if any(entry.message.due_at_ms > self.world.now_ms for entry in self.alive.values()):
            self.world.flush(seconds=12.0)  # what a slow disk kept was not due yet
        self.the_queue_is_the_list()
        self.all_is_accounted_for()
        assert not self.alive
        limiter = self.queue.controller.limiter
        assert isinstance(limiter, ResidencyLimiter)
        assert (limiter.used_count, limiter.used_bytes) == (0, 0)
        assert (limiter.total_count, limiter.total_bytes) == (0, 0)
        assert self.queue.is_empty
        for producer in self.producers:
            assert not producer.is_blocked
            assert not producer.outbox
        self.world.flush()
        assert not self.world.leftovers()
        assert self.world.is_flushed


class WatchedQueue(ConsumedQueue):
    """Tells the machine what goes in."""

    machine: PagingMachine

    def _append(self, messages: list[Message], run: Any) -> int:
        before = self.elements.next_sequence
        first = super()._append(messages, run)
        _report(self.machine, self, before, messages)
        return first


def _report(machine: PagingMachine, queue: ConsumedQueue, before: int, messages: list[Message]) -> None:
    machine.appended(queue.elements.live_sequences(before, queue.elements.next_sequence), messages)


class SelectingPagingMachine(PagingMachine):
    """The same with consumers that have selectors, among others that have none."""

    selectors = ("", "color = 'red'", "color = 'blue'", "color IS NULL", "color <> 'red'")

    def __init__(self) -> None:
        super().__init__()
        self.patches.enter_context(patch("sluiceway.queues.selector_scan.LOOK_COUNT_MIN", 1))
        self.patches.enter_context(patch("sluiceway.queues.selector_scan.HELD_UP_COUNT", 2))


class ExclusivePagingMachine(PagingMachine):
    """The same with one subscription at a time."""

    exclusive_queue = True


class FullPagingMachine(PagingMachine):
    """The same with all that may happen at a quota."""

    policies = [  # noqa: RUF012 (a machine of hypothesis is no place for ClassVar)
        {"full": full, "memory_bytes": 2500, **quota}
        for full in ("block", "drop_oldest", "drop_newest", "reject")
        for quota in ({"count_max": 12}, {"bytes_max": 4000}, {"count_max": 9, "bytes_max": 2500})
    ]


TestSharedQueue = PagingMachine.TestCase
TestSelectors = SelectingPagingMachine.TestCase
TestExclusiveQueue = ExclusivePagingMachine.TestCase
TestFullQueue = FullPagingMachine.TestCase
TestSharedQueue.settings = settings(max_examples=rounds(30), stateful_step_count=50)
TestSelectors.settings = settings(max_examples=rounds(25), stateful_step_count=50)
TestExclusiveQueue.settings = settings(max_examples=rounds(20), stateful_step_count=50)
TestFullQueue.settings = settings(max_examples=rounds(30), stateful_step_count=50)
