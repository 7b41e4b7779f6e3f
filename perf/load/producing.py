"""The producing half of the load generator: one process, any number of connections, one loop.

Each stream takes a batch of ready frames and sends as much of it as the kernel takes. What holds a stream back, in this
order: the quota on the board, the window (messages under way to its destination), receipts not yet returned, its rate,
and last a full socket, which is the broker's back pressure. The window has a hysteresis: a stream that filled it waits
until half of it is left, so that it sends large blocks instead of dribbling.

A stamp is taken when a message is made, before the kernel is asked to take it. So a broker that stops reading makes its
own latency worse, while the generator's oversleeping is not held against it.
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable

from perf.load import frames
from perf.load.board import LOAD, MODE, QUIT, Board
from perf.load.links import RawLink, patient_link
from perf.load.plans import ProducerPlan, StreamPlan, WorkerReport

_NAP_SECONDS = 0.0003
_STOPPED_NAP_SECONDS = 0.002
_PACED_NAP_SECONDS = 0.01
"""Pause where a rate is kept but no latency measured: thousands of wake-ups a second would take the processor from
other processes.
"""
_CONFIRMING_SECONDS = 0.02
"""Longest wait for a receipt, whose socket ends the wait early: the interval of looks at the board."""


class _Stream:
    """A producer connection and its progress."""

    __slots__ = (
        "blocked",
        "bulk",
        "confirming",
        "due_from",
        "link",
        "made",
        "pending",
        "plan",
        "receipts",
        "tagged",
        "throttled",
    )

    def __init__(self, plan: StreamPlan, shape: ProducerPlan) -> None:
        self.plan = plan
        self.link: RawLink = patient_link(shape.endpoint.of(plan.number))
        self.link.release()
        size, persistent = plan.body_bytes, shape.persistent
        every = shape.receipt_every if shape.receipt_window_count else 0
        self.bulk: frames.IdenticalFrames | frames.ReceiptedFrames
        if every:
            self.bulk = frames.ReceiptedFrames(
                plan.destination,
                size,
                persistent,
                receipt_every=every,
                window_count=shape.receipt_window_count,
            )
        else:
            self.bulk = frames.IdenticalFrames(plan.destination, size, persistent)
        self.tagged = frames.TaggedFrames(
            plan.destination,
            size,
            persistent,
            stream=plan.number,
            receipt_every=every,
            high_priority_every=shape.high_priority_every,
        )
        self.pending: memoryview | None = None
        self.made = 0
        self.receipts = 0
        self.blocked = False
        self.confirming = False
        """Whether nothing can be sent before a receipt comes."""
        self.throttled = False
        self.due_from = 0.0

    @property
    def receipts_missing(self) -> int:
        """Number of receipts that were asked for and have not come."""
        return self.bulk.receipts_asked + self.tagged.receipts_asked - self.receipts

    def consumed(self, numbers: memoryview) -> int:
        """Return the number of messages to this destination that have reached all of their consumers."""
        counts = [numbers[slot] for slot in self.plan.consumer_slots]
        return min(counts) if self.plan.topic else sum(counts)


class Producers:
    """The streams of a plan. `run` returns when the board says QUIT or `must_end()` is true; `close` always."""

    def __init__(self, plan: ProducerPlan, board: Board, must_end: Callable[[], bool]) -> None:
        self._plan = plan
        self._numbers = board.numbers
        self._must_end = must_end
        self._faults: list[str] = []
        self._selector = selectors.DefaultSelector()
        self._streams = [_Stream(stream, plan) for stream in plan.streams]
        for stream in self._streams:
            self._selector.register(stream.link.sock, selectors.EVENT_READ, stream)

    def run(self) -> WorkerReport:
        """Send what the board allows until it says QUIT."""
        numbers, streams = self._numbers, self._streams
        while numbers[MODE] != QUIT and not self._must_end():
            moved = False
            for stream in streams:
                if not stream.blocked and not stream.confirming:
                    moved |= self._push(stream)
            self._attend(streams, moved)
        return WorkerReport(tuple(self._faults))

    def close(self) -> None:
        """Close all connections."""
        for stream in self._streams:
            stream.link.close()
        self._selector.close()

    def _push(self, stream: _Stream) -> bool:
        """Send one batch, or the rest of one; return whether anything went out."""
        plan = self._plan
        if stream.pending is None:
            frame_source = stream.tagged if plan.tagged or self._numbers[MODE] != LOAD else stream.bulk
            count = min(self._allowance(stream), frame_source.batch_count)
            if count <= 0:
                return False
            now_ns = time.monotonic_ns() if plan.tagged else 0
            stream.pending = frame_source.take(count, now_ns)
            stream.made += count
            self._numbers[stream.plan.idle_slot] = 0
        try:
            sent = stream.link.sock.send(stream.pending)
        except BlockingIOError:
            stream.blocked = True
            self._selector.modify(stream.link.sock, selectors.EVENT_READ | selectors.EVENT_WRITE, stream)
            return False
        except OSError as error:
            self._lose(stream, f"stream {stream.plan.number}: sending failed: {error}")
            return False
        if sent == len(stream.pending):
            stream.pending = None
            self._numbers[stream.plan.sent_slot] = stream.made
            if plan.receipt_window_count:
                stream.confirming = stream.receipts_missing * plan.receipt_every >= plan.receipt_window_count
        else:
            stream.pending = stream.pending[sent:]
        return True

    def _allowance(self, stream: _Stream) -> int:
        """Return the number of messages that the stream may make now."""
        numbers, plan = self._numbers, self._plan
        allowance = int(numbers[plan.quota_slot]) - stream.made
        if allowance <= 0:
            numbers[stream.plan.idle_slot] = int(stream.receipts_missing <= 0)
            return 0
        if plan.window_count is not None:
            under_way = sum(numbers[slot] for slot in stream.plan.peer_slots) - stream.consumed(numbers)
            if under_way >= plan.window_count:
                stream.throttled = True
            elif stream.throttled and under_way <= plan.window_count // 2:
                stream.throttled = False
            if stream.throttled:
                return 0
            allowance = min(allowance, plan.window_count - under_way)
        if plan.receipt_window_count:
            allowance = min(allowance, plan.receipt_window_count - stream.receipts_missing * plan.receipt_every)
        if plan.rate_per_second and numbers[MODE] == LOAD:
            now = time.monotonic()
            if not stream.due_from:
                stream.due_from = now - stream.made / plan.rate_per_second
            allowance = min(allowance, int((now - stream.due_from) * plan.rate_per_second) - stream.made)
        return allowance

    def _attend(self, streams: list[_Stream], moved: bool) -> None:
        """Wait until a message can be sent, and read the broker's answers to producers: receipts and errors."""
        plan = self._plan
        if moved and not plan.receipt_window_count:
            return
        if plan.receipt_window_count and all(stream.confirming or stream.blocked for stream in streams):
            timeout = _CONFIRMING_SECONDS
        elif moved:
            timeout = 0.0
        elif any(stream.blocked for stream in streams) or plan.receipt_window_count:
            timeout = 0.001
        else:
            stopped = all(self._numbers[stream.plan.idle_slot] for stream in streams)
            paced = plan.rate_per_second and not plan.tagged
            time.sleep(_STOPPED_NAP_SECONDS if stopped else _PACED_NAP_SECONDS if paced else _NAP_SECONDS)
            timeout = 0.0
        for key, events in self._selector.select(timeout):
            stream = key.data
            if events & selectors.EVENT_WRITE:
                stream.blocked = False
                self._selector.modify(stream.link.sock, selectors.EVENT_READ, stream)
            if events & selectors.EVENT_READ:
                self._hear(stream)

    def _hear(self, stream: _Stream) -> None:
        try:
            heard = stream.link.sock.recv(65536)
        except BlockingIOError:
            return
        except OSError as error:
            self._lose(stream, f"stream {stream.plan.number}: reading failed: {error}")
            return
        if b"ERROR\n" in heard or not heard:
            self._lose(stream, f"stream {stream.plan.number}: the broker ended it: {frames.error_text(heard)}")
        else:
            stream.receipts += heard.count(b"\0")
            stream.confirming = False
            self._numbers[stream.plan.confirmed_slot] = stream.receipts * self._plan.receipt_every
            if stream.receipts_missing < 0:
                self._lose(stream, f"stream {stream.plan.number}: more receipts came than were asked for")

    def _lose(self, stream: _Stream, fault: str) -> None:
        """Give up a stream whose connection is gone; the runner's count will miss its messages."""
        self._faults.append(fault)
        self._selector.unregister(stream.link.sock)
        stream.link.close()
        self._numbers[stream.plan.idle_slot] = 1
        self._streams.remove(stream)
