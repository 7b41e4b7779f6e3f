"""The scenarios' own fixtures and clock, with clients that are connected to another hub than the one that owns all.

A client connects to hub `a`, which owns nothing; the broker of the stage is hub `b`.
"""

from __future__ import annotations

from inspect import iscoroutinefunction
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
import trio.testing

from sluiceway.broker import Broker
from sluiceway.protocols.stomp.escaping import Version
from tests.cluster.links.two_hubs import FrontHub, Network, seat
from tests.scenarios.conftest import run_in_virtual_time, small_pieces, stage

__all__ = ["small_pieces", "stage"]

HERE = Path(__file__).parent

_OF_ONE_HUB = (
    # What is looked at in the broker right behind a RECEIPT, or without one, is on its way over the link.
    "test_auto_messages_are_settled_when_they_are_written",
    "test_ack_auto_settles_what_the_kernel_has_taken",
    "test_error_about_an_ack_leaves_earlier_acks_in_force",
    "test_1_1_error_about_an_ack_leaves_earlier_acks_in_force",
    "test_what_is_not_taken_holds_nobody_up_and_is_no_lag",
    "test_a_paged_queue_is_shown_and_stays_on_disk",
    "test_nobody_waits_for_a_durable_subscriber_that_is_away",
    "test_a_connection_that_dies_in_the_middle_of_a_body_leaves_nothing",
    # Sessions, transactions and flows are looked at inside the broker, where another name or place stands for them.
    "test_unsubscribed_topic_messages_are_forgotten",
    "test_commits_to_a_full_queue_stop_the_socket_in_the_end",
    "test_what_transactions_hold_is_on_the_flow_map",
    "test_nothing_is_kept_of_a_transaction_that_has_ended",
    # An ack header that was never given out is told from a right one by its prefix.
    "test_ack_in_auto_mode_does_no_harm",
    # A transaction of a wildcard is refused at once, not at its COMMIT.
    "test_bad_send_in_a_transaction_fails_the_commit",
)
"""Tests about one broker without a link."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Every async test of this folder runs in virtual time. Those about one hub do not run at all."""
    ours = [item for item in items if item.path.is_relative_to(HERE)]
    for item in ours:
        if isinstance(item, pytest.Function) and iscoroutinefunction(item.obj):
            item.add_marker(pytest.mark.trio(run=run_in_virtual_time), append=False)
    left_out = {id(item) for item in ours if item.name.startswith(_OF_ONE_HUB)}
    config.hook.pytest_deselected(items=[item for item in items if id(item) in left_out])
    items[:] = [item for item in items if id(item) not in left_out]


@pytest.fixture
def version() -> Version:
    """One will do here; the proxies' own tests run in each."""
    return "1.2"


later_version = version


@pytest.fixture(autouse=True)
def behind_a_link(monkeypatch: pytest.MonkeyPatch) -> None:
    """All clients of the stage come to another hub."""
    enter, leave, connect = Broker.__aenter__, Broker.__aexit__, Broker.connect_memory
    fronts: dict[Broker, FrontHub] = {}

    async def entered(broker: Broker) -> Broker:
        if broker._seat is not None:
            return await enter(broker)
        network = Network()
        broker._seat = seat(network, "b", {"a": "a"}, lambda _name: "b")
        await enter(broker)
        network.hubs["b"] = broker
        front = fronts[broker] = FrontHub(broker, network)
        await enter(front.broker)
        network.hubs["a"] = front.broker
        await trio.testing.wait_all_tasks_blocked()
        assert front.broker.links is not None
        assert front.broker.links.reachable == ["b"]
        return broker

    async def left(
        broker: Broker, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        front = fronts.pop(broker, None)
        try:
            if front is not None:
                await leave(front.broker, kind, error, trace)
        finally:
            await leave(broker, kind, error, trace)

    def connected(broker: Broker, **options: Any) -> Any:
        front = fronts.get(broker)
        return connect(broker if front is None else front.broker, **options)

    monkeypatch.setattr(Broker, "__aenter__", entered)
    monkeypatch.setattr(Broker, "__aexit__", left)
    monkeypatch.setattr(Broker, "connect_memory", connected)
