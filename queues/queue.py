"""Common part of all queue kinds behind the intake (intake.py): expiry, paging, counters, subscriptions.

A kind defines settling (`settled`, `requeued`), and has a `Distribution`, which brings elements to its subscriptions.

Expiry (expiry.py). One timer stands for the earliest date. Expired elements leave in portions of EXPIRE_COUNT, so that
a backlog that expires together does not stall the broker. An element that a consumer holds at its date is checked when
it comes back; no expired element is handed out. A date belongs to the queue, not to the message: the queue keeps dated
messages as objects of its own, since another queue may have been given the same ones.

A dispatch that raises is a broken invariant: it passes to the dispatcher, whose default ends the broker. If its error
hook continues, nothing will dispatch this queue again, so it is closed like a deleted one: senders, subscribers and
late acknowledgements find `closed`, and the next look-up makes a new queue.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Sequence as SequenceOf
from functools import partial
from itertools import repeat
from typing import Final, Protocol, TypedDict

from ..flow import FlowClosedError, FlowController, FlowResource, ResidencyLimiter, SourceController, WaitEdge
from ..flow.kinds import ResourceKind
from ..flow.snapshot import Circumstances
from .blocks import Gone, QueueInvariantError
from .cursored import BLOCK_BITS, CursoredQueue
from .durables import DurableReader
from .environment import QueueEnvironment
from .expiry import EXPIRE_COUNT, Expiry
from .full_actions import ACTIONS, FullAction
from .held_turns import HeldTurns
from .intake import Intake, ResidencyLimits, Run
from .message import MESSAGE_OVERHEAD_BYTES, PRIORITY_DEFAULT, Message, wire_bytes_of
from .names import name_of_part
from .observer import Observer
from .paging import Pager
from .policy import LIMITS, QueuePolicy
from .producers import ProducerTable
from .selectors.selector import Selection
from .statistics import FIGURES, QueueStatistics
from .storage import QueueStorage, Restored, Saved
from .subscription import Consumer, Subscription

TRIM_STEPS: Final = 8
"""Cost of removing a block, in steps (steps.py)."""


def _held_until(value_ms: int, limit_ms: int) -> int:
    return min(value_ms, limit_ms) if value_ms else limit_ms


class QueueOptions(TypedDict, total=False):
    """Options with which every kind of queue may be made; MessageQueue says what each means."""

    priority: int
    destination: str | None
    part: int
    lasting: bool


class Distribution(Protocol):
    """Port to the strategy that distributes the elements of one queue. The queue has one for its life, asks it to
    dispatch, and notifies it of other events that may change the distribution.
    """

    def dispatch(self, budget: int) -> bool:
        """Hand out at most about `budget` messages; True when there is more to do at once."""

    def check(self, selection: Selection | None) -> None:
        """Raise ValueError if one more consumer, with this selection, can't be served."""

    def joined(self, subscription: Subscription) -> None:
        """Note a new subscription, before its first dispatch."""

    def left(self, subscription: Subscription) -> None:
        """Note that a subscription is gone."""

    def credited(self, subscription: Subscription) -> bool:
        """Note that this subscription, which is open, may have credit. Return whether it goes into the queue's ring."""

    def is_seeking(self, subscription: Subscription) -> bool:
        """Whether the next dispatch serves this subscription though it is not in the ring."""

    def arrived(self, messages: list[Message]) -> None:
        """Note messages of one envelope that came into the queue."""

    def dropped(self, messages: SequenceOf[Message]) -> None:
        """Note elements that left unread; `messages` of those that were in memory."""

    def reading_blocks(self) -> Iterable[int]:
        """The blocks that consumers with credit read next, beside that of the queue's own cursor."""


