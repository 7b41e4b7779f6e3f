"""Whatever happens, in whatever order: no message is lost, doubled or forgotten, and nobody waits for nothing.

One machine drives a destination of two priorities with everything at once: several producers and consumers with tiny
windows, groups, exclusive consumers, expiry, all full policies, consumers that settle within the delivery, that return,
leave and die.

Conservation: each message is settled, expired, dropped, rejected or still there, exactly once; limiters hold exactly
what is there. Liveness: whenever the dispatcher is idle, nothing waits that somebody with credit could have; at the end
a willing consumer gets all.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import sluiceway.queues.cursored as cursored
from sluiceway.queues.consumed import ConsumedQueue
from sluiceway.queues.element_states import MOVES, ElementStates, State
from sluiceway.queues.exclusive import SingleDistribution
from sluiceway.queues.exclusivity import Exclusivity
from sluiceway.queues.groups import GroupTable
from sluiceway.queues.message import Message
from sluiceway.queues.partitioned import Attachment, PartitionedQueue, by_priority
from sluiceway.queues.policy import QueuePolicy
from sluiceway.queues.selectors import Selection, Selector, compile_selector
from sluiceway.queues.shared import SharedDistribution, shared_queue
from tests.how_often import rounds
from tests.queues.rig import Delivery, FakeConsumer, Head, Producer, World, assert_exact, make_policy

PRODUCTION_BITS = cursored.BLOCK_BITS
PRIORITIES = (4, 9)
POLICIES: list[dict[str, Any]] = [
    {"full": "block", "count_max": 6},
    {"full": "block", "memory_bytes": 1500},
    {"full": "block"},
    {"full": "drop_oldest", "count_max": 6},
    {"full": "drop_oldest", "bytes_max": 1500},
    {"full": "drop_newest", "count_max": 6},
    {"full": "drop_newest", "memory_bytes": 1500},
    {"full": "reject", "count_max": 6},
]


def reachable(state: State) -> set[State]:
    """To which states an element may come from this one, by any number of moves."""
    found = set(MOVES[state])
    while more := set().union(*[MOVES[one] for one in found]) - found:
        found |= more
    return found


def claims(states: ElementStates, sequence: int) -> list[State]:
    """The states whose indexes have this element: one of them, or none, and then a consumer holds it.

    An element that is delayed or given up before the cursor has come to it lies ahead all the same: the cursor passes
    over it.
    """
    found = []
    if states.dead_lettering is not None and sequence in states.dead_lettering:
        found.append(State.DEAD_LETTERING)
    if states.delayed is not None and states.delayed.holds(sequence):
        found.append(State.DELAYED)
    if states.set_aside and states.set_aside.key_of(sequence) is not None:
        found.append(State.SET_ASIDE)
    if states.cursor.is_available(sequence) and (sequence < states.cursor.position or not found):
        found.append(State.AHEAD if sequence >= states.cursor.position else State.RETURNED)
    return found


class _Party:
    """A consumer with its attachment to the destination."""

    def __init__(self, consumer: FakeConsumer, attachment: Attachment, selector: Selector | None) -> None:
        self.consumer = consumer
        self.attachment = attachment
        self.selector = selector

    def takes(self, message: Message) -> bool:
        return self.selector is None or self.selector.takes(message)

    @property
    def is_open(self) -> bool:
        return not self.attachment.closed


class ConservationMachine(RuleBasedStateMachine):
    """See the module."""

    exclusive_queue = False
    selectors: tuple[str, ...] = ("",)

    def __init__(self) -> None:
        super().__init__()
        cursored.BLOCK_BITS = 2  # type: ignore[misc]

    def teardown(self) -> None:
        try:
            if hasattr(self, "world"):
                self.everything_drains()
        finally:
            cursored.BLOCK_BITS = PRODUCTION_BITS  # type: ignore[misc]

    @initialize(policy=st.sampled_from(POLICIES), later=st.booleans(), budget=st.sampled_from([1, 3, 1024]))
    def start(self, policy: dict[str, Any], later: bool, budget: int) -> None:
        self.world = World(later=later, budget_count=budget)
        self.policy: QueuePolicy = make_policy(**policy)
        self.groups = GroupTable()
        self.exclusivity = Exclusivity()
        self.destination: PartitionedQueue = by_priority("/queue/a", self._make)
        self.parties: list[_Party] = []
        self.sent: dict[int, Head] = {}
        self.sender_of: dict[int, int] = {}
        self.rejected_count = 0
        self.settled: set[int] = set()
        self.attempts: dict[int, int] = {}
        self.seen_last: dict[tuple[int, int, str], int] = {}
        self.seen: set[int] = set()
        self.states: dict[tuple[ConsumedQueue, int], State] = {}
        self.producers = [
            {priority: Producer(self.world, self.destination, on_rejected=self._rejected) for priority in PRIORITIES}
            for _ in range(2)
        ]

    def _make(self, priority: int) -> ConsumedQueue:
        if self.exclusive_queue:
            return ConsumedQueue(
                f"priority {priority}", self.policy, self.world.environment, SingleDistribution, priority=priority
            )
        return shared_queue(
            f"priority {priority}",
            self.policy,
            self.world.environment,
            priority=priority,
            groups=self.groups,
            exclusivity=self.exclusivity,
        )

    def _rejected(self, count: int) -> None:
        self.rejected_count += count

    @property
    def queues(self) -> list[ConsumedQueue]:
        queues = list(self.destination.partitions.values())
        return [queue for queue in queues if isinstance(queue, ConsumedQueue)]

    # What happens

    @rule(
        producer=st.integers(0, 1),
        priority=st.sampled_from(PRIORITIES),
        group=st.sampled_from([None, None, "k1", "k2", "k3"]),
        count=st.integers(1, 5),
        wire_bytes=st.sampled_from([1, 100, 400]),
        ttl_ms=st.sampled_from([0, 0, 0, 2000, 5000]),
        color=st.sampled_from(["", "red", "blue"]),
    )
    def send(
        self, producer: int, priority: int, group: str | None, count: int, wire_bytes: int, ttl_ms: int, color: str
    ) -> None:
        head = Head(priority=priority, group=group, ttl_ms=ttl_ms, color=color)
        run = self.world.messages(count, wire_bytes=wire_bytes, head=head)
        for message in run:
            self.sent[message.number] = head
            self.sender_of[message.number] = producer
        self.producers[producer][priority].send(run)

    @precondition(lambda self: len(self.parties) < 5)
    @rule(
        window=st.sampled_from([1, 1, 2, 3, None]),
        size_bytes=st.sampled_from([None, None, 1, 150]),
        auto=st.booleans(),
        modest=st.booleans(),
        exclusive=st.sampled_from([False, False, False, True]),
        same_credit=st.sampled_from([False, False, True]),
        which_selector=st.integers(0, 4),
    )
    def subscribe(
        self,
        window: int | None,
        size_bytes: int | None,
        auto: bool,
        modest: bool,
        exclusive: bool,
        same_credit: bool,
        which_selector: int = 0,
    ) -> None:
        """`same_credit`: it draws on the window of another one, as all of a connection do on what it can write."""
        if self.exclusive_queue and any(party.is_open for party in self.parties):
            with pytest.raises(ValueError, match="has its one consumer already"):
                self.queues[0].subscribe(self.world.consumer(1))
            return
        consumer = self.world.consumer(window, size_bytes, auto=auto, modest=modest)
        if same_credit and self.parties:
            consumer.window = self.parties[0].consumer.window
        selector = compile_selector(self.selectors[which_selector % len(self.selectors)])
        selection = None if selector is None else Selection(selector)
        attachment = self.destination.attach(consumer, exclusive=exclusive, selection=selection)
        party = _Party(consumer, attachment, selector)
        consumer.on_delivery = lambda delivery: self._delivered(party, delivery)
        self.parties.append(party)

    def _delivered(self, party: _Party, delivery: Delivery) -> None:
        number = delivery.number
        head = self.sent[number]
        assert party.is_open, "a delivery after unsubscribe"
        assert party.takes(delivery.message), "not what it asked for"
        assert number not in self.settled, "delivered after it was settled"
        assert self.exclusivity.allows(party.consumer), "it is not its turn"
        held_by_others = {held.number for other in self.parties for held in other.consumer.held}
        assert number not in held_by_others, "in two hands"
        assert delivery.attempts_count == self.attempts.get(number, 0)
        assert not 0 < delivery.message.expires_at_ms <= self.world.now_ms, "handed out past its date"
        if number not in self.seen:
            self.seen.add(number)
            # Within a group whoever gets it, else as one consumer sees it: two are served in turn.
            order = (self.sender_of[number], head.priority, head.group or party.consumer.name)
            if len(self.selectors) > 1:  # who selects passes over others of a group, too
                order = (*order[:2], f"{head.group} {party.consumer.name}")
            assert self.seen_last.get(order, -1) < number, "out of order"
            self.seen_last[order] = number
        if head.group is not None and not self.exclusive_queue:
            holders = {
                other for other in self.parties for held in other.consumer.held if held.message.head.group == head.group
            }
            assert holders <= {party}, "a group in two hands"
        if party.consumer.auto:
            self.settled.add(number)

    @precondition(lambda self: any(party.consumer.held for party in self.parties))
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        party, chosen = self._choose_held(data)
        self.settled |= {delivery.number for delivery in chosen}
        party.consumer.settle(chosen)

    @precondition(lambda self: any(party.consumer.held for party in self.parties))
    @rule(data=st.data(), attempted=st.booleans())
    def requeue(self, data: st.DataObject, attempted: bool) -> None:
        party, chosen = self._choose_held(data)
        self._return(party, chosen, attempted)

    def _choose_held(self, data: st.DataObject) -> tuple[_Party, list[Delivery]]:
        party = data.draw(st.sampled_from([party for party in self.parties if party.consumer.held]))
        held = party.consumer.held
        places = data.draw(st.lists(st.integers(0, len(held) - 1), min_size=1, unique=True))
        return party, [held[place] for place in places]

    def _return(self, party: _Party, chosen: list[Delivery], attempted: bool) -> None:
        if attempted:
            for delivery in chosen:
                self.attempts[delivery.number] = self.attempts.get(delivery.number, 0) + 1
        party.consumer.requeue(chosen, attempted=attempted)

    @precondition(lambda self: any(party.is_open for party in self.parties))
    @rule(data=st.data())
    def unsubscribe(self, data: st.DataObject) -> None:
        """What it holds stays with it."""
        data.draw(st.sampled_from([party for party in self.parties if party.is_open])).attachment.close()

    @precondition(lambda self: self.parties)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        party = data.draw(st.sampled_from(self.parties))
        party.attachment.close()
        self._return(party, list(party.consumer.held), attempted=True)
        self.parties.remove(party)

    @rule(seconds=st.sampled_from([0.001, 1.0, 3.0]))
    def let_time_pass(self, seconds: float) -> None:
        self.world.now_seconds += seconds

    @rule()
    def turn(self) -> None:
        self.world.core.run_turn()

    @rule()
    def idle(self) -> None:
        self.world.run()

    # What always holds

    @invariant()
    def limiters_hold_what_is_there(self) -> None:
        if not hasattr(self, "world"):
            return
        for queue in self.queues:
            assert_exact(queue)
            held = [d for party in self.parties for d in party.consumer.held if d.subscription.queue is queue]
            assert queue.unsettled_count == len(held)
            assert queue.waiting_count == queue.elements.live_count - len(held)
            if self.policy.full != "block":
                assert queue.controller.limiter.used_bytes <= self.policy.limit_bytes
                assert queue.controller.limiter.used_count <= (self.policy.count_max or 1 << 60)

    @invariant()
    def every_message_is_somewhere_once(self) -> None:
        if not hasattr(self, "world"):
            return
        held = [d.number for party in self.parties for d in party.consumer.held]
        assert len(held) == len(set(held))
        assert not self.settled & set(held)
        queues = self.queues
        in_outbox = sum(len(run) for lanes in self.producers for lane in lanes.values() for run in lane.outbox)
        assert len(self.sent) == (
            len(self.settled)
            + sum(queue.expired_count + queue.dropped_count for queue in queues)
            + sum(queue.elements.live_count + queue.controller.overflow_count for queue in queues)
            + self.rejected_count
            + in_outbox
        )
        assert sum(queue.settled_count for queue in queues) == len(self.settled)
        assert sum(queue.rejected_count for queue in queues) == self.rejected_count

    @invariant()
    def every_element_is_in_one_state_which_it_may_have_come_to(self) -> None:
        if not hasattr(self, "world"):
            return
        held = {(d.subscription.queue, d.sequence) for party in self.parties for d in party.consumer.held}
        for queue in self.queues:
            for sequence in range(queue.elements.next_sequence):
                state = queue.states.of(sequence)
                if state is not State.GONE:
                    assert claims(queue.states, sequence) == ([] if state is State.HELD else [state])
                    assert ((queue, sequence) in held) is (state is State.HELD)
                before = self.states.get((queue, sequence), State.AHEAD)
                assert state is before or state in reachable(before)
                self.states[queue, sequence] = state

    @invariant()
    def nobody_waits_for_nothing(self) -> None:
        if not hasattr(self, "world") or self.world.core.has_work():
            return
        self._check_nothing_waits()

    def _check_nothing_waits(self) -> None:
        open_parties = [party for party in self.parties if party.is_open]
        for queue in self.queues:
            assert queue.controller.limiter.throttled or not queue.controller.overflow_count
            assert queue.controller.limiter.throttled or not queue.controller.blocked_sources()
            eligible = open_parties
            if isinstance(queue.distribution, SharedDistribution):
                active = self.exclusivity.active
                if active is not None:
                    own = [party for party in self.parties if party.consumer is active]
                    assert any(party.is_open or party.consumer.held for party in own), "left, drained: the next's turn"
                    eligible = [party for party in eligible if party.consumer is active]
            ready = [party for party in eligible if party.consumer.has_credit]
            held = {d.sequence for party in self.parties for d in party.consumer.held if d.subscription.queue is queue}
            for sequence in range(queue.elements.next_sequence):
                message = queue.elements.get(sequence)
                if message is None or sequence in held:
                    continue
                assert not 0 < message.expires_at_ms <= self.world.now_ms, "past its date and still there"
                key = message.head.group
                owner = self.groups.owner(key) if key is not None else None
                assert not [p for p in ready if owner in (None, p.consumer) and p.takes(message)], "waits for nothing"

    def everything_drains(self) -> None:
        """Everybody leaves, a willing consumer comes: it gets all that is left, and all producers go on."""
        self.world.run()
        self._check_nothing_waits()
        for party in list(self.parties):
            party.attachment.close()
            self._return(party, list(party.consumer.held), attempted=True)
        self.parties.clear()
        self.subscribe(None, None, auto=True, modest=False, exclusive=False, same_credit=False)
        self.world.run()
        self.limiters_hold_what_is_there()
        self.every_message_is_somewhere_once()
        for queue in self.queues:
            assert queue.is_empty
            assert queue.controller.limiter.used_bytes == 0
            assert queue.elements.block_count == 0
        assert len(self.groups) == 0
        for lanes in self.producers:
            for lane in lanes.values():
                assert not lane.is_blocked()
                assert not lane.outbox
        lost = set(self.sent) - self.settled
        queues = self.queues
        assert len(lost) == sum(q.expired_count + q.dropped_count + q.rejected_count for q in queues)
        if self.policy.full == "block":
            assert all(self.sent[number].ttl_ms for number in lost)


class SelectingConservationMachine(ConservationMachine):
    """The same with consumers that have selectors, among others that have none."""

    selectors = ("", "color = 'red'", "color = 'blue'", "color IS NULL", "color <> 'red'")


class ExclusiveConservationMachine(ConservationMachine):
    """The same with one subscription at a time."""

    exclusive_queue = True


TestSharedQueue = ConservationMachine.TestCase
TestSelectors = SelectingConservationMachine.TestCase
TestExclusiveQueue = ExclusiveConservationMachine.TestCase
TestSharedQueue.settings = settings(max_examples=rounds(50), stateful_step_count=50)
TestSelectors.settings = settings(max_examples=rounds(25), stateful_step_count=50)
TestExclusiveQueue.settings = settings(max_examples=rounds(25), stateful_step_count=40)
