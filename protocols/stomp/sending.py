"""SENDs of one connection: to which queues they go, at once or by way of the stash.

Consecutive SENDs to one queue are given to it together, however their headers differ, as long as the queue need not
look at them one by one. A composite is one message per destination, each with its own `destination` header. A SEND to
`/sluiceway/…` is a request to the broker itself, answered in JSON to its `reply-to`. Checklist b28-b30.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Generator, Iterator, Sequence
from functools import partial
from itertools import count, repeat
from typing import Final

from ...flow.graph import Steps, at_once
from ...queues.atomic_offer import offer_together
from ...queues.destination import Destination
from ...queues.full_actions import QueueFullError
from ...queues.intake import Run as QueueRun
from ...queues.large import LargeMessage
from ...queues.logs.log import GONE, Log
from ...queues.logs.offers import OfferedBatches, RefusedSendError, is_batch
from ...queues.logs.table import LogError
from ...queues.message import MESSAGE_OVERHEAD_BYTES, Message, wire_bytes_of
from ...queues.names import Address, DestinationNameError, Kind, parse_composite
from ...queues.queue import MessageQueue
from ...queues.registry import DestinationLimitError
from .authorization import Action, Authorizer
from .errors import ProtocolError
from .frames import SendRun
from .head import SendHead
from .hub import Hub
from .lanes import Barrier, Lane, Lanes, ParkedRun, Route, SharedWires
from .limits import StompLimits
from .replies import Owed, Replies
from .requesting import ADMIN_PREFIX, Requests
from .session_states import SessionState
from .staging import LargeRun
from .temporary import TemporaryDestinations

AT_ONCE_LEGS: Final = 16
"""A composite with more of them goes out in steps; so many messages of a run count as a leg each (LEG_COUNT)."""
LEG_COUNT: Final = 8
DESTINATION_STEPS: Final = 3
"""A destination that has to be made takes as long as so many legs."""
LOG_STEPS: Final = 6
REWRITING_STEPS: Final = 4
"""So does a head that is rewritten for one destination of a composite."""
_LOG_PREFIX: Final = "/log/"


class Sender:
    """Routes SENDs and publishes them."""

    __slots__ = (
        "_authorizer",
        "_batch",
        "_batch_bytes",
        "_batch_lane",
        "_batch_persistent",
        "_batch_receipts",
        "_batches_beside",
        "_do",
        "_fail",
        "_held_of",
        "_hub",
        "_limits",
        "_on_marked_sends",
        "_replies",
        "_temporary",
        "lanes",
        "requests",
    )

    def __init__(
        self,
        hub: Hub,
        limits: StompLimits,
        lanes: Lanes,
        temporary: TemporaryDestinations,
        replies: Replies,
        authorizer: Authorizer,
        *,
        held_of: Callable[[Container[object]], int],
        fail: Callable[[ProtocolError], None],
        do: Callable[[Iterator[object]], None],
        state: Callable[[], SessionState],
    ) -> None:
        """`held_of`: how many unacknowledged deliveries of these queues the connection holds; `fail`: end it with this
        error, found when no frame of it is being read; `do`: work in steps, for which what comes behind waits; `state`:
        of its life.
        """
        self.lanes = lanes
        self._hub = hub
        self._limits = limits
        self._temporary = temporary
        self._replies = replies
        self._authorizer = authorizer
        self._held_of = held_of
        self._fail = fail
        self._do = do
        self._on_marked_sends = hub.on_marked_sends
        self._batch_lane: Lane | None = None
        self._batch: list[Message] = []
        self._batch_bytes = 0
        self._batch_persistent = False
        self._batch_receipts: list[str] | None = None
        self._batches_beside: dict[Lane, tuple[list[Message], int]] = {}
        """Other batches, to other priorities of the same destination."""
        self.requests = Requests(self, hub, temporary, replies, authorizer, fail, state)
        """To the broker itself."""

    def finding_route(self, run: SendRun) -> Steps[Route | None]:
        """Where a run of a transaction goes, found in steps. It is no request to the broker. None: to a temporary
        destination that is gone. Raises ProtocolError.
        """
        route = self.lanes.route(run.head) or (yield from self._making_route(run))
        yield
        return route

    def send(self, run: SendRun) -> None:
        """Publish these SENDs or park them. May put them off until `flush`, to give a queue many at once. Raises
        ProtocolError.
        """
        head = run.head
        lane = self.lanes.plain_lane(head)
        if (
            lane is None
            or lane.must_wait
            or head.group is not None
            or head.expires_at_ms
            or head.ttl_ms
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
        number = self._hub.take_numbers(len(wires))
        if head.marked and self._on_marked_sends is not None:
            self._on_marked_sends(head, number, len(wires))
        self._batch += map(Message, repeat(head), wires, count(number))  # a seventh cheaper than a comprehension
        self._batch_bytes += run.size_bytes
        if receipts is not None and self._batch_receipts is not None:
            self._batch_receipts += receipts

    def check_for_transaction(self, run: SendRun) -> None:
        """Raise ProtocolError if this can't be part of a transaction: a leg of it is a log, or forbidden."""
        head = run.head
        if _LOG_PREFIX not in head.destination and self._authorizer.guard.allows_everything:
            return
        if head.destination.startswith(ADMIN_PREFIX):
            return  # asked for when it is answered
        try:
            addresses = parse_composite(head.destination)
        except DestinationNameError as error:
            raise self.send_error(head, run, "bad-destination", str(error)) from None
        self.check_send(addresses, head, run)
        for address in addresses:
            if address.kind is Kind.LOG:
                raise self.send_error(
                    head,
                    run,
                    "not-supported",
                    f"SEND to {address.canonical} in a transaction: send it without, a batch is all or nothing",
                )

    def send_large(self, run: LargeRun) -> None:
        """Publish one whose body is in a file, or park it. Raises ProtocolError."""
        self.flush()
        self._send_apart(run)

    def _collect_for(self, lane: Lane, persistent: bool, with_receipts: bool) -> None:
        """Begin or continue the batch of this lane. What was collected for another priority of the same destination
        stays, for no order is promised between priorities; all else is published first.
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
        if not self._publish_leg(lane, messages, size_bytes, owed):
            self._check_overfull(messages[0].head.destination, receipts, size_bytes)
            self.lanes.park(lane, messages, size_bytes, owed)

    def _send_apart(self, run: SendRun) -> None:
        steps = self._sending(run)
        commas_count = run.head.destination.count(",")
        is_much = commas_count and (commas_count + 1) * (1 + len(run.wires) // LEG_COUNT) > AT_ONCE_LEGS
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
        route = self.lanes.route(run.head) or (yield from self._making_route(run))
        if route is None:
            return
        targets = route.targets
        if any(lane.must_wait for _head, lane in targets):
            self._check_overfull(run.head.destination, run.receipts, run.size_bytes)
        owed = None if run.receipts is None else Owed(run.receipts, len(targets))
        shared: SharedWires | None = None
        counts: list[int] | None = None
        refused: ProtocolError | None = None
        if len(targets) > 1 or is_batch(run.head):
            # All of it is refused before any of it is published.
            for forwarded, lane in targets:
                if isinstance(lane.inlet, Log):
                    messages = self._rewritten(run, forwarded, 0)[0]
                    try:
                        messages = yield from self._checking(lane.inlet, messages, run.size_bytes)
                    except RefusedSendError as refusal:
                        refused = _refused_by_log(refusal, messages, owed)
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

    def _checking(self, log: Log, messages: list[Message], size_bytes: int) -> Generator[object, None, list[Message]]:
        """`Log.checking`; these count as memory meanwhile. Raises RefusedSendError."""
        account = self.lanes.unfinished
        account.charge(0, size_bytes, None)
        try:
            return (yield from log.checking(messages))
        finally:
            account.release(0, size_bytes)

    def _send_leg(
        self,
        run: SendRun,
        forwarded: SendHead,
        lane: Lane,
        owed: Owed | None,
        shared: SharedWires | None,
        counts: list[int] | None,
    ) -> None:
        """`counts`: how many records each SEND has, if it is one of batches."""
        if lane.inlet.closed or lane.source.closed:  # between two steps
            current = self._lane_again(run, lane, forwarded)
            if current is None:
                self._replies.leg_done(owed)
                return
            lane = current
        number = self._number(forwarded, len(run.wires))
        if counts and lane.is_log:
            messages, size_bytes = self._rewritten(run, forwarded, number)
            messages = [
                OfferedBatches(forwarded, message.wire, message.number, count)
                for message, count in zip(messages, counts, strict=True)
            ]
            if lane.must_wait or not self._publish_leg(lane, messages, size_bytes, owed):
                self.lanes.park(lane, messages, size_bytes, owed)
            return
        if not lane.must_wait:
            messages, size_bytes = self._rewritten(run, forwarded, number)
            if self._publish_leg(lane, messages, size_bytes, owed):
                return
        if shared is None:
            messages, size_bytes = self._rewritten(run, forwarded, number)
        else:
            messages = [Message(forwarded, wire, n) for n, wire in enumerate(run.wires, number)]
            size_bytes = run.size_bytes
        self.lanes.park(lane, messages, size_bytes, owed, shared=shared)

    def _lane_again(self, run: SendRun, lane: Lane, forwarded: SendHead) -> Lane | None:
        """The lane in the place of one that was let go since the route was made, to a destination that is made anew if
        it was deleted. None: that was temporary. Raises ProtocolError.
        """
        if not lane.inlet.closed:
            return self.lanes.lane(lane.target, lane.inlet)
        if isinstance(lane.inlet, Log):
            raise _log_is_gone(None if run.receipts is None else Owed(run.receipts, 1))
        destination = self.destination_for_send(lane.destination.address, run.head, run)
        return None if destination is None else self.lanes.lane(destination, destination.queue_for(forwarded))

    def messages(self, run: SendRun, forwarded: SendHead) -> tuple[list[Message], int]:
        """The messages of a run as they go to a queue, and the bytes of their wires."""
        return self._rewritten(run, forwarded, self._number(forwarded, len(run.wires)))

    def park_committed(
        self,
        run: SendRun,
        forwarded: SendHead,
        lane: Lane,
        owed: Owed,
        shared: SharedWires | None,
        before: Barrier | None,
    ) -> None:
        """These of a COMMIT wait until their lane can go on, at its place `before` there; one leg more of `owed`."""
        if shared is None:
            messages, size_bytes = self.messages(run, forwarded)
        else:
            messages = [
                Message(forwarded, wire, n) for n, wire in enumerate(run.wires, self._number(forwarded, len(run.wires)))
            ]
            size_bytes = run.size_bytes
        owed.legs_count += 1
        self.lanes.park(lane, messages, size_bytes, owed, before=before, shared=shared)

    def _number(self, forwarded: SendHead, count: int) -> int:
        """The first number for so many messages."""
        number = self._hub.take_numbers(count)
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

    def _check_overfull(self, destination: str, receipt_ids: list[str] | None, more_bytes: int) -> None:
        error = self.overfull(more_bytes)
        if error is not None:
            headers = {"destination": destination}
            error.identify("SEND", {**headers, "receipt": receipt_ids[0]} if receipt_ids else headers)
            raise error

    def overfull(self, more_bytes: int) -> ProtocolError | None:
        """Why so much more must not be parked, None if it may. A connection that holds nothing of the queues that it
        waits for is simply not read from; one that does could wait for itself for ever. A single run always may, or
        nothing larger than the limit could be sent at all.
        """
        limit_bytes = self._limits.stash_overfull_bytes_max
        parked_bytes = self.lanes.stash_bytes
        if not parked_bytes or parked_bytes + more_bytes <= limit_bytes:
            return None
        held_count = self._held_of(self.lanes.blocked_queues())
        if not held_count:
            return None
        return ProtocolError(
            "too-much-waits",
            f"more than {limit_bytes} bytes wait for blocked destinations",
            f"The connection holds {held_count} unacknowledged messages of these destinations, so it was read on for "
            "ACKs. Acknowledge faster, produce on a connection of its own, or choose another full policy.",
        )

    def _publish_leg(self, lane: Lane, messages: list[Message], size_bytes: int, owed: Owed | None) -> bool:
        """`publish`, and see to the receipt: at once, or when what must be on disk is there."""
        queue = lane.inlet
        if isinstance(queue, Log):
            return self._append(queue, lane, messages, size_bytes, owed)
        if owed is None or not (queue.keeps and messages[0].head.persistent):
            if not self.publish(lane, messages, size_bytes, owed):
                return False
            if owed is None:
                self._replies.unconfirmed = self._replies.unconfirmed or queue.keeps
            else:
                self._replies.leg_done(owed)
            return True
        assert isinstance(queue, MessageQueue)
        first = queue.elements.next_sequence
        if not self.publish(lane, messages, size_bytes, owed):
            return False
        owed_bytes = owed.size_bytes
        self._replies.owe(owed_bytes)
        queue.when_saved(first, partial(self._saved, owed, owed_bytes))
        return True

    def _append(self, log: Log, lane: Lane, messages: list[Message], size_bytes: int, owed: Owed | None) -> bool:
        """To a log: the receipt tells the index, and leaves when the records are as safe as they are to be. Raises
        ProtocolError for batches that are none.
        """
        try:
            if not log.offer(messages, size_bytes, lane.source):
                return False
        except RefusedSendError as refusal:
            if good := refusal.good:  # the outcome must not depend on how the network cut the frames
                log.offer(good, wire_bytes_of(good), lane.source)
            raise _refused_by_log(refusal, messages, owed) from None
        lane.sent_count += len(messages)
        if owed is None:
            self._replies.unconfirmed_logs.add(log)
            return True
        owed_bytes = owed.size_bytes
        self._replies.owe(owed_bytes)
        log.when_durable(partial(self._appended, log.name, owed, owed_bytes))
        return True

    def _appended(self, name: str, owed: Owed, owed_bytes: int, how: str, indexes: Sequence[tuple[int, int]]) -> None:
        if how == GONE:
            self._replies.paid(owed_bytes)
            self._fail(_log_is_gone(owed))
            return
        if owed.is_single and indexes:
            self._replies.appended(owed.receipt_ids, how, indexes)
        else:
            if indexes:
                owed.indexes.append((name, indexes))
            self._replies.leg_done(owed, how)
        self._replies.paid(owed_bytes)

    def _saved(self, owed: Owed, owed_bytes: int, how: str) -> None:
        self._replies.leg_done(owed, how)
        self._replies.paid(owed_bytes)

    def publish(self, lane: Lane, messages: list[Message], size_bytes: int, owed: Owed | None) -> bool:
        """Put messages into their queue; False: it has no room now, and will resume the lane. Raises ProtocolError if
        the queue refuses them, about the one of the `owed` that it refused first.
        """
        queue = lane.inlet
        if queue.rejects and not queue.fits(len(messages), size_bytes):
            return self._publish_one_by_one(lane, messages, owed)
        if not queue.offer(messages, size_bytes, lane.source):
            return False
        lane.sent_count += len(messages)
        return True

    def _publish_one_by_one(self, lane: Lane, messages: list[Message], owed: Owed | None) -> bool:
        """The queue would refuse the run as a whole. What of it still fits goes in, as if the frames had come apart:
        the outcome must not depend on how the network cut them. Raises ProtocolError for the first that does not
        fit. False: nothing went in, all has to wait."""
        queue = lane.queue
        count = size_bytes = 0
        for message in messages:
            if not queue.fits(count + 1, size_bytes + len(message.wire)):
                break
            count += 1
            size_bytes += len(message.wire)
        if count and not queue.offer(messages[:count], size_bytes, lane.source):
            return False
        message = messages[count]
        try:
            if not count:
                return queue.offer([message], len(message.wire), lane.source)
            queue.add([message], len(message.wire), lane.source)  # whether or not the others have shut its gate
            raise AssertionError(f"{queue.name} has taken what does not fit")
        except QueueFullError as refusal:
            error = ProtocolError("queue-full", str(refusal), "The destination's full policy is reject.")
            headers = {"destination": message.head.destination}
            if owed is not None:
                # Nothing can follow the ERROR, so of what is not on disk yet nothing is promised.
                if owed.legs_count == 1 and not (queue.keeps and message.head.persistent):
                    self._replies.receipts(owed.receipt_ids[:count])
                headers["receipt"] = owed.receipt_ids[count]
            error.identify("SEND", headers)
            raise error from None

    def _making_route(self, run: SendRun) -> Steps[Route | None]:
        """Find the queues of a head, in steps. None: the run was dealt with here (a request to the broker, a temporary
        destination that is gone). Raises ProtocolError.
        """
        head = run.head
        if head.destination.startswith(ADMIN_PREFIX):
            yield from self.requests.answering(run)
            return None
        try:
            forwarded = self._temporary.with_global_reply_to(head)
            addresses = [self._temporary.to_global(address) for address in parse_composite(head.destination)]
        except DestinationNameError as error:
            raise self.send_error(head, run, "bad-destination", str(error)) from None
        except DestinationLimitError as error:
            raise self.send_error(head, run, error.code, str(error)) from None
        self.check_send(addresses, head, run)
        targets: list[tuple[SendHead, Lane]] = []
        for address in addresses:
            if address.wildcard:
                raise self.send_error(
                    head,
                    run,
                    "bad-destination",
                    f"cannot SEND to the wildcard {address.canonical}: name one destination",
                )
            if address.kind is Kind.LOG:
                yield from repeat(None, LOG_STEPS)
                log = self._log_for_send(address, head, run)
                targets.append((forwarded, self.lanes.lane(log, log)))
                continue
            if address.canonical not in self._hub.registry.destinations:
                for _ in range(DESTINATION_STEPS):
                    yield
            destination = self.destination_for_send(address, head, run)
            if destination is None:
                continue
            own = forwarded
            if len(addresses) > 1:
                own = forwarded.with_headers({"destination": address.canonical})
                for _ in range(REWRITING_STEPS):
                    yield
            partitions = destination.queue.partitions
            if partitions and own.priority not in partitions:
                self._check_upkeep(f"priority {own.priority} of {address.canonical}", head, run)
            targets.append((own, self.lanes.lane(destination, destination.queue_for(own))))
        if not targets:
            self._replies.receipts(run.receipts)
            return None
        route = Route(tuple(targets), plain=len(targets) == 1 and targets[0][0] is head and not head.delay_ms)
        self.lanes.keep_route(head, route)
        return route

    def check_send(self, addresses: Sequence[Address], head: SendHead, run: SendRun) -> None:
        """All of them, before any is made. Raises ProtocolError."""
        try:
            self._authorizer.check(Action.SEND, addresses)
        except ProtocolError as error:
            raise self.about(error, head, run) from None
        for address in addresses:
            try:
                self._hub.registry.check_prefix(address, to_send=True)
            except DestinationNameError as error:
                raise self.send_error(head, run, "bad-destination", str(error)) from None

    def _log_for_send(self, address: Address, head: SendHead, run: SendRun) -> Log:
        logs = self._hub.logs
        if logs is None:
            raise self.send_error(head, run, "no-logs", "this broker keeps no logs: it has no data folder")
        if isinstance(run, LargeRun):
            raise self.send_error(
                head,
                run,
                "MESSAGE_SIZE_TOO_LARGE",
                f"{address.canonical} can't take this body: give its content-length, and see log_batch_bytes_max",
            )
        try:
            return logs.get(address.canonical)
        except LogError as error:
            raise self.send_error(head, run, error.code, str(error)) from None

    def destination_for_send(self, address: Address, head: SendHead, run: SendRun) -> Destination | None:
        registry = self._hub.registry
        if address.temporary_global and address.canonical not in registry.destinations:
            # Its owner has gone: nobody will ever read this, and the sender did nothing wrong.
            registry.unheard_count += len(run.wires)
            return None
        try:
            return registry.get(address)
        except DestinationLimitError as error:
            raise self.send_error(head, run, error.code, str(error)) from None

    def _check_upkeep(self, what: str, head: SendHead, run: SendRun) -> None:
        try:
            self._hub.registry.check_upkeep(what)
        except DestinationLimitError as error:
            raise self.send_error(head, run, error.code, str(error)) from None

    @staticmethod
    def send_error(head: SendHead, run: SendRun, code: str, message: str) -> ProtocolError:
        return Sender.about(ProtocolError(code, message), head, run)

    @staticmethod
    def about(error: ProtocolError, head: SendHead, run: SendRun) -> ProtocolError:
        headers = {"destination": head.destination}
        error.identify("SEND", {**headers, "receipt": run.receipts[0]} if run.receipts else headers)
        return error

    def publish_parked(self, lane: Lane, parked: ParkedRun) -> bool:
        """Send on what waited. False: it must wait on."""
        if lane.inlet.closed and isinstance(lane.inlet, Log):
            self._fail(_log_is_gone(parked.owed))
            return True
        if lane.inlet.closed:
            self._hub.registry.unheard_count += len(parked.messages)
        else:
            messages, size_bytes = parked.messages, parked.size_bytes
            if parked.shared is not None:
                messages, size_bytes = parked.shared.rewritten(messages)
            if parked.is_committed:
                run = QueueRun(messages, size_bytes + MESSAGE_OVERHEAD_BYTES * len(messages))
                if not offer_together(lane.queue, [run], lane.source):
                    return False
                self._replies.leg_done(parked.owed)
                return True
            try:
                return self._publish_leg(lane, messages, size_bytes, parked.owed)
            except ProtocolError as error:
                self._fail(error)
                return True
        self._replies.leg_done(parked.owed)
        return True


def _refused_by_log(refusal: RefusedSendError, messages: list[Message], owed: Owed | None) -> ProtocolError:
    """The ERROR about the one of these that a log can't take."""
    place = refusal.place
    if refusal.is_unchecked:
        error = ProtocolError("INTERNAL_ERROR", str(refusal), "Nothing of it was appended: send it again later.")
    else:
        code = "MESSAGE_SIZE_TOO_LARGE" if refusal.too_large else "bad-batch"
        error = ProtocolError(code, str(refusal), "Nothing of it was appended. See the reference of logs.")
    headers = {"destination": messages[place].head.destination}
    error.identify("SEND", headers if owed is None else {**headers, "receipt": owed.receipt_ids[place]})
    return error


def _log_is_gone(owed: Owed | None) -> ProtocolError:
    """The ERROR for SENDs that were on their way to a log when it was deleted."""
    error = ProtocolError("TOPIC_NOT_EXIST", "the log was deleted before it had taken this", "Send it again.")
    error.identify("SEND", {} if owed is None or not owed.receipt_ids else {"receipt": owed.receipt_ids[0]})
    return error
