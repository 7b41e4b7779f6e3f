"""CONNECT of one session while its login is checked: hashing takes a while, and after failures the check is delayed.
Nothing is read meanwhile.

After its login a connection is named by its client-id or user, which say more than an address. So the chain of waits
reads as operators speak: «connection web-3 (10.0.0.7:51312) waits on …».
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from ...queues.durables import client_id_of_host
from ...queues.names import HOST_SIGN
from ..reading import Hold
from .authorization import Identity
from .errors import ProtocolError
from .frames import Connect
from .hub import Hub, LoginRefusedError

if TYPE_CHECKING:
    from ..streams import PeerCertificate

SHOWN_MAX: Final = 60
"""Characters of a client-id."""


def owned_client_id(identity: Identity, client_id: str) -> str:
    """Return the client id of a user, separate from those of other users, so that no user reaches another one's durable
    subscriptions; likewise of a virtual host. Without users client ids are unchanged.
    """
    owned = client_id if identity.user is None else f"{quote(identity.user, safe=' @')}/{client_id}"
    if identity.host:
        host = identity.host.removeprefix(HOST_SIGN)
        return client_id_of_host(host, owned, has_user=identity.user is not None)
    return owned


def connection_name(peer: str, who: str) -> str:
    """Return the address, behind the client-id or user if there is one. Unprintable characters are shown as `?`."""
    shown = "".join(character if character.isprintable() else "?" for character in who[:SHOWN_MAX])
    return f"{shown} ({peer})" if shown else peer


class PendingLogin:
    """One login at a time."""

    __slots__ = (
        "_cancel",
        "_changed",
        "_connect",
        "_decision",
        "_hold",
        "_hub",
        "_late",
        "_timeout_seconds",
        "_timer",
        "_whence",
        "quiet",
    )

    def __init__(
        self,
        hub: Hub,
        changed: Callable[[], None],
        hold: Hold,
        *,
        timeout_seconds: float,
        late: Callable[[ProtocolError], None],
    ) -> None:
        """Make a login. `changed`: called when the login is decided, then call `take`; `hold`: nothing is read until
        then; `late`: gets the ERROR of
        a connection without a session after `timeout_seconds`.
        """
        self._hub = hub
        self._hold = hold
        self._changed = changed
        self._late = late
        self._timeout_seconds = timeout_seconds
        self._timer = hub.scheduling.call_later(timeout_seconds, self._timed_out)
        self._connect: Connect | None = None
        self._decision: Identity | LoginRefusedError | None = None
        self._cancel: Callable[[], None] | None = None
        self._whence = ("", "")
        self.quiet = False
        """Whether the refusal is one of many, which the log knows of."""

    def begin(self, connect: Connect, *, peer: str, listener: str, certificate: PeerCertificate | None) -> None:
        """Begin the check of a login. The decision may come at once."""
        self._hold.take()
        self._connect, self._whence = connect, (listener, peer)
        self._cancel = self._hub.begin_login(
            connect.login,
            connect.passcode,
            peer=peer,
            listener=listener,
            certificate=certificate,
            decided=self._decided,
        )

    def _decided(self, decision: Identity | LoginRefusedError) -> None:
        if self._connect is not None:
            self._decision = decision
            if self._cancel is not None:  # else it is still being asked
                self._changed()

    def judge_again(self, judge: Callable[[Identity, str, str], Identity | LoginRefusedError]) -> None:
        """Decide anew after a change of users or permissions: a login that the old ones accepted, and that was not
        taken yet, is judged again, by identity, listener and peer.
        """
        if isinstance(self._decision, Identity):
            self._decision = judge(self._decision, *self._whence)

    def take(self) -> tuple[Connect, Identity] | None:
        """Return the accepted login, once; None: it is not decided. Raises ProtocolError."""
        connect, decision = self._connect, self._decision
        if connect is None or decision is None:
            return None
        self._connect = self._decision = self._cancel = None
        self._hold.release()
        if isinstance(decision, LoginRefusedError):
            self.quiet = decision.quiet
            error = ProtocolError("login-refused", str(decision), "Check login and passcode.")
            error.identify("CONNECT", {})  # so that a client can tell it from an ERROR that will pass
            raise error from None
        self._timer.cancel()
        if decision.until_seconds is not None:
            left_seconds = decision.until_seconds - self._hub.clock()
            self._timer = self._hub.scheduling.call_later(max(0.0, left_seconds), self._expired)
        return connect, decision

    def give_up(self) -> None:
        """Give the check up, or the end of an accepted login: the connection ends."""
        cancel, self._cancel = self._cancel, None
        self._connect = self._decision = None
        self._hold.release()
        self._timer.cancel()
        if cancel is not None:
            cancel()

    def _expired(self) -> None:
        self._late(
            ProtocolError("login-expired", "the token of this login has expired", "Connect again with a new token.")
        )

    def _timed_out(self) -> None:
        if self._connect is not None:
            what = "the login was not decided"
            remedy = "After failed logins further ones are slowed: try again in a while."
        else:
            what, remedy = "no CONNECT", "Send a complete CONNECT frame right after opening the connection."
        self._late(ProtocolError("connect-timeout", f"{what} within {self._timeout_seconds:g} seconds", remedy))
