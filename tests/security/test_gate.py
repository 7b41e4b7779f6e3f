"""The guard by itself, with hashes that take a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing

from sluiceway.config import Config, Listener
from sluiceway.flow import FlowManager
from sluiceway.protocols.stomp.authorization import ANYBODY, Action, Identity
from sluiceway.protocols.stomp.hub import LoginRefusedError
from sluiceway.protocols.stomp.limits import StompLimits
from sluiceway.security import secrets
from sluiceway.security.checks import CACHE_MAX
from sluiceway.security.config import Permission, SecurityConfig
from sluiceway.security.gate import SecurityGate
from sluiceway.security.rules import slow_logins
from sluiceway.security.secrets import Hashed
from sluiceway.security.users import SecurityError

KEPT = str(secrets.hashed("let me in", log_n=10, r=8, p=1))
CONNECT = Permission(users=("*",), actions=("connect",))


class NoTimers:
    def call_later(self, delay_seconds: float, callback: Callable[[], None]) -> object:
        raise AssertionError("nothing here waits for time")


def gate_of(clock: Callable[[], float] = trio.current_time, **settings: object) -> SecurityGate:
    config = SecurityConfig(**{"users": {"ann": KEPT, "bob": "plain"}, "permissions": (CONNECT,), **settings})  # type: ignore[arg-type]
    return SecurityGate(config, listeners={}, manager=FlowManager(clock), clock=clock, timers=NoTimers())  # type: ignore[arg-type]


async def log_in(gate: SecurityGate, login: str = "ann", passcode: str = "let me in", peer: str = "h:1") -> Identity:
    return await gate.log_in(login, passcode, peer=peer)


async def test_ten_thousand_that_come_back_cost_one_hash() -> None:
    gate = gate_of()
    async with trio.open_nursery() as nursery:
        for _ in range(1000):
            nursery.start_soon(log_in, gate)
    for _ in range(1000):
        assert (await log_in(gate)).user == "ann"
    statistics = gate.statistics()
    assert (statistics.hashed_count, statistics.accepted_count) == (1, 2000)


async def test_wrong_ones_are_never_kept_and_shared_checks_are_each_a_failure() -> None:
    gate = gate_of(login_free_count=1000)

    async def fail() -> None:
        with pytest.raises(LoginRefusedError):
            await log_in(gate, passcode="wrong")

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(fail)
    await fail()
    statistics = gate.statistics()
    assert (statistics.hashed_count, statistics.refused_count, statistics.cached_count) == (2, 21, 0)


@pytest.mark.parametrize("login", ["nobody", "bob", "ann"])
async def test_every_login_takes_one_hash_whoever_it_is(login: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that is not there, and one whose passcode is in plain text: the time must not tell."""
    work: list[tuple[int, int, int]] = []
    matches = Hashed.matches

    def counted(self: Hashed, passcode: bytes) -> bool:
        work.append((self.log_n, self.r, self.p))
        return matches(self, passcode)

    monkeypatch.setattr(Hashed, "matches", counted)
    with pytest.raises(LoginRefusedError):
        await log_in(gate_of(), login, "wrong")
    assert work == [(10, 8, 1)]


async def test_plain_and_hashed_ones_get_in_side_by_side() -> None:
    gate = gate_of()
    assert (await log_in(gate)).user == "ann"
    assert (await log_in(gate, "bob", "plain")).user == "bob"


async def test_hashing_is_bounded_and_on_the_flow_map_while_it_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = gate_of(login_parallel_max=2)
    manager = gate._manager
    seen: list[tuple[int, int]] = []
    matches = Hashed.matches

    def looked(self: Hashed, passcode: bytes) -> bool:
        seen.append(trio.from_thread.run_sync(lambda: (manager.used_bytes, len(manager.resources))))
        return matches(self, passcode)

    monkeypatch.setattr(Hashed, "matches", looked)

    async def guess(number: int) -> None:
        with pytest.raises(LoginRefusedError):
            await log_in(gate, f"user {number}", f"wrong {number}", peer=f"10.0.0.{number}:1")

    async with trio.open_nursery() as nursery:
        for number in range(10):
            nursery.start_soon(guess, number)
    memory_bytes = 128 * 8 * 1024
    assert len(seen) == 10
    assert {used_bytes for used_bytes, _count in seen} <= {memory_bytes, 2 * memory_bytes}
    assert (manager.used_bytes, len(manager.resources)) == (0, 0)


