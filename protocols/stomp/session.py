"""One STOMP connection: what its frames do to the broker, and what the broker sends back.

Bytes go in through `receive`, bytes leave through `outbound`; nothing here waits. What frames mean is in the pieces:
machine (protocol), sending and lanes (SENDs and the stash), subscribing, delivery and ledger (subscriptions),
committing and transactions, heartbeat. How far the life of the connection has come is one state (session_states). The
transport around it reads while `update_reading` names no reason not to, flushes `outbound`, and closes when `ending`
says so.

ACK bypass. A SEND to a destination that blocks is parked in its lane; everything else on the connection goes on: ACKs,
other destinations, heart-beats. Reading stops only when the stash is full *and* nothing unacknowledged is out, because
until then an ACK that would free the destination may be among the unread bytes. Such overfull reading is slow
(`reads_slowly`) and ends at `stash_overfull_bytes_max`: with an ERROR if the connection holds unacknowledged messages
of the very destinations that it waits for, because then it might wait for itself for ever; else reading stops. (A
connection that fills a destination without consumers, and means to subscribe to it behind all that, waits until another
client does: there is no bound to the bytes that would have to be read first.)

A large SEND (staging.py) holds back the frames behind it until its body is in a file.

DISCONNECT waits until what was parked before it has gone to its queues, unless the connection holds unacknowledged
messages: so a client that sends and leaves is blocked like all others. After the end of a connection its parked SENDs
still go to their queues (b50), as far as the broker has room: in lanes that ended sessions share (`left_behind`). A
session with other work stays as a drain until all is done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import attrs

from ...flow.bounds import UNBOUNDED
from ...queues.environment import DispatchHandle
from ...queues.names import HOST_SIGN
from ...queues.storage import Store
from ..framing import PLAIN, Framing, Piece
from ..outbound import Outbound
from ..reading import TURN_SECONDS, Hold, ReadGate, Reason
from .authorization import Action, Authorizer, Identity
from .committing import Committer
from .delivery import SessionTotals
from .errors import ProtocolError
from .escaping import Version
from .frames import (
    AckRun,
    Connect,
    Event,
    Fault,
    Frame,
    LargeSendEnd,
    LargeSendPiece,
    LargeSendStart,
    PassedRun,
    SendRun,
    UnheardRun,
)
from .head import SendHead
from .heartbeat import HeartBeat, heart_beat_missed
from .hub import Hub
from .lanes import Lanes, ParkingLimit
from .left_behind import Staying
from .limits import StompLimits
from .login import PendingLogin, connection_name, owned_client_id
from .machine import ServerMachine
from .publishing import LogPublisher, QueuePublisher
from .read_rate import ReadRateLimit
from .relaying.flows import opening_of
from .relaying.near import NearSession
from .relaying.relay import Relay
from .replies import Replies
from .requesting import SessionRequests
from .routing import Router
from .sending import Sender
from .session_states import SessionEvent, SessionState, moved
from .staging import Bodies, LargeRun, LargeSends, body_unreadable
from .subscribing import Subscriptions
from .temporary import TemporaryDestinations, names_temporary
from .transactions import Transactions
from .virtual_hosts import told_in_host

if TYPE_CHECKING:
    from ..streams import PeerCertificate

RECEIPT_BYTES: Final = 64
"""Approximate memory of one waiting RECEIPT; turns `receipts_pending_max` into bytes of control frames."""

_OPEN: Final = SessionState.OPEN
_LEAVING: Final = SessionState.LEAVING
_ENDING: Final = SessionState.ENDING
_DRAINING: Final = SessionState.DRAINING


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
        certificate: Callable[[], PeerCertificate | None] = lambda: None,
        listener: str = "",
        framing: Framing = PLAIN,
        confirmed_later: bool = False,
    ) -> None:
        """Make a session. `write` takes bytes without waiting; `wake_writer`: the kernel is full, call `flush` when it
        is not; `changed`: ask `update_reading` and `ending` again; `certificate`: of the peer; `listener`: the one it
        came by; `confirmed_later`: as for `Outbound`.
        """
        self.hub = hub
        self.certificate = certificate
        self.limits = limits
        self.peer = self.name = peer
        self.session_id = hub.new_session_id()
        self._authorizer = Authorizer(hub.guard, hub.registry, hub.logs)
        self.reading = reading = ReadGate(changed)
        self.entering = PendingLogin(
            hub,
            changed,
            reading.hold(Reason.LOGIN),
            timeout_seconds=limits.connect_timeout_seconds,
            late=self.fail,
        )
        unread = reading.count(Reason.RECEIPTS_READ, limits.receipts_pending_max * RECEIPT_BYTES)
        owed = reading.count(Reason.RECEIPTS_STORED, limits.outbound_bytes_max)
        spooling = reading.hold(Reason.TRANSACTIONS, is_passable=self._may_spool_on)
        self._listener = listener
        self._rated: ReadRateLimit | None = None
        self.totals = SessionTotals()
        self.state = SessionState.GREETING
        self.ending: str | None = None
        """Reason for the end of the connection, from ENDING on: flush, linger, close. None before that."""
        self.failed = False
        """Whether the connection ends with an ERROR that deserves attention: not at the shutdown of the broker."""
        self._broke = True
        """Whether the deliveries that consumers work on when the connection ends have failed: always but for DISCONNECT
        and that shutdown.
        """
        self.lost_count = 0
        """Messages that were parked when the connection ended, and that there was no room for any more."""
        self.sends_come_again = False
        """Whether the client is at another hub, the flow to that was lost, and it sends anew what has no RECEIPT."""
        self._changed, self._wake_writer = changed, wake_writer
        self._machine = ServerMachine(
            limits,
            server_name=hub.server_name,
            stages=hub.bodies is not None,
            heads=hub.manager.heads_account,
            may_pass=None if hub.elsewhere is None else self._may_pass,
        )
        self.receive_buffer = self._machine.receive_buffer
        """Buffer with room to read to, if the rest of a large frame comes next. Release the room, then call
        `receive_filled`.
        """
        self._large: LargeSends | None = None
        """Large SENDs of the session, if it has ever sent one."""
        self._held_back: Iterator[Event] | None = None
        """Events behind a large SEND or a SUBSCRIBE in the same read: they take effect after it."""
        self.outbound = Outbound(
            self.name,
            capacity_bytes=limits.outbound_bytes_max,
            manager=hub.manager,
            clock=hub.clock,
            write=write,
            request_flush=partial(hub.at_turn_end, self._flush_at_turn_end),
            stream_failed=self._body_is_unreadable,
            control=unread,
            framing=framing,
            confirmed_later=confirmed_later,
        )
        self.lanes = Lanes(
            self.name,
            stash_bytes_max=limits.stash_bytes_max,
            transaction_bytes_max=limits.transaction_bytes_max,
            spool_bytes_max=limits.transaction_spool_bytes_max,
            unfinished_bytes_max=limits.body_bytes_max + limits.header_block_bytes_max,
            manager=hub.manager,
            clock=hub.clock,
            on_resume=lambda: self._context.request_dispatch(),
            full=reading.hold(Reason.DESTINATIONS, is_passable=self._may_free_what_blocks),
        )
        self._context: DispatchHandle = hub.scheduling.register(self._dispatch, f"connection {peer}")
        self.transactions = Transactions(limits, lambda: self.lanes.transactions)
        self._replies = Replies(self.outbound, owed)
        self._temporary = TemporaryDestinations(hub.registry, self.session_id, names_max=limits.subscriptions_max)
        self.subscriptions = Subscriptions(
            hub,
            limits,
            self.outbound,
            self._temporary,
            self.transactions,
            self._replies,
            self.totals,
            self._authorizer,
            name=self.name,
            fail=self.fail,
            wake=self._context.request_dispatch,
            reading=reading,
        )
        parking = ParkingLimit(self.lanes, limits.stash_overfull_bytes_max, held_of=self.subscriptions.unsettled_of)
        self._router = Router(hub, self.lanes, self._temporary, self._authorizer)
        self._queue_publisher = QueuePublisher(hub.registry, self.lanes, self._router, self._replies)
        self._log_publisher = LogPublisher(self.lanes, self._replies, self.fail)
        self._requests = SessionRequests(
            hub,
            self.lanes,
            parking,
            self._router,
            self._queue_publisher,
            self._temporary,
            self._replies,
            self._authorizer,
            fail=self.fail,
            state=lambda: self.state,
        )
        self._requests.set_credit = self.subscriptions.set_credit
        self._sender = Sender(
            hub,
            self.lanes,
            parking,
            self._router,
            self._queue_publisher,
            self._log_publisher,
            self._requests,
            self._replies,
            fail=self.fail,
            do=self.subscriptions.work.do,
            pass_over=self._machine.pass_over,
        )
        self._committer = Committer(
            hub,
            self.transactions,
            self.lanes,
            parking,
            self._router,
            self._requests,
            self._sender,
            self.subscriptions,
            self._replies,
            limits=limits,
            fail=self.fail,
            wake=self._context.request_dispatch,
            hold=spooling,
        )
        self._heart_beat: HeartBeat | None = None
        self._relay: Relay | None = None
        """Use of other hubs by the client; None: there is no cluster."""
        self._take: Callable[[Event], None] = self._take_here
        """Lets an event take effect."""
        if hub.elsewhere is not None:
            near = NearSession(
                hub=hub,
                limits=limits,
                outbound=self.outbound,
                temporary=self._temporary,
                replies=self._replies,
                lanes=self.lanes,
                totals=self.totals,
                take=self._take_here,
                flush=self._sender.flush,
                fail=self.fail,
                pass_on_error=self._pass_on_error,
                unsettled=lambda: self.unsettled_count,
                is_live=self.subscriptions.live.__contains__,
                set_credit=self.subscriptions.set_credit,
                give_back=self.subscriptions.give_back,
                client_id=lambda: self.subscriptions.client_id,
                opening=self._opening,
            )
            self._relay = Relay(near, hub.elsewhere, reading)
            self._take = self._relay.take
            self._sender.goes_elsewhere = self._relay.goes_elsewhere
            self._requests.behind = self._relay.behind
        self._client_id = ""
        self._host: str | None = None
        """Prefix of the virtual host that the client was let into; None: there are none, or it was not let in yet."""
        self._leaving_receipt: str | None = None
        self._staying: Staying | None = None
        self._handlers: dict[str, Callable[[Frame], None]] = {
            "SUBSCRIBE": self.subscriptions.subscribe,
            "UNSUBSCRIBE": self.subscriptions.unsubscribe,
            "ACK": self.subscriptions.ack_frame,
            "NACK": self.subscriptions.ack_frame,
            "BEGIN": self._committer.begin,
            "COMMIT": self._committer.commit,
            "ABORT": self._committer.abort,
            "DISCONNECT": self._disconnect,
        }

    @property
    def version(self) -> Version:
        """The version that was agreed on; 1.0 before that."""
        return self._replies.version

    # ------------------------------------------------------------------ its life

    def _move(self, event: SessionEvent) -> None:
        self.state = moved(self.state, event)

    @property
    def connected(self) -> bool:
        """Whether the client has logged in, also when it has gone by now."""
        return self._machine.version is not None

    @property
    def is_ending(self) -> bool:
        """Whether no more frames are read."""
        return self.state >= _ENDING

    @property
    def closed(self) -> bool:
        """Whether the session has no socket any more."""
        return self.state >= _DRAINING

    # ------------------------------------------------------------------ for the transport

    def _blocking(self) -> Hold | None:
        # While it leaves nothing more can come but the end.
        return None if self.state is _LEAVING else self.reading.blocking()

    @property
    def reading_blocked_by(self) -> Reason | None:
        """Reason not to read from the peer now, None if the session should read."""
        hold = self._blocking()
        return None if hold is None else hold.reason

    def update_reading(self) -> Reason | None:
        """Act on `reading_blocked_by`, and return it: the flow map tells it, and silence is no sign of death while the
        connection is not read.
        """
        hold = self._blocking()
        was_read = not self.lanes.waiting_for
        self.lanes.waiting_for = "" if hold is None else hold.words
        if was_read is not (hold is None) and self._heart_beat is not None:
            if was_read:
                self._heart_beat.reading_paused()
            else:
                self._heart_beat.reading_resumed()
        return None if hold is None else hold.reason

    @property
    def is_read_as_usual(self) -> bool:
        """Whether a plain read is allowed: the session is open, no hold is on or was noted, and nothing waits for
        `resume`.
        """
        lanes = self.lanes
        return self.state is _OPEN and not (
            lanes.waiting_for or self.reading.held_count or self._held_back or lanes.stash.limiter.throttled
        )

    def _may_spool_on(self) -> bool:
        return self._committer.waits_for_room and self._may_free_what_blocks()

    def _may_free_what_blocks(self) -> bool:
        """The bytes that were not read yet may hold ACKs that others wait for, or this connection itself."""
        if not self.unsettled_count:
            return False
        if self.lanes.stash_bytes <= self.limits.stash_overfull_bytes_max:
            return True
        return bool(self.subscriptions.unsettled_of(self.lanes.blocked_queues()))

    @property
    def reads_slowly(self) -> bool:
        """Whether the stash is full, or transactions wait for the disk, and reading continues only to find ACKs."""
        return (
            self.lanes.stash_is_full or self._committer.must_wait or (self._relay is not None and self._relay.is_full)
        ) and self.state is not _LEAVING

    @property
    def unsettled_count(self) -> int:
        """Deliveries that this connection has not acknowledged."""
        return self.subscriptions.unsettled_count

    def receive_filled(self, size_bytes: int) -> None:
        """Receive, as `receive`, `size_bytes` that were written into the `room` of `receive_buffer`."""
        self._machine.fill(size_bytes)
        self.receive(b"", size_bytes)

    def receive(self, data: bytes, filled_bytes: int = 0) -> None:
        """Receive bytes. Their frames take effect before this returns, or, if they are expensive, in turns."""
        self.totals.bytes_in += (size_bytes := filled_bytes or len(data))
        if self._heart_beat is not None:
            self._heart_beat.bytes_arrived()
        try:
            self._receive(data)
        finally:
            self._account(size_bytes)

    def took_beat(self) -> bool:
        """Receive a single EOL. True: it is a heart-beat, and there is no more work. False: `receive` it."""
        if self._heart_beat is None or self._machine.pending_bytes or self._large is not None:
            return False
        self.totals.bytes_in += 1
        self._heart_beat.bytes_arrived()
        return True

    @property
    def takes_turns(self) -> bool:
        """Whether the last frames were expensive: other connections have their turn now, then `resume` is due."""
        return self._held_back is not None and not self._must_hold_back

    @property
    def holds_back(self) -> bool:
        """Whether events that were read wait for `resume`."""
        return self._held_back is not None or self.state is SessionState.DECIDING

    def resume(self) -> None:
        """Work through held back events, if they may take effect now. Call before `update_reading`."""
        if not self.holds_back:
            return
        try:
            if self.state is SessionState.DECIDING and self._let_in():
                self._receive(b"")  # the frames behind the CONNECT
            if self.takes_turns:
                held_back, self._held_back = self._held_back, None
                self._work_through(held_back or iter(()))
                if self._heart_beat is not None:
                    self._heart_beat.bytes_arrived()  # input of the peer is not read meanwhile
            else:
                self.subscriptions.work.hold_back()
        except ProtocolError as error:
            self.fail(error)
        finally:
            self._account(0)

    def _receive(self, data: bytes) -> None:
        assert self._held_back is None, "read only while nothing is held back"
        while self._work_through(self._machine.receive_in_steps(data)):
            data = b""  # frames pipelined behind CONNECT can be parsed now

    def _work_through(self, events: Iterator[Event]) -> bool:
        """Let events take effect, in order. True: the last of them was an accepted CONNECT."""
        accepted = False
        until = (clock := self.hub.clock)() + TURN_SECONDS
        try:
            for event in events:
                if (state := self.state) is not _OPEN and (state is _LEAVING or state >= _ENDING):
                    return False
                self._take(event)
                if self._must_hold_back and self.state is not _LEAVING:
                    self._held_back = events
                    self.subscriptions.work.hold_back()
                    return False
                if not (accepted := isinstance(event, Connect)) and clock() >= until:
                    self._held_back = events
                    break
            self._sender.flush()
        except ProtocolError as error:
            self.fail(error)
            return False
        return accepted and self.state is _OPEN

    @property
    def _must_hold_back(self) -> bool:
        """Whether the following events have to wait."""
        return self.subscriptions.work.pauses or (self._large is not None and self._large.is_committing)

    def _account(self, read_bytes: int) -> None:
        if self._rated is not None:
            self._rated.charge(read_bytes)
        self._account_unfinished()
        self.lanes.trim()

    def _account_unfinished(self) -> None:
        """Bytes of a frame that has not come whole are on the flow map, too."""
        collected_bytes = 0 if self._large is None else self._large.collected_bytes
        self.lanes.note_unfinished(self._machine.pending_bytes + collected_bytes)

    def flush(self) -> None:
        """Write what waits. Raises OSError when the connection is broken."""
        if self.state >= _DRAINING:
            return
        if not self.outbound.flush():
            self._wake_writer()
        if self.lanes.waiting_for or self.state >= _ENDING:
            # The written bytes may be the receipts, or the deliveries to be acknowledged, for which reading was
            # stopped; or the last ones of the connection.
            self._changed()

    def _flush_at_turn_end(self) -> None:
        try:
            self.flush()
        except OSError as error:
            self.end(f"connection lost: {error.strerror or error}")

    def end(self, reason: str) -> None:
        """The connection is to end, without an ERROR."""
        if self.state < _ENDING:
            self._move(SessionEvent.END)
            self.ending = reason
            self._changed()

    def fail(self, error: ProtocolError, *, peers_fault: bool = True) -> None:
        """Send ERROR and end the connection (b29, b52, b53)."""
        # Its frames hold their current objects, such as a message that was rejected, and these hold the error: such a
        # ring would keep the message, and the file of a large one, until the garbage collector finds it.
        error.__traceback__ = error.__context__ = None
        error.receipt_id = self._replies.asked_for(error.receipt_id)
        if prefix := self._temporary.host_prefix:
            error.reword(partial(told_in_host, prefix=prefix))
        if self.state < _ENDING:
            self._end_with(self._machine.fail(error), f"{error.code}: {error.message}", peers_fault=peers_fault)

    def _pass_on_error(self, frame: bytes) -> None:
        """Send the ERROR of another hub and end the connection."""
        if self.state < _ENDING:
            self._machine.park()
            self._end_with(frame, "ERROR of another hub", peers_fault=True)

    def _end_with(self, frame: bytes, ending: str, *, peers_fault: bool) -> None:
        self._move(SessionEvent.END)
        self.outbound.send_control(frame)
        self.outbound.end()
        self.failed = peers_fault
        self._broke = self._broke and peers_fault
        self.ending = ending
        self.entering.give_up()
        if self._large is not None:
            self._large.abort()
        if self._broke:
            self.subscriptions.note_worked_on()  # before durable subscriptions take back what they have out
        self.subscriptions.detach_all()
        self._changed()

    def close(self) -> None:
        """Close the session, whose socket is gone (or about to be): requeue unacknowledged deliveries, undo open
        transactions. Parked SENDs drain on.
        """
        if self.closed:
            return
        self._move(SessionEvent.CLOSE)
        self.ending = self.ending or "closed"
        self._machine.park()
        self._held_back = None
        self.entering.give_up()
        if self._host is not None and self.hub.hosts is not None:
            self.hub.hosts.leave(self._host)
        if self._rated is not None:
            self._rated.close()
            self._rated = None
        if self._relay is not None:
            self._relay.close()
        if self._large is not None:
            self._large.close()
        self._account_unfinished()
        if self._heart_beat is not None:
            self._heart_beat.stop()
        if self._broke:
            self.subscriptions.note_worked_on()
        self.subscriptions.detach_all()
        self.subscriptions.work.do(self._closing())

    def _closing(self) -> Iterator[object]:
        """Release everything of the session after the last delivery, in steps."""
        self.outbound.close()
        if self._broke:
            yield from self.subscriptions.noting_worked_on()  # and of those that were given up before
        yield from self._committer.closing()
        yield from self.subscriptions.returning_unsettled()
        yield from self._temporary.closing(f"its connection {self.peer} ended")
        yield from self._leave_behind()
        self._context.request_dispatch()

    @property
    def unread_replies_count(self) -> int:
        """Number of messages that came to temporary queues that this connection had named and never received from."""
        return self._temporary.unread_count

    @property
    def is_closing(self) -> bool:
        """Whether the session is closed, and its deliveries are being requeued."""
        return self.closed and self.subscriptions.work.is_busy

    def _leave_behind(self) -> Iterator[None]:
        """Send parked runs on, if the broker has room for them: without this session, unless it has other work."""
        yield from self.lanes.leaving()
        is_moving = self._committer.is_moving or bool(self.lanes.barriers_count or self.lanes.committed_count)
        is_busy = self._large is not None and self._large.is_committing
        self._staying = yield from self.hub.left_behind.leave(self, is_moving=is_moving, is_busy=is_busy)

    @property
    def is_drained(self) -> bool:
        """Closed, and nothing is parked any more."""
        return self.state is SessionState.ENDED and not self.is_closing

    @property
    def is_confirmed(self) -> bool:
        """Whether nothing that was done for this client waits for a store, with a RECEIPT or without."""
        return self._replies.is_confirmed

    def let_go(self, shard: int) -> bool:
        """Use the destinations of a shard by way of the hub that will have it: it is about to be closed here. What
        waits for them goes there, subscriptions are made again there, and what was not acknowledged comes again,
        marked. False: that can't be, for instance because of a transaction, and nothing has changed.
        """
        relay = self._relay
        if relay is None or self.state is not _OPEN or not relay.can_let_go(shard):
            return False
        if self._large is not None and self._large.is_under_way:
            return False
        if any(transaction.shard == shard for transaction in self.transactions):
            return False
        parked = self.lanes.give_away(shard)
        if parked is None:
            return False
        relay.let_go(shard, parked)
        return True

    # ------------------------------------------------------------------ frames

    def _may_pass(self, head: SendHead) -> bool:
        """Return whether SENDs with this head go to another hub as they lie."""
        return self._relay is not None and self._relay.may_pass(head)

    def _take_here(self, event: Event) -> None:
        """Let an event take effect at this hub. Raises ProtocolError."""
        if isinstance(event, SendRun):
            self.totals.messages_in_count += len(event.wires)
            if event.head.transaction is None:
                self._sender.send(event)
                return
            self._sender.flush()
            self._committer.send(event)
            return
        self._sender.flush()
        if isinstance(event, UnheardRun):
            self.totals.messages_in_count += event.count
            self._sender.take_unheard(event)
        elif isinstance(event, AckRun):
            self.subscriptions.ack_run(event)
        elif isinstance(event, Frame):
            try:
                self._handlers[event.command](event)
            except ProtocolError as error:
                error.identify(event.command, event.headers)
                raise
        elif isinstance(event, Connect):
            self._connect(event)
        elif isinstance(event, Fault):
            raise event.error
        elif isinstance(event, PassedRun):
            self._take_here(event.cut())
        else:
            self._take_large(event)

    # ------------------------------------------------------------------ large bodies

    def _take_large(self, event: LargeSendStart | LargeSendPiece | LargeSendEnd) -> None:
        if self._large is None:
            assert self.hub.bodies is not None, "the machine was told so"
            self._large = LargeSends(
                self._bodies_for,
                self.lanes,
                self.reading,
                arrived=self._large_send_arrived,
                failed=self.fail,
                changed=self._large_send_changed,
                clock=self.hub.clock,
                holds_deliveries=lambda: bool(self.unsettled_count),
            )
        self._large.take(event)

    def _bodies_for(self, destination: str) -> tuple[Bodies, Store | None]:
        if self._temporary.host_prefix:
            destination = ",".join([each.canonical for each in self._temporary.in_host_of_all(destination)])
        return self.hub.bodies_for(destination)

    def _large_send_arrived(self, run: LargeRun) -> None:
        """The body is in its file. It was complete before the connection ended, if it did, so it counts (b50)."""
        self.totals.messages_in_count += 1
        head = run.head
        if self.closed and (head.transaction is not None or names_temporary(head)):
            self.hub.registry.unheard_count += 1  # the transaction is undone, the destination is deleted
            return
        try:
            if head.transaction is None:
                self._sender.send_large(run)
            else:
                self._committer.send(run)
        except ProtocolError as error:
            self.fail(error)

    def _large_send_changed(self) -> None:
        self._changed()
        if self.closed:
            self._context.request_dispatch()

    def _body_is_unreadable(self, _error: Exception, is_begun: bool) -> None:
        """Requeue a message for this connection whose body can't be read. The keeper of the files logs the error."""
        self._broke = False  # its consumer did nothing wrong; the next consumer of the message knows that it has failed
        if is_begun:
            # In the midst of a frame nothing can be said any more.
            self.end("the body of a message for it can't be read")
            self.failed = True
            self.close()
        else:
            self.fail(body_unreadable())

    # ------------------------------------------------------------------ connecting and leaving

    def _connect(self, event: Connect) -> None:
        self._move(SessionEvent.CONNECT)
        self.entering.begin(event, peer=self.peer, listener=self._listener, certificate=self.certificate())
        self._let_in()

    def _let_in(self) -> bool:
        """Accept the client if its login is decided. Raises ProtocolError if the login is refused."""
        if (decided := self.entering.take()) is None:
            return False
        event, identity = decided
        self._replies.version = event.version
        client_id = event.headers.get("client-id", "")
        if self.hub.hosts is not None:
            self._host = self.hub.hosts.enter(event.host, identity, client_id)
            self._temporary.has_hosts = True
            self._temporary.host_prefix = self._host
        self._become(identity)
        self._name(self._authorizer.identity, client_id)
        if self._client_id:
            self.hub.claim_client_id(self.subscriptions.client_id, self)
        self._move(SessionEvent.ACCEPTED)
        limits, machine = self.limits, self._machine
        offered = (limits.heart_beat_min_ms, limits.heart_beat_min_ms) if limits.heart_beat_max_ms else (0, 0)
        stamped = identity.user if self.hub.guard.stamps_user else None
        self.outbound.send_control(
            machine.accept(self.session_id, heart_beat=offered, stamped_user=stamped, origin=identity.origin)
        )
        read_every_ms, write_every_ms = machine.read_every_ms, machine.write_every_ms
        if read_every_ms or write_every_ms:
            self._heart_beat = HeartBeat(
                self.hub.scheduling,
                self.hub.clock,
                read_every_ms=read_every_ms,
                write_every_ms=write_every_ms,
                grace_factor=self.limits.heart_beat_grace_factor,
                last_written=self._last_written,
                beat=self.outbound.beat,
                dead=self._peer_is_dead,
            )
        return True

    @property
    def identity(self) -> Identity:
        """Identity of the connection."""
        return self._authorizer.identity

    @property
    def user(self) -> str | None:
        """User of the connection; None: no users are configured."""
        return self._authorizer.identity.user

    @property
    def virtual_host(self) -> str | None:
        """Name of the virtual host of the client, `/` for the default one; None: there are none."""
        return None if self._host is None else self._host.removeprefix(HOST_SIGN) or "/"

    @property
    def origin(self) -> str:
        """Region whose messages the connection brings; empty: it is a client's."""
        return self._authorizer.identity.origin

    def _name(self, identity: Identity, client_id: str) -> None:
        """Call the connection by its client-id (if it gave one) or user."""
        self.lanes.keep(2 * len(client_id))
        self._client_id = client_id
        self.subscriptions.client_id = owned_client_id(identity, client_id)
        name = self.name = connection_name(self.peer, client_id or identity.user or "")
        self.lanes.name = self.outbound.name = self.subscriptions.name = name

    def _opening(self) -> dict[str, object]:
        """Return the facts about this client for another hub."""
        return opening_of(
            self._authorizer.identity,
            self.version,
            self.outbound.framing,
            self.limits,
            peer=self.peer,
            session_id=self.session_id,
            client_id=self._client_id,
        )

    @property
    def pending_bytes(self) -> int:
        """Bytes that were received and have had no effect yet."""
        return self._machine.pending_bytes

    @property
    def read_bytes_max(self) -> int:
        """Maximum of bytes to read at once, lest a limit per second is overdrawn for long."""
        return UNBOUNDED if self._rated is None else self._rated.read_bytes_max

    def _become(self, identity: Identity) -> None:
        if self._host:
            identity = attrs.evolve(identity, host=self._host)
        self._authorizer.identity = identity
        if self._rated is not None:
            self._rated.close()
        gates = self.hub.guard.rates_of(identity, self._listener)
        self._rated = ReadRateLimit(gates, self.lanes, self.totals, self.hub.clock, self.reading) if gates else None

    def identity_changed(self, identity: Identity | None) -> None:
        """Apply changed permissions, groups or rates. None: the user no longer exists. What is no longer allowed ends
        with an ERROR; SENDs that were parked already are still sent on.
        """
        if not _OPEN <= self.state < _ENDING:
            return
        if identity is None or not self.hub.guard.may(identity, Action.CONNECT, self._listener or None):
            self.fail(
                ProtocolError(
                    "forbidden",
                    "no permission to connect any more",
                    "Users or permissions of the broker were changed.",
                )
            )
            return
        try:
            if self._host is not None and self.hub.hosts is not None:
                self.hub.hosts.check(self._host, identity)
        except ProtocolError as error:
            self.fail(error)
            return
        self._become(identity)
        self.lanes.forget_routes()
        if self._relay is not None:
            self._relay.review()
        try:
            self.subscriptions.review()
        except ProtocolError as error:
            self.fail(error)
        self._changed()

    def _last_written(self) -> float:
        """Time of the last write. While bytes wait for the kernel it is now: only an idle line needs a beat."""
        return self.hub.clock() if self.outbound.waiting_bytes else self.outbound.last_taken_seconds

    def _peer_is_dead(self, silent_seconds: float) -> None:
        self.fail(heart_beat_missed(silent_seconds))

    def _disconnect(self, frame: Frame) -> None:
        self._broke = False
        self._move(SessionEvent.DISCONNECT)
        self.subscriptions.detach_all()
        self._committer.abort_all()
        self._leaving_receipt = frame.headers.get("receipt")
        if self._is_sending and not self.unsettled_count:
            self.subscriptions.work.do(self._temporary.closing(f"its connection {self.peer} ended"))  # no more reads
            if self._heart_beat is not None:
                self._heart_beat.stop()
            self._context.request_dispatch()
        else:
            self._leave()

    def _leave(self) -> None:
        """Answer DISCONNECT and end the connection: nothing waits for its queues any more."""
        self._move(SessionEvent.SENT_ON)
        if self._heart_beat is not None:
            self._heart_beat.reading_paused()  # nothing has to come from the peer any more
        self._replies.last(self._leaving_receipt, self.hub.store, partial(self.end, "DISCONNECT"))

    @property
    def _is_sending(self) -> bool:
        """Whether some SENDs have not gone to their queues yet."""
        if self._large is not None and self._large.is_committing:
            return True
        return bool(self.lanes.parked_count) or self._committer.is_waiting

    # ------------------------------------------------------------------ what was parked

    def _dispatch(self, budget: int) -> bool:
        """Send on parked runs that may continue now."""
        self.subscriptions.work.begin_turn()
        more = self.lanes.unpark(budget, self._sender.publish_parked, self._committer.next_place)
        more = more or self._committer.commit_waiting()
        if self._committer.move_on() or more:
            return True
        if not self._is_sending:
            if _DRAINING <= self.state < SessionState.ENDED and not self.is_closing:
                more = self._end_drain()
            elif self.state is _LEAVING:
                self._leave()
        self.lanes.trim()
        self._changed()
        return more

    def _end_drain(self) -> bool:
        """End the drain: the stash is empty. Transactions on the disk may wait much longer for their queues. True:
        there is more to do.
        """
        is_over = not self._committer.is_moving
        if self._staying is not None:
            self._staying.drained(ends=is_over)
        if self.state is _DRAINING:
            self._move(SessionEvent.SENT_ON)
        if is_over:
            self._staying = None
            if not self.lanes.close_lanes():
                return True
            self._move(SessionEvent.RELEASED)
            self._context.close()
        return False
