"""The broker as its STOMP sessions see it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from copy import copy

from sluiceway.client_ids import ClientIds
from sluiceway.dispatcher import Dispatcher
from sluiceway.flow import FlowManager
from sluiceway.message_tracking import MessageTracking
from sluiceway.protocols.arrivals import Arrivals
from sluiceway.protocols.stomp.authorization import Guard, Identity
from sluiceway.protocols.stomp.head import SendHead
from sluiceway.protocols.stomp.hub import Holder, LoginRefusedError
from sluiceway.protocols.stomp.left_behind import LeftBehind
from sluiceway.protocols.stomp.placement import Elsewhere
from sluiceway.protocols.stomp.staging import Bodies
from sluiceway.protocols.stomp.virtual_hosts import Hosts
from sluiceway.queues.logs.table import LogTable
from sluiceway.queues.registry import DestinationRegistry
from sluiceway.queues.shard_hash import SHARDS_MAX, shard_of_number
from sluiceway.queues.storage import StoredWork
from sluiceway.requests import Requests
from sluiceway.security.admission import Admission
from sluiceway.shards import Shards
from sluiceway.store.large import BodyFiles
from sluiceway.store.spool import StoreSpools
from sluiceway.store.storequeue import StoreQueue
from sluiceway.version import VERSION


class SessionHub:
    """Adapter of the broker to `sluiceway.protocols.stomp.hub.Hub`, which documents each member."""

    def __init__(
        self,
        shards: Shards,
        tracking: MessageTracking,
        admission: Admission,
        requests: Requests,
        *,
        manager: FlowManager,
        dispatcher: Dispatcher,
        clock: Callable[[], float],
        arrivals: Arrivals | None,
        left_behind: LeftBehind,
        contain: Callable[[Exception], None],
        client_ids: ClientIds | None = None,
        elsewhere: Elsewhere | None = None,
        hosts: Hosts | None = None,
    ) -> None:
        """`client_ids`: those of the clients of this hub; None: they are not compared. `hosts`: the virtual
        hosts; None: there are none.
        """
        self.hosts = hosts
        self._client_ids = client_ids
        self._shards = shards
        self._tracking = tracking
        self.elsewhere = elsewhere
        self.ack_prefix = b""
        self.session_prefix = ""
        """Beginning of session ids, which names this hub in a cluster."""
        self.server_name = f"sluiceway/{VERSION}"
        self.manager = manager
        self.scheduling = dispatcher
        self.clock = clock
        self.arrivals = arrivals
        self.left_behind = left_behind
        self.guard: Guard = admission.gate
        self.begin_login = admission.begin_login
        self.answer = requests.answer
        self.check_request = requests.check
        self.at_turn_end = dispatcher.at_turn_end
        self.turn_with = dispatcher.turn_with
        self.contain = contain

    def admitting(self, identity: Identity, guard: Guard) -> SessionHub:
        """Return this hub for sessions whose client is `identity`, whatever it says; `guard` has its permissions."""
        hub = copy(self)
        hub.guard = guard
        hub._client_ids = None
        hub.hosts = None

        def begin_login(
            login: str | None,
            passcode: str | None,
            *,
            decided: Callable[[Identity | LoginRefusedError], None],
            **_connection: object,
        ) -> Callable[[], None]:
            decided(identity)
            return _nothing

        hub.begin_login = begin_login
        return hub

    @property
    def registry(self) -> DestinationRegistry:
        return self._shards.registry

    @property
    def shard_of(self) -> Callable[[str], int] | None:
        return None if self._shards.count == 1 else self._shards.shard_of

    @property
    def store(self) -> StoredWork | None:
        return self._shards.stored_work

    def store_of(self, shard: int | None) -> StoreQueue | None:
        found = self._shards.numbered(shard)
        return None if found is None else found.store

    def spools_of(self, shard: int | None) -> StoreSpools | None:
        found = self._shards.numbered(shard)
        return None if found is None else found.spools

    @property
    def bodies(self) -> Bodies | None:
        return self._shards.bodies_to_read

    def bodies_for(self, destination: str) -> tuple[BodyFiles, StoreQueue | None]:
        return self._shards.bodies_for(destination)

    @property
    def logs(self) -> LogTable | None:
        return self._shards.logs

    @property
    def take_numbers(self) -> Callable[[int], int]:
        return self._shards.take_numbers

    @property
    def message_token(self) -> bytes:
        return self._shards.token

    @property
    def open_shards(self) -> frozenset[int]:
        return frozenset(self._shards.open_shards)

    def has_number(self, number: int) -> bool:
        shard = shard_of_number(number)
        return self._shards.count == 1 or shard in self._shards.open_shards or shard >= SHARDS_MAX

    @property
    def on_marked_sends(self) -> Callable[[SendHead, int, int], None] | None:
        return self._tracking.on_marked_sends

    def subscribed(self, destination: str, headers: Mapping[str, str]) -> None:
        self._shards.foreign_names.note_headers(destination, headers)

    def claim_client_id(self, client_id: str, session: Holder) -> None:
        if self._client_ids is not None:
            self._client_ids.claim(client_id, session)

    def new_session_id(self) -> str:
        return f"{self.session_prefix}{secrets.token_hex(8)}"


def _nothing() -> None:
    return
