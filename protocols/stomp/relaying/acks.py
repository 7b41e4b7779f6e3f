"""ACK and NACK of one client, each to the hub of the delivery that it names.

In STOMP 1.2 the ack header of a delivery over a flow begins with the number of the flow; in 1.0 and 1.1 the beginning
of the message-id, its shard and the subscription tell the hub. What names a delivery of a lost flow is forgotten, for
the message comes again; with a receipt or in a transaction it ends the connection.
"""

from __future__ import annotations

from typing import Final

from ....queues.shard_hash import shard_of_number
from ..errors import ProtocolError
from ..escaping import escape_value
from ..frames import AckRun, Frame
from ..placement import Elsewhere
from .far import Far
from .flows import Flows
from .near import NearSession
from .routes import HERE
from .subscriptions import FarSubscriptions
from .transactions import FarTransactions

TOKEN_LENGTH: Final = 8
"""Length of the first part of message-ids; keys of subscriptions are shorter."""
_LOG_TOKEN: Final = b"log."
_ESCAPED: Final = b"\\\r\n:"
"""Bytes that are escaped in a header value."""
_ACK_END: Final = b"\n\n\0\n"


class FarAcks:
    """ACKs and NACKs of one client."""

    def __init__(
        self,
        near: NearSession,
        elsewhere: Elsewhere,
        flows: Flows,
        subscriptions: FarSubscriptions,
        transactions: FarTransactions,
    ) -> None:
        self._near = near
        self._elsewhere = elsewhere
        self._flows = flows
        self._subscriptions = subscriptions
        self._transactions = transactions

    def take_run(self, run: AckRun) -> None:
        """Pass a run of ACKs on. Those of lost flows are forgotten."""
        if not self._flows.last_serial:
            self._near.take(run)
            return
        command = b"NACK" if run.nack else b"ACK"
        if self._near.version == "1.2":
            self._pass_ids(command, run)
        else:
            self._pass_messages(command, run)

    def take(self, frame: Frame) -> None:
        """Pass on an ACK or NACK with a receipt or in a transaction. Raises ProtocolError."""
        headers = frame.headers
        version = self._near.version
        if version == "1.2":
            found = self._far_of_ack(headers["id"].encode())
        else:
            subscription_id = headers.get("subscription")
            found = self._far_of_message(
                None if subscription_id is None else subscription_id.encode(), headers["message-id"].encode()
            )
        transaction = headers.get("transaction")
        if found is None:
            if transaction is None and "receipt" not in headers:
                return
            raise ProtocolError(
                "unknown-delivery",
                "this message is not with this connection any more: the hub that had delivered it was lost",
                "It is redelivered, marked as such.",
            )
        hub = found.hub if isinstance(found, Far) else HERE
        if transaction is not None:
            self._transactions.bind(transaction, hub, acknowledges=True)
        if not isinstance(found, Far):
            self._near.take(frame)
            return
        if version == "1.2" and headers["id"].encode().startswith(found.prefix):
            frame = Frame(frame.command, {**headers, "id": headers["id"].partition(".")[2]})
        found.send_frame(frame, version)

    def _pass_ids(self, command: bytes, run: AckRun) -> None:
        tokens: list[bytes] = run.tokens  # type: ignore[assignment]
        first = tokens[0]
        prefix = first[: first.find(b".") + 1]
        if prefix and prefix[:-1].isdigit():
            lead = command + b"\nid:"
            data = lead + (_ACK_END + lead).join(tokens) + _ACK_END
            ids = b"".join(tokens)
            needs_no_escape = len(ids.translate(None, _ESCAPED)) == len(ids)
            if needs_no_escape and data.count(b"id:" + prefix) == len(tokens):
                far = self._flows.of_prefix(prefix)
                if far is not None:
                    far.send(data.replace(b"id:" + prefix, b"id:"))
                return
        here: list[bytes] = []
        for token in tokens:
            found = self._far_of_ack(token)
            if isinstance(found, str):
                here.append(token)
            elif found is not None:
                own = token.partition(b".")[2] if token.startswith(found.prefix) else token
                found.send(command + b"\nid:" + escape_value(own.decode(), "1.2").encode() + _ACK_END)
        if here:
            self._near.take(AckRun(run.nack, here))

    def _pass_messages(self, command: bytes, run: AckRun) -> None:
        here: list[tuple[bytes | None, bytes]] = []
        tokens: list[tuple[bytes | None, bytes]] = run.tokens  # type: ignore[assignment]
        for subscription_id, message_id in tokens:
            found = self._far_of_message(subscription_id, message_id)
            if isinstance(found, str):
                here.append((subscription_id, message_id))
            elif found is not None:
                lines = b"" if subscription_id is None else b"subscription:" + self._escaped(subscription_id) + b"\n"
                found.send(command + b"\n" + lines + b"message-id:" + self._escaped(message_id) + _ACK_END)
        if here:
            self._near.take(AckRun(run.nack, here))

    def _escaped(self, value: bytes) -> bytes:
        return escape_value(value.decode(), self._near.version).encode()

    def _far_of_ack(self, token: bytes) -> Far | str | None:
        """Return the flow of a delivery, by its ack header; HERE: none; None: a lost one."""
        serial, dot, _rest = token.partition(b".")
        if dot and serial.isdigit() and len(serial) < 12 and 0 < int(serial) <= self._flows.last_serial:
            return self._flows.of_prefix(serial + dot)
        key = token.partition(b"-")[0]
        if key.isdigit() and len(key) < TOKEN_LENGTH:
            return HERE  # an ack header of this hub; what names a message-id instead begins with its token
        return self._far_of_message(None, token)

    def _far_of_message(self, subscription_id: bytes | None, message_id: bytes) -> Far | str | None:
        """Return the flow of a delivery, by its message-id; HERE: none; None: a lost one."""
        token, _dash, digits = message_id.rpartition(b"-")
        number = int(digits) if digits.isdigit() and len(digits) < 19 else 0
        name = None if subscription_id is None else subscription_id.decode()
        named = None if name is None else self._subscriptions.get(name)
        if named is not None and len(named.hubs) == 1 and not named.covers_all:
            (hub,) = named.hubs
            if (only := self._flows.at(hub)) is not None:
                return only  # whatever the number: a dead letter has that of another hub
        hub_here = self._near.hub
        if token == hub_here.message_token and hub_here.has_number(number):
            some = [far for far in self._flows if far.subs]
            return some[0] if len(some) == 1 and not self._near.unsettled() else HERE
        shard = shard_of_number(number)
        for far in self._flows:
            if far.has_message(token, shard, self._elsewhere):
                return far
        if token.startswith(_LOG_TOKEN):
            for far in self._flows:
                for key, frame in far.subs.items():
                    if key == name or (name is None and frame.headers["destination"].startswith("/log/")):
                        return far
            return HERE
        is_known = name is None or named is not None
        return None if is_known and self._flows.last_serial > len(self._flows) else HERE
