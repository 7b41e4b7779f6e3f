"""SENDs of one connection: gathered by lane, published at once or by way of the stash.

Consecutive SENDs to one queue are given to it together, however their headers differ, as long as the queue need not
look at them one by one. A composite is one message per destination, each with its own `destination` header. Where a
SEND goes is found by routing.py, how it goes in is publishing.py; a SEND to `/sluiceway/…` is a request to the broker
itself (requesting.py). Checklist b28-b30.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from itertools import count, repeat
from typing import Final

from ...flow.graph import at_once
from ...queues.large import LargeMessage
from ...queues.logs.batches import BatchError
from ...queues.logs.marked import MARK_BYTES_MAX
from ...queues.logs.offers import OfferedBatches, RefusedSendError, check_markable, is_batch
from ...queues.logs.producers import stamp_of
from ...queues.message import Message
from .errors import ProtocolError
from .frames import SendRun, UnheardRun
from .head import SendHead
from .hub import Hub
from .lanes import Barrier, Lane, Lanes, ParkedRun, ParkingLimit, Route, SharedWires
from .publishing import LogPublisher, QueuePublisher, refused_by_log, refused_origin
from .replies import Owed, Replies
from .requesting import SessionRequests
from .routing import ADMIN_PREFIX, Router
from .staging import LargeRun
from .unheard import Unheard

AT_ONCE_LEGS: Final = 16
"""Number of legs from which on a composite is sent in steps; LEG_COUNT messages of a run count as a leg each."""
LEG_COUNT: Final = 8


class Sender:
    """Takes the SENDs of one connection."""

    __slots__ = (
        "_batch",
        "_batch_bytes",
        "_batch_lane",
        "_batch_persistent",
        "_batch_receipts",
        "_batches_beside",
        "_do",
        "_fail",
        "_hub",
        "_lanes",
        "_logs",
        "_on_marked_sends",
        "_parking",
        "_pass_over",
        "_queues",
        "_replies",
        "_requests",
        "_router",
        "_unheard",
        "goes_elsewhere",
    )

    def __init__(
        self,
        hub: Hub,
        lanes: Lanes,
        parking: ParkingLimit,
        router: Router,
        queues: QueuePublisher,
        logs: LogPublisher,
        requests: SessionRequests,
        replies: Replies,
        *,
        fail: Callable[[ProtocolError], None],
        do: Callable[[Iterator[object]], None],
        pass_over: Callable[[Unheard], None],
    ) -> None:
        """Make a sender. `fail`: end the connection with this error, found when no frame of it is being read; `do`:
        work in steps, for which the frames behind wait; `pass_over`: read SENDs to unheard topics as `UnheardRun`s.
        """
        self._hub = hub
        self._lanes = lanes
        self._parking = parking
        self._router = router
        self._queues = queues
        self._logs = logs
        self._requests = requests
        self._replies = replies
        self._fail = fail
        self._do = do
        self._pass_over = pass_over
        self._unheard: Unheard | None = None
        self.goes_elsewhere: Callable[[str], bool] | None = None
        """Whether SENDs to a destination header go to other hubs, too; None: there are none."""
        self._on_marked_sends = hub.on_marked_sends
        self._batch_lane: Lane | None = None
        self._batch: list[Message] = []
        self._batch_bytes = 0
        self._batch_persistent = False
        self._batch_receipts: list[str] | None = None
        self._batches_beside: dict[Lane, tuple[list[Message], int]] = {}
        """Other batches, to other priorities of the same destination."""

    def send(self, run: SendRun) -> None:
        """Publish these SENDs or park them. May put them off until `flush`, to give a queue many at once. Raises
        ProtocolError.
        """
        head = run.head
        lane = self._lanes.plain_lane(head)
        if lane is not None and lane.topic is not None and self._discards(lane, head):
            self.flush()
            self._discard(lane, head, len(run.wires), run.receipts)
            return
        if (
            lane is None
            or lane.must_wait
            or head.group is not None
            or head.expires_at_ms
            or head.ttl_ms
            or head.origin is not None
            or (lane.is_log and is_batch(head))
        ):
            self.flush()
            self._send_apart(run)
            return
        receipts = run.receipts
        if (
            lane is not self._batch_lane
            or (receipts is None) is not (self._batch_receipts is None)
            or head.persistent is not self._batch_persistent
        ):
            self._collect_for(lane, head.persistent, receipts is not None)
        wires = run.wires
        number = lane.take_numbers(len(wires))
        if head.marked and self._on_marked_sends is not None:
            self._on_marked_sends(head, number, len(wires))
        self._batch += map(Message, repeat(head), wires, count(number))  # a seventh cheaper than a comprehension
        self._batch_bytes += run.size_bytes
        if receipts is not None and self._batch_receipts is not None:
            self._batch_receipts += receipts

    def take_unheard(self, run: UnheardRun) -> None:
        """Count SENDs that were passed over, and answer those that asked for receipts. Call `flush` before."""
        lane = self._lanes.plain_lane(run.head)
        if lane is None or lane.topic is None:  # deleted since the frames were read
            self._hub.registry.unheard_count += run.count
            self._replies.receipts(run.receipts)
        else:
            self._discard(lane, run.head, run.count, run.receipts)

    def _is_unheard(self, head: SendHead) -> bool:
        if self.goes_elsewhere is not None and self.goes_elsewhere(head.destination):
            return False
        lane = self._lanes.plain_lane(head)
        return lane is not None and self._discards(lane, head)

    def _discards(self, lane: Lane, head: SendHead) -> bool:
        """Whether SENDs with this head may be dropped before they are made messages."""
        topic = lane.topic
        return (
            topic is not None
            and topic.discards
            and head.transaction is None
            and not lane.must_wait
            # No client ever learns the number of one that is not marked, so it has no trail that could be asked for.
            and not (head.marked and self._on_marked_sends is not None)
        )

    def _discard(self, lane: Lane, head: SendHead, count: int, receipt_ids: list[str] | None) -> None:
        """Drop SENDs to a topic without a subscriber; the next ones with a head like this are passed over."""
        topic = lane.topic
        assert topic is not None, "asked for before"
        topic.unheard_count += count
        lane.sent_count += count
        self._replies.receipts(receipt_ids)
        if self._unheard is None:
            self._unheard = Unheard(self._is_unheard, self._lanes.keep)
            self._pass_over(self._unheard)
        self._unheard.note(head.destination)

    def send_large(self, run: LargeRun) -> None:
        """Publish one whose body is in a file, or park it. Raises ProtocolError."""
        self.flush()
        self._send_apart(run)

    def _collect_for(self, lane: Lane, persistent: bool, with_receipts: bool) -> None:
        """Begin or continue the batch of this lane. A batch for another priority of the same destination stays, for no
        order is promised between priorities; all else is published first.
        """
        last = self._batch_lane
        if (
            last is None
            or last.target is not lane.target
            or with_receipts
            or self._batch_receipts is not None
            or persistent is not self._batch_persistent
            or lane.is_log
            or lane.inlet.rejects  # nothing may be accepted behind what is refused
        ):
            self.flush()
        else:
            self._batches_beside[last] = self._batch, self._batch_bytes
            self._batch, self._batch_bytes = self._batches_beside.pop(lane, ([], 0))
        self._batch_lane = lane
        self._batch_persistent = persistent
        self._batch_receipts = [] if with_receipts else None

    def flush(self) -> None:
        """Publish what `send` put off: due before any other frame takes effect, and when all frames of a read have.
        Raises ProtocolError.
        """
        lane = self._batch_lane
        if lane is not None:
            messages, size_bytes, receipts = self._batch, self._batch_bytes, self._batch_receipts
            self._batch_lane = self._batch_receipts = None
            self._batch = []
            self._batch_bytes = 0
            if self._batches_beside:
                beside, self._batches_beside = self._batches_beside, {}
                for other, batch in beside.items():
                    self._publish_batch(other, *batch, None)
            self._publish_batch(lane, messages, size_bytes, receipts)

    def _publish_batch(self, lane: Lane, messages: list[Message], size_bytes: int, receipts: list[str] | None) -> None:
        owed = None if receipts is None else Owed(receipts, 1)
        publisher = self._logs if lane.is_log else self._queues
        if not publisher.publish(lane, messages, size_bytes, owed):
            self._parking.check(messages[0].head.destination, receipts, size_bytes)
            self._lanes.park(lane, messages, size_bytes, owed)

    def _send_apart(self, run: SendRun) -> None:
        steps = self._sending(run)
        legs_count = (run.head.destination.count(",") + 1) * (1 + run.head.repeats_count)
        is_much = legs_count > 1 and legs_count * (1 + len(run.wires) // LEG_COUNT) > AT_ONCE_LEGS
        if is_much or is_batch(run.head):
            self._do(self._sending_on(run, steps))
        else:
            at_once(steps)

    def _sending_on(self, run: SendRun, steps: Iterator[object]) -> Iterator[object]:
        """`steps`, while others have their turns. It came whole, so all of it goes out, also if its connection ends."""
        try:
            yield from steps
        except ProtocolError as error:
            self._fail(error)

    def _sending(self, run: SendRun) -> Generator[object, None, None]:
        """One leg after the other: a thousand copies at once would be more than all of the memory may be."""
        route = self._lanes.route(run.head)
        if route is None:
            if run.head.destination.startswith(ADMIN_PREFIX):
                yield from self._requests.answering(run)
                return
            route = yield from self._router.finding(run)
        if route is None:
            self._replies.receipts(run.receipts)
            return
        targets = route.targets
        if any(lane.must_wait for _head, lane in targets):
            self._parking.check(run.head.destination, run.receipts, run.size_bytes)
        owed = None if run.receipts is None else Owed(run.receipts, len(targets))
        shared: SharedWires | None = None
        counts: list[int] | None = None
        refused: ProtocolError | None = None
        if len(targets) > 1 or is_batch(run.head):
            # All of it is refused before any of it is published.
            for forwarded, lane in targets:
                if lane.is_log:
                    messages = self._rewritten(run, forwarded, 0)[0]
                    try:
                        messages = yield from self._logs.checking(lane, messages, run.size_bytes)
                    except RefusedSendError as refusal:
                        refused = refused_by_log(refusal, messages, owed)
                        if len(targets) > 1 or not refusal.place:
                            raise refused from None
                        # The outcome must not depend on how the network cut the frames.
                        messages, wires = refusal.good, run.wires[: refusal.place]
                        run, owed = SendRun(run.head, wires, sum(map(len, wires))), None
                    counts = [each.records_count for each in messages if isinstance(each, OfferedBatches)]
            if len(targets) > 1 and not isinstance(run, LargeRun):
                shared = SharedWires(len(run.head.block), run.size_bytes)
        for forwarded, lane in targets:
            self._send_leg(run, forwarded, lane, owed, shared, counts)
            yield from repeat(None, 1 + len(run.wires) // LEG_COUNT)
        if refused is not None:
            raise refused

    def _send_leg(
        self,
        run: SendRun,
        forwarded: SendHead,
        lane: Lane,
        owed: Owed | None,
        shared: SharedWires | None,
        counts: list[int] | None,
    ) -> None:
        """Make messages of a run. `counts`: number of records of each SEND, if it is one of batches."""
        publisher = self._logs if lane.is_log else self._queues
        if lane.inlet.closed:  # between two steps
            successor = publisher.successor(lane, run, forwarded)
            if successor is None:
                self._replies.leg_done(owed)
                return
            lane = successor
        elif lane.source.closed:
            lane = self._lanes.lane(lane.target, lane.inlet)
        forwarded = lane.forwarded(forwarded)
        number = self._number(lane, forwarded, len(run.wires))
        if counts and lane.is_log:
            messages, size_bytes = self._rewritten(run, forwarded, number)
            messages = [
                OfferedBatches(forwarded, message.wire, message.number, count)
                for message, count in zip(messages, counts, strict=True)
            ]
            if lane.must_wait or not publisher.publish(lane, messages, size_bytes, owed):
                self._lanes.park(lane, messages, size_bytes, owed)
            return
        if not lane.must_wait:
            messages, size_bytes = self._rewritten(run, forwarded, number)
            if publisher.publish(lane, messages, size_bytes, owed):
                return
        if shared is None:
            messages, size_bytes = self._rewritten(run, forwarded, number)
        else:
            messages = [Message(forwarded, wire, n) for n, wire in enumerate(run.wires, number)]
            size_bytes = run.size_bytes
        self._lanes.park(lane, messages, size_bytes, owed, shared=shared)

    def messages(self, run: SendRun, forwarded: SendHead, lane: Lane) -> tuple[list[Message], int]:
        """The messages of a run as they go to the queue of a lane, and the bytes of their wires."""
        forwarded = lane.forwarded(forwarded)
        return self._rewritten(run, forwarded, self._number(lane, forwarded, len(run.wires)))

    def checking_for_logs(self, run: SendRun, route: Route) -> Iterator[object]:
        """Check SENDs of a transaction for the logs of their route, in steps. Raises ProtocolError for what a log can't
        take.
        """
        for forwarded, lane in route.targets:
            if not lane.is_log or lane.inlet.closed:
                continue
            log = lane.log
            messages = self._rewritten(run, forwarded, 0)[0]
            origin = forwarded.origin
            mark_bytes = MARK_BYTES_MAX
            if origin is not None:
                if (refusal := refused_origin(log, origin)) is not None:
                    raise refusal
                mark_bytes += 1 + len(stamp_of(log.log_id, origin))
            try:
                yield from self._logs.checking(lane, messages, run.size_bytes)
                check_markable(messages, log.stored_lines, log.records.batch_bytes_max, mark_bytes)
            except RefusedSendError as refusal:
                raise refused_by_log(refusal, messages, None) from None
            except BatchError as error:
                raise refused_by_log(RefusedSendError([], error), messages, None) from None
            yield from repeat(None, 1 + len(messages) // LEG_COUNT)

    def park_committed(
        self,
        run: SendRun,
        forwarded: SendHead,
        lane: Lane,
        owed: Owed,
        shared: SharedWires | None,
        before: Barrier | None,
    ) -> None:
        """Park SENDs of a COMMIT until their lane can send, at the place `before` of the COMMIT; one leg more of
        `owed`.
        """
        if shared is None:
            messages, size_bytes = self.messages(run, forwarded, lane)
        else:
            forwarded = lane.forwarded(forwarded)
            first = self._number(lane, forwarded, len(run.wires))
            messages = [Message(forwarded, wire, n) for n, wire in enumerate(run.wires, first)]
            size_bytes = run.size_bytes
        owed.legs_count += 1
        self._lanes.park(lane, messages, size_bytes, owed, before=before, shared=shared)

    def _number(self, lane: Lane, forwarded: SendHead, count: int) -> int:
        """Reserve `count` numbers of the lane's shard, and return the first."""
        number = lane.take_numbers(count)
        if forwarded.marked and self._on_marked_sends is not None:
            self._on_marked_sends(forwarded, number, count)
        return number

    @staticmethod
    def _rewritten(run: SendRun, forwarded: SendHead, number: int) -> tuple[list[Message], int]:
        """The messages of a run from this number on, as they go to a queue, and the bytes of their wires."""
        wires, size_bytes = run.wires, run.size_bytes
        if forwarded is not run.head:
            start = len(run.head.block)
            wires = [forwarded.block + wire[start:] for wire in wires]
            size_bytes = sum(map(len, wires))
        if isinstance(run, LargeRun):
            return [LargeMessage(forwarded, wires[0], number, run.body)], size_bytes
        return [Message(forwarded, wire, n) for n, wire in enumerate(wires, number)], size_bytes

    def publish_parked(self, lane: Lane, parked: ParkedRun) -> bool:
        """Send on what waited. False: it must wait on."""
        publisher = self._logs if lane.is_log else self._queues
        if lane.inlet.closed:
            publisher.deleted(parked)
            return True
        messages, size_bytes = parked.messages, parked.size_bytes
        if parked.shared is not None:
            messages, size_bytes = parked.shared.rewritten(messages)
        if parked.is_committed:
            return self._queues.publish_committed(lane, messages, size_bytes, parked.owed)
        try:
            return publisher.publish(lane, messages, size_bytes, parked.owed)
        except ProtocolError as error:
            self._fail(error)
            return True
