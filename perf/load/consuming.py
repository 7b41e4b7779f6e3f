"""The consuming half of the load generator: one process, any number of connections, one loop.

Three ways to take messages, from cheap to thorough:

- *counting* the ends of frames and keeping nothing. Used at full load with ack `auto`.
- *framing*: whole frames are cut off a buffer that carries the rest over; ack ids are found with one pattern over all
  of them and answered in one send.
- *framing with tags*: besides, every body's tag is read: each message exactly once, each stream in order, and the
  latency. Used in the checked prelude of every run and throughout where the scenario's messages are tagged.

`run_slowly` is for consumers that think about each message, `run_stalled` for those that never read.
"""

from __future__ import annotations

import selectors
import time
from collections import deque
from collections.abc import Callable

from perf.load import frames
from perf.load.board import FLOOD_QUOTA, LOAD, MODE, QUIT, WINDOW_FROM_NS, WINDOW_TO_NS, Board
from perf.load.cutting import FrameCounter, FrameCutter
from perf.load.ledger import Ledger
from perf.load.links import RawLink, patient_link
from perf.load.plans import ConsumerPlan, SubscriberPlan, WorkerReport

_READ_BYTES = 512 * 1024
_NAP_SECONDS = 0.0003
"""A consumer at full load that got only a few messages naps before it reads on. Brokers that write message by message
would otherwise wake it for each and pay for that with the processor: it made RabbitMQ and ActiveMQ 30-40 % faster and
the generator half as dear (medians of six interleaved runs). Not where latency is measured or the producer waits."""
_TAKES_NOTHING = "absent = 'yes'"
"""A selector: no message has that header."""
_FEW_BYTES = 8192
"""Bodies of that many bytes in all are a few."""


class _Subscriber:
    """A consumer connection, with the two ways to take from it."""

    __slots__ = ("counter", "cutter", "delivered", "link", "plan", "waiting")

    def __init__(self, plan: SubscriberPlan, shape: ConsumerPlan) -> None:
        self.plan = plan
        self.link: RawLink = patient_link(shape.endpoint.of(plan.number))
        destination, name = plan.destination, f"s{plan.number}"
        if shape.late:
            request = frames.subscribe(destination, name, shape.ack, shape.prefetch_count, confirmed=False)
            self.link.sock.sendall(request)
        else:
            for number in range(shape.passing_count):
                passing = f"{name}-passing-{number}"
                self.link.subscribe(destination, passing, shape.ack, shape.prefetch_count, selector=_TAKES_NOTHING)
            self.link.subscribe(destination, name, shape.ack, shape.prefetch_count, selector=shape.selector)
        self.link.release()
        self.counter = FrameCounter(plan.body_bytes)
        self.cutter = FrameCutter(max(_READ_BYTES, 2 * plan.body_bytes))
        self.delivered = 0
        self.waiting: deque[bytes] = deque()
        """Ack ids of messages that a thinking consumer has read and not yet dealt with."""


