"""One STOMP connection: what its frames do to the broker, and what the broker sends back.

Bytes go in through `receive`, bytes leave through `outbound`; nothing here waits. The pieces: machine (protocol), lanes (SENDs and the stash),
delivery and ledger (subscriptions), transactions, heartbeat. The transport around it reads while `may_read`, flushes `outbound`, and closes when
`ending` says so.

ACK bypass. A SEND to a destination that blocks is parked in its lane; everything else on the connection goes on: ACKs, other destinations,
heart-beats. Reading stops only when the stash is full *and* nothing unacknowledged is out, because until then an ACK that would free the
destination may be among the unread bytes. Such overfull reading is slow (`reads_slowly`) and ends with an ERROR at `stash_overfull_bytes_max`.

After the connection ended, what was parked still goes to its queues (b50): the session stays on as a drain until its stash is empty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import attrs

from protocols.outbound import Outbound, Piece
from protocols.stomp.delivery import ACK_AUTO, ACK_CLIENT, SessionTotals, StompSubscription
from protocols.stomp.encoder import HEART_BEAT, receipt, receipts
from protocols.stomp.errors import ProtocolError
from protocols.stomp.escaping import Version
from protocols.stomp.frames import AckRun, Connect, Event, Fault, Frame, SendRun
from protocols.stomp.head import SendHead, whole_number
from protocols.stomp.heartbeat import HeartBeat
from protocols.stomp.hub import Hub, LoginRefusedError
from protocols.stomp.lanes import Lane, Lanes, ParkedRun, Route
from protocols.stomp.ledger import Portion, UnknownDeliveryError
from protocols.stomp.limits import StompLimits
from protocols.stomp.machine import ServerMachine
from protocols.stomp.transactions import Commit, RoutedRun, Transaction, Transactions, settle_acks, undo_acks
from queues import (
    Address,
    Destination,
    DestinationLimitError,
    DestinationNameError,
    Message,
    QueueFullError,
    parse_composite,
)
from queues.queue import DispatchHandle, TimerHandle

RECEIPT_BYTES: Final = 64
"""About what one waiting RECEIPT takes; turns `receipts_pending_max` into bytes of control frames."""

MEMORY_DURABILITY: Final = (("durability", "memory"),)

ADMIN_PREFIX: Final = "/sluiceway/"
_LOCAL_TEMP: Final = {"/temp-queue/": "/remote-temp-queue/", "/temp-topic/": "/remote-temp-topic/"}

_NOT_YET: Final = {
    "selector": "selectors",
    "durable": "durable subscriptions",
    "activemq.subscriptionName": "durable subscriptions",
    "browser": "browsing",
}


class Session:
    """A STOMP connection, without its socket."""

    def __init__(
        self,
        hub: Hub,
        limits: StompLimits,
        *,
        peer: str,
        write: Callable[[Sequence[Piece]], int],
        wake_writer: Callable[[], None],
        changed: Callable[[], None],
    ) -> None:
        """`write` takes bytes without waiting; `wake_writer`: the kernel is full, call `flush` when it is not; `changed`: look at
        `may_read` and `ending` again."""
        self.hub = hub
        self.limits = limits
        self.peer = peer
        self.session_id = hub.new_session_id()
        self.name = f"{peer}"
        self.user: str | None = None
        self.totals = SessionTotals()
        self.version: Version = "1.0"
        self.ending: str | None = None
        """Why the connection is about to end: flush what is written, linger, close. None while it goes on."""
        self.failed = False
        """It ends with an ERROR that is worth somebody's attention: not at the shutdown of the broker."""
        self.closed = False
        self.connected = False
        self._changed = changed
        self._wake_writer = wake_writer
        self._machine = ServerMachine(limits, server_name=hub.server_name)
        self.outbound = Outbound(
            self.name,
            capacity_bytes=limits.outbound_bytes_max,
            manager=hub.manager,
            clock=hub.clock,
            write=write,
            request_flush=self._request_flush,
        )
        self.lanes = Lanes(
            self.name,
            stash_bytes_max=limits.stash_bytes_max,
            manager=hub.manager,
            clock=hub.clock,
            on_resume=self._lane_resumed,
            on_stash_relieved=changed,
        )
        self._context: DispatchHandle = hub.scheduling.register(self._dispatch, f"connection {peer}")
        self.transactions = Transactions(limits)
        self._parked_commits: list[Commit] = []
        self.subscriptions: dict[str, StompSubscription] = {}
        self._by_key: dict[int, StompSubscription] = {}
        self._next_key = 1
        self._temporary: dict[str, Destination] = {}
        self._heart_beat: HeartBeat | None = None
        self._was_readable = True
        self._connect_timer: TimerHandle | None = hub.scheduling.call_later(
            limits.connect_timeout_seconds, self._connect_timed_out
        )
        self._handlers: dict[str, Callable[[Frame], None]] = {
            "SUBSCRIBE": self._subscribe,
            "UNSUBSCRIBE": self._unsubscribe,
            "ACK": self._ack_frame,
            "NACK": self._ack_frame,
            "BEGIN": self._begin,
            "COMMIT": self._commit,
            "ABORT": self._abort,
            "DISCONNECT": self._disconnect,
        }

    # ------------------------------------------------------------------ for the transport

    @property
    def may_read(self) -> bool:
        """Whether more bytes should be read from the peer now."""
        lanes = self.lanes
        if self.outbound.control_bytes > self.limits.receipts_pending_max * RECEIPT_BYTES:
            lanes.waiting_for = "the client to read its receipts"
        elif lanes.stash_is_full and not self.unsettled_count:
            lanes.waiting_for = "blocked destinations"
        else:
            lanes.waiting_for = ""
        readable = not lanes.waiting_for
        if readable is not self._was_readable:
            self._was_readable = readable
            if self._heart_beat is not None:
                if readable:
                    self._heart_beat.reading_resumed()
                else:
                    self._heart_beat.reading_paused()
        return readable

    @property
    def reads_slowly(self) -> bool:
        """The stash is full, and reading goes on only to find ACKs."""
        return self.lanes.stash_is_full

    @property
    def unsettled_count(self) -> int:
        """Deliveries that this connection has not acknowledged."""
        return sum(s.ledger.unsettled_count for s in self._by_key.values() if s.ledger is not None)

    def receive(self, data: bytes) -> None:
        """Bytes have arrived. All their frames take effect before this returns."""
        self.totals.bytes_in += len(data)
        if self._heart_beat is not None:
            self._heart_beat.bytes_arrived()
        while True:
            events = self._machine.receive_data(data)
            accepted = False
            for event in events:
                if self.ending is not None:
                    return
                accepted = isinstance(event, Connect)
                try:
                    self._take(event)
                except ProtocolError as error:
                    self.fail(error)
                    return
            if not accepted or self.ending is not None:
                return
            data = b""  # what was pipelined behind CONNECT can be parsed now

    def flush(self) -> None:
        """Write what waits. Raises OSError when the connection is broken."""
        if self.closed:
            return
        if not self.outbound.flush():
            self._wake_writer()
        if not self._was_readable:
            # What was written may be the receipts, or the deliveries to be acknowledged, for which reading was stopped.
            self._changed()

    def _request_flush(self) -> None:
        self.hub.at_turn_end(self._flush_at_turn_end)

    def _flush_at_turn_end(self) -> None:
        try:
            self.flush()
        except OSError as error:
            self.end(f"connection lost: {error.strerror or error}")

    def end(self, reason: str) -> None:
        """The connection is to end, without an ERROR."""
        if self.ending is None:
            self.ending = reason
            self._changed()

    def fail(self, error: ProtocolError, *, peers_fault: bool = True) -> None:
        """Send ERROR and end the connection (b29, b52, b53)."""
        if self.ending is not None:
            return
        self.outbound.send_control(self._machine.fail(error))
        self.failed = peers_fault
        self.ending = f"{error.code}: {error.message}"
        self._detach_subscriptions()
        self._changed()

    def close(self) -> None:
        """The socket is gone (or about to be): return what was unsettled, undo what was open. Parked SENDs drain on."""
        if self.closed:
            return
        self.closed = True
        if self.ending is None:
            self.ending = "closed"
        if self._connect_timer is not None:
            self._connect_timer.cancel()
        if self._heart_beat is not None:
            self._heart_beat.stop()
        self._detach_subscriptions()
        self.outbound.close()
        for transaction in self.transactions.end_all():
            undo_acks(transaction)
            self.transactions.forget_bytes(transaction)
        waiting, self._parked_commits = self._parked_commits, []
        for commit in waiting:
            # It was complete and came before the end, so it is carried out (b50): its ACKs count, its SENDs drain.
            try:
                self._carry_out(commit)
            except ProtocolError:
                # Nobody is left to be told. Nothing of it was done: its deliveries are returned below, with the others.
                continue
        for subscription in self._by_key.values():
            subscription.return_unsettled()
            subscription.close()
        self._by_key.clear()
        for destination in list(self._temporary.values()):
            self.hub.registry.delete(destination, f"its connection {self.peer} ended")
        self._temporary.clear()
        self._context.request_dispatch()

    @property
    def is_drained(self) -> bool:
        """Closed, and nothing is parked any more."""
        return self.closed and not self.lanes.is_open

    def _detach_subscriptions(self) -> None:
        for subscription in self.subscriptions.values():
            subscription.detach()
        self.subscriptions.clear()

    # ------------------------------------------------------------------ frames

    def _take(self, event: Event) -> None:
        if isinstance(event, SendRun):
            self.totals.frames_in_count += len(event.wires)
            self.totals.messages_in_count += len(event.wires)
            self._send(event)
        elif isinstance(event, AckRun):
            self.totals.frames_in_count += len(event.tokens)
            self._ack_run(event)
        elif isinstance(event, Frame):
            self.totals.frames_in_count += 1
            try:
                self._handlers[event.command](event)
            except ProtocolError as error:
                error.identify(event.command, event.headers)
                raise
        elif isinstance(event, Connect):
            self.totals.frames_in_count += 1
            self._connect(event)
        elif isinstance(event, Fault):
            raise event.error

    def _receipt(self, receipt_id: str | None) -> None:
        if receipt_id is not None:
            self.outbound.send_control(receipt(receipt_id, self.version))

    def _connect(self, event: Connect) -> None:
        try:
            self.user = self.hub.authenticate(event.login, event.passcode)
        except LoginRefusedError as refusal:
            self.version = event.version
            raise ProtocolError("login-refused", str(refusal), "Check login and passcode.") from None
        if self._connect_timer is not None:
            self._connect_timer.cancel()
            self._connect_timer = None
        self.version = event.version
        self.connected = True
        limits, machine = self.limits, self._machine
        offered = (limits.heart_beat_min_ms, limits.heart_beat_min_ms) if limits.heart_beat_max_ms else (0, 0)
        self.outbound.send_control(machine.accept(self.session_id, heart_beat=offered))
        read_every_ms, write_every_ms = machine.read_every_ms, machine.write_every_ms
        if read_every_ms or write_every_ms:
            self._heart_beat = HeartBeat(
                self.hub.scheduling,
                self.hub.clock,
                read_every_ms=read_every_ms,
                write_every_ms=write_every_ms,
                grace_factor=self.limits.heart_beat_grace_factor,
                last_written=self._last_written,
                beat=self._beat,
                dead=self._peer_is_dead,
            )

    def _last_written(self) -> float:
        """While bytes wait for the kernel there is nothing to add: only an idle line needs a beat."""
        return self.hub.clock() if self.outbound.waiting_bytes else self.outbound.last_taken_seconds

    def _beat(self) -> None:
        self.outbound.send_control(HEART_BEAT)

    def _peer_is_dead(self, silent_seconds: float) -> None:
        self.fail(
            ProtocolError(
                "heart-beat-missed",
                f"no bytes from you for {silent_seconds:.1f} seconds",
                "The agreed heart-beat did not come. Send an EOL in time, or agree on a longer interval in CONNECT.",
            )
        )

    def _connect_timed_out(self) -> None:
        self._connect_timer = None
        self.fail(
            ProtocolError(
                "connect-timeout",
                f"no CONNECT within {self.limits.connect_timeout_seconds:g} seconds",
                "Send a complete CONNECT frame right after opening the connection.",
            )
        )

    def _disconnect(self, frame: Frame) -> None:
        self._detach_subscriptions()
        self._receipt(frame.headers.get("receipt"))
        self.end("DISCONNECT")

    # ------------------------------------------------------------------ SEND

    def _send(self, run: SendRun) -> None:
        head = run.head
        if head.transaction is not None:
            self._send_in_transaction(run)
            return
        route = self.lanes.route(head) or self._make_route(run)
        if route is None:
            return
        targets = route.targets
        if len(targets) == 1 and not targets[0][1].must_wait:
            forwarded, lane = targets[0]
            if forwarded is head:
                self._publish(lane, head, run.wires, run.size_bytes, run.receipts)
            else:
                wires = self._rewrite(head, forwarded, run.wires)
                self._publish(lane, forwarded, wires, sum(map(len, wires)), run.receipts)
            return
        self._send_to_some(run, route)

    def _send_to_some(self, run: SendRun, route: Route) -> None:
        """A composite, or lanes that must wait. The receipts go out with the last target that waits, else at once."""
        waiting = [target for target in route.targets if target[1].must_wait]
        last = waiting[-1] if waiting else None
        for target in route.targets:
            forwarded, lane = target
            wires = self._rewrite(run.head, forwarded, run.wires)
            size_bytes = run.size_bytes if wires is run.wires else sum(map(len, wires))
            if target in waiting:
                self.lanes.park(lane, forwarded, wires, size_bytes, run.receipts if target is last else None)
            else:
                self._publish(lane, forwarded, wires, size_bytes, None)
        if last is None:
            self._receipts(run.receipts)
        self._check_overfull()

    def _check_overfull(self, more_bytes: int = 0) -> None:
        limit_bytes = self.limits.stash_overfull_bytes_max
        if self.lanes.stash_bytes + more_bytes > limit_bytes:
            raise ProtocolError(
                "too-much-waits",
                f"more than {limit_bytes} bytes wait for blocked destinations",
                f"The connection holds {self.unsettled_count} unacknowledged messages, so it was read on for ACKs. "
                "Acknowledge faster, produce on a connection of its own, or give the destination another full policy.",
            )

    @staticmethod
    def _rewrite(head: SendHead, forwarded: SendHead, wires: list[bytes]) -> list[bytes]:
        if forwarded is head:
            return wires
        start = len(head.block)
        return [forwarded.block + wire[start:] for wire in wires]

    def _publish(
        self, lane: Lane, head: SendHead, wires: list[bytes], size_bytes: int, receipt_ids: list[str] | None
    ) -> None:
        """Put a run into its queue. Raises ProtocolError if the queue refuses it."""
        number = self.hub.take_numbers(len(wires))
        messages = [Message(head, wire, n) for n, wire in enumerate(wires, number)]
        try:
            lane.queue.add(messages, size_bytes, lane.source)
        except QueueFullError:
            self._publish_one_by_one(lane, messages, receipt_ids)
        else:
            if receipt_ids is not None:
                self._receipts(receipt_ids)

    def _publish_one_by_one(self, lane: Lane, messages: list[Message], receipt_ids: list[str] | None) -> None:
        """The queue refused the run as a whole. What of it still fits goes in, as if the frames had come apart: the outcome must not depend on
        how the network cut them. Raises ProtocolError for the first that does not fit."""
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
                self._receipts([receipt_id])

    def _receipts(self, receipt_ids: list[str] | None) -> None:
        if receipt_ids is not None and not self.closed:
            self.outbound.send_control(receipts(receipt_ids, self.version, MEMORY_DURABILITY))

    def _make_route(self, run: SendRun) -> Route | None:
        """Find the queues of a head. None: the run was dealt with here (a request to the broker, a temporary destination that is gone)."""
        head = run.head
        if head.destination.startswith(ADMIN_PREFIX):
            self._answer(run)
            return None
        if head.delay_ms:
            raise self._send_error(head, run, "not-supported", "delayed delivery is not available in this version")
        try:
            forwarded = self._with_global_reply_to(head)
            addresses = [self._global_address(address) for address in parse_composite(head.destination)]
        except DestinationNameError as error:
            raise self._send_error(head, run, "bad-destination", str(error)) from None
        targets: list[tuple[SendHead, Lane]] = []
        for address in addresses:
            if address.wildcard:
                raise self._send_error(
                    head, run, "bad-destination", f"cannot SEND to the wildcard {address.canonical}: name one destination"
                )
            destination = self._destination_for_send(address, head, run)
            if destination is None:
                continue
            own = forwarded.with_headers({"destination": address.canonical}) if len(addresses) > 1 else forwarded
            targets.append((own, self.lanes.lane(destination, destination.queue.partition(own.priority))))
        if not targets:
            self._receipts(run.receipts)
            return None
        route = Route(tuple(targets))
        self.lanes.keep_route(head, route)
        return route

    def _destination_for_send(self, address: Address, head: SendHead, run: SendRun) -> Destination | None:
        registry = self.hub.registry
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
            code, message, receipt_id=run.receipts[0] if run.receipts else None, headers={"destination": head.destination}
        )
        error.command = "SEND"
        return error

    def _with_global_reply_to(self, head: SendHead) -> SendHead:
        """A reply-to that names a temporary destination of this connection, as others can use it. Raises DestinationNameError."""
        reply_to = head.reply_to
        if reply_to is None or not reply_to.startswith(tuple(_LOCAL_TEMP)):
            return head
        return head.with_headers({"reply-to": self._global_address(parse_composite(reply_to)[0]).canonical})

    def _global_address(self, address: Address) -> Address:
        """Make a local temporary name global, and see to it that the destination is there."""
        if not address.temporary_local:
            return address
        for local, remote in _LOCAL_TEMP.items():
            if address.canonical.startswith(local):
                canonical = f"{remote}{self.session_id}.{address.canonical.removeprefix(local)}"
                shared = parse_composite(canonical)[0]
                if canonical not in self._temporary:
                    if len(self._temporary) >= self.limits.subscriptions_max:
                        raise DestinationNameError(
                            f"this connection has {len(self._temporary)} temporary destinations already: reuse them"
                        )
                    destination = self._temporary[canonical] = self.hub.registry.get(shared)
                    destination.producers_count += 1  # its owner: never idle as long as this connection lives
                return shared
        raise AssertionError(address)

    def _answer(self, run: SendRun) -> None:
        """A request to the broker itself: the JSON reply goes to `reply-to`."""
        head = run.head
        try:
            reply_to = self._with_global_reply_to(head).reply_to
            if reply_to is None:
                raise DestinationNameError(f"a request to {head.destination} needs a reply-to, such as /temp-queue/reply")
            address = parse_composite(reply_to)[0]
            if address.wildcard:
                raise DestinationNameError(f"cannot reply to the wildcard {reply_to}: name one destination")
        except DestinationNameError as error:
            raise self._send_error(head, run, "bad-reply-to", str(error)) from None
        for wire in run.wires:
            try:
                body = self.hub.answer(head.destination, wire[head.body_offset : -1])
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
                message = Message(reply, reply.block + b"\n\n" + body + b"\0", self.hub.take_numbers(1))
                try:
                    destination.queue.add([message], len(message.wire), None)
                except QueueFullError as refusal:
                    raise self._send_error(head, run, "queue-full", str(refusal)) from None
        self._receipts(run.receipts)

    # ------------------------------------------------------------------ the stash

    def _lane_resumed(self) -> None:
        self._context.request_dispatch()

    def _dispatch(self, budget: int) -> bool:
        """Send on what was parked and may go now."""
        if self.lanes.unpark(budget, self._publish_parked) or self._commit_parked():
            return True
        if self.closed and not self.lanes.parked_count and self.lanes.is_open:
            self.lanes.close_lanes()
            self._context.close()
        self._changed()
        return False

    def _publish_parked(self, lane: Lane, parked: ParkedRun) -> None:
        if lane.queue.closed:
            self.hub.registry.unheard_count += len(parked.wires)
            self._receipts(parked.receipts)
            return
        try:
            self._publish(lane, parked.head, parked.wires, parked.size_bytes, parked.receipts)
        except ProtocolError as error:
            self.fail(error)

    # ------------------------------------------------------------------ SUBSCRIBE

    def _subscribe(self, frame: Frame) -> None:
        headers = frame.headers
        for name, feature in _NOT_YET.items():
            if headers.get(name) not in (None, "false"):
                raise ProtocolError(
                    "not-supported", f"{feature} ({name}) are not available in this version", "Subscribe without it."
                )
        if len(self.subscriptions) >= self.limits.subscriptions_max:
            raise ProtocolError(
                "too-many-subscriptions",
                f"more than {self.limits.subscriptions_max} subscriptions on one connection",
                "Use wildcards or more connections, or raise subscriptions_max of the listener.",
            )
        name = headers["destination"]
        subscription_id = headers.get("id")
        table_key = subscription_id if subscription_id is not None else f"destination {name}"
        if table_key in self.subscriptions:
            raise ProtocolError(
                "subscription-exists",
                f"subscription {subscription_id if subscription_id is not None else name!r} is live already",
                "Give each subscription of a connection its own id, and UNSUBSCRIBE before you reuse it.",
            )
        try:
            addresses = self._addresses_to_subscribe(name)
            subscription = self._make_subscription(frame, addresses[0], subscription_id)
        except (DestinationNameError, DestinationLimitError) as error:
            raise ProtocolError("bad-destination", str(error)) from None
        self.subscriptions[table_key] = subscription
        self._by_key[subscription.key] = subscription
        exclusive = "true" in (headers.get("exclusive"), headers.get("activemq.exclusive"))
        try:
            for address in addresses:
                subscription.attachments.append(self.hub.registry.attach(address, subscription, exclusive=exclusive))
        except DestinationLimitError as error:
            raise ProtocolError("too-many-destinations", str(error)) from None
        self._receipt(headers.get("receipt"))

    def _addresses_to_subscribe(self, name: str) -> list[Address]:
        addresses = []
        for address in parse_composite(name):
            if address.temporary_global and address.canonical not in self._temporary:
                raise DestinationNameError(
                    f"{address.canonical} is a temporary destination of another connection: only its owner can subscribe"
                )
            if address.canonical.startswith(ADMIN_PREFIX):
                raise DestinationNameError(
                    f"{address.canonical} takes requests only: SEND to it with a reply-to"
                )
            addresses.append(self._global_address(address))
        return addresses

    def _make_subscription(self, frame: Frame, address: Address, subscription_id: str | None) -> StompSubscription:
        headers = frame.headers
        policy = self.hub.registry.policy_for(address)
        prefetch_count, prefetch_bytes = _prefetch(headers, policy.prefetch_count, policy.prefetch_bytes)
        key = self._next_key
        self._next_key += 1
        who = subscription_id if subscription_id is not None else headers["destination"]
        return StompSubscription(
            self.hub,
            self.outbound,
            key=key,
            subscription_id=subscription_id,
            label=f"{who} of {self.name}",
            destination=headers["destination"],
            ack=headers.get("ack", ACK_AUTO),
            version=self.version,
            prefetch_count=prefetch_count,
            prefetch_bytes=prefetch_bytes,
            totals=self.totals,
        )

    def _unsubscribe(self, frame: Frame) -> None:
        headers = frame.headers
        subscription_id = headers.get("id")
        name = headers.get("destination")
        table_key = subscription_id if subscription_id is not None else f"destination {name}"
        subscription = self.subscriptions.pop(table_key, None)
        if subscription is None:
            raise ProtocolError(
                "unknown-subscription",
                f"no live subscription {subscription_id if subscription_id is not None else name!r}",
                "UNSUBSCRIBE must name what SUBSCRIBE named.",
            )
        subscription.detach()
        self._forget_if_settled(subscription)
        self._receipt(headers.get("receipt"))

    def _forget_if_settled(self, subscription: StompSubscription) -> None:
        """A subscription that ended and has nothing unsettled is gone for good."""
        if subscription.unsubscribed and (subscription.ledger is None or not subscription.ledger.unsettled_count):
            if self._by_key.pop(subscription.key, None) is not None:
                subscription.close()

    # ------------------------------------------------------------------ ACK and NACK

    def _ack_run(self, run: AckRun) -> None:
        for subscription, ordinals in self._deliveries(run.tokens):
            self._settle(subscription, ordinals, nack=run.nack, transaction=None)

    def _ack_frame(self, frame: Frame) -> None:
        headers = frame.headers
        tokens: list[bytes] | list[tuple[bytes | None, bytes]]
        if self.version == "1.2":
            tokens = [headers["id"].encode()]
        else:
            subscription_id = headers.get("subscription")
            tokens = [(None if subscription_id is None else subscription_id.encode(), headers["message-id"].encode())]
        transaction = headers.get("transaction")
        if transaction is not None:
            self.transactions.get(transaction)
        for subscription, ordinals in self._deliveries(tokens):
            self._settle(subscription, ordinals, nack=frame.command == "NACK", transaction=transaction)
        self._receipt(headers.get("receipt"))

    def _settle(
        self, subscription: StompSubscription, ordinals: list[int], *, nack: bool, transaction: str | None
    ) -> None:
        ledger = subscription.ledger
        if ledger is None or not ordinals:
            return  # ack auto: nothing to settle, and clients that ACK all the same do no harm (b36)
        cumulative = subscription.ack == ACK_CLIENT
        try:
            portions: list[Portion]
            if transaction is not None:
                portions = ledger.hold(ordinals, through=cumulative)
                self.transactions.add_acks(transaction, subscription, portions, nack=nack)
                return
            portions = ledger.take_through(max(ordinals)) if cumulative else ledger.take(ordinals)
        except UnknownDeliveryError:
            raise _unknown_ack(f"{subscription.key}-{ordinals[-1]}") from None
        if nack:
            subscription.reject(portions)
        else:
            subscription.settle(portions)
        if subscription.unsubscribed:
            self._forget_if_settled(subscription)

    def _deliveries(
        self, tokens: list[bytes] | list[tuple[bytes | None, bytes]]
    ) -> Iterable[tuple[StompSubscription, list[int]]]:
        """Which deliveries these tokens name, in order, those of one subscription together where they follow each other."""
        first = tokens[0]
        if isinstance(first, bytes):
            return self._deliveries_by_ack(tokens)  # type: ignore[arg-type]
        return self._deliveries_by_message(tokens)  # type: ignore[arg-type]

    def _deliveries_by_ack(self, tokens: list[bytes]) -> Iterable[tuple[StompSubscription, list[int]]]:
        start = 0
        while start < len(tokens):
            key, dash, _ordinal = tokens[start].partition(b"-")
            subscription = self._by_key.get(int(key)) if dash and key.isdigit() and len(key) < 12 else None
            if subscription is None:
                if dash and key.isdigit() and len(key) < 12 and 0 < int(key) < self._next_key:
                    start += 1  # a subscription that is over and settled
                    continue
                raise _unknown_ack(tokens[start].decode("utf-8", "replace"))
            prefix = key + dash
            length = len(prefix)
            ordinals: list[int] = []
            while start < len(tokens) and tokens[start].startswith(prefix):
                digits = tokens[start][length:]
                if not digits.isdigit() or len(digits) > 18:
                    raise _unknown_ack(tokens[start].decode("utf-8", "replace"))
                ordinals.append(int(digits))
                start += 1
            yield subscription, ordinals

    def _deliveries_by_message(
        self, tokens: list[tuple[bytes | None, bytes]]
    ) -> Iterable[tuple[StompSubscription, list[int]]]:
        token = self.hub.message_token + b"-"
        for subscription_id, message_id in tokens:
            digits = message_id.removeprefix(token)
            if len(digits) == len(message_id) or not digits.isdigit() or len(digits) > 18:
                raise _unknown_ack(message_id.decode("utf-8", "replace"))
            number = int(digits)
            if subscription_id is not None:
                name = subscription_id.decode()
                live = self.subscriptions.get(name)
                if live is not None and live.ledger is not None and live.ledger.ordinal_of_number(number) is not None:
                    candidates = [live]
                else:  # perhaps of an earlier subscription with the same id
                    candidates = [s for s in self._by_key.values() if s.subscription_id == name]
            else:
                candidates = list(self._by_key.values())
            for subscription in candidates:
                if subscription.ledger is not None:
                    ordinal = subscription.ledger.ordinal_of_number(number)
                    if ordinal is not None:
                        yield subscription, [ordinal]
                        break
            # Not found: settled before (a cumulative ACK covered it), or ack auto. A number is not proof of a mistake.

    # ------------------------------------------------------------------ transactions

    def _begin(self, frame: Frame) -> None:
        self.transactions.begin(frame.headers["transaction"])
        self._receipt(frame.headers.get("receipt"))

    def _send_in_transaction(self, run: SendRun) -> None:
        assert run.head.transaction is not None
        try:
            self.transactions.add_sends(run.head.transaction, run)
        except ProtocolError as error:
            error.identify("SEND", {"destination": run.head.destination, "transaction": run.head.transaction})
            if run.receipts:
                error.receipt_id = run.receipts[0]
            raise
        self._receipts(run.receipts)

    def _abort(self, frame: Frame) -> None:
        transaction = self.transactions.end(frame.headers["transaction"])
        undo_acks(transaction)
        self.transactions.forget_bytes(transaction)
        self._receipt(frame.headers.get("receipt"))

    def _commit(self, frame: Frame) -> None:
        transaction = self.transactions.end(frame.headers["transaction"])
        self.transactions.forget_bytes(transaction)
        commit = Commit(transaction, frame.headers.get("receipt"), self._routed(transaction, frame))
        waits_for = commit.waits_for()
        if not waits_for:
            self._carry_out(commit)
            return
        for other in self._parked_commits:
            waits_for |= other.waits_for()
        if waits_for.isdisjoint(transaction.freed_queues()):
            commit.barrier = self.lanes.hold(commit.runs, transaction.size_bytes)
            self._parked_commits.append(commit)
            self._check_overfull()
            return
        # It makes room where it, or a COMMIT before it, waits: if it waited too, the connection could lock itself up.
        waiting, self._parked_commits = self._parked_commits, []
        for other in waiting:
            self._carry_out(other)
        self._carry_out(commit)

    def _routed(self, transaction: Transaction, frame: Frame) -> list[RoutedRun]:
        """Where its SENDs go. Raises ProtocolError, about the COMMIT, for a destination that can't be."""
        routed: list[RoutedRun] = []
        for run in transaction.sends:
            try:
                # Without its receipts: those went out when the SENDs came.
                route = self.lanes.route(run.head) or self._make_route(attrs.evolve(run, receipts=None))
            except ProtocolError as error:
                error.command = None
                error.identify(frame.command, frame.headers)
                raise
            if route is not None:
                routed.extend((run, forwarded, lane) for forwarded, lane in route.targets)
        return routed

    def _commit_parked(self) -> bool:
        """Carry out the COMMITs that waited and need not any more, in order. True: there was one, and something may have waited behind it."""
        carried_out = False
        while self._parked_commits and not self._parked_commits[0].waits_for():
            commit = self._parked_commits.pop(0)
            carried_out = True
            try:
                self._carry_out(commit)
            except ProtocolError as error:
                error.identify("COMMIT", commit.headers())
                self.fail(error)
        return carried_out

    def _carry_out(self, commit: Commit) -> None:
        """Everything of a transaction at once: settlements first, they make room; then the SENDs. Where these must wait all the same they
        are parked. Raises ProtocolError, nothing done, if a queue refuses or too much would be parked."""
        barrier = commit.barrier
        try:
            commit.check_room()
            waits_for = commit.waits_for()
            if waits_for:
                self._check_overfull(commit.transaction.size_bytes if barrier is None else 0)
            settle_acks(commit.transaction)
            for lane, runs in commit.runs.items():
                for run, forwarded in runs:
                    wires = self._rewrite(run.head, forwarded, run.wires)
                    if lane.queue.closed:
                        self.hub.registry.unheard_count += len(wires)
                    elif lane.queue in waits_for:
                        self.lanes.park(lane, forwarded, wires, sum(map(len, wires)), None, before=barrier)
                    else:
                        self._publish(lane, forwarded, wires, sum(map(len, wires)), None)
        finally:
            if barrier is not None:
                commit.barrier = None
                self.lanes.let_go(barrier)
                self._context.request_dispatch()
        self._receipt(commit.receipt_id)
        for subscription in list(self._by_key.values()):
            if subscription.unsubscribed:
                self._forget_if_settled(subscription)


