"""Requests of one connection to the broker itself: SENDs to `/sluiceway/…`, answered in JSON to their `reply-to`.

Those of a transaction are checked when it is committed, and made when the rest of it has taken effect: nothing of a
COMMIT that is refused was done.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from ...queues.destination import Destination
from ...queues.intake import Run as QueueRun
from ...queues.message import Message
from ...queues.names import DestinationNameError, Kind, parse_composite
from ...queues.registry import DestinationLimitError
from .authorization import Authorizer, ForbiddenError
from .errors import ProtocolError
from .frames import SendRun
from .head import SendHead
from .hub import Behind, Hub
from .lanes import Lanes, ParkingLimit
from .publishing import QueuePublisher
from .replies import Replies
from .routing import ADMIN_PREFIX, CREDIT_REQUEST, Router, about_send, send_error
from .session_states import SessionState
from .subscribe_headers import IN_FORCE
from .temporary import TemporaryDestinations

ABOUT_CONNECTIONS: Final = frozenset({CREDIT_REQUEST, f"{ADMIN_PREFIX}sessions", f"{ADMIN_PREFIX}cluster"})
"""Requests that clients of virtual hosts may make, too."""
UNANSWERED_MAX: Final = 100
"""Requests of one connection that may wait for their answers."""


class SessionRequests:
    """Makes the requests of one connection, and sends their answers as its SENDs."""

    __slots__ = (
        "_authorizer",
        "_fail",
        "_hub",
        "_lanes",
        "_parking",
        "_queues",
        "_replies",
        "_router",
        "_state",
        "_temporary",
        "_unanswered_count",
        "behind",
        "set_credit",
    )

    def __init__(
        self,
        hub: Hub,
        lanes: Lanes,
        parking: ParkingLimit,
        router: Router,
        queues: QueuePublisher,
        temporary: TemporaryDestinations,
        replies: Replies,
        authorizer: Authorizer,
        *,
        fail: Callable[[ProtocolError], None],
        state: Callable[[], SessionState],
    ) -> None:
        """Make the requests of a connection. `fail`: end the connection with this error, found when no frame of it is
        being read; `state`: that of the session.
        """
        self._hub = hub
        self._lanes = lanes
        self._parking = parking
        self._router = router
        self._queues = queues
        self._temporary = temporary
        self._replies = replies
        self._authorizer = authorizer
        self._fail = fail
        self._state = state
        self.set_credit: Callable[[Mapping[str, str]], dict[str, object]]
        """Sets the credit of a subscription of the connection as the headers of a request say, and returns what is in
        force then. Raises ProtocolError.
        """
        self._unanswered_count = 0
        """Number of requests without an answer yet."""
        self.behind: Behind | None = None
        """See `Hub.answer`."""

    def _reply_place(self, run: SendRun) -> tuple[str, Destination | None]:
        """Return the place of the answer to a request to the broker itself; None: its client is gone. Raises
        ProtocolError.
        """
        head = run.head
        try:
            reply_to = self._temporary.with_global_reply_to(head).reply_to
            if reply_to is None:
                raise DestinationNameError(
                    f"a request to {head.destination} needs a reply-to, such as /temp-queue/reply"
                )
            address = self._temporary.in_host(parse_composite(reply_to)[0])
            if address.wildcard:
                raise DestinationNameError(f"cannot reply to the wildcard {reply_to}: name one destination")
            if address.kind is Kind.LOG:
                raise DestinationNameError(f"cannot reply to the log {reply_to}: name a queue or a topic")
        except DestinationNameError as error:
            raise send_error(run, "bad-reply-to", str(error)) from None
        except DestinationLimitError as error:
            raise send_error(run, error.code, str(error)) from None
        self._router.check([address], run)
        return reply_to, self._router.destination(address, run)

    def _check_host(self, run: SendRun) -> None:
        """Raise ProtocolError for a request of a client of a virtual host that is about more than its connection."""
        if self._temporary.host_prefix and run.head.destination not in ABOUT_CONNECTIONS:
            raise send_error(
                run,
                "not-supported",
                f"a request to {run.head.destination} in a virtual host: clients of the default host (host:/) make it, "
                "about destinations of all hosts",
            )

    def _check_unanswered(self, run: SendRun, reply_to: str, more_count: int) -> None:
        if self._lanes.stash_is_full or self._unanswered_count + more_count > UNANSWERED_MAX:
            raise send_error(
                run,
                "too-many-requests",
                f"answers to {reply_to} are not read, or more than {UNANSWERED_MAX} are not there yet: read them "
                "before you ask again",
            )

    @contextmanager
    def _requesting(self, run: SendRun) -> Iterator[None]:
        try:
            yield
        except ForbiddenError as forbidden:
            raise about_send(self._authorizer.refusal(forbidden), run) from None
        except KeyError:
            name = run.head.destination
            message = f"there is no request {name}: try {ADMIN_PREFIX}stat"
            raise send_error(run, "unknown-request", message) from None

    def checking(self, runs: Sequence[SendRun]) -> Iterator[None]:
        """Check the requests of a COMMIT. Raises ProtocolError if one would be refused, nothing done. In steps."""
        count = 0
        for run in runs:
            self._check_host(run)
            reply_to, _destination = self._reply_place(run)
            name, start = run.head.destination, run.head.body_offset
            for wire in run.wires:
                count += 1
                self._check_unanswered(run, reply_to, count)
                with self._requesting(run):
                    self._hub.check_request(name, wire[start:-1], self._authorizer.identity)
                yield

    def answering(self, run: SendRun, *, is_checked: bool = False) -> Iterator[None]:
        """A request to the broker itself: the JSON reply goes to `reply-to`. In steps. `is_checked`: it waited for its
        COMMIT. Raises ProtocolError.
        """
        head = run.head
        if head.destination == CREDIT_REQUEST:
            self._set_credit(run)
            return
        if not is_checked:
            self._check_host(run)
        asked = SendRun(head, [], 0, run.receipts)  # what was asked with is not kept until the answer comes
        reply_to, destination = self._reply_place(run)
        for wire in run.wires:
            if not is_checked:
                self._check_unanswered(run, reply_to, 1)

            def answered(body: bytes | ForbiddenError) -> None:
                self._unanswered_count -= 1
                if self._state() >= SessionState.MOVING:
                    return
                if isinstance(body, ForbiddenError):
                    self._fail(about_send(self._authorizer.refusal(body), asked))
                elif destination is not None:
                    self._reply(head, reply_to, destination, body)

            self._unanswered_count += 1
            with self._requesting(run):
                try:
                    self._hub.answer(
                        head.destination,
                        wire[head.body_offset : -1],
                        answered,
                        self._authorizer.identity,
                        behind=self.behind,
                    )
                except (ForbiddenError, KeyError):
                    self._unanswered_count -= 1
                    raise
            yield
        self._replies.receipts(run.receipts)

    def _set_credit(self, run: SendRun) -> None:
        """A request about a subscription of this very connection: in force when the next frame is read, and answered
        only if it has a `reply-to`.
        """
        head = run.head
        place = None if head.reply_to is None else self._reply_place(run)
        try:
            in_force = self.set_credit(head.headers)
        except ProtocolError as error:
            raise about_send(error, run) from None
        if place is not None and place[1] is not None:
            self._reply(head, place[0], place[1], json.dumps(in_force).encode())
        if self._hub.ack_prefix:  # another hub has asked for its client, and makes the answer
            for receipt_id in run.receipts or ():
                self._replies.later(receipt_id, {IN_FORCE: json.dumps(in_force)})()
            return
        self._replies.receipts(run.receipts)

    def _reply(self, head: SendHead, reply_to: str, destination: Destination, body: bytes) -> None:
        """The answer is a SEND of the one who asked: where it has no room, it waits in the asker's stash."""
        reply = head.for_answer(reply_to, len(body))
        message = Message(reply, reply.block + b"\n\n" + body + b"\0", self._hub.take_numbers(1))
        size_bytes = len(message.wire)
        lane = self._lanes.lane(destination, destination.partition_for(reply))
        if destination.queue.closed:
            return  # the client has removed the place of the answer
        if lane.must_wait or not self._queues.offer(lane, [message], size_bytes, None):
            if self._state() >= SessionState.DRAINING:
                return  # an answer that finds no room is not waited for
            if lane.queue.intake.takes_answer():
                lane.queue.intake.take_together([QueueRun([message], message.size_bytes)], lane.source)
                return
            error = self._parking.refusal(size_bytes)
            if error is not None:
                self._fail(error)
                return
            self._lanes.park(lane, [message], size_bytes, None)
