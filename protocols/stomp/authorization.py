"""Identity and permissions of a connection: the port `Guard` decides, `Authorizer` asks the port for one connection.

A decision is about one identity, one action and one destination by its full name (`/queue/orders`), and costs a
look-up, so that it may be asked for each SUBSCRIBE and each new head of a SEND. It may change while the broker runs (a
reload of the configuration): `generation` changes then, and code that keeps a decision compares it.

A refusal names the destination as the client wrote it and the permission that is missing, and nothing of what exists:
whether there is such a destination is looked at only for those who may use it.

`sluiceway.security` implements the port. Not here: how passcodes are checked (`SecurityGate.log_in`), how entries are
written (docs/permissions.md).
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Protocol

import attrs

from ...flow import SourceController
from ...queues.logs.table import LogTable
from ...queues.names import DestinationName, Kind
from ...queues.registry import DestinationRegistry
from .errors import ProtocolError


@attrs.frozen(slots=True)
class Identity:
    """Identity of a connection."""

    user: str | None
    """Name of the user; None: no users are configured."""
    groups: frozenset[str] = frozenset()
    origin: str = ""
    """Region whose messages the connection brings; empty: it is a client's. Only the broker makes such connections."""
    source: str = ""
    """Issuer or directory that vouches for the user; empty: the configuration."""
    host: str = ""
    """Prefix of the names of the virtual host that the connection uses, such as `/@shop`; empty: the default host."""
    until_seconds: float | None = attrs.field(default=None, eq=False)
    """End of the login, on the broker's clock; None: it has none. Decisions do not depend on it."""


ANYBODY = Identity(None)
"""Identity of every connection where no users are configured."""


class Action(enum.Enum):
    """Kinds of permission. The value is the word in the configuration and in messages."""

    CONNECT = "connect"
    SEND = "send"
    RECEIVE = "receive"
    CREATE = "create"
    BROWSE = "browse"
    ADMIN = "admin"


class ForbiddenError(Exception):
    """The identity lacks the permission."""

    def __init__(self, action: Action, destination: str | None = None) -> None:
        super().__init__(f"no permission to {action.value} {destination or 'the broker'}")
        self.action = action
        self.destination = destination


class RateGate(Protocol):
    """A limit per second, which connections share."""

    @property
    def label(self) -> str:
        """Text for people: `rate limit of user web`."""

    @property
    def read_bytes_max(self) -> int:
        """The most that one connection should read at once."""

    def charge(self, count: int, size_bytes: int, source: SourceController) -> None:
        """Charge SENDs and bytes that came in. Blocks the source while the rate is exceeded."""

    def leave(self) -> None:
        """A connection that got it from `Guard.rates_of` does not use it any more."""


class Guard(Protocol):
    """Decides."""

    @property
    def generation(self) -> int:
        """Another number whenever a decision may have become another."""

    @property
    def allows_everything(self) -> bool:
        """Whether nothing is ever refused, because no users are configured. If so, no other method need be asked."""

    def may(self, identity: Identity, action: Action, destination: str | None = None) -> bool:
        """Whether the identity has the permission. `destination`: the full name; for a wildcard address, whether any
        destination in it may be allowed; None: the broker as a whole. For CONNECT: the name of a listener, None: any
        listener. Never blocks.
        """

    def refused(self, action: Action) -> None:
        """Count a refusal, for statistics."""

    @property
    def stamps_user(self) -> bool:
        """Whether each SEND gets a header with the name of its user."""

    def rates_of(self, identity: Identity, listener: str) -> list[RateGate]:
        """The limits that a connection has to keep; it leaves each of them when it ends."""


class Authorizer:
    """Permissions of one connection: asks the guard, and words refusals."""

    __slots__ = ("_logs", "_registry", "guard", "identity")

    def __init__(self, guard: Guard, registry: DestinationRegistry, logs: LogTable | None) -> None:
        """`registry` and `logs` tell which destinations exist: to make one takes a permission of its own."""
        self.guard = guard
        self._registry = registry
        self._logs = logs
        self.identity = ANYBODY
        """Identity of the connection."""

    def may(self, action: Action, destination: str) -> bool:
        """Whether the connection may do that to the destination of this full name."""
        return self.guard.may(self.identity, action, destination)

    def check(self, action: Action, addresses: Iterable[DestinationName]) -> None:
        """Raises ProtocolError if one of the addresses may not be used, or would have to be made and may not be.
        Nothing is made. Names of temporary destinations must be global, and those to receive from the connection's own.
        """
        if self.guard.allows_everything:
            return
        fixed = [address for address in addresses if not (address.temporary_local or address.temporary_global)]
        for address in fixed:
            if not self.may(action, address.canonical):
                raise self.refusal(ForbiddenError(action, address.canonical))
        if action is Action.BROWSE:
            return  # a missing destination is not made
        for address in fixed:
            if not address.wildcard and not self._exists(address) and not self.may(Action.CREATE, address.canonical):
                raise self.refusal(ForbiddenError(Action.CREATE, address.canonical))

    def _exists(self, address: DestinationName) -> bool:
        if address.kind is Kind.LOG:
            return self._logs is not None and address.canonical in self._logs.logs
        return address.canonical in self._registry.destinations

    def refusal(self, forbidden: ForbiddenError) -> ProtocolError:
        """Make the ERROR for a refusal, and count it."""
        self.guard.refused(forbidden.action)
        what = forbidden.action.value
        where = f" on {forbidden.destination}" if forbidden.destination is not None else ""
        hint = " (it is not there yet)" if forbidden.action is Action.CREATE else ""
        return ProtocolError(
            "forbidden",
            f"no permission to {what}{where}{hint}",
            f"The user of this connection needs the permission {what}{where}; the operator of the broker can grant it.",
        )
