"""Proxy sessions: ordinary sessions of this hub whose clients are connected to another one.

The other hub has proved who it is, so what its opening record says of the client is believed: identity, version,
limits. Permissions on destinations are asked here, where the destinations are; logins and rates were checked at the
other hub.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any, Final

import attrs

from sluiceway.cluster.calls import OPENING, Calls
from sluiceway.cluster.topics import TopicInterest, is_about_interest
from sluiceway.connections import Connections
from sluiceway.protocols.connection import Connection
from sluiceway.protocols.framing import PLAIN
from sluiceway.protocols.link import flow as link_flow
from sluiceway.protocols.link.load import LinkLoad
from sluiceway.protocols.link.records import Kind, LinkFault
from sluiceway.protocols.link.stream import FlowStream, PassFraming
from sluiceway.protocols.stomp.authorization import Action, Guard, Identity, RateGate
from sluiceway.protocols.stomp.limits import StompLimits
from sluiceway.protocols.wsframes import WebSocketFraming
from sluiceway.session_hub import SessionHub

LABEL: Final = "link"
"""Listener of proxy sessions, for people."""
_LIMIT_NAMES: Final = frozenset(field.name for field in attrs.fields(StompLimits))


class FlowGuard:
    """Guard of a session whose client is elsewhere: rates are kept there."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    @property
    def generation(self) -> int:
        return self._guard.generation

    @property
    def allows_everything(self) -> bool:
        return self._guard.allows_everything

    @property
    def stamps_user(self) -> bool:
        return self._guard.stamps_user

    def may(self, identity: Identity, action: Action, destination: str | None = None) -> bool:
        # The name of the listener means nothing here, and the login was accepted.
        if identity.origin:
            return action in (Action.CONNECT, Action.SEND, Action.CREATE)
        return action is Action.CONNECT or self._guard.may(identity, action, destination)

    def refused(self, action: Action) -> None:
        self._guard.refused(action)

    def rates_of(self, identity: Identity, listener: str) -> list[RateGate]:
        return []


class Proxies:
    """Sessions of this hub for clients of others."""

    def __init__(
        self,
        hub: SessionHub,
        connections: Connections,
        *,
        spawn: Callable[[Callable[[], Awaitable[object]]], None],
        contain: Callable[[Exception], None],
    ) -> None:
        self._hub = hub
        self._connections = connections
        self._spawn = spawn
        self._contain = contain
        self.calls: Calls
        """Calls of other hubs. Set before the first link."""
        self.topics: TopicInterest
        """Interest of the hubs in topics. Set before the first link."""

    def opened(self, peer_hub: str, flow: link_flow.Flow, payload: bytes) -> link_flow.FlowUser:
        """Begin a session for a flow that another hub has opened. Raises LinkFault for an invalid opening record."""
        if is_about_interest(payload):
            return self.topics.opened(peer_hub, flow)
        opening = _opening_of(payload)
        if opening is None:
            return self.calls.opened(peer_hub, flow)
        identity = Identity(opening["user"], frozenset(opening["groups"]), opening["origin"], opening["source"])
        limits = opening["limits"]
        peer = f"{opening['peer']} by {peer_hub}"
        inbox = LinkLoad(lambda: peer, self._hub.manager, self._hub.clock, stays=True)
        client_framing = WebSocketFraming() if opening["framing"] == "websocket" else PLAIN
        stream = FlowStream(
            flow,
            peer,
            PassFraming(client_framing),
            charge=inbox.charge,
            closed=inbox.close,
            contain=self._contain,
            missed=self.topics.report,
        )
        hub = self._hub_for(identity, opening["ack_prefix"].encode())
        connection = Connection(hub, limits, stream, listener=LABEL, spawn=self._spawn)
        flow.user = stream
        facts = {"tokens": [hub.message_token.decode()], "shards": sorted(hub.open_shards)}
        flow.say(Kind.FACTS, json.dumps(facts).encode())
        self._connections.begin(connection, None, client_session=opening["session"])
        return stream

    def _hub_for(self, identity: Identity, ack_prefix: bytes) -> SessionHub:
        """Return the broker as a proxy session sees it: the login is decided, and nothing is passed on again."""
        hub = self._hub.admitting(identity, FlowGuard(self._hub.guard))
        hub.elsewhere = None
        hub.ack_prefix = ack_prefix
        return hub


def _opening_of(payload: bytes) -> dict[str, Any] | None:
    """Read an opening record; None: the flow is for calls. Raises LinkFault."""
    try:
        opening = json.loads(payload)
        if OPENING in opening:
            return None
        limits = {name: value for name, value in opening["limits"].items() if name in _LIMIT_NAMES}
        checked = {
            "user": None if opening["user"] is None else str(opening["user"]),
            "groups": [str(group) for group in opening["groups"]],
            "origin": str(opening.get("origin", ""))[:64],
            "source": str(opening.get("source", ""))[:300],
            "framing": str(opening["framing"]),
            "peer": str(opening["peer"])[:200],
            "session": str(opening.get("session", ""))[:200],
            "ack_prefix": str(opening["ack_prefix"])[:20],
            "limits": StompLimits(**{**limits, "header_count_max": limits["header_count_max"] + 4}),
        }
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise LinkFault(f"the peer opened a flow with an invalid record: {error!r}") from None
    return checked
