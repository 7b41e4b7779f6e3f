"""Between the decision that somebody is let in and their first frame, rules may change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from sluiceway.protocols.reading import ReadGate, Reason
from sluiceway.protocols.stomp.authorization import Identity
from sluiceway.protocols.stomp.errors import ProtocolError
from sluiceway.protocols.stomp.frames import Connect, Frame
from sluiceway.protocols.stomp.hub import Hub, LoginRefusedError
from sluiceway.protocols.stomp.login import PendingLogin

ANN = Identity("ann", frozenset({"staff"}))
CONNECT = Connect(Frame("CONNECT", {}, b""), "1.2", "ann", "sesame", "x", (0, 0))


class SlowHub:
    """Decides when it is told to."""

    def __init__(self) -> None:
        self.decided: Callable[[Identity | LoginRefusedError], None] | None = None
        self.scheduling = self

    def call_later(self, _delay_seconds: float, _callback: Callable[[], None]) -> SlowHub:
        return self

    def cancel(self) -> None:
        """No time passes here."""

    def begin_login(self, _login: str, _passcode: str, *, decided: Any, **_whence: Any) -> Callable[[], None]:
        self.decided = decided
        return lambda: None


@pytest.fixture
def hub() -> SlowHub:
    return SlowHub()


@pytest.fixture
def entering(hub: SlowHub) -> PendingLogin:
    """Somebody has said CONNECT."""
    hold = ReadGate(lambda: None).hold(Reason.LOGIN)
    entering = PendingLogin(cast(Hub, hub), lambda: None, hold, timeout_seconds=10.0, late=lambda _error: None)
    entering.begin(CONNECT, peer="h:1", listener="front", certificate=None)
    return entering


def test_new_groups_are_those_of_the_session(entering: PendingLogin, hub: SlowHub) -> None:
    assert hub.decided is not None
    hub.decided(ANN)
    asked: list[tuple[Identity, str, str]] = []

    def judge(identity: Identity, listener: str, peer: str) -> Identity:
        asked.append((identity, listener, peer))
        return Identity("ann")

    entering.judge_again(judge)
    assert asked == [(ANN, "front", "h:1")]
    assert entering.take() == (CONNECT, Identity("ann"))


def test_who_may_not_come_any_more_is_refused(entering: PendingLogin, hub: SlowHub) -> None:
    assert hub.decided is not None
    hub.decided(ANN)
    entering.judge_again(lambda _identity, _listener, _peer: LoginRefusedError("no"))
    with pytest.raises(ProtocolError, match="no"):
        entering.take()


def test_there_is_nothing_to_judge_before_it_is_decided(entering: PendingLogin, hub: SlowHub) -> None:
    def judge(_identity: Identity, _listener: str, _peer: str) -> Identity:
        raise AssertionError("nobody was let in")

    entering.judge_again(judge)
    assert entering.take() is None
    assert hub.decided is not None
    hub.decided(LoginRefusedError("wrong"))
    entering.judge_again(judge)
    with pytest.raises(ProtocolError, match="wrong"):
        entering.take()
