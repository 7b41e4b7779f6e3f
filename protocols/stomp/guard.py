"""Who a connection is, and what it may do: the port that sessions ask. `sluiceway.security` implements it.

A decision is about one identity, one action and one destination by its full name (`/queue/orders`), and costs a
look-up, so that it may be asked for each SUBSCRIBE and each new head of a SEND. It may change while the broker runs
(a reload of the configuration): `generation` is another number then, and whoever keeps a decision compares it.

Not here: how passcodes are checked (`Broker.log_in`), how entries are written (docs/permissions.md).
"""

from __future__ import annotations

import enum
from typing import Protocol

import attrs

from ...flow import SourceController


@attrs.frozen(slots=True)
class Identity:
    """Who a connection is."""

    user: str | None
    """None: nobody in particular, because no users are configured."""
    groups: frozenset[str] = frozenset()


ANYBODY = Identity(None)
"""Who everybody is without users."""


class Action(enum.Enum):
    """What a permission is for. The value is how configuration and messages write it."""

    CONNECT = "connect"
    SEND = "send"
    RECEIVE = "receive"
    CREATE = "create"
    BROWSE = "browse"
    ADMIN = "admin"


class ForbiddenError(Exception):
    """This identity may not do that."""

    def __init__(self, action: Action, destination: str | None = None) -> None:
        super().__init__(f"no permission to {action.value} {destination or 'the broker'}")
        self.action = action
        self.destination = destination


class RateGate(Protocol):
    """A limit per second, which connections share."""

    @property
    def label(self) -> str:
        """For people: `rate limit of user web`."""

    @property
    def read_bytes_max(self) -> int:
        """The most that one connection should read at once."""

    def charge(self, count: int, size_bytes: int, source: SourceController) -> None:
        """So many SENDs and bytes came in. Blocks the source for as long as that was too much."""

    def leave(self) -> None:
        """A connection that got it from `Guard.rates_of` does not use it any more."""


class Guard(Protocol):
    """Decides."""

    @property
    def generation(self) -> int:
        """Another number whenever a decision may have become another."""

    @property
    def allows_everything(self) -> bool:
        """Nobody is refused anything: no users are configured. Who asks this first need not ask more."""

    def may(self, identity: Identity, action: Action, destination: str | None = None) -> bool:
        """Whether this identity may do that. `destination`: the full name; of a wildcard address it is asked
        whether anything in it may be allowed. None: the broker as a whole. For CONNECT it is the name of a listener,
        None: any of them. Never blocks.
        """

    def refused(self, action: Action) -> None:
        """Somebody was refused that: for statistics."""

    @property
    def stamps_user(self) -> bool:
        """Whether each SEND is given a header that says whose it is."""

    def rates_of(self, identity: Identity, listener: str) -> list[RateGate]:
        """The limits that a connection has to keep; it leaves each of them when it ends."""
