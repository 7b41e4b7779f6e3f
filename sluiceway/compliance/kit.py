"""Tools of a check: connections, names of its own, and helpers that read what is left in a queue."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

import attrs

from sluiceway.compliance.client import Client, Closed, Late, Transcript
from sluiceway.compliance.dialects import Dialect
from sluiceway.compliance.registry import Check, Failed, Unclear, Unsupported
from sluiceway.compliance.transport import Deadline, Ended, Target
from sluiceway.compliance.wire import Frame, Headers, frame, pairs

CONNECTIONS_MAX: Final = 40
"""Connections of one check."""


@attrs.frozen
class Settings:
    """Options of a run."""

    target: Target
    dialect: Dialect = attrs.field(factory=Dialect)
    seed: str = "0"
    """Part of all names, so that runs do not meet."""
    timeout_seconds: float = 5.0
    """Limit of each wait for something that must come."""
    quiet_seconds: float = 0.3
    """Time in which nothing must come where nothing may come."""
    check_seconds: float = 30.0
    """Limit of one check."""
    beat_ms: int = 400
    """Heart-beats that are asked for."""
    beat_ms_max: int = 3000
    """Longest time between heart-beats that is waited for."""

    @property
    def host(self) -> str:
        """Header `host` of CONNECT."""
        return self.dialect.host if self.dialect.host is not None else self.target.host


class Kit:
    """Tools of one check, in the version that the check is about."""

    def __init__(self, settings: Settings, check: Check, queues: list[str]) -> None:
        """`queues`: list of the run, to which the names of queues are added, for the cleaning up."""
        self.settings = settings
        self.version = check.version
        self.transcript = Transcript()
        self.choice = ""
        """Words on what the broker does where it has the choice."""
        self._is_about_connecting = check.area in ("connect", "probe")
        self._name = check.name.replace("/", "-").replace(".", "")
        self._queues = queues
        self._clients: list[Client] = []
        self._deadline = time.monotonic() + settings.check_seconds

    def saw(self, words: str) -> None:
        """Note the broker's choice."""
        self.choice = f"{self.choice}; {words}" if self.choice else words

    @property
    def is_later(self) -> bool:
        """True from 1.1 on."""
        return self.version != "1.0"

    # -- names --------------------------------------------------------------------------------------------------------

    def queue(self, suffix: str = "a") -> str:
        """Return the name of a queue of this check."""
        name = self.settings.dialect.queue.format(name=f"compliance-{self.settings.seed}-{self._name}-{suffix}")
        if name not in self._queues:
            self._queues.append(name)
        return name

    def topic(self, suffix: str = "a") -> str:
        """Return the name of a topic of this check."""
        return self.settings.dialect.topic.format(name=f"compliance-{self.settings.seed}-{self._name}-{suffix}")

    # -- connections --------------------------------------------------------------------------------------------------

    def open(self, version: str | None = None) -> Client:
        """Open a connection, without CONNECT."""
        if len(self._clients) >= CONNECTIONS_MAX:
            raise Unclear(f"the check wants more than {CONNECTIONS_MAX} connections")
        version = version or self.version
        number = len(self._clients) + 1
        seconds = self.settings.timeout_seconds
        try:
            wire = self.settings.target.dial(version, seconds)
        except (OSError, Deadline, Ended) as error:
            self.transcript.note(number, "!", str(error).encode())
            raise Unclear(f"no connection to the broker: {error}") from None
        client = Client(wire, version, number, self.transcript, seconds, self._deadline)
        self._clients.append(client)
        return client

    def connect_headers(self, version: str | None = None) -> list[tuple[str, str]]:
        """Return the headers of a plain CONNECT."""
        version = version or self.version
        dialect = self.settings.dialect
        headers = [] if version == "1.0" else [("accept-version", version), ("host", self.settings.host)]
        if dialect.login is not None:
            headers.append(("login", dialect.login))
        if dialect.passcode is not None:
            headers.append(("passcode", dialect.passcode))
        return headers

    def connect(self, headers: Headers = (), *, version: str | None = None, command: str = "CONNECT") -> Client:
        """Open a connection and CONNECT in the check's version, or another one. Without CONNECTED raises
        Failed if the check is about connecting, else Unclear.
        """
        client = self.open(version)
        try:
            client.send(frame(command, [*self.connect_headers(client.version), *pairs(headers)]))
            return self.accepted(client)
        except Failed as failed:
            if self._is_about_connecting:
                raise
            raise Unclear(f"no session, which the check needs: {failed}") from None

    def accepted(self, client: Client) -> Client:
        """Wait for CONNECTED."""
        client.connected = client.expect("CONNECTED")
        client.reader.version = client.version
        return client

    def close(self) -> None:
        """Close all connections."""
        for client in self._clients:
            client.close()

    # -- frames -------------------------------------------------------------------------------------------------------

    def to(self, destination: str, *more: tuple[str, str]) -> list[tuple[str, str]]:
        """Return the headers of a SEND to a queue."""
        return [("destination", destination), *self.settings.dialect.send_headers, *more]

    def of(
        self, destination: str, subscription: str = "1", ack: str = "", *more: tuple[str, str]
    ) -> list[tuple[str, str]]:
        """Return the headers of a SUBSCRIBE to a queue."""
        headers = [("id", subscription), ("destination", destination)]
        if ack:
            headers.append(("ack", ack))
        return [*headers, *self.settings.dialect.subscribe_headers, *more]

    def subscribed(
        self, destination: str, ack: str = "", subscription: str = "1", *, version: str | None = None
    ) -> Client:
        """Open a connection that is subscribed to a queue."""
        client = self.connect(version=version)
        self.subscribe(client, destination, ack, subscription)
        return client

    def subscribe(self, client: Client, destination: str, ack: str = "", subscription: str = "1") -> None:
        """SUBSCRIBE to a queue, and wait for the RECEIPT."""
        client.receipted("SUBSCRIBE", self.of(destination, subscription, ack))

    def produce(self, destination: str, *bodies: bytes, headers: Headers = ()) -> None:
        """Send messages over a connection of their own, each confirmed by a RECEIPT."""
        with self.connect() as client:
            for body in bodies:
                client.receipted("SEND", self.to(destination, *pairs(headers)), body)

    def round_trip(self, data: bytes, destination: str, version: str | None = None) -> Frame:
        """Subscribe to a queue, send these bytes on the same connection, and return the MESSAGE."""
        client = self.subscribed(destination, version=version)
        client.send(data)
        return client.message()

    def ack_headers(self, message: Frame, subscription: str = "1") -> list[tuple[str, str]]:
        """Return the headers that name a MESSAGE in ACK and NACK. Raises Failed if the MESSAGE lacks what they need."""
        if self.version == "1.2":
            ack = message.get("ack")
            if ack is None:
                raise Failed("a MESSAGE with the header ack, since it has to be acknowledged", "it has none")
            return [("id", ack)]
        message_id = message.get("message-id")
        if message_id is None:
            raise Failed("a MESSAGE with the header message-id", "it has none")
        named = [("message-id", message_id)]
        return [*named, ("subscription", subscription)] if self.version == "1.1" else named

    def remaining(self, destination: str, awaited: Iterable[bytes] = ()) -> list[bytes]:
        """Return the bodies that a new consumer gets: `awaited` ones are waited for, and more for a moment."""
        due = set(awaited)
        bodies: list[bytes] = []
        with self.subscribed(destination, "auto") as client:
            end = time.monotonic() + self.settings.timeout_seconds
            while due - set(bodies) and (left := end - time.monotonic()) > 0:
                try:
                    bodies.append(self._next(client, left))
                except (Late, Closed):
                    break
            while True:
                try:
                    bodies.append(self._next(client, self.settings.quiet_seconds))
                except (Late, Closed):
                    return bodies

    def _next(self, client: Client, seconds: float) -> bytes:
        came = client.backlog.pop(0) if client.backlog else client.frame("a MESSAGE", seconds)
        if came.command != "MESSAGE":
            raise Failed("MESSAGEs", f"came {came.command}")
        return came.body

    def left(self, destination: str, *expected: bytes) -> None:
        """Raise Failed unless exactly these messages are in the queue, in any order."""
        bodies = self.remaining(destination, expected)
        if sorted(bodies) != sorted(expected):
            raise Failed(f"exactly {_listed(expected)} for the next consumer", f"came {_listed(bodies)}")

    def need(self, condition: object, what: str) -> None:
        """Raise Unsupported with `what` unless the condition holds."""
        if not condition:
            raise Unsupported(what)


def _listed(bodies: Iterable[bytes]) -> str:
    names = [body.decode("utf-8", "backslashreplace") for body in bodies]
    return ", ".join(names) if names else "no message"
