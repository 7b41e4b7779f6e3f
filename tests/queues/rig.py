"""A world for queues without sockets, tasks or real time.

`World` holds the clock and the dispatcher, cranked by hand. `FakeConsumer` takes messages like a STOMP subscription
does: it charges a window with the subscription as the source, and settles or gives back when told to (or at once, with
`auto`). `Producer` sends runs as fast as it is let, in order, like one lane of a connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from collections.abc import Sequence as SequenceOf
from typing import Protocol

import attrs

from sluiceway.dispatcher import DispatcherConfig, DispatcherCore
from sluiceway.flow import Account, Flow, FlowManager, FlowResource, SourceController, WindowLimiter
from sluiceway.queues.consumed import ConsumedQueue
from sluiceway.queues.environment import QueueEnvironment
from sluiceway.queues.full_actions import QueueFullError
from sluiceway.queues.message import MESSAGE_OVERHEAD_BYTES, Message
from sluiceway.queues.policy import QueuePolicy
from sluiceway.queues.queue import MessageQueue
from sluiceway.queues.shared import shared_queue
from sluiceway.queues.slices import Slice
from sluiceway.queues.subscription import Subscription
from sluiceway.queues.topic import Topic

WIRE_BYTES = 8
"""Wire bytes of a message, if a test does not care."""

CHARGE_BYTES = WIRE_BYTES + MESSAGE_OVERHEAD_BYTES


@attrs.frozen
class Head:
    """What queues ask of an envelope."""

    destination: str = "/queue/a"
    priority: int = 4
    persistent: bool = False
    expires_at_ms: int = 0
    ttl_ms: int = 0
    delay_ms: int = 0
    group: str | None = None
    neutral: bool = True
    content_length: int = 0
    color: str = ""
    """The one header that there is for selectors; empty: it is missing."""

    def header(self, name: str) -> str | None:
        return self.color or None if name == "color" else None


class World:
    """Virtual time, a dispatcher to be cranked, and messages numbered from 0."""

    def __init__(self, *, later: bool = False, budget_count: int = 1024) -> None:
        """`later`: sources resume in turns of the dispatcher, not at once."""
        self.now_seconds = 100.0
        self.core = DispatcherCore(lambda: self.now_seconds, config=DispatcherConfig(budget_count=budget_count))
        self.manager = FlowManager(lambda: self.now_seconds)
        self.environment = QueueEnvironment(
            manager=self.manager,
            scheduling=self.core,
            clock=lambda: self.now_seconds,
            now_ms=lambda: self.now_ms,
            resume=self.core.executor(label="resume") if later else None,
        )
        self.made_count = 0

    @property
    def now_ms(self) -> int:
        return round(self.now_seconds * 1000)

    def run(self) -> None:
        """Turn until nothing is left to do now."""
        self.core.run_until_idle()

    def advance(self, seconds: float) -> None:
        """Let time pass, then run what became due."""
        self.now_seconds += seconds
        self.run()

    def messages(self, count: int, *, wire_bytes: int = WIRE_BYTES, head: Head | None = None) -> list[Message]:
        """A run: `count` messages of one envelope."""
        envelope = head or Head()
        first, self.made_count = self.made_count, self.made_count + count
        return [Message(envelope, b"x" * wire_bytes, number) for number in range(first, first + count)]

    def shared(self, **policy: object) -> ConsumedQueue:
        return shared_queue("/queue/a", make_policy(**policy), self.environment)

    def topic(self, **policy: object) -> Topic:
        return Topic("/topic/a", make_policy(**policy), self.environment)

    def send(self, queue: RunSink, count: int = 1, *, wire_bytes: int = WIRE_BYTES, **head: object) -> list[Message]:
        """Add a run without a source; returns the messages."""
        messages = self.messages(count, wire_bytes=wire_bytes, head=Head(**head))  # type: ignore[arg-type]
        queue.add(messages, wire_bytes * count, None)
        return messages

    def consumer(self, window: int | None = None, size_bytes: int | None = None, **options: bool) -> FakeConsumer:
        """A new consumer with a window of so many messages and bytes (None: unlimited)."""
        return FakeConsumer(self, window, size_bytes, **options)


def make_policy(**fields: object) -> QueuePolicy:
    return QueuePolicy(**fields)  # type: ignore[arg-type]


class RunSink(Protocol):
    @property
    def closed(self) -> bool: ...

    def add(self, messages: list[Message], wire_bytes: int, source: SourceController | None) -> None: ...


@attrs.define(eq=False)
class Delivery:
    """One message in a consumer's hands, or that was."""

    subscription: Subscription
    sequence: int
    message: Message
    attempts_count: int

    @property
    def number(self) -> int:
        return self.message.number