def _unknown_ack(token: str) -> ProtocolError:
    return ProtocolError(
        "unknown-delivery",
        f"nothing was delivered to this connection under {token[:80]!r}",
        "ACK and NACK name the ack header of a MESSAGE (1.2), or its message-id and subscription (1.0, 1.1).",
    )


def _prefetch(headers: dict[str, str], count: int, size_bytes: int) -> tuple[int | None, int | None]:
    """The credit that a SUBSCRIBE asks for, in either dialect. `credit: messages,bytes`; 0 of RabbitMQ's `prefetch-count` means no limit,
    0 of ActiveMQ's means one at a time."""
    if "credit" in headers:
        first, _comma, second = headers["credit"].partition(",")
        parts = {"credit": first.strip(), "credit bytes": second.strip() or str(size_bytes)}
        wanted_count = whole_number(parts, "credit", 1_000_000)
        wanted_bytes = whole_number(parts, "credit bytes", 1 << 40)
        return max(1, wanted_count), max(1, wanted_bytes)
    if "prefetch-count" in headers:
        wanted = whole_number(headers, "prefetch-count", 1_000_000)
        return (None if wanted == 0 else wanted), size_bytes
    if "activemq.prefetchSize" in headers:
        return max(1, whole_number(headers, "activemq.prefetchSize", 1_000_000)), size_bytes
    return count, size_bytes