async def test_a_login_that_is_given_up_does_not_spoil_the_check_for_others() -> None:
    gate = gate_of()
    got: list[Identity] = []

    async def wait_for_it() -> None:
        got.append(await log_in(gate))

    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as first:
                first.start_soon(log_in, gate)
                await trio.testing.wait_all_tasks_blocked(0.0)
                nursery.start_soon(wait_for_it)
                await trio.testing.wait_all_tasks_blocked(0.0)
                scope.cancel()
    assert [identity.user for identity in got] == ["ann"]
    assert not gate._checks._checks


async def test_what_was_right_is_kept_for_so_long_and_so_many_only() -> None:
    now = [0.0]
    gate = gate_of(lambda: now[0], login_cache_seconds=300.0)
    await log_in(gate)
    now[0] = 299.0
    await log_in(gate)
    assert gate.statistics().hashed_count == 1
    now[0] = 301.0
    await log_in(gate)
    assert gate.statistics().hashed_count == 2
    for number in range(CACHE_MAX - 1):
        gate._checks._right[str(number).encode()] = 1e9, True
    now[0] = 1000.0
    await log_in(gate)
    await log_in(gate, "bob", "plain")
    assert len(gate._checks) == CACHE_MAX


async def test_another_passcode_is_in_force_at_once() -> None:
    gate = gate_of()
    await log_in(gate)
    config = SecurityConfig(users={"ann": str(secrets.hashed("new", log_n=4, r=1, p=1))}, permissions=(CONNECT,))
    gate.replace(config, listeners={})
    with pytest.raises(LoginRefusedError):
        await log_in(gate)
    assert (await log_in(gate, passcode="new")).user == "ann"


async def test_rules_that_make_no_sense_leave_those_that_do_in_force() -> None:
    gate = gate_of()
    generation = gate.generation
    with pytest.raises(SecurityError, match="no user 'carl'"):
        gate.replace(
            SecurityConfig(users={"ann": KEPT}, permissions=(Permission(users=("carl",), actions=("send",)),)),
            listeners={},
        )
    assert gate.generation == generation
    assert (await log_in(gate)).user == "ann"
    gate.replace(SecurityConfig(), listeners={})
    assert gate.generation == generation + 1
    assert await log_in(gate, "whoever", "whatever") == ANYBODY
    assert gate.may(ANYBODY, Action.ADMIN)


async def test_who_vanished_while_the_passcode_was_checked_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = gate_of()
    replaced = threading.Event()
    matches = Hashed.matches

    def held(self: Hashed, passcode: bytes) -> bool:
        assert replaced.wait(10)
        return matches(self, passcode)

    monkeypatch.setattr(Hashed, "matches", held)

    async def intrude() -> None:
        with pytest.raises(LoginRefusedError):
            await log_in(gate)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(intrude)
        await trio.testing.wait_all_tasks_blocked(0.0)
        gate.replace(SecurityConfig(users={"bob": "plain"}, permissions=(CONNECT,)), listeners={})
        replaced.set()


async def test_a_machine_without_memory_refuses_logins_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def starved(self: Hashed, passcode: bytes) -> bool:
        raise MemoryError

    monkeypatch.setattr(Hashed, "matches", starved)
    gate = gate_of()
    with pytest.raises(LoginRefusedError, match="can't be checked now"):
        await log_in(gate)
    assert gate._manager.used_bytes == 0
    monkeypatch.undo()
    assert (await log_in(gate)).user == "ann"


def test_rates_of_nobody_are_mistakes() -> None:
    from sluiceway.security.config import UserRates

    with pytest.raises(SecurityError, match=r"rates\[0\]: there is no user 'carl'"):
        gate_of(lambda: 0.0, rates=(UserRates(users=("carl",), messages_per_second=1.0),))


async def test_guesses_that_come_all_at_once_are_slowed_like_others(autojump_clock: trio.testing.MockClock) -> None:
    """None has failed yet when they come in; by the time there is a thread for most of them some have."""
    gate = gate_of(login_free_count=5)

    async def guess(number: int) -> None:
        with pytest.raises(LoginRefusedError):
            await log_in(gate, passcode=f"guess {number}", peer="203.0.113.9:1")

    async with trio.open_nursery() as nursery:
        for number in range(200):
            nursery.start_soon(guess, number)
        await trio.testing.wait_all_tasks_blocked(0.0)
        nursery.start_soon(log_in, gate, "bob", "plain", "198.51.100.1:1")
    statistics = gate.statistics()
    assert statistics.hashed_count < 30
    assert statistics.unseen_count > 160
    assert statistics.refused_count == 200


