"""What a connection is called, once it has said who it is: by its client-id or user, which say more than an address.

So the chain of who waits for whom reads as its operators speak: «connection web-3 (10.0.0.7:51312) waits on …».
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from .guard import Identity

if TYPE_CHECKING:
    from .session import Session

SHOWN_MAX: Final = 60
"""Characters of a client-id."""


def owned_client_id(identity: Identity, client_id: str) -> str:
    """Client ids of one user are apart from those of others, so that nobody gets at another one's durable
    subscriptions. Without users they are as they come.
    """
    return client_id if identity.user is None else f"{quote(identity.user, safe=' @')}/{client_id}"


def name_of(peer: str, who: str) -> str:
    """The address, behind the client-id or user if there is one. What is no character for people is shown as `?`."""
    shown = "".join(character if character.isprintable() else "?" for character in who[:SHOWN_MAX])
    return f"{shown} ({peer})" if shown else peer


def introduce(session: Session, identity: Identity, client_id: str) -> None:
    """This identity is let in as this session, and gave this client-id (or none)."""
    session.lanes.keep(2 * len(client_id))
    subscriptions = session.subscriptions
    subscriptions.client_id = owned_client_id(identity, client_id)
    session.name = name_of(session.peer, client_id or identity.user or "")
    session.lanes.name = session.outbound.name = subscriptions.name = session.name
