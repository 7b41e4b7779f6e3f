"""SENDs of one connection: to which queues they go, at once or by way of the stash.

Consecutive SENDs to one queue are given to it together, however their headers differ, as long as the queue need not
look at them one by one. A composite is one message per destination, each with its own `destination` header. A SEND to
`/sluiceway/…` is a request to the broker itself, answered in JSON to its `reply-to`. Checklist b28-b30.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from protocols.stomp.errors import ProtocolError
from protocols.stomp.frames import SendRun
from protocols.stomp.head import SendHead
from protocols.stomp.hub import Hub
from protocols.stomp.lanes import Lane, Lanes, ParkedRun, Route
from protocols.stomp.limits import StompLimits
from protocols.stomp.replies import Replies
from protocols.stomp.temporary import TemporaryDestinations
from queues import (
    Address,
    Destination,
    DestinationLimitError,
    DestinationNameError,
    Message,
    QueueFullError,
    parse_composite,
)

ADMIN_PREFIX: Final = "/sluiceway/"


class Sender:
    """Routes SENDs and publishes them."""

    __slots__ = (
        "_batch",
        "_batch_bytes",
        "_batch_lane",
        "_batch_receipts",
        "_fail",
        "_hub",
        "_limits",
        "_replies",
        "_temporary",
        "_unsettled",
        "lanes",
    )

    def __init__(
        self,
        hub: Hub,
        limits: StompLimits,
        lanes: Lanes,
        temporary: TemporaryDestinations,
        replies: Replies,
        *,
        unsettled: Callable[[], int],
        fail: Callable[[ProtocolError], None],
    ) -> None:
        """`unsettled`: how many deliveries the connection holds; `fail`: end it with this error, found when no frame of
        it is being read.
        """
        self.lanes = lanes
        self._hub = hub
        self._limits = limits
        self._temporary = temporary
        self._replies = replies
        self._unsettled = unsettled
        self._fail = fail
        self._batch_lane: Lane | None = None
        self._batch: list[Message] = []
        self._batch_bytes = 0
        self._batch_receipts: list[str] | None = None

    def route(self, run: SendRun) -> Route | None:
        """Where a run goes. None: it was dealt with here (a request to the broker, a temporary destination that is
        gone). Raises ProtocolError.
        """
        return self.lanes.route(run.head) or self._make_route(run)

    def send(self, run: SendRun) -> None:
        """Publish these SENDs or park them. May put them off until `flush`, to give a queue many at once. Raises
        ProtocolError.
        """
        head = run.head
        lane = self.lanes.plain_lane(head)
        if lane is None or lane.must_wait or head.group is not None or head.expires_at_ms or head.ttl_ms:
            self.flush()
            self._send_apart(run)
            return
        receipts = run.receipts
        if lane is not self._batch_lane or (receipts is None) is not (self._batch_receipts is None):
            self.flush()
            self._batch_lane = lane
            self._batch_receipts = None if receipts is None else []
        wires = run.wires
        number = self._hub.take_numbers(len(wires))
        self._batch += [Message(head, wire, n) for n, wire in enumerate(wires, number)]
        self._batch_bytes += run.size_bytes
        if receipts is not None and self._batch_receipts is not None:
            self._batch_receipts += receipts

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
            self._add(lane, messages, size_bytes, receipts)

    def _send_apart(self, run: SendRun) -> None:
        route = self.route(run)
        if route is None:
            return
        targets = route.targets
        if len(targets) == 1 and not targets[0][1].must_wait:
            forwarded, lane = targets[0]
            if forwarded is run.head:
                self.publish(lane, forwarded, run.wires, run.size_bytes, run.receipts)
            else:
                wires = self.rewrite(run.head, forwarded, run.wires)
                self.publish(lane, forwarded, wires, sum(map(len, wires)), run.receipts)
            return
        self._send_to_some(run, route)

    def _send_to_some(self, run: SendRun, route: Route) -> None:
        """A composite, or lanes that must wait. The receipts go out with the last target that waits, else at once."""
        waiting = [target for target in route.targets if target[1].must_wait]
        last = waiting[-1] if waiting else None
        for target in route.targets:
            forwarded, lane = target
            wires = self.rewrite(run.head, forwarded, run.wires)
            size_bytes = run.size_bytes if wires is run.wires else sum(map(len, wires))
            if target in waiting:
                self.lanes.park(lane, forwarded, wires, size_bytes, run.receipts if target is last else None)
            else:
                self.publish(lane, forwarded, wires, size_bytes, None)
        if last is None:
            self._replies.receipts(run.receipts)
        self.check_overfull()

    def check_overfull(self, more_bytes: int = 0) -> None:
        limit_bytes = self._limits.stash_overfull_bytes_max
        if self.lanes.stash_bytes + more_bytes > limit_bytes:
            raise ProtocolError(
                "too-much-waits",
                f"more than {limit_bytes} bytes wait for blocked destinations",
                f"The connection holds {self._unsettled()} unacknowledged messages, so it was read on for ACKs. "
                "Acknowledge faster, produce on a connection of its own, or give the destination another full policy.",
            )

    @staticmethod
    def rewrite(head: SendHead, forwarded: SendHead, wires: list[bytes]) -> list[bytes]:
        if forwarded is head:
            return wires
        start = len(head.block)
        return [forwarded.block + wire[start:] for wire in wires]

    def publish(
        self, lane: Lane, head: SendHead, wires: list[bytes], size_bytes: int, receipt_ids: list[str] | None
    ) -> None:
        """Put a run into its queue. Raises ProtocolError if the queue refuses it."""
        number = self._hub.take_numbers(len(wires))
        self._add(lane, [Message(head, wire, n) for n, wire in enumerate(wires, number)], size_bytes, receipt_ids)

    def _add(self, lane: Lane, messages: list[Message], size_bytes: int, receipt_ids: list[str] | None) -> None:
        try:
            lane.queue.add(messages, size_bytes, lane.source)
        except QueueFullError:
            self._publish_one_by_one(lane, messages, receipt_ids)
        else:
            if receipt_ids is not None:
                self._replies.receipts(receipt_ids)

    def _publish_one_by_one(self, lane: Lane, messages: list[Message], receipt_ids: list[str] | None) -> None:
        """The queue refused the run as a whole. What of it still fits goes in, as if the frames had come apart: the
        outcome must not depend on how the network cut them. Raises ProtocolError for the first that does not fit."""
        for place, message in enumerate(messages):
            receipt_id = receipt_ids[place] if receipt_ids is not None else None
            try:
                lane.queue.add([message], len(message.wire), lane.source)
            except QueueFullError as refusal:
                error = ProtocolError("queue-full", str(refusal), "The destination's full policy is reject.")
                headers = {"destination": message.head.destination}
                error.identify("SEND", headers if receipt_id is None else {**headers, "receipt": receipt_id})
                raise error from None
            if receipt_id is not None:
                self._replies.receipts([receipt_id])

    def _make_route(self, run: SendRun) -> Route | None:
        """Find the queues of a head. None: the run was dealt with here (a request to the broker, a temporary
        destination that is gone).
        """
        head = run.head
        if head.destination.startswith(ADMIN_PREFIX):
            self._answer(run)
            return None
        if head.delay_ms:
            raise self._send_error(head, run, "not-supported", "delayed delivery is not available in this version")
        try:
            forwarded = self._temporary.with_global_reply_to(head)
            addresses = [self._temporary.to_global(address) for address in parse_composite(head.destination)]
        except DestinationNameError as error:
            raise self._send_error(head, run, "bad-destination", str(error)) from None
        targets: list[tuple[SendHead, Lane]] = []
        for address in addresses:
            if address.wildcard:
                raise self._send_error(
                    head,
                    run,
                    "bad-destination",
                    f"cannot SEND to the wildcard {address.canonical}: name one destination",
                )
            destination = self._destination_for_send(address, head, run)
            if destination is None:
                continue
            own = forwarded.with_headers({"destination": address.canonical}) if len(addresses) > 1 else forwarded
            targets.append((own, self.lanes.lane(destination, destination.queue.partition(own.priority))))
        if not targets:
            self._replies.receipts(run.receipts)
            return None
        route = Route(tuple(targets), plain=len(targets) == 1 and targets[0][0] is head)
        self.lanes.keep_route(head, route)
        return route

    def _destination_for_send(self, address: Address, head: SendHead, run: SendRun) -> Destination | None:
        registry = self._hub.registry
        if address.temporary_global and address.canonical not in registry.destinations:
            # Its owner has gone: nobody will ever read this, and the sender did nothing wrong.
            registry.unheard_count += len(run.wires)
            return None
        try:
            return registry.get(address)
        except DestinationLimitError as error:
            raise self._send_error(head, run, "too-many-destinations", str(error)) from None

    @staticmethod
    def _send_error(head: SendHead, run: SendRun, code: str, message: str) -> ProtocolError:
        error = ProtocolError(
            code,
            message,
            receipt_id=run.receipts[0] if run.receipts else None,
            headers={"destination": head.destination},
        )
        error.command = "SEND"
        return error

    def _answer(self, run: SendRun) -> None:
        """A request to the broker itself: the JSON reply goes to `reply-to`."""
        head = run.head
        try:
            reply_to = self._temporary.with_global_reply_to(head).reply_to
            if reply_to is None:
                raise DestinationNameError(
                    f"a request to {head.destination} needs a reply-to, such as /temp-queue/reply"
                )
            address = parse_composite(reply_to)[0]
            if address.wildcard:
                raise DestinationNameError(f"cannot reply to the wildcard {reply_to}: name one destination")
        except DestinationNameError as error:
            raise self._send_error(head, run, "bad-reply-to", str(error)) from None
        for wire in run.wires:
            try:
                body = self._hub.answer(head.destination, wire[head.body_offset : -1])
            except KeyError:
                raise self._send_error(
                    head, run, "unknown-request", f"there is no request {head.destination}: try {ADMIN_PREFIX}stat"
                ) from None
            headers: dict[str, str | None] = dict.fromkeys(head.headers)
            headers |= {
                "destination": reply_to,
                "content-type": "application/json",
                "content-length": str(len(body)),
                "correlation-id": head.headers.get("correlation-id"),
            }
            reply = head.with_headers(headers)
            destination = self._destination_for_send(address, head, run)
            if destination is not None:
                message = Message(reply, reply.block + b"\n\n" + body + b"\0", self._hub.take_numbers(1))
                try:
                    destination.queue.add([message], len(message.wire), None)
                except QueueFullError as refusal:
                    raise self._send_error(head, run, "queue-full", str(refusal)) from None
        self._replies.receipts(run.receipts)

    def publish_parked(self, lane: Lane, parked: ParkedRun) -> None:
        if lane.queue.closed:
            self._hub.registry.unheard_count += len(parked.wires)
            self._replies.receipts(parked.receipts)
            return
        try:
            self.publish(lane, parked.head, parked.wires, parked.size_bytes, parked.receipts)
        except ProtocolError as error:
            self._fail(error)
