"""SENDs with large bodies: the body goes to a file while it arrives; then it is a SEND like any other.

The session hands over start, pieces and end as the machine tells of them. When the file is complete a `LargeRun` goes
the way of all SENDs: routes, lanes, transactions, receipts. What came behind it on the connection waits until then, so
order is kept, and a RECEIPT says that the file is complete (synced, if the message is persistent).

Reasons to stop reading: too many bytes wait for the disk, a complete body is not in its file yet, or the disk is nearly
full. Then a body waits, persistent or not: the reserve is for consuming. But a connection with unacknowledged
deliveries gets an ERROR, for its ACKs may be behind the body.

The ports are here, with their user: `Bodies` keeps files, `BodyStaging` is a file that is being written. store/large.py
implements them.

Source: seed 002 "Large Message Support": «we should be able to stage them to disk».
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import attrs

from ...flow import Flow, FlowResource, SourceController
from ...queues.large import BodyError, BodyReference
from ...queues.storage import Store
from ..reading import ReadGate, Reason
from .errors import ProtocolError
from .frames import LargeSendEnd, LargeSendPiece, LargeSendStart, SendRun


class BodyStaging(Protocol):
    """One body on its way to its file."""

    @property
    def collected_bytes(self) -> int:
        """Bytes that are held in memory until there are more."""

    def write(self, piece: bytes) -> None:
        """The next bytes; may block the source. Raises BodyError."""

    def commit(self, done: Callable[[BodyReference | BodyError], None]) -> None:
        """Complete the body; `done` is called later, when the body is in its file or can't be."""

    def abort(self) -> None:
        """Drop the body, which will never be complete. Does nothing after `commit`."""


class Bodies(Protocol):
    """Port to the files of large bodies. No method waits; blocking work is done elsewhere, and answered on the loop."""

    @property
    def references_count(self) -> int:
        """Number of references to bodies that are alive: 0 while no message has one."""

    def begin(
        self, length_bytes: int, *, durable: bool, source: SourceController, failed: Callable[[BodyError], None]
    ) -> BodyStaging:
        """Begin a body (`length_bytes`: -1 if it is unknown). `source` is blocked while too many bytes wait to be
        written; `failed`: called when the body can't be written. Raises BodyError if there is no room.
        """

    def read(
        self, body: BodyReference, offset: int, size_bytes: int, done: Callable[[bytes | Exception], None]
    ) -> None:
        """`done` is called later with these bytes, or why they can't be had."""


@attrs.define(slots=True)
class LargeRun(SendRun):
    """One SEND whose body is in a file; its wire ends with the blank line."""

    body: BodyReference = attrs.field(kw_only=True)


