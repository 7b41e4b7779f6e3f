"""CONNECT with users: who gets in, who waits, who is told what."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest
import trio

from sluiceway.protocols import connection as connection_module
from sluiceway.protocols.reading import Reason
from sluiceway.protocols.stomp.escaping import Version
from sluiceway.security import gate, secrets
from sluiceway.security.config import SecurityConfig
from tests.scenarios.client import UnexpectedError
from tests.scenarios.guarded import EVERYTHING, GuardedStage, allow, guarded
from tests.scenarios.stage import Stage

ANN = str(secrets.hashed("let me in", log_n=4, r=1, p=1))


@attrs.frozen
class Certificate:
    """What a client has shown in its handshake."""

    names: tuple[str, ...]


def with_hash(**settings: object) -> SecurityConfig:
    return guarded(allow("*", "send create"), **{"users": {"root": "root", "ann": ANN}, **settings})


async def test_a_hashed_passcode_lets_its_owner_in_and_nobody_else(version: Version) -> None:
    async with Stage(security=with_hash()) as stage:
        ann = await stage.connect(version, login="ann", passcode="let me in")
        await ann.sent("/queue/a", "x")
        said = []
        for login, passcode in (("ann", "let me out"), ("ann", ""), ("ann", ANN), ("bob", "let me in")):
            intruder = stage.stranger()
            with pytest.raises(UnexpectedError, match="authentication"):
                await intruder.connect(version, login=login, passcode=passcode)
            error = await intruder.expect_error("authentication failed")
            assert error.headers["code"] == "login-refused"
            assert (passcode or "?") not in str(error)
            said.append(error.headers["message"].replace(repr(login), "X"))
        assert len(set(said)) == 1, "the same words, whatever was wrong"


async def test_without_any_login_nobody_gets_in(version: Version) -> None:
    async with Stage(security=with_hash()) as stage:
        for _ in range(2 * stage.broker.config.security.login_free_count):
            with pytest.raises(UnexpectedError, match="authentication required"):
                await stage.stranger().connect(version)
        began_seconds = trio.current_time()
        await stage.connect(version, login="ann", passcode="let me in")
        assert trio.current_time() - began_seconds < 0.1, "it guessed nothing: nobody is slowed for it"


async def test_frames_behind_connect_wait_for_its_decision() -> None:
    """They were sent in one piece, and while the passcode is looked at nothing more is read."""
    async with GuardedStage(settings={"login_free_count": 1, "login_delay_seconds": 3.0}) as stage:
        stranger = stage.stranger()
        with pytest.raises(UnexpectedError):
            await stranger.connect("1.2", login="root", passcode="wrong")
        await stranger.expect_closed()
        stranger.vanish()
        client = stage.stranger()
        connect = client.machine.connect("h", login="root", passcode="root", versions=("1.2",))
        send = b"SEND\ndestination:/queue/a\nreceipt:r\n\nx\0"
        await client.send_raw(connect + send)
        await trio.sleep(1)
        assert "/queue/a" not in stage.broker.registry.destinations
        (connection,) = stage.broker.connections
        assert connection.session.reading_blocked_by is Reason.LOGIN
        assert connection.session.lanes.waiting_for == "the check of its login"
        await client.send_raw(send.replace(b"receipt:r", b"receipt:s"))
        await client.expect_receipt("r")
        await client.expect_receipt("s")
        assert stage.depth_count("/queue/a") == 2


async def test_a_connection_may_die_while_its_login_waits() -> None:
    async with GuardedStage(settings={"login_free_count": 1, "login_delay_seconds": 3.0}) as stage:
        for _ in range(2):
            client = stage.stranger()
            await client.send_raw(client.machine.connect("h", login="root", passcode="wrong", versions=("1.2",)))
            await trio.sleep(0.1)
            client.vanish()
        await trio.sleep(20)
        assert not stage.broker.connections
        await stage.connect()


async def test_the_deadline_of_connect_holds_while_a_login_waits() -> None:
    settings = {"login_free_count": 1, "login_delay_seconds": 5.0}
    async with GuardedStage(settings=settings, connect_timeout_seconds=2.0) as stage:
        stranger = stage.stranger()
        with pytest.raises(UnexpectedError):
            await stranger.connect("1.2", login="root", passcode="wrong")
        start = trio.current_time()
        late = stage.stranger()
        await late.send_raw(late.machine.connect("h", login="root", passcode="root", versions=("1.2",)))
        error = await late.expect_error("not decided within 2 seconds")
        assert error.headers["code"] == "connect-timeout"
        assert trio.current_time() - start < 4


async def test_a_thousand_wrong_passcodes_cost_the_attacker_and_nobody_else() -> None:
    async with GuardedStage() as stage:
        host = "203.0.113.9"
        start = trio.current_time()
        refused_count = 0

        async def attack() -> None:
            nonlocal refused_count
            for number in range(1000):
                client = stage.stranger(f"{host}:{1000 + number}")
                with pytest.raises(UnexpectedError, match="login"):
                    await client.connect("1.2", login="ann", passcode=f"guess {number}")
                client.stream.close()
                refused_count += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(attack)
            await trio.sleep(600)
            before = trio.current_time()
            await stage.connect(name="198.51.100.1:1", login="bob", passcode="bob")
            assert trio.current_time() - before < 0.1, "others get in at once"
            ann = await stage.connect(name="198.51.100.2:1", login="ann", passcode="ann")
            assert trio.current_time() - before <= 5.1, "the owner from a new place waits the longest delay at most"
            ann.stream.close()
            before = trio.current_time()
            await stage.connect(name="198.51.100.2:2", login="ann", passcode="ann")
            assert trio.current_time() - before < 0.1, "and from a known one not at all"
        assert refused_count == 1000
        assert trio.current_time() - start > 3600
        assert stage.broker.guard.statistics().refused_count == 1000
        await trio.sleep(601)
        before = trio.current_time()
        await stage.connect(name=f"{host}:1", login="ann", passcode="ann")
        assert trio.current_time() == before, "it is forgotten"


async def test_hundreds_of_connections_at_once_get_no_more_guesses() -> None:
    """Those that wait are few; the others are refused unseen."""
    async with GuardedStage() as stage:

        async def guess(number: int) -> None:
            client = stage.stranger(f"203.0.113.9:{number}")
            with pytest.raises(UnexpectedError):
                await client.connect("1.2", login="ann", passcode=f"guess {number}")

        for number in range(10):
            await guess(number)
        async with trio.open_nursery() as nursery:
            for number in range(300):
                nursery.start_soon(guess, number)
        assert stage.broker.guard.statistics().unseen_count > 290


class Recorder:
    """Stands in for loggers."""

    def __init__(self) -> None:
        self.said: list[tuple[str, str]] = []
        """Level, and all of the rest as text."""

    def __getattr__(self, level: str) -> Callable[..., None]:
        def write(event: str, **facts: object) -> None:
            self.said.append((level, f"{event} {facts}"))

        return write

    def count(self, text: str) -> int:
        """Lines that operators see with this in them."""
        return sum(text in said for level, said in self.said if level != "debug")


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    made = Recorder()
    monkeypatch.setattr(gate, "log", made)
    monkeypatch.setattr(connection_module, "log", made)
    return made


async def test_a_burst_is_logged_once(recorder: Recorder) -> None:
    async with GuardedStage() as stage:
        for number in range(50):
            client = stage.stranger(f"203.0.113.9:{number}")
            with pytest.raises(UnexpectedError):
                await client.connect("1.2", login="ann", passcode=f"guess {number}")
        await stage.settled_down()
        assert recorder.count("logins fail: further ones are slowed") == 1
        assert recorder.count("authentication failed") < stage.broker.config.security.login_free_count
        assert not any("guess" in said for _level, said in recorder.said)


async def test_a_certificate_lets_its_user_in_without_a_passcode() -> None:
    security = guarded(users={"root": "root"}, certificates={"web-1.example.org": "web"})
    async with Stage(security=security) as stage:
        guard = stage.broker.guard

        async def log_in(login: str | None, passcode: str | None, *names: str) -> str | None:
            certificate = Certificate(names) if names else None
            return (
                await guard.log_in(login, passcode, peer="h:1", certificate=certificate)  # type: ignore[arg-type]
            ).user

        assert await log_in(None, None, "other", "Web-1.example.org") == "web"
        assert await log_in("web", None, "web-1.example.org") == "web"
        assert await log_in("root", "root", "web-1.example.org") == "root", "a passcode counts for more"
        for login, passcode, names in (
            ("root", None, ("web-1.example.org",)),
            ("web", "web", ()),
            ("web", None, ()),
            (None, None, ("other.example.org",)),
            ("web", "wrong", ("web-1.example.org",)),
        ):
            with pytest.raises(Exception, match="authentication"):
                await log_in(login, passcode, *names)


async def test_connecting_is_refused_in_the_same_words_where_it_is_not_permitted() -> None:
    """Through this listener, or at all: whoever guesses must not learn that the passcode was right."""
    async with Stage(security=guarded(permissions=(EVERYTHING,))) as stage:
        said = []
        for passcode in ("ann", "wrong"):
            client = stage.stranger()
            with pytest.raises(UnexpectedError):
                await client.connect("1.2", login="ann", passcode=passcode)
            error = await client.expect_error()
            said.append((error.headers, error.body))
        assert said[0] == said[1]


async def test_plain_passcodes_and_missing_permissions_are_told_at_the_start(recorder: Recorder) -> None:
    async with Stage(security=SecurityConfig(users={"root": "root", "ann": ANN})):
        assert recorder.count("passcodes in plain text: root; `sluiceway secret`") == 1
        assert recorder.count("no permissions, so every request is refused") == 1