class MessageQueue(FlowResource):
    """Base of the queue kinds that hold elements. Not for direct use."""

    upkeep_bytes = 8704
    """Empty, with its destination; a topic takes as much."""

    full_default = "block"
    keeps_persistent = True
    """Persistent messages outlive the broker, if it has a store."""

    can_page = True
    """Whether the queue goes to disk when memory is short, if the broker has a store and the policy says so."""

    distribution: Distribution
    """Strategy of the queue, which each kind makes."""
    dispatch: Callable[[int], bool]
    """See `Distribution.dispatch`."""
    _arrived: Callable[[list[Message]], None]
    """See `Distribution.arrived`."""

    def __init__(
        self,
        name: str,
        policy: QueuePolicy,
        environment: QueueEnvironment,
        *,
        priority: int = PRIORITY_DEFAULT,
        destination: str | None = None,
        part: int = 0,
        lasting: bool = True,
        kind: ResourceKind = ResourceKind.QUEUE,
    ) -> None:
        """`destination`: its name without priority and part, if that differs from `name`; `lasting` False: persistent
        messages do not outlive the broker, since the queue ends with a connection; `kind`: the kind for people.
        """
        super().__init__(name, kind, environment.manager)
        self.destination_name = destination if destination is not None else name
        self.part = part
        """Part of a queue that is partitioned by a header."""
        self.name_on_disk = name_of_part(self.destination_name, part)
        self.policy = policy
        self.priority = priority
        """Messages of raised priority may pass beyond a used-up prefetch."""
        self.elements = CursoredQueue()
        self.closed = False
        self.is_kept = False
        """Whether the queue is closed, and its stored elements stay for the next start."""
        self.environment = environment
        self.observer: Observer | None = None if environment.observer_of is None else environment.observer_of(self)
        """Observer of the queue's messages."""
        self._store = environment.store
        self.storage: QueueStorage | None = None
        """Stored side of the queue, made when it is first needed (`open_storage`)."""
        self.producers: ProducerTable | None = None
        """The producers that say which messages they repeat; None: there are none."""
        self.may_keep = self._store is not None and lasting
        """Persistent messages may outlive the broker."""
        self.keeps = self.may_keep and self.keeps_persistent
        """Persistent messages are stored."""
        action = ACTIONS[self._full_action()]
        self.intake = self._make_intake(action, self._make_residency(action) if self.can_page else None)
        """Limits of the queue, and what happens to new messages when they are reached."""
        self.controller: FlowController[Run] = self.intake.controller
        self.pager: Pager | None = None
        residency = self.intake.residency
        if residency is not None and environment.store is not None:
            self.pager = Pager(
                self,
                self.controller,
                residency,
                self.open_storage,
                pages_out=policy.paging != "throttle",
                placeholders=policy.paging == "offload",
                store=environment.store,
                scheduling=environment.scheduling,
                clock=environment.clock,
            )
        self.context = environment.scheduling.register(self._dispatch_turn, f"{kind} {name}", priority)
        self.subscriptions: dict[int, Subscription] = {}
        self.ring: OrderedDict[Subscription, None] = OrderedDict()
        """Subscriptions that may have credit, the next one to be served first. An OrderedDict, to leave it in O(1)."""
        self.held_turns = HeldTurns(self._is_in_line)
        self.expiry = Expiry(self, environment)
        self._ending = _Ending(self)
        self.added_count = 0
        self.delivered_count = 0
        self.settled_count = 0
        self.returned_count = 0
        self.dropped_count = 0
        self.dead_lettered_count = 0
        self.moved_count = 0
        self.expired_count = 0
        self.rejected_count = 0
        self.unsettled_count = 0
        self._last_active_seconds = environment.clock()
        self.paused_since_seconds: float | None = None
        """Clock reading at which an administrator paused delivery; None: not paused."""
        self.open()

    def _distribute_by(self, distribution: Distribution) -> None:
        """Call this strategy, without a hop where it is called for each run."""
        self.dispatch = distribution.dispatch
        self._arrived = distribution.arrived

    def _full_action(self) -> str:
        """Return what happens at the limit: one of `full_actions.ACTIONS`."""
        full = self.policy.full or self.full_default
        return self.full_default if full == "dead_letter" else full  # only consumed queues can give messages up

    def _make_residency(self, action: FullAction) -> ResidencyLimiter | None:
        """Return its limiter if it pages."""
        if self._store is None:
            return None
        memory_bytes, count_max, quota_bytes = self._residency_limits(action)
        return ResidencyLimiter(
            memory_bytes, count_max=count_max, quota_bytes=quota_bytes, clock=self.environment.clock
        )

    def _residency_limits(self, action: FullAction) -> ResidencyLimits:
        """Return the limits of a queue that pages."""
        policy = self.policy
        if action.holds_back:
            return policy.memory_bytes, policy.count_max, policy.bytes_max
        return policy.memory_bytes, None, None  # where senders do not wait the full action looks after the quotas

    def follow(self, policy: QueuePolicy) -> None:
        """Follow another policy, in its limits and in what is read at each use. What exceeds lower limits stays."""
        is_limited_anew = any(getattr(policy, limit) != getattr(self.policy, limit) for limit in LIMITS)
        self.policy = policy
        if is_limited_anew and not self.closed:
            self.intake.follow(policy, self._residency_limits(self.intake.action))
            if self.pager is not None:
                self.pager.resized()

    def _make_intake(self, action: FullAction, residency: ResidencyLimiter | None) -> Intake:
        return Intake(self, self, self.policy, self.environment, action, residency, priority=self.priority)

    def open_storage(self) -> QueueStorage:
        """Return its place in the store, taken now if need be."""
        if self.storage is None:
            assert self._store is not None, "only a queue with a store asks"
            self.storage = self._store.storage_of(self, topic=self.kind is ResourceKind.TOPIC)
        return self.storage

    def open_stored(self) -> None:
        """Take over the messages of an earlier run."""
        self.open_storage()

    def restored(self, found: Restored) -> None:
        """An earlier run left this."""
        residency = self.intake.residency
        assert residency is not None, "what has a storage can page"
        for index, (outside, live_count) in sorted(found.outside.items()):
            self.elements.restore(index, index << BLOCK_BITS, outside, live_count)
            residency.add_outside(live_count, outside.wire_bytes + live_count * MESSAGE_OVERHEAD_BYTES)
            if outside.dates.earliest_ms:
                base = index << BLOCK_BITS
                self.expiry.note(outside.dates.earliest_ms, base, base + outside.length)
        self.elements.next_sequence = max(self.elements.next_sequence, found.next_sequence)
        if found.producers:
            self.producers = self._make_producers()
            self.producers.restore(found.producers)
        if self.observer is not None:
            self.observer.restored(self.elements.next_sequence if found.outside else 0)

    # ------------------------------------------------------------------ in

    def add(self, messages: list[Message], wire_bytes: int, source: SourceController | None) -> None:
        """Take a run: at least one message, all of one envelope, `wire_bytes` in total. O(n).

        Policy `block`: may block `source`; never refuses. Raises QueueFullError (policy `reject`), queue unchanged, and
        FlowClosedError once the queue is closed: a source checks `closed` before it continues.
        """
        self.intake.add(messages, wire_bytes, source)

    def offer(self, messages: list[Message], wire_bytes: int, source: SourceController) -> bool:
        """Like `add`, but where `add` would let the run wait this refuses it (False). `source` is blocked alike."""
        return self.intake.offer(messages, wire_bytes, source)

    def fits(self, count: int, wire_bytes: int) -> bool:
        """Return whether `add` would take a run of this size whole, at once, dropping and refusing nothing. O(1).

        A sender whose frames may be split differently asks first, and otherwise adds them one by one: refused messages
        are counted, and a run is refused whole.
        """
        return self.intake.fits(count, wire_bytes)

    @property
    def rejects(self) -> bool:
        """Whether `add` may raise QueueFullError."""
        return self.intake.action.refuses

    def open_producers(self) -> ProducerTable:
        """Return the table of its producers, made if need be."""
        if self.producers is None and self.keeps:
            self.open_storage()  # an earlier run may have left one
        if self.producers is None:
            self.producers = self._make_producers()
        return self.producers

    def _make_producers(self) -> ProducerTable:
        return ProducerTable(lambda: self.policy, self.environment.now_ms, self.keep)

    def take_once(self, messages: list[Message], take: Callable[[list[Message]], bool]) -> bool:
        """Have `take` put those of these messages into the queue that it has not had before, whatever their origin.
        Returns what `take` does; True if there are none.
        """
        table = self.open_producers()
        fresh = table.fresh(messages)
        if fresh:
            first = self.elements.next_sequence
            if not take(fresh):
                return False
            self.produced(fresh, first)
        table.duplicates_count += len(messages) - len(fresh)
        return True

    def offer_once(self, messages: list[Message], source: SourceController) -> bool:
        """`offer` those that the queue has not had before."""
        return self.take_once(messages, lambda fresh: self.offer(fresh, wire_bytes_of(fresh), source))

    def produced(self, messages: SequenceOf[Message], first: int) -> None:
        """Note the origins of messages just taken in, of which all or none are persistent, from element `first` on. In
        the very step that takes them in.
        """
        end = self.elements.next_sequence
        if first >= end:
            return  # dropped: they may come again
        table = self.open_producers()
        stored = self.keeps and messages[0].head.persistent
        noted = table.note(messages, first, stored=stored)
        if noted and self.storage is not None:
            self.storage.produced(first, end, noted, table.take_gone())

    @property
    def duplicates_count(self) -> int:
        """SENDs that were confirmed and not taken, for they had been before."""
        return 0 if self.producers is None else self.producers.duplicates_count

    def waits_for_dead_letters(self, count: int, wire_bytes: int, source: SourceController) -> bool:
        """Hook of the kinds: see IntakeOwner."""
        return False

    def incoming_dropped(self, count: int) -> None:
        """Hook of the kinds: see IntakeOwner."""

    def waits_on(self) -> Iterable[WaitEdge]:
        return self.intake.waits_on()

    def accept_run(self, run: Run) -> None:
        """Take in a run that is charged."""
        messages = run.messages
        head = messages[0].head
        if head.delay_ms:
            run = self._delayed(run)
            messages = run.messages
        self._last_active_seconds = self.environment.clock()
        # Before the messages are in: a new storage stores later elements, not present ones.
        storage = None
        if self.keeps and head.persistent:
            storage = self.storage if self.storage is not None else self.open_storage()
        before = self.elements.next_sequence
        if head.expires_at_ms or head.ttl_ms or self.policy.expires_max_ms is not None:
            self._accept_expiring(run)
        elif messages[0].expires_at_ms:  # dated by the queue that they come from
            self._append([message.dated(0) for message in messages], run)
        else:
            self._append(messages, run)
        self.added_count += len(messages)
        if self.observer is not None:
            self.observer.accepted(messages, before, self.elements.next_sequence)
        self._arrived(messages)
        self.context.request_dispatch()
        if storage is not None:
            storage.added(len(messages))
        pager = self.pager
        if pager is not None and pager.is_over:
            pager.relieve()

    def _delayed(self, run: Run) -> Run:
        """Note messages that are sent with a delay. Hook of the kinds."""
        return run

    def _append(self, messages: list[Message], run: Run) -> int:
        return self.elements.extend(messages, run.charge_bytes)

    # ------------------------------------------------------------------ expiry

    def _accept_expiring(self, run: Run) -> None:
        messages = run.messages
        head = messages[0].head
        now_ms = self.environment.now_ms()
        at_ms = head.expires_at_ms
        if head.ttl_ms:
            at_ms = _held_until(at_ms, now_ms + head.ttl_ms)
        if self.policy.expires_max_ms is not None:
            at_ms = _held_until(at_ms, now_ms + self.policy.expires_max_ms)
        if messages[0].due_at_ms and messages[0].expires_at_ms:  # dated when they came: they have waited since
            at_ms = _held_until(at_ms, messages[0].expires_at_ms)
        dated = [message.dated(at_ms) for message in messages]
        first = self._append(dated, run)
        self.expiry.note(at_ms, first, self.elements.next_sequence)

    @property
    def expire_count(self) -> int:
        """Number of expired elements that are checked at once."""
        return EXPIRE_COUNT

    @abstractmethod
    def expire(self, sequences: SequenceOf[int]) -> None:
        """Remove the expired elements that no consumer holds, count them, and release their space (once: a source that
        resumes then may add or close). `sequences` ascend.
        """

    # ------------------------------------------------------------------ subscriptions

    def subscribe(
        self,
        consumer: Consumer,
        *,
        exclusive: bool = False,
        durable_id: int | None = None,
        shares: bool = False,
        selection: Selection | None = None,
        from_beginning: bool = False,
    ) -> Subscription:
        """Attach a consumer. It gets messages as soon as the dispatcher runs, while its credit lasts. `durable_id`:
        which durable subscription of a topic it serves; `shares`: others may serve that, too; `selection`: which
        messages it takes (None: all); `from_beginning`: see `hold_beginning`.

        Raises FlowClosedError once the queue is closed; ValueError if another consumer gets all messages.
        """
        if self.closed:
            raise FlowClosedError(f"{self.name} was deleted: look it up again before you subscribe to it")
        self.distribution.check(selection)
        subscription = Subscription(
            self, consumer, exclusive=exclusive, clock=self.environment.clock, on_resume=self._subscription_resumed
        )
        subscription.durable_id = durable_id
        subscription.shares = shares
        subscription.selection = selection
        self.subscriptions[id(subscription)] = subscription
        self._subscribed(subscription, from_beginning=from_beginning)
        self.enter_ring(subscription)
        if self.intake.pace is not None:
            self.intake.pace.relax()
        return subscription

    def unsubscribed(self, subscription: Subscription) -> None:
        """Called by `Subscription.close`."""
        self.subscriptions.pop(id(subscription), None)
        self.ring.pop(subscription, None)
        self.held_turns.forget(subscription)
        self._last_active_seconds = self.environment.clock()
        self.distribution.left(subscription)
        if not self.subscriptions:
            if self.storage is not None:
                self.storage.rested()
            if self.pager is not None:
                self.pager.consumers_left()

    def _subscribed(self, subscription: Subscription, *, from_beginning: bool) -> None:
        """Note a new subscription, before its first dispatch."""
        self.distribution.joined(subscription)

    def hold_beginning(self) -> None:
        """Keep new messages for consumers that were there before the queue and are attached in steps. Call
        `release_beginning` once for each call. A consumed queue keeps its messages anyway.
        """

    def release_beginning(self) -> None:
        """End the hold on the beginning: all of those consumers are attached."""

    def _subscription_resumed(self, subscription: Subscription) -> bool:
        """Hold the turn of a subscription that has credit until the next dispatch: others that share the credit go on
        then.
        """
        if subscription.closed:
            return False
        self.held_turns.hold(subscription)
        self.enter_ring(subscription)
        return True

    def _is_in_line(self, subscription: Subscription) -> bool:
        """Whether the next dispatch serves this subscription."""
        return subscription in self.ring or self.distribution.is_seeking(subscription)

    def enter_ring(self, subscription: Subscription) -> None:
        """Put a subscription that has credit in line: the next dispatch considers it."""
        if subscription.closed or not self.distribution.credited(subscription):
            return
        self.ring[subscription] = None  # a subscription in the ring keeps its place
        self.context.request_dispatch()

    def room_of(self, subscription: Subscription) -> tuple[int, int]:
        """Return the credit of a subscription as (elements, bytes); (0, 0) if it has none: then its source is blocked.

        Raises QueueInvariantError if the consumer did not block it: it would never be resumed.
        """
        room_count, room_bytes = subscription.consumer.room(subscription)
        if room_count > 0 and room_bytes > 0:
            return room_count, room_bytes
        subscription.consumer.wait(subscription)
        if not subscription.source.blocked and not subscription.closed:
            raise QueueInvariantError(
                f"{subscription.consumer.label} has no credit for {self.name} and does not block it: "
                "it would wait forever"
            )
        return 0, 0

    # ------------------------------------------------------------------ for the kinds

    def pause(self) -> None:
        """Stop delivery until `unpause`. The queue accepts messages as before, until it is full; consumers may settle
        what they hold; messages expire. Does not outlive the broker. A second call does nothing.
        """
        if self.paused_since_seconds is None and not self.closed:
            self.paused_since_seconds = self.environment.clock()

    def unpause(self) -> None:
        """Resume delivery."""
        if self.paused_since_seconds is not None:
            self.paused_since_seconds = None
            if not self.closed:
                self.context.request_dispatch()

    def _dispatch_turn(self, budget: int) -> bool:
        turns = self.held_turns
        if turns.under_way:
            turns.go_on()
            return True
        may_deliver = self.environment.may_deliver
        if self.paused_since_seconds is not None or (may_deliver is not None and not may_deliver()):
            return turns.end(more=False)  # consumers have others to take from
        more = self.dispatch(budget)
        if turns:
            more = turns.end(more=more)
        pager = self.pager
        if pager is not None and self.controller.limiter.throttled and pager.is_over:
            pager.relieve()  # readers have moved: there may be blocks now that can go
        return more

    def free(self, gone: Gone) -> None:
        """Free the space of elements that left, which may resume senders."""
        count, wire_bytes = gone
        inside_count, inside_bytes = count, wire_bytes
        if self.elements.outside_gone_count:
            inside_count -= self.elements.outside_gone_count
            inside_bytes -= self.elements.outside_gone_bytes
            self._account_for_outside_gone()
        if inside_count:
            self.controller.release(inside_count, inside_bytes + inside_count * MESSAGE_OVERHEAD_BYTES)
        if self.elements.trims_to is not None:
            self._ending.trim()

    def note_activity(self) -> None:
        """Take note that the queue is in use."""
        self._last_active_seconds = self.environment.clock()

    def _account_for_outside_gone(self) -> None:
        assert self.pager is not None, "only what pages is outside"
        self.pager.account_for_outside_gone()

    # ------------------------------------------------------------------ memory and store

    def give_way(self) -> None:
        """Free what can be freed: the broker's memory is short, and much of it is here."""
        if self.pager is not None and self.intake.may_page_out:
            if self.pager.is_over:
                self.pager.relieve()
        else:
            self.intake.drop_for_memory()

    def reading_blocks(self) -> Iterable[int]:
        """The blocks that cursors with credit read next."""
        return self.distribution.reading_blocks()

    def pinned_below(self) -> int:
        """Elements below this must stay in memory as they are."""
        return 0

    def paged_in(self, index: int) -> None:
        """Note that a block is in memory or gone, and resume subscriptions that waited for it."""
        block = self.elements.block(index)
        if block is not None and block.outside is None:
            self.expiry.note_block(block)

    def losing(self, sequences: SequenceOf[int]) -> None:
        """Note elements that can't be read from the store, and leave now even if a consumer holds them. Hook of the
        kinds.
        """

    def paged_out(self, indices: list[int]) -> None:
        """Note that blocks are outside: one date stands for all dates of a block."""
        self.expiry.move_out(indices)

    @property
    def awaits_disk(self) -> bool:
        """Whether the queue has more for its readers that is being read from the disk, or is noted there as seen."""
        return False

    def may_go_on(self) -> None:
        """Continue: the store has done what a reader waited for."""
        self.context.request_dispatch()

    def when_saved(self, first: int, callback: Saved) -> None:
        """Call this when the persistent elements from `first` on are on disk or settled."""
        storage = self.storage if self.storage is not None else self.open_storage()
        storage.when_saved(first, self.elements.next_sequence, callback)

    @property
    def handed_to(self) -> int:
        """Elements below this may have been handed to a consumer."""
        return 0

    def reader_states(self) -> Mapping[int, DurableReader]:
        """The places of durable subscriptions: only topics have any."""
        return {}

    def reader_noted(self, reader: DurableReader) -> None:
        """Note that the position of a reader is on disk."""
        raise AssertionError("only topics have durable subscriptions")

    def make_readers(self, count_max: int) -> int:
        return 0

    def seen(self) -> Mapping[int, int]:
        """Return the failed attempts of elements that consumers have had and that are not settled."""
        return {}

    def attempts_among(self, sequences: SequenceOf[int]) -> Mapping[int, int]:
        """Return the failed attempts of each element of `sequences` that came back."""
        return {}

    @property
    def is_consumed(self) -> bool:
        """Whether a consumer is attached."""
        return bool(self.subscriptions)

    @property
    def waits_for_consumers(self) -> bool:
        """Whether senders wait while consumers take; otherwise messages without room in memory go to the disk
        at once.
        """
        return False

    @abstractmethod
    def settled(self, subscription: Subscription, sequences: SequenceOf[int], wire_bytes: int) -> None:
        """Settle elements of a subscription."""

    @abstractmethod
    def requeued(
        self,
        subscription: Subscription,
        sequences: SequenceOf[int],
        *,
        attempted: bool,
        charged: SequenceOf[int] | None = None,
        for_good: bool = False,
    ) -> None:
        """Give elements of a subscription back; see Subscription.requeue."""

    @abstractmethod
    def make_room(self, over_count: int, over_bytes: int) -> None:
        """Let the oldest elements go that no consumer holds, until this much is free or nothing is left."""

    # ------------------------------------------------------------------ end, and what people see

    def state_of(self, sequence: int) -> str:
        """Return the state of an element that is in the queue, in a word: "waiting", "unsettled" (a consumer holds it),
        "delayed", "given up" (on its way to the dead letters). In a topic, whose readers each have a state of their
        own, always "waiting".
        """
        return "waiting"

    def close_queue(self, reason: str, *, keep: bool = False) -> int:
        """Delete the queue: blocked sources are resumed, subscriptions are cancelled, in steps where there are many. A
        second call does nothing. `keep`: stored messages stay in the store, for the next run.

        Returns the number of messages lost: those in the queue, with those that consumers hold (and, in a topic, those
        that all of them had passed and that were not removed yet), and those that waited in front of it. `closed` is
        True before the first callback. The messages are released after that, in steps, too, and count as memory in use
        until then; then the queue leaves the map.
        """
        if self.closed:
            return 0
        self.closed, self.is_kept = True, keep
        return self._ending.close(reason)

    def close_gates(self) -> int:
        """Close the parts that serve senders, and resume the sources, in steps; the messages stay charged. Returns the
        number of messages that waited.
        """
        return self._ending.close_gates()

    @property
    def is_empty(self) -> bool:
        """Whether the queue is empty, and no sender's element waits in front of it."""
        return not self.elements.live_count and not self.controller.overflow_count

    @property
    def waiting_count(self) -> int:
        """Elements that no consumer holds."""
        return max(0, self.elements.live_count - self.unsettled_count)

    def has_waiting(self, subscription: Subscription) -> bool:
        """Return whether anything waits for this subscription to take more: messages that no consumer holds, or
        senders.
        """
        return self.elements.live_count > subscription.unsettled_count or self.intake.blocks_somebody

    @property
    def held_bytes(self) -> int:
        """Bytes charged for the queue's elements, in memory and outside."""
        residency = self.intake.residency
        return self.controller.limiter.used_bytes if residency is None else residency.total_bytes

    @property
    def delayed_count(self) -> int:
        """Elements that must not be delivered yet."""
        return 0

    @property
    def idle_seconds(self) -> float:
        """Seconds since an element was added or settled."""
        return self.environment.clock() - self._last_active_seconds

    def statistics(self) -> QueueStatistics:
        return QueueStatistics(**{name: read(self) for name, read in FIGURES.items()})

    def circumstances(self) -> Circumstances:
        if self.closed:
            return super().circumstances()
        return Circumstances(self.name, self.paused_since_seconds is not None, bool(self.subscriptions))

    def facts(self) -> Mapping[str, object]:
        facts: dict[str, object] = {"messages": self.elements.live_count}
        if self.closed:
            return facts | {"deleted": "what is in it is let go of, in steps"}
        if self.paused_since_seconds is not None:
            facts["paused_seconds"] = self.environment.clock() - self.paused_since_seconds
        if self.elements.outside_count:
            facts["blocks on disk only"] = self.elements.outside_count
        if self.unsettled_count:
            facts["unacked"] = self.unsettled_count
        if not self.subscriptions:
            facts["consumers"] = "none: subscribe one, or give it a full policy other than block"
        else:
            facts["consumers"] = len(self.subscriptions)
        return facts