class LargeSends:
    """The large SENDs of one connection, one at a time."""

    __slots__ = (
        "_arrived",
        "_changed",
        "_failed",
        "_file_hold",
        "_holds_deliveries",
        "_place_of",
        "_room_hold",
        "_source",
        "_staging",
        "_start",
        "_store",
        "is_committing",
    )

    def __init__(
        self,
        place_of: Callable[[str], tuple[Bodies, Store | None]],
        connection: FlowResource,
        reading: ReadGate,
        *,
        arrived: Callable[[LargeRun], None],
        failed: Callable[[ProtocolError], None],
        changed: Callable[[], None],
        clock: Callable[[], float],
        holds_deliveries: Callable[[], bool],
    ) -> None:
        """`place_of`: see `Hub.bodies_for`; `reading`: of that connection; `arrived`: publish this; `failed`: end the
        connection with this; `changed`: a body has come whole; `holds_deliveries`: the connection has something to
        acknowledge.
        """
        self._place_of = place_of
        self._store: Store | None = None
        """Store that knows whether the disk of the arriving body has room."""
        self._holds_deliveries = holds_deliveries
        self._arrived = arrived
        self._failed = failed
        self._changed = changed
        self._start: LargeSendStart | None = None
        self._staging: BodyStaging | None = None
        self.is_committing = False
        """A body has come whole and is not in its file yet."""
        self._file_hold = reading.hold(Reason.LARGE_MESSAGE)
        """Hold of reading until a complete body is in its file."""
        self._room_hold = reading.hold(Reason.LARGE_MESSAGE)
        """Hold while too many bytes are on their way to the disk, or the disk is nearly full."""
        self._source: SourceController = self._room_hold.source(
            connection, Flow(f"large messages of {connection.name}"), clock=clock
        )

    @property
    def collected_bytes(self) -> int:
        """Bytes of an arriving body that are held in memory."""
        return 0 if self._staging is None else self._staging.collected_bytes

    @property
    def is_under_way(self) -> bool:
        """Whether a body is arriving, or is being completed."""
        return self._staging is not None or self.is_committing

    def take(self, event: LargeSendStart | LargeSendPiece | LargeSendEnd) -> None:
        """Raises ProtocolError, about that SEND, if its body can't be stored."""
        try:
            if isinstance(event, LargeSendPiece):
                assert self._staging is not None, "a piece without a start"
                self._wait_for_room()
                self._staging.write(event.data)
            elif isinstance(event, LargeSendStart):
                self._start = event
                try:
                    bodies, self._store = self._place_of(event.head.destination)
                except ValueError as error:
                    raise self._cannot_be(error) from None
                self._wait_for_room()
                self._staging = bodies.begin(
                    event.head.content_length,
                    durable=event.head.persistent,
                    source=self._source,
                    failed=lambda _error: self._failed(self._cannot_store()),
                )
            else:
                assert self._staging is not None, "an end without a start"
                self.is_committing = True
                self._file_hold.take()
                self._staging.commit(self._committed)
        except BodyError:
            # The fault of the disk is for the log, where the keeper of the files reports it.
            raise self._cannot_store() from None

    def _wait_for_room(self) -> None:
        """Stop reading if the disk is nearly full; bytes that came are still taken. Raises ProtocolError."""
        store, source = self._store, self._source
        if store is None or source.blocked or store.accepts(source):
            return
        if self._holds_deliveries():
            raise self._cannot_store()
        store.hold_back(source)

    def _committed(self, result: BodyReference | BodyError) -> None:
        start = self._start
        assert start is not None
        self.is_committing = False
        self._file_hold.release()
        self._staging = None
        if isinstance(result, BodyError):
            self._failed(self._cannot_store())
        else:
            wire = start.head.block + b"\n\n"
            receipts = None if start.receipt is None else [start.receipt]
            self._arrived(LargeRun(start.head, [wire], len(wire), receipts, body=result))
        self._start = None
        self._changed()

    def _cannot_be(self, why: ValueError) -> ProtocolError:
        start = self._start
        assert start is not None
        error = ProtocolError(
            "not-supported",
            str(why),
            "Send it to each of them, or give their names the same part in braces.",
            receipt_id=start.receipt,
            headers=start.head.headers,
        )
        error.command = "SEND"
        return error

    def _cannot_store(self) -> ProtocolError:
        start = self._start
        assert start is not None
        error = ProtocolError(
            "body-not-stored",
            "the broker can't store the body of this SEND",
            "Its disk may be full, or its limit for large messages be reached; its log says more. Send it again when "
            "there is room.",
            receipt_id=start.receipt,
            headers=start.head.headers,
        )
        error.command = "SEND"
        return error

    def abort(self) -> None:
        """Drop the body that is incomplete and will stay so."""
        if self._staging is not None and not self.is_committing:
            self._staging.abort()
            self._staging = None

    def close(self) -> None:
        """End with the connection. A complete body still goes its way."""
        self.abort()
        self._source.close()
        self._room_hold.release()


def body_unreadable() -> ProtocolError:
    """The ERROR for a consumer whose next message has a body that can't be read."""
    return ProtocolError(
        "body-unreadable",
        "the body of a large message can't be read",
        "It is on the disk of the broker, whose log says more. The message was requeued.",
    )
