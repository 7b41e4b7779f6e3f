"""Accounts: charged for what they are not given, and a line for those who have nothing to bring yet."""

from __future__ import annotations

import pytest

from sluiceway.flow import Account, Flow, FlowClosedError, FlowManager, PairingError, SizeLimiter
from tests.flow.models import ManualClock, Resource, Source


@pytest.fixture
def account(manager: FlowManager, clock: ManualClock) -> Account:
    return Account(Resource("outbound", "buffer", manager), Flow("bytes"), SizeLimiter(10, clock=clock), clock=clock)


def test_who_waits_in_line_is_charged_nothing_and_goes_on_in_its_turn(account: Account, manager: FlowManager) -> None:
    first, second = Source("first", manager), Source("second", manager)
    account.charge(1, 10, None)
    account.wait_in_line(first.controller)
    account.wait_in_line(second.controller)
    assert account.blocked_sources() == (first.controller, second.controller)
    assert (account.limiter.used_count, account.limiter.used_bytes) == (1, 10)
    account.release(1, 10)
    assert first.resume_calls_count == second.resume_calls_count == 1
    assert not account.blocks_somebody


def test_where_there_is_room_and_no_line_nothing_blocks(account: Account, manager: FlowManager) -> None:
    source = Source("first", manager)
    account.wait_in_line(source.controller)
    assert not source.controller.blocked


def test_who_waits_already_keeps_one_place(account: Account, manager: FlowManager) -> None:
    source = Source("first", manager)
    account.charge(1, 10, None)
    account.wait_in_line(source.controller)
    account.wait_in_line(source.controller)
    assert account.blocked_sources() == (source.controller,)
    with pytest.raises(PairingError):
        source.controller.block(account)


def test_a_closed_account_has_no_line(account: Account, manager: FlowManager) -> None:
    account.close()
    with pytest.raises(FlowClosedError):
        account.wait_in_line(Source("late", manager).controller)


def test_what_left_while_a_sink_downstream_blocked_stays_charged(account: Account, manager: FlowManager) -> None:
    """The space is reserved until that sink lets go: what left may lie in its overflow."""
    clock = manager.clock
    sink = Account(Resource("socket", "buffer", manager), Flow("bytes"), SizeLimiter(10, clock=clock), clock=clock)
    sink.charge(1, 10, None)
    sink.wait_in_line(account)
    account.charge(1, 6, None)
    account.release(1, 6)
    assert (account.limiter.used_bytes, account.reserved_bytes) == (6, 6)
    sink.release(1, 10)
    assert (account.limiter.used_bytes, account.reserved_bytes) == (0, 0)
