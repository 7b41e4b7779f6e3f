"""Port of a STOMP session to the broker around it. `sluiceway.session_hub` implements it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from ...flow import FlowManager
from ...queues.environment import Scheduling
from ...queues.logs.table import LogTable
from ...queues.registry import DestinationRegistry
from ...queues.spools import Spools
from ...queues.storage import Store, StoredWork
from ..arrivals import Arrivals
from .authorization import ForbiddenError, Guard, Identity
from .errors import ProtocolError
from .head import SendHead
from .staging import Bodies
from .virtual_hosts import Hosts

if TYPE_CHECKING:
    from ..streams import PeerCertificate
    from .left_behind import LeftBehind
    from .placement import Elsewhere


Behind = Callable[[str, Callable[[], None]], None]
"""Calls a function, now or later, when the hub of this id has read what a client has sent to it by way of this one."""


class LoginRefusedError(Exception):
    """The credentials are refused. The message is sent to the peer: it must not tell which part was wrong."""

    def __init__(self, message: str, *, quiet: bool = False) -> None:
        """Make the refusal. `quiet`: one of many, which the log has reported already."""
        super().__init__(message)
        self.quiet = quiet


class Holder(Protocol):
    """Session as the holder of a client-id."""

    @property
    def peer(self) -> str:
        """Address of the client."""

    @property
    def is_ending(self) -> bool:
        """Whether the session reads no more frames."""

    def fail(self, error: ProtocolError) -> None:
        """Send ERROR and end the connection."""


class Hub(Protocol):
    """The broker, as a session sees it."""

    @property
    def manager(self) -> FlowManager: ...
    @property
    def registry(self) -> DestinationRegistry: ...
    @property
    def shard_of(self) -> Callable[[str], int] | None:
        """Function that returns the shard of a canonical name; None: there is one shard."""

    @property
    def store(self) -> StoredWork | None:
        """All stores of persistent messages; None: no message outlives the broker."""

    def store_of(self, shard: int | None) -> Store | None:
        """Return the store of a shard, for transactions; None: there is none."""

    def spools_of(self, shard: int | None) -> Spools | None:
        """Return the store of transactions of a shard that are too large for memory; None: without a store they are
        refused.
        """

    @property
    def bodies(self) -> Bodies | None:
        """Store of large bodies, to read them; None: every body is held in memory."""

    def bodies_for(self, destination: str) -> tuple[Bodies, Store | None]:
        """Return where the large body of a SEND to this destination is written, and the store that knows whether the
        disk has room. Raises ValueError where it would have to be in several places.
        """

    @property
    def logs(self) -> LogTable | None:
        """Destinations that remember; None: there is no place for them."""

    @property
    def left_behind(self) -> LeftBehind: ...
    @property
    def scheduling(self) -> Scheduling: ...
    @property
    def clock(self) -> Callable[[], float]:
        """Monotonic seconds."""

    @property
    def message_token(self) -> bytes:
        """First part of every message-id of this broker run; no colon, no backslash."""

    def has_number(self, number: int) -> bool:
        """Return whether a message with this number and with `message_token` may be of this hub: hubs that share a data
        folder share the token, and each shard has numbers of its own.
        """

    @property
    def ack_prefix(self) -> bytes:
        """First part of every ack header: names the flow by which the client's own hub has this session; empty for
        clients of this hub.
        """

    @property
    def elsewhere(self) -> Elsewhere | None:
        """The other hubs of the cluster; None: there is no cluster."""

    @property
    def server_name(self) -> str: ...

    @property
    def take_numbers(self) -> Callable[[int], int]:
        """Function that reserves that many numbers for messages of the broker itself, and returns the first."""

    @property
    def on_marked_sends(self) -> Callable[[SendHead, int, int], None] | None:
        """Observer of SENDs with a marked head, called with the head, the number of the first SEND, and the count.
        None: there is no observer.
        """

    def at_turn_end(self, callback: Callable[[], None]) -> None:
        """Run this once at the end of the dispatch turn."""

    def turn_with(self, work: Callable[[], None]) -> None:
        """Call `work`, and deliver its results at once if no other work is under way."""

    @property
    def arrivals(self) -> Arrivals | None:
        """Common wait of plain sockets for their input; None: each socket waits separately."""

    def contain(self, error: Exception) -> None:
        """Abandon the objects that this exception has interrupted: a connection, a destination. Raises the exception if
        a shared part is broken.
        """

    def subscribed(self, destination: str, headers: Mapping[str, str]) -> None:
        """Notice a SUBSCRIBE to queues or topics that is in force."""

    def claim_client_id(self, client_id: str, session: Holder) -> None:
        """Note that a client connects with this client-id (and user). Raises ProtocolError if another one keeps it."""

    @property
    def hosts(self) -> Hosts | None:
        """The virtual hosts; None: there is one, whatever a client calls it."""

    def new_session_id(self) -> str:
        """Unguessable, without colon and backslash."""

    @property
    def guard(self) -> Guard:
        """Decider of permissions."""

    def begin_login(
        self,
        login: str | None,
        passcode: str | None,
        *,
        peer: str,
        listener: str,
        certificate: PeerCertificate | None,
        decided: Callable[[Identity | LoginRefusedError], None],
    ) -> Callable[[], None]:
        """Check a login; `decided` is called with the result, perhaps before this returns. Returns a function that
        gives the check up.
        """

    def answer(
        self,
        destination: str,
        body: bytes,
        reply: Callable[[bytes | ForbiddenError], None],
        identity: Identity,
        *,
        behind: Behind | None = None,
    ) -> None:
        """Answer a request that this one sent to `/sluiceway/…`: `reply` gets the JSON, now or later, or the refusal of
        another hub. Raises KeyError for an unknown one and ForbiddenError, with nothing done. `behind`: holds the
        request back until another hub has read what came before; None: nothing did.
        """

    def check_request(self, destination: str, body: bytes, identity: Identity) -> None:
        """Raises what `answer` would raise."""