class _Ending:
    """The end of one queue: its gates are closed, its consumers told, and its messages released, in steps."""

    __slots__ = ("_queue", "_trims")

    def __init__(self, queue: MessageQueue) -> None:
        self._queue = queue
        self._trims = False
        """Whether elements that no reader needs any more are being removed in steps."""

    def trim(self) -> None:
        """Remove in steps all elements that no reader needs any more; until the queue is closed, which removes all."""
        if not self._trims:
            self._trims = True
            self._queue.environment.do_in_steps(self._queue.destination_name, self._trimming())

    def _trimming(self) -> Iterator[None]:
        queue = self._queue
        try:
            while queue.elements.trims_to is not None and not queue.closed:
                yield from self._trimming_on(queue.elements.trims_to)
        finally:
            self._trims = queue.closed

    def _trimming_on(self, trims_to: int) -> Iterator[None]:
        """Remove one block."""
        self._queue.free(self._queue.elements.trim(trims_to, 1))
        return repeat(None, TRIM_STEPS)

    def close(self, reason: str) -> int:
        """End the queue, which is marked as closed. Returns the number of messages lost."""
        queue = self._queue
        if queue.observer is not None:
            queue.observer.closed(reason)
        queue.context.close()
        queue.expiry.close()
        try:
            if queue.storage is not None and not queue.is_kept:
                queue.storage.forget()  # first: changes made by the resumed senders must not be on disk before that
        finally:  # even if a callback or a resumed source raised
            try:
                waiting_count = queue.close_gates()
            finally:
                gone_count = self._release_all(reason)
        return gone_count + waiting_count

    def close_gates(self) -> int:
        """See `MessageQueue.close_gates`."""
        queue = self._queue
        if (share := queue.controller.limiter.share) is not None:
            share.on_press = share.drains = None  # it is being deleted as fast as possible
        return sum([self._shut(gate) for gate in queue.intake.entrances])

    def _shut(self, gate: FlowController[Run]) -> int:
        waiting_count = sum([len(run.messages) for run in gate.shut(at_once=False)])
        self._queue.environment.resume_sources(self._queue, gate)
        return waiting_count

    def _release_all(self, reason: str) -> int:
        queue, elements = self._queue, self._queue.elements
        if queue.intake.pace is not None:
            queue.environment.resume_sources(queue, queue.intake.pace.close())
        if queue.pager is not None:
            queue.pager.close()
        gone_count = elements.live_count
        self._trims = True
        elements.trims_to = elements.next_sequence if elements.block_count else None
        queue.environment.do_in_steps(queue.destination_name, self._cancelling(reason))
        return gone_count

    def _cancelling(self, reason: str) -> Iterator[None]:
        """Tell all who take from the queue that it was deleted, in steps."""
        environment = self._queue.environment
        try:
            for subscription in list(self._queue.subscriptions.values()):
                environment.carefully(subscription.close)
                yield from environment.carefully_in_steps(
                    partial(subscription.consumer.cancelled, subscription, reason)
                )
                yield
        finally:
            environment.do_in_steps(self._queue, self._clearing())  # a new one of its name waits for none of that

    def _clearing(self) -> Iterator[None]:
        """Release the messages and leave the map, in steps. They are counted until then."""
        try:
            while (trims_to := self._queue.elements.trims_to) is not None:
                yield from self._trimming_on(trims_to)
        finally:
            self._queue.close()
