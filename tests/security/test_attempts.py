"""Failed logins are slowed: whoever guesses pays, and nobody else."""

from __future__ import annotations

import pytest

from sluiceway.security.attempts import TABLE_MAX, Attempts, host_of

ATTACKER, OWNERS, ELSEWHERE = "203.0.113.9", "198.51.100.2", "192.0.2.77"


class Rig:
    """Attempts that are made one after the other, or many at once, in virtual time."""

    def __init__(self, **settings: float) -> None:
        self.now = 1000.0
        chosen = {
            "free_count": 5, "delay_seconds": 0.5, "delay_seconds_max": 5.0, "forget_seconds": 600.0, **settings,
        }  # fmt: skip
        self.attempts = Attempts(**chosen)  # type: ignore[arg-type]

    def wait(self, login: str, host: str) -> float:
        """How long an attempt would wait now; -1 if it is refused unseen. It takes its place in the line."""
        admission = self.attempts.admit(login, host, self.now)
        return -1.0 if admission.refused else admission.wait_seconds

    def fail(self, login: str, host: str) -> float:
        """A wrong passcode, from one who waits for the answer. Returns how long it took."""
        waited = self.wait(login, host)
        if waited >= 0:
            self.now += waited
            self.attempts.failed(login, host, self.now)
        return waited

    def succeed(self, login: str, host: str) -> None:
        self.attempts.succeeded(login, host, self.now)


def test_a_few_mistakes_cost_nothing_and_then_each_costs_twice_the_last() -> None:
    rig = Rig()
    assert [rig.fail("ann", ATTACKER) for _ in range(11)] == [0, 0, 0, 0, 0, 0.5, 1, 2, 4, 5, 5]


def test_a_thousand_wrong_passcodes_take_more_than_an_hour() -> None:
    rig = Rig()
    start = rig.now
    for _ in range(1000):
        rig.fail("ann", ATTACKER)
    assert rig.now - start > 3600


def test_a_thousand_at_once_are_not_looked_at() -> None:
    """Nobody gets more guesses by guessing side by side."""
    rig = Rig()
    for _ in range(10):
        rig.fail("ann", ATTACKER)
    waits = [rig.wait("ann", ATTACKER) for _ in range(1000)]
    assert waits.count(-1.0) > 990
    assert all(wait <= 5.0 for wait in waits)


def test_trying_other_names_does_not_help() -> None:
    rig = Rig()
    for number in range(20):
        rig.fail(f"user-{number}", ATTACKER)
    assert rig.wait("user-21", ATTACKER) != 0


def test_others_from_elsewhere_are_let_in_at_once_meanwhile() -> None:
    rig = Rig()
    for _ in range(1000):
        rig.fail("ann", ATTACKER)
    assert rig.wait("bob", ELSEWHERE) == 0


def test_the_owner_where_she_is_known_does_not_wait_for_what_others_do() -> None:
    rig = Rig()
    rig.succeed("ann", OWNERS)
    for _ in range(1000):
        rig.fail("ann", ATTACKER)
    assert rig.wait("ann", OWNERS) == 0


def test_the_owner_from_a_new_place_waits_the_longest_delay_at_most() -> None:
    """However many guess at the same time: they wait side by side."""
    rig = Rig()
    for number in range(3000):
        rig.attempts.failed("ann", f"203.0.113.{number % 250}", rig.now)
    for _ in range(100):
        rig.wait("ann", f"203.0.{_}.1")
    assert 0 < rig.wait("ann", ELSEWHERE) <= 5


def test_it_is_forgotten_after_a_while() -> None:
    rig = Rig()
    for _ in range(20):
        rig.fail("ann", ATTACKER)
    rig.now += 601
    assert rig.wait("ann", ATTACKER) == 0
    assert [rig.fail("ann", ATTACKER) for _ in range(6)] == [0, 0, 0, 0, 0, 0.5], "and begins anew"


def test_a_success_does_not_pay_for_guesses_at_others() -> None:
    """Who has a user of his own can't use it to guess faster at another one."""
    rig = Rig()
    for _ in range(5):
        rig.fail("ann", ATTACKER)
    rig.succeed("eve", ATTACKER)
    assert rig.wait("ann", ATTACKER) > 0
    assert rig.wait("eve", ATTACKER) == 0


def test_known_places_are_slowed_by_their_own_failures() -> None:
    rig = Rig()
    rig.succeed("ann", ATTACKER)
    assert [rig.fail("ann", ATTACKER) for _ in range(7)] == [0, 0, 0, 0, 0, 0.5, 1]


def test_it_is_told_once_when_it_begins() -> None:
    rig = Rig()
    assert sum([rig.attempts.failed("ann", ATTACKER, rig.now) for _ in range(1000)]) == 1


def test_tables_are_bounded_whatever_names_come() -> None:
    rig = Rig()
    for number in range(TABLE_MAX + 100):
        rig.attempts.failed(f"n{number}" * 50, f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", rig.now)
        rig.attempts.succeeded(f"n{number}", "10.0.0.1", rig.now)
    assert rig.attempts.slowed_count <= 2 * TABLE_MAX
    assert len(rig.attempts._known) <= TABLE_MAX
    assert len(rig.attempts._by_pair) <= TABLE_MAX


def test_without_a_delay_nobody_waits() -> None:
    rig = Rig(delay_seconds=0)
    assert {rig.fail("ann", ATTACKER) for _ in range(100)} == {0}


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8:1:2::3", "2001:db8:1:2:ffff::9", True),
        ("2001:db8:1:2::3", "2001:db8:1:3::3", False),
        ("::ffff:203.0.113.9", "203.0.113.9", True),
        ("fe80::1%eth0", "fe80::2%eth1", True),
        ("client 1", "client 2", False),
    ],
)
def test_a_machine_is_its_network_in_ipv6(one: str, other: str, same: bool) -> None:
    rig = Rig()
    for _ in range(10):
        rig.attempts.failed("ann", one, rig.now)
    assert (rig.wait("bob", other) > 0) is same


@pytest.mark.parametrize(
    ("peer", "host"),
    [("127.0.0.1:5000", "127.0.0.1"), ("[::1]:5000", "::1"), ("client 1", "client 1"), ("", ""), ("a:b", "a:b")],
)
def test_the_machine_of_a_peer_is_without_its_port(peer: str, host: str) -> None:
    assert host_of(peer) == host
