"""Logins by LDAP, with a server that speaks it: who gets in, as whom, and what a broken directory costs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import trio

from sluiceway.security.directories import Directories
from sluiceway.security.directory import Directory
from sluiceway.security.outside import Accepted, NotAcceptedError, Reason
from sluiceway.security.outside_config import LdapDirectory
from tests.security.ldap_server import ANN, GROUPS, PEOPLE, READER, LdapServer

DEADLINE_SECONDS = 40
SEARCH: dict[str, Any] = {
    "search_base": PEOPLE,
    "bind_dn": READER,
    "bind_passcode": "reads",
    "groups": {"ops": ("operators",)},
}
DIRECT: dict[str, Any] = {"user_dn": f"uid={{user}},{PEOPLE}", "groups": {f"CN=Ops, {GROUPS}": ("operators",)}}
BY_SEARCH_OF_GROUPS = {**SEARCH, "group_attribute": "", "group_base": GROUPS}
WAYS = [SEARCH, DIRECT, BY_SEARCH_OF_GROUPS]


@pytest.fixture
def server() -> Iterator[LdapServer]:
    with LdapServer() as server:
        yield server


def never() -> bool:
    return False


class Asked:
    """Directories of one server."""

    def __init__(self, *servers: LdapServer, **settings: Any) -> None:
        self.directories = [
            Directory(LdapDirectory(urls=(server.url,), **settings), settings.get("bind_passcode", ""), time.monotonic)
            for server in servers
        ]
        self.source = Directories(self.directories, time.monotonic)

    async def __call__(self, login: str, passcode: str) -> Accepted | None:
        with trio.fail_after(DEADLINE_SECONDS):
            return await self.source.log_in(login, passcode, never)

    async def refusal(self, login: str, passcode: str) -> NotAcceptedError:
        with pytest.raises(NotAcceptedError) as refused:
            await self(login, passcode)
        return refused.value

    def __enter__(self) -> Asked:
        return self

    def __exit__(self, *_error: object) -> None:
        self.source.close()


@pytest.mark.parametrize("way", WAYS)
async def test_the_right_passcode_makes_the_user_that_the_directory_names(
    server: LdapServer, way: dict[str, Any]
) -> None:
    with Asked(server, **way) as asked:
        for login in ("ann", "ANN", "ann "):  # all the same to a directory, and not to permissions
            accepted = await asked(login, "annpass")
            assert accepted is not None
            assert (accepted.user, accepted.groups) == ("ann", {"operators"})
        bob = await asked("bob*(x)", "bobpass")
        assert bob is not None
        assert (bob.user, bob.groups) == ("bob*(x)", frozenset())


@pytest.mark.parametrize("way", WAYS)
async def test_wrong_ones_are_guesses(server: LdapServer, way: dict[str, Any]) -> None:
    with Asked(server, **way) as asked:
        for login, passcode in (
            ("ann", "wrong"),
            ("*", "annpass"),
            ("ann)(uid=*", "annpass"),
            (f"ann,{PEOPLE}", "annpass"),
            ("absent", "annpass"),
            ("a\0b", "annpass"),
            ("x" * 300, "annpass"),
        ):
            assert (await asked.refusal(login, passcode)).is_guess, login
        assert all(passcode for _dn, passcode in server.binds)


@pytest.mark.parametrize("way", WAYS)
async def test_an_empty_passcode_is_never_sent(server: LdapServer, way: dict[str, Any]) -> None:
    """A directory takes it for an anonymous bind, and says yes."""
    with Asked(server, **way) as asked:
        assert (await asked.refusal("ann", "")).reason is Reason.PASSCODE
        soft = await asked.refusal("ann", "\N{SOFT HYPHEN}")  # which normalization would make empty
        assert soft.is_guess
        assert ("\N{SOFT HYPHEN}") in [passcode for _dn, passcode in server.binds]
        assert (ANN, "") not in server.binds


async def test_a_name_that_is_not_one_is_refused(server: LdapServer) -> None:
    with Asked(server, **SEARCH) as asked:
        refusal = await asked.refusal("two", "twopass")
        assert refusal.reason is Reason.NAME
        assert "2 values of uid" in str(refusal)


async def test_ten_thousand_that_come_back_ask_once(server: LdapServer) -> None:
    with Asked(server, **SEARCH) as asked:
        async with trio.open_nursery() as nursery:
            for _ in range(1000):
                nursery.start_soon(asked, "ann", "annpass")
        for _ in range(1000):
            await asked("ann", "annpass")
        assert len(server.binds) == 2, "one as the reader, one as the user"
        await asked.refusal("ann", "wrong")
        await asked.refusal("ann", "wrong")
        assert [passcode for _dn, passcode in server.binds].count("wrong") == 2, "what is wrong is not kept"
        assert server.connections_count == 1, "and it took one connection"


async def test_a_few_are_asked_at_a_time_and_the_loop_is_free(server: LdapServer) -> None:
    server.hold.clear()
    with Asked(server, **DIRECT, connections_max=2) as asked:
        async with trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(asked.refusal, f"user{number}", "x")
            assert await trio.to_thread.run_sync(server.two_at_once.wait, DEADLINE_SECONDS)
            server.hold.set()
        assert server.at_once_max == 2
        assert server.connections_count == 2


async def test_an_attempt_that_is_late_begins_again_unasked(server: LdapServer) -> None:
    with Asked(server, **SEARCH) as asked:
        assert await asked.source.log_in("ann", "annpass", lambda: True) is None
        assert not server.binds


async def test_a_connection_that_broke_is_replaced(server: LdapServer) -> None:
    with Asked(server, **SEARCH, cache_seconds=0.0) as asked:
        assert await asked("ann", "annpass")
        server.cut()
        assert await asked("ann", "annpass")
        assert server.connections_count == 2


async def test_a_directory_that_is_down_is_no_guess_and_others_are_not_asked(server: LdapServer) -> None:
    with LdapServer() as gone:
        pass
    with Asked(gone, server, **SEARCH) as asked:
        refusal = await asked.refusal("ann", "annpass")
        assert refusal.reason is Reason.UNAVAILABLE
        assert not refusal.is_guess
        assert "can't be reached" in str(refusal)
        assert not server.binds, "it might have another ann"
    settings = LdapDirectory(urls=(gone.url, server.url), **SEARCH)
    directory = Directory(settings, "reads", time.monotonic)
    assert (await trio.to_thread.run_sync(directory.check, "ann", "annpass")).user == "ann", "its second address"
    directory.close()


async def test_one_that_does_not_answer_costs_its_time_alone(server: LdapServer) -> None:
    server.hold.clear()
    with Asked(server, **SEARCH, timeout_seconds=0.1) as asked:
        refusal = await asked.refusal("ann", "annpass")
        assert refusal.reason is Reason.UNAVAILABLE
        server.hold.set()


async def test_the_next_directory_is_asked_for_those_that_one_does_not_know(server: LdapServer) -> None:
    with LdapServer() as second:
        second.entries[f"uid=carl,{PEOPLE}"] = {"uid": ["carl"], "userPassword": ["carlpass"]}
        second.entries[ANN]["userPassword"] = ["other"]
        with Asked(server, second, **SEARCH) as asked:
            carl = await asked("carl", "carlpass")
            assert carl is not None
            assert carl.source == f"ldap {second.url}"
            assert (await asked.refusal("ann", "other")).reason is Reason.PASSCODE, "the first one knows ann"


async def test_a_reader_that_is_refused_is_told_to_operators(server: LdapServer) -> None:
    with Asked(server, **{**SEARCH, "bind_passcode": "old"}) as asked:
        refusal = await asked.refusal("ann", "annpass")
        assert refusal.reason is Reason.UNAVAILABLE
        assert READER in str(refusal)


@pytest.mark.parametrize(
    "wrong",
    [
        {"urls": ()},
        {"urls": ("http://h",)},
        {"urls": ("ldaps://h",), "start_tls": True},
        {"search_base": ""},
        {"user_dn": "uid={user}"},
        {"search_filter": "(uid=ann)"},
        {"bind_passcode": ""},
        {"bind_passcode_file": "file"},
        {"user_attribute": ""},
    ],
)
def test_settings_that_can_not_work(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        LdapDirectory(**{"urls": ("ldap://h",), **SEARCH, **wrong})


def test_passcodes_in_the_clear_are_noticed() -> None:
    assert LdapDirectory(urls=("ldap://directory.example.org",), **SEARCH).is_in_clear
    assert not LdapDirectory(urls=("ldap://directory.example.org",), start_tls=True, **SEARCH).is_in_clear
    assert not LdapDirectory(urls=("ldaps://directory.example.org", "ldap://127.0.0.1:389"), **SEARCH).is_in_clear
