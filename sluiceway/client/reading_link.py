"""A link whose frames are read by a thread, which hands them to their owner.

An owner that blocks stops the reading, and the broker sees a slow reader, as it should; heart-beats continue.

Not here: reconnecting (`outbox`, `reader`), sending (`producer`), receiving (`consumer`).
"""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Mapping
from typing import Protocol

from sluiceway.client.errors import ClientError, ConnectionLostError, RefusedError
from sluiceway.client.link import CLOSE_SECONDS, CONNECT_SECONDS, Link
from sluiceway.client.way import FOLLOW_SECONDS, QUESTION, Way, connected
from sluiceway.protocols.stomp.frames import Frame


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

    def moved(self, link: ReadingLink) -> None:
        """The destination has gone to another hub: a new link would be made to that one. May be called again."""


class ReadingLink:
    """A connection, from `open` to `close` or its loss."""

    def __init__(self, way: Way, owner: Owner) -> None:
        self._owner = owner
        self._way = way
        self._link = Link(way.address)
        """A link that was not opened, until `open` has chosen."""
        self._closing = False
        self._over = threading.Event()
        """Set when reading has ended."""
        self._thread = threading.Thread(target=self._read, name=f"sluiceway-link-{way.address}", daemon=True)

    def open(self) -> None:
        """Connect to the hub that the way leads to. Raises CannotConnectError, or RefusedError."""
        self._link = connected(
            self._way,
            lambda address, seconds: Link(address, is_shared=True, timeout_seconds=seconds or CONNECT_SECONDS),
        )
        self._thread.start()
        if self._way.follows:
            threading.Thread(target=self._ask, name=f"sluiceway-way-{self._link.address}", daemon=True).start()

    def send(self, destination: str, body: bytes, headers: Mapping[str, str]) -> None:
        """SEND. Blocks while the broker does not read. Raises ConnectionLostError."""
        self._link.send(destination, body, headers)

    def subscribe(self, destination: str, *, ack: str, headers: Mapping[str, str]) -> str:
        """SUBSCRIBE; returns the id. Raises ConnectionLostError."""
        return self._link.subscribe(destination, ack=ack, headers=headers)

    def set_credit(self, subscription_id: str, headers: Mapping[str, str]) -> None:
        """Ask for other credit of a subscription. Raises ConnectionLostError."""
        self._link.set_credit(subscription_id, headers)

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

    def _ask(self) -> None:
        """Ask where the destination is, now and then. In a thread of its own: writing waits for a broker that does not
        read, and frames are to be read meanwhile.
        """
        body = json.dumps(self._way.request).encode()
        try:
            while not self._link.wait_ended(FOLLOW_SECONDS * random.uniform(0.8, 1.2)):
                self._link.post(QUESTION, body)
        except ClientError:
            pass  # readers meet the same error

    def _leads_elsewhere(self, frame: Frame) -> bool:
        try:
            return self._way.told(json.loads(frame.body))
        except ValueError:
            return False

    def _read(self) -> None:
        owner = self._owner
        error: ClientError
        try:
            while True:
                frame = self._link.next_frame()
                if frame is None or self._closing:
                    continue
                if frame.command == "MESSAGE" and self._link.is_reply(frame):
                    if self._leads_elsewhere(frame):
                        owner.moved(self)
                elif frame.command == "MESSAGE":
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