async def test_many_that_come_at_once_and_are_right_do_not_wait(autojump_clock: trio.testing.MockClock) -> None:
    """Of one machine, each somebody else, and one of them mistaken."""
    gate = gate_of(users={f"user {number}": KEPT for number in range(40)}, login_free_count=5)
    refused: list[int] = []

    async def come(number: int) -> None:
        try:
            await log_in(gate, f"user {number}", "let me in" if number != 3 else "let me out")
        except LoginRefusedError:
            refused.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(40):
            nursery.start_soon(come, number)
    statistics = gate.statistics()
    assert refused == [3]
    assert (statistics.hashed_count, statistics.accepted_count, statistics.delayed_count) == (40, 39, 0)


def test_a_name_in_certificates_stands_for_one_user_however_it_is_written() -> None:
    with pytest.raises(SecurityError, match="'WEB' is there twice, for two users"):
        gate_of(lambda: 0.0, certificates={"web": "ann", "WEB": "bob"})
    gate_of(lambda: 0.0, certificates={"web": "ann", "WEB": "ann"})


async def test_strangers_without_a_login_are_one_line_of_the_log_a_minute(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """They are not slowed, for they guess nothing; so there may be any number of them."""
    gate = gate_of()
    quiet = []
    for seconds in (0, 1, 58, 2):
        await trio.sleep(seconds)
        with pytest.raises(LoginRefusedError) as refused:
            await log_in(gate, "", "")
        quiet.append(refused.value.quiet)
    assert quiet == [False, True, True, False]


async def test_who_was_let_in_by_old_rules_and_is_not_in_yet_is_judged_by_new_ones() -> None:
    gate = gate_of(groups={"staff": ("ann",)})
    ann = await log_in(gate)
    assert gate.judge_again(ann, "front", "h:1") == ann
    gate.replace(SecurityConfig(users={"ann": KEPT}, permissions=(CONNECT,)), listeners={})
    judged = gate.judge_again(ann, "front", "h:1")
    assert judged == Identity("ann")
    gate.replace(SecurityConfig(users={"ann": "another"}, permissions=(CONNECT,)), listeners={})
    assert isinstance(gate.judge_again(ann, "front", "h:1"), LoginRefusedError), "that was not her passcode"
    gate.replace(
        SecurityConfig(users={"ann": "another"}, groups={"staff": ("ann",)}, permissions=(CONNECT,)), listeners={}
    )
    assert gate.judge_again(ann, "front", "h:1") == ann, "it was by the rules before"
    gate.replace(SecurityConfig(users={"bob": "b"}, permissions=(CONNECT,)), listeners={})
    before_count = gate.statistics().refused_count
    assert isinstance(gate.judge_again(ann, "front", "h:1"), LoginRefusedError)
    assert gate.statistics().refused_count == before_count + 1
    assert isinstance(gate.judge_again(ANYBODY, "front", "h:1"), LoginRefusedError)
    gate.replace(SecurityConfig(users={"ann": KEPT}, permissions=()), listeners={})
    assert isinstance(gate.judge_again(ann, "front", "h:1"), LoginRefusedError)


@pytest.mark.parametrize(
    ("settings", "wait_seconds", "is_told"),
    [({}, 5.0, True), ({}, 6.0, False), ({"login_delay_seconds": 0.0}, 5.0, False), ({"users": {}}, 5.0, False)],
)
def test_a_listener_that_does_not_wait_for_a_slowed_login_is_told(
    settings: dict[str, Any], wait_seconds: float, is_told: bool
) -> None:
    front = Listener(address="127.0.0.1:0", name="front", limits=StompLimits(connect_timeout_seconds=wait_seconds))
    security = SecurityConfig(**{"users": {"ann": KEPT}, "permissions": (CONNECT,), **settings})
    told = slow_logins(Config(listeners=(front,), security=security))
    assert bool(told) is is_told
    if told:
        assert "connect_timeout_seconds" in told[0] and "login_delay_seconds_max" in told[0]