class Consumers:
    """The subscribers of a plan. `run` returns at QUIT or when `must_end()`; then `close`."""

    def __init__(self, plan: ConsumerPlan, board: Board, must_end: Callable[[], bool]) -> None:
        self._plan = plan
        self._numbers = board.numbers
        self._must_end = must_end
        self._ledger = Ledger()
        self._latencies: list[int] = []
        self._high_latencies: list[int] = []
        self._counts_at_load = plan.ack == "auto" and not plan.tagged
        # Counting keeps no bytes, so all connections share one buffer, which stays in the processor's cache.
        self._shared = bytearray(_READ_BYTES)
        self._shared_view = memoryview(self._shared)
        self._selector = selectors.DefaultSelector()
        self._subscribers = [_Subscriber(subscriber, plan) for subscriber in plan.subscribers]
        for made in self._subscribers:
            self._selector.register(made.link.sock, selectors.EVENT_READ, made)

    def run(self) -> WorkerReport:
        """Take, acknowledge, count and check until the board says QUIT."""
        if self._plan.stalled:
            return self.run_stalled()
        if self._plan.think_seconds is not None:
            return self.run_slowly(self._plan.think_seconds)
        numbers, select = self._numbers, self._selector.select
        few, naps = _FEW_BYTES // min(plan.body_bytes for plan in self._plan.subscribers), self._plan.naps
        while numbers[MODE] != QUIT and not self._must_end():
            taken = 0
            for key, events in select(0.05):
                subscriber = key.data
                # The mode is read after the select that brought the bytes: what is sent in LOAD mode is seen in it.
                try:
                    if events & selectors.EVENT_WRITE and subscriber.link.flush():
                        self._selector.modify(subscriber.link.sock, selectors.EVENT_READ, subscriber)
                    if not events & selectors.EVENT_READ:
                        continue
                    if self._counts_at_load and numbers[MODE] == LOAD:
                        count = self._count(subscriber)
                    else:
                        count = self._take_frames(subscriber)
                except BlockingIOError:
                    continue
                except (OSError, ValueError) as error:
                    self._lose(subscriber, f"reading failed: {error}")
                    continue
                if count:
                    subscriber.delivered += count
                    numbers[subscriber.plan.delivered_slot] = subscriber.delivered
                    taken += count
            if naps and taken < few and numbers[MODE] == LOAD:
                time.sleep(_NAP_SECONDS)
        return self._report()

    def run_stalled(self) -> WorkerReport:
        """Read nothing until QUIT."""
        while self._numbers[MODE] != QUIT and not self._must_end():
            time.sleep(0.02)
        return self._report()

    def run_slowly(self, think_seconds: float) -> WorkerReport:
        """Take one message at a time, think, acknowledge it; read on only when nothing that was read is left. While no
        flood is wanted they do nothing."""
        numbers = self._numbers
        busy: deque[tuple[float, _Subscriber]] = deque()
        while numbers[MODE] != QUIT and not self._must_end():
            if not numbers[FLOOD_QUOTA]:
                time.sleep(0.02)
                continue
            now = time.monotonic()
            while busy and busy[0][0] <= now:
                subscriber = busy.popleft()[1]
                subscriber.link.send_soon(frames.acks([subscriber.waiting.popleft()]))
                subscriber.delivered += 1
                numbers[subscriber.plan.delivered_slot] = subscriber.delivered
                if subscriber.waiting:
                    busy.append((now + think_seconds, subscriber))
                else:
                    self._selector.register(subscriber.link.sock, selectors.EVENT_READ, subscriber)
            for key, _ in self._selector.select(max(0.0, min(0.05, busy[0][0] - now if busy else 0.05))):
                subscriber = key.data
                try:
                    region = self._read_frames(subscriber)
                except (OSError, ValueError) as error:
                    self._lose(subscriber, f"reading failed: {error}")
                    continue
                subscriber.waiting.extend(frames.ACK_ID.findall(region))
                if subscriber.waiting:
                    self._selector.unregister(subscriber.link.sock)
                    busy.append((time.monotonic() + think_seconds, subscriber))
        return self._report()

    def close(self) -> None:
        """Close all connections."""
        for subscriber in self._subscribers:
            subscriber.link.close()
        self._selector.close()

    def _count(self, subscriber: _Subscriber) -> int:
        """Read once and return how many frames ended."""
        length = subscriber.link.sock.recv_into(self._shared_view)
        if not length:
            self._lose(subscriber, f"the broker closed it: {frames.error_text(bytes(self._shared[:2000]))}")
            return 0
        return subscriber.counter.count(self._shared, length)

    def _read_frames(self, subscriber: _Subscriber) -> bytes:
        """Read once and return the whole frames that are there now, possibly none."""
        cutter = subscriber.cutter
        length = subscriber.link.sock.recv_into(cutter.room())
        if not length:
            self._lose(subscriber, f"the broker closed it: {frames.error_text(cutter.carried())}")
            return b""
        return cutter.cut(length)

    def _take_frames(self, subscriber: _Subscriber) -> int:
        """Read once; acknowledge and check the whole frames that are there; return how many."""
        region = self._read_frames(subscriber)
        count = region.count(0)
        if not count:
            return 0
        if region.startswith(b"ERROR\n") or b"\0ERROR\n" in region or b"\0\nERROR\n" in region:
            self._lose(subscriber, f"the broker sent an error: {frames.error_text(region)}")
            return 0
        if self._plan.ack != "auto":
            self._acknowledge(subscriber, region, count)
        if self._plan.tagged or self._numbers[MODE] != LOAD:
            self._check(subscriber, region, count)
        return count

    def _acknowledge(self, subscriber: _Subscriber, region: bytes, count: int) -> None:
        if self._plan.ack == "client" and not self._plan.ack_each:
            at = region.rfind(b"\nack:")
            ids = frames.ACK_ID.findall(region, at) if at >= 0 else []
            wanted = 1
        else:
            ids = frames.ACK_ID.findall(region)
            wanted = count
        if len(ids) != wanted:
            self._fault(subscriber, f"{count} messages came with {len(ids)} ack headers")
        if ids and not subscriber.link.send_soon(frames.acks(ids)):
            self._selector.modify(subscriber.link.sock, selectors.EVENT_READ | selectors.EVENT_WRITE, subscriber)

    def _check(self, subscriber: _Subscriber, region: bytes, count: int) -> None:
        """Enter the tags into the ledger, and take the latencies of what arrives in the measured window."""
        now_ns = time.monotonic_ns()
        tags = [(int(stream), int(sequence), int(made)) for stream, sequence, made in frames.TAG.findall(region)]
        if len(tags) != count:
            self._fault(subscriber, f"{count} frames held {len(tags)} tagged bodies: {frames.error_text(region)}")
        plan, numbers = subscriber.plan, self._numbers
        checking = numbers[MODE] != LOAD
        pairs = [(stream, sequence) for stream, sequence, _ in tags]
        self._ledger.enter(plan.number, plan.group, pairs, plan.stream_numbers, checking)
        from_ns, to_ns = numbers[WINDOW_FROM_NS], numbers[WINDOW_TO_NS]
        if not checking and from_ns and now_ns >= from_ns and (not to_ns or now_ns <= to_ns):
            for stream, _, made_ns in tags:
                latencies = self._high_latencies if stream >= frames.HIGH_STREAM else self._latencies
                latencies.append(now_ns - made_ns)

    def _fault(self, subscriber: _Subscriber, what: str) -> None:
        self._ledger.fault(f"consumer {subscriber.plan.number} of {subscriber.plan.destination}: {what}")

    def _lose(self, subscriber: _Subscriber, what: str) -> None:
        """Give up a consumer whose connection is of no more use; the runner's count will miss its messages."""
        self._fault(subscriber, what)
        self._selector.unregister(subscriber.link.sock)
        subscriber.link.close()

    def _report(self) -> WorkerReport:
        return WorkerReport(tuple(self._ledger.faults()), tuple(self._latencies), tuple(self._high_latencies))
