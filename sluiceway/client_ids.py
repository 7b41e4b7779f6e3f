"""Client-ids in use, and what becomes of a connection that brings one of them.

Bound: one entry for each open connection with a client-id. Clients of other hubs are not counted: each hub knows its
own.
"""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakValueDictionary

from sluiceway.protocols.stomp.errors import ProtocolError
from sluiceway.protocols.stomp.hub import Holder


class ClientIds:
    """Sessions by their client-id: the last one that came with it."""

    __slots__ = ("_holders", "_policy")

    def __init__(self, policy: Callable[[], str]) -> None:
        """`policy`: returns `client_id_in_use` of the configuration."""
        self._policy = policy
        self._holders: WeakValueDictionary[str, Holder] = WeakValueDictionary()

    def claim(self, client_id: str, session: Holder) -> None:
        """Give a client-id, with its user, to a session that connects. Raises ProtocolError if another one keeps it;
        one that loses it is ended.
        """
        holder = self._holders.get(client_id)
        policy = self._policy()
        if holder is not None and not holder.is_ending and policy != "share":
            if policy == "refuse":
                raise ProtocolError(
                    "client-id-in-use",
                    f"connection {holder.peer} has this client-id",
                    "Use another one, end that connection, or have it taken over (client_id_in_use of [broker]).",
                )
            holder.fail(
                ProtocolError(
                    "client-id-taken",
                    f"connection {session.peer} has come with the same client-id",
                    "Give each client a client-id of its own (client_id_in_use of [broker]).",
                )
            )
        self._holders[client_id] = session