class FakeConsumer(FlowResource):
    """Takes what it has credit for, and remembers it."""

    rank = 0

    def __init__(
        self,
        world: World,
        window: int | None,
        size_bytes: int | None,
        *,
        auto: bool = False,
        modest: bool = False,
    ) -> None:
        """`auto`: settles each slice within `deliver`. `modest`: never asks for more than one at a time."""
        super().__init__(f"consumer {len(world.manager.resources)}", "subscription", world.manager)
        self.window = Account(
            self,
            Flow("window"),
            WindowLimiter(window, size_bytes, clock=world.environment.clock),
            clock=world.environment.clock,
            counts_memory=False,
        )
        self.auto = auto
        self.modest = modest
        self.deliveries: list[Delivery] = []
        self.held: list[Delivery] = []
        self.slices: list[Slice] = []
        self.dropped_counts: list[int] = []
        self.cancelled_for: list[str] = []
        self.on_delivery: Callable[[Delivery], None] = _ignore
        self.open()

    # The port

    @property
    def label(self) -> str:
        return self.name

    def room(self, subscription: Subscription) -> tuple[int, int]:
        limiter = self.window.limiter
        assert isinstance(limiter, WindowLimiter)
        if limiter.throttled:
            return 0, 0
        return 1 if self.modest else limiter.room_count(), limiter.room_bytes()

    def wait(self, subscription: Subscription) -> None:
        self.window.wait_in_line(subscription.source)

    def deliver(self, subscription: Subscription, part: Slice, *, dropped_count: int) -> None:
        assert not subscription.source.blocked, "a delivery without credit"
        assert part.wire_bytes == sum(len(message.wire) for message in part.messages)
        assert list(part.sequences) == sorted(set(part.sequences))
        self.slices.append(part)
        self.dropped_counts.append(dropped_count)
        attempts = part.attempts or {}
        new = [
            Delivery(subscription, sequence, message, attempts.get(sequence, 0))
            for sequence, message in zip(part.sequences, part.messages, strict=True)
        ]
        for delivery in new:
            self.on_delivery(delivery)
        self.deliveries += new
        self.held += new
        self.window.charge(len(new), part.wire_bytes, subscription.source)
        if self.auto:
            self.held = self.held[: -len(new)]
            self.window.release(len(new), part.wire_bytes)
            subscription.settle(part.sequences, part.wire_bytes)

    def cancelled(self, subscription: Subscription, reason: str) -> Iterable[None]:
        self.cancelled_for.append(reason)
        return ()

    # What tests do

    def settle(self, deliveries: Iterable[Delivery] | None = None) -> None:
        """Acknowledge these, or all it holds, one call per queue."""
        for subscription, portion in self._take(deliveries):
            subscription.settle([d.sequence for d in portion], sum(len(d.message.wire) for d in portion))

    def requeue(
        self, deliveries: Iterable[Delivery] | None = None, *, attempted: bool = True, for_good: bool = False
    ) -> None:
        """Return these, or all it holds."""
        for subscription, portion in self._take(deliveries):
            subscription.requeue([d.sequence for d in portion], attempted=attempted, for_good=for_good)

    def _take(self, deliveries: Iterable[Delivery] | None) -> list[tuple[Subscription, list[Delivery]]]:
        chosen = list(self.held if deliveries is None else deliveries)
        gone = set(chosen)
        self.held = [delivery for delivery in self.held if delivery not in gone]
        portions: dict[Subscription, list[Delivery]] = {}
        for delivery in chosen:
            portions.setdefault(delivery.subscription, []).append(delivery)
        self.window.release(len(chosen), sum(len(delivery.message.wire) for delivery in chosen))
        return list(portions.items())

    @property
    def numbers(self) -> list[int]:
        """The messages it was ever handed, in order."""
        return [delivery.number for delivery in self.deliveries]

    @property
    def held_numbers(self) -> list[int]:
        return [delivery.number for delivery in self.held]

    @property
    def has_credit(self) -> bool:
        return not self.window.limiter.throttled


class Producer(FlowResource):
    """Sends runs in order; what is blocked waits in its outbox, and goes on as soon as it is let."""

    def __init__(self, world: World, queue: RunSink, *, on_rejected: Callable[[int], None] | None = None) -> None:
        super().__init__(f"producer {len(world.manager.resources)}", "connection", world.manager)
        self._queue = queue
        self._on_rejected = on_rejected
        self.outbox: deque[list[Message]] = deque()
        self.resumed_count = 0
        self.source = SourceController(
            self, Flow("sends"), on_resume=lambda _sink: self._resumed(), clock=world.environment.clock
        )
        self.open()

    def is_blocked(self) -> bool:
        return self.source.blocked

    def send(self, *runs: list[Message]) -> None:
        self.outbox.extend(runs)
        self._pump()

    def _resumed(self) -> None:
        self.resumed_count += 1
        self._pump()

    def _pump(self) -> None:
        while self.outbox and not self.source.blocked and not self._queue.closed:
            run = self.outbox.popleft()
            try:
                self._queue.add(run, sum(len(message.wire) for message in run), self.source)
            except QueueFullError:
                if self._on_rejected is None:
                    raise
                self._on_rejected(len(run))


def numbers(messages: SequenceOf[Message]) -> list[int]:
    return [message.number for message in messages]


def assert_exact(queue: MessageQueue) -> None:
    """The limiter holds exactly what is in the queue."""
    live = [message for s in range(queue.elements.next_sequence) if (message := queue.elements.get(s)) is not None]
    assert queue.elements.live_count == len(live)
    assert queue.controller.limiter.used_count == len(live)
    assert queue.controller.limiter.used_bytes == sum(message.size_bytes for message in live)


def _ignore(_delivery: Delivery) -> None:
    """Nobody looks."""
