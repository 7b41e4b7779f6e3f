"""The claims that fault rounds are checked by: which marks are right while a subscription ends."""

from __future__ import annotations

import pytest

from tests.faults.store.claims import ClaimError, Claims, Sent

PLACE = "/queue/a"


class _Claims(Claims):
    def __init__(self, *, exact: bool = True) -> None:
        super().__init__(lambda: 0.0, lambda: 0, exact=exact)
        self.sent("m", PLACE, priority=4, producer="p", place=0, body=b"", persistent=True)

    def comes(self, subscription: object, *, marked: bool, holder: object = None) -> Sent:
        headers = {"name": "m", "destination": PLACE, "message-id": "x-1"}
        if marked:
            headers["redelivered"] = "true"
        return self.delivered(headers, b"", holder=holder, auto=False, subscription=subscription)


def test_what_never_came_is_not_marked() -> None:
    claims = _Claims()
    with pytest.raises(ClaimError, match="it is marked"):
        claims.comes("second", marked=True)


def test_what_an_ending_subscription_has_on_its_way_may_come_to_another_first() -> None:
    claims = _Claims()
    claims.ending("first", PLACE)
    claims.comes("second", marked=True)
    claims.comes("first", marked=False)
    claims.ended("first", in_order=True)
    with pytest.raises(ClaimError, match="is not marked"):
        claims.comes("second", marked=False)


def test_a_mark_is_wrong_if_the_ending_subscription_had_nothing_on_its_way() -> None:
    claims = _Claims()
    claims.ending("first", PLACE)
    claims.comes("second", marked=True)
    with pytest.raises(ClaimError, match="it is marked"):
        claims.ended("first", in_order=True)


def test_after_a_crash_what_an_ending_subscription_has_on_its_way_may_be_marked_too() -> None:
    """It comes while another one holds the message; elsewhere that would be a second holder."""
    claims = _Claims()
    claims.next_life(in_order=False)
    claims.ending("first", PLACE)
    claims.comes("second", marked=True, holder="connection")
    claims.comes("first", marked=True)
    claims.ended("first", in_order=True)
    with pytest.raises(ClaimError, match="in the hands of connection"):
        claims.comes("first", marked=True)


def test_without_a_crash_what_an_ending_subscription_has_on_its_way_is_not_marked() -> None:
    claims = _Claims()
    claims.ending("first", PLACE)
    claims.comes("second", marked=True, holder="connection")
    with pytest.raises(ClaimError, match="it is marked"):
        claims.comes("first", marked=True)


def test_nobody_knows_what_a_broken_connection_had_on_its_way() -> None:
    claims = _Claims()
    claims.ending("first", PLACE)
    claims.comes("second", marked=True)
    claims.ended("first", in_order=False)


def test_what_is_on_its_way_to_an_ending_subscription_is_known_over_sockets_too() -> None:
    """Where the ledger does not see all that left the broker."""
    claims = _Claims(exact=False)
    claims.ending("first", PLACE)
    claims.comes("second", marked=True)
    claims.comes("first", marked=False)
    with pytest.raises(ClaimError, match="is not marked"):
        claims.comes("third", marked=False)


def test_a_second_copy_on_its_way_to_an_ending_subscription_may_come_while_another_one_holds_the_message() -> None:
    """Or when it is acknowledged by then; not once the subscription has ended."""
    claims = _Claims()
    sent = claims.comes("somebody", marked=False)
    claims.given_back([sent])
    for ending in ("first", "second"):
        claims.ending(ending, PLACE)
    claims.comes("third", marked=True, holder="connection")
    claims.comes("first", marked=True)
    claims.settling([sent])
    claims.settled([sent])
    claims.comes("second", marked=True)
    claims.ended("second", in_order=True)
    with pytest.raises(ClaimError, match="it came back"):
        claims.comes("second", marked=True)
