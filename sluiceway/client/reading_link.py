"""A link whose frames are read by a thread, which hands them to their owner.

An owner that blocks stops the reading, and the broker sees a slow reader, as it should; heart-beats continue.

Not here: reconnecting (`outbox`, `reader`), sending (`producer`), receiving (`consumer`).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Protocol

from sluiceway.client.address import Address
from sluiceway.client.errors import ClientError, ConnectionLostError, RefusedError
from sluiceway.client.link import CLOSE_SECONDS, Link


class Owner(Protocol):
    """User of a link. Called in the link's thread, one call at a time."""

    def message(self, link: ReadingLink, headers: Mapping[str, str], body: bytes) -> None:
        """A MESSAGE. May block."""

    def receipt(self, link: ReadingLink, receipt_id: str, headers: Mapping[str, str]) -> None:
        """A RECEIPT."""

    def refused(self, link: ReadingLink, receipt_id: str | None, error: RefusedError) -> None:
        """An ERROR after CONNECTED. `lost` follows."""

    def lost(self, link: ReadingLink, error: ClientError) -> None:
        """The connection has ended without being closed here. Called once."""


class ReadingLink:
    """A connection, from `open` to `close` or its loss."""

    def __init__(self, address: Address, owner: Owner) -> None:
        self._owner = owner
        self._link = Link(address, is_shared=True)
        self._closing = False
        self._over = threading.Event()
        """Set when reading has ended."""
        self._thread = threading.Thread(target=self._read, name=f"sluiceway-link-{address}", daemon=True)

    def open(self) -> None:
        """Connect, and wait for CONNECTED. Raises CannotConnectError, or RefusedError with the broker's words."""
        self._link.open()
        self._thread.start()

    def send(self, destination: str, body: bytes, headers: Mapping[str, str]) -> None:
        """SEND. Blocks while the broker does not read. Raises ConnectionLostError."""
        self._link.send(destination, body, headers)

    def subscribe(self, destination: str, *, ack: str, headers: Mapping[str, str]) -> None:
        """SUBSCRIBE. Raises ConnectionLostError."""
        self._link.subscribe(destination, ack=ack, headers=headers)

    def acknowledge(self, token: str) -> None:
        """ACK of the MESSAGE with that `ack` header. Raises ConnectionLostError."""
        self._link.acknowledge(token)

    @property
    def ended(self) -> bool:
        """Whether the link was lost or closed."""
        return self._link.ended

    def close(self) -> None:
        """DISCONNECT, wait until the broker has taken all that was sent before, and end. `lost` will not be called.
        From the owner's handlers, or when it has ended already, it only cuts the connection.
        """
        is_polite = not self._closing and not self._link.ended and threading.current_thread() is not self._thread
        self._closing = True
        if is_polite:
            try:
                self._link.say_goodbye()
                self._over.wait(CLOSE_SECONDS)
            except ConnectionLostError:
                pass  # the expected end of an own request
        self._link.cut()

    def cut(self) -> None:
        """End at once, without a word. `lost` will not be called."""
        self._closing = True
        self._link.cut()

    def _read(self) -> None:
        owner = self._owner
        error: ClientError
        try:
            while True:
                frame = self._link.next_frame()
                if frame is None or self._closing:
                    continue
                if frame.command == "MESSAGE":
                    owner.message(self, frame.headers, frame.body)
                elif frame.command == "RECEIPT":
                    owner.receipt(self, frame.headers.get("receipt-id", ""), frame.headers)
        except RefusedError as refusal:
            error = refusal
            if not self._closing:
                owner.refused(self, refusal.receipt_id, refusal)
        except ConnectionLostError as loss:
            error = loss
        finally:
            self._over.set()
        self._link.cut()
        if not self._closing:
            owner.lost(self, error)
