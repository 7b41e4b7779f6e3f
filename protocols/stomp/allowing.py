"""Asking the guard, and saying what it refused.

A refusal names the destination as the client wrote it and the permission that is missing, and nothing of what exists:
whether there is such a destination is looked at only for those who may use it.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...queues.names import Address, Kind
from .errors import ProtocolError
from .guard import Action, ForbiddenError, Identity
from .hub import Hub


def check_allowed(hub: Hub, identity: Identity, action: Action, addresses: Iterable[Address]) -> None:
    """Raises ForbiddenError if one of these may not be used, or would have to be made and may not be. Nothing is made.
    Names of temporary destinations must be global, and those to receive from the connection's own.
    """
    guard = hub.guard
    if guard.allows_everything:
        return
    fixed = [address for address in addresses if not (address.temporary_local or address.temporary_global)]
    for address in fixed:
        if not guard.may(identity, action, address.canonical):
            raise ForbiddenError(action, address.canonical)
    if action is Action.BROWSE:
        return  # what is not there is not made
    for address in fixed:
        if (
            not address.wildcard
            and not _exists(hub, address)
            and not guard.may(identity, Action.CREATE, address.canonical)
        ):
            raise ForbiddenError(Action.CREATE, address.canonical)


def _exists(hub: Hub, address: Address) -> bool:
    if address.kind is Kind.LOG:
        return hub.logs is not None and address.canonical in hub.logs.logs
    return address.canonical in hub.registry.destinations


def refusal(hub: Hub, forbidden: ForbiddenError) -> ProtocolError:
    """The ERROR for it."""
    hub.guard.refused(forbidden.action)
    what = forbidden.action.value
    where = f" on {forbidden.destination}" if forbidden.destination is not None else ""
    hint = " (it is not there yet)" if forbidden.action is Action.CREATE else ""
    return ProtocolError(
        "forbidden",
        f"no permission to {what}{where}{hint}",
        f"The user of this connection needs the permission {what}{where}; whoever runs the broker can give it.",
    )
