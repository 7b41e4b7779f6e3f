"""The scenarios' own fixtures and clock, with clients that are connected to other hubs than the one that owns all.

Three hubs: clients connect to hubs `a` and `a2` in turn, which own nothing; the broker of the stage is hub `b`.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from inspect import iscoroutinefunction
from itertools import count
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
    # Among three hubs UNSUBSCRIBE of a durable subscription has to name the topic.
    "test_unsubscribe_by_name_removes_it_and_its_backlog",
    "test_one_that_belongs_to_another_topic_is_refused",
    # An ACK of a client of one hub is on its way while a client of another one looks.
    "test_a_viewer_that_does_not_read_holds_nobody_up",
    # A transaction of a wildcard is refused at once, not at its COMMIT.
    "test_bad_send_in_a_transaction_fails_the_commit",
    # Temporary destinations live at the hub of their client, under its policies.
    "test_temporary_destination_goes_with_its_connection",
    "test_replier_that_waits_for_a_full_temporary_queue_is_freed_when_it_goes",
    # The sender waits for its link, and has a little more under way.
    "test_a_sender_waits_while_its_consumer_has_no_credit",
    # What takes seconds of processor time, and is done by the owner alone.
    "test_delays_outlive_the_broker_to_the_millisecond",
    "test_dead_letters_of_a_paged_queue_come_in_to_go",
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
    """All clients of the stage come to other hubs."""
    enter, leave, connect = Broker.__aenter__, Broker.__aexit__, Broker.connect_memory
    fronts: dict[Broker, list[FrontHub]] = {}
    turns = count()

    async def entered(broker: Broker) -> Broker:
        if broker._seat is not None:
            return await enter(broker)
        network = Network()
        broker._seat = seat(network, "b", {"a": "a", "a2": "a2"}, lambda _name: "b")
        await enter(broker)
        network.hubs["b"] = broker
        fronts[broker] = []
        for name, other in (("a2", "a"), ("a", "a2")):  # a hub dials those whose names are behind its own
            front = FrontHub(broker, network, name, {"b": "b", other: other})
            await enter(front.broker)
            network.hubs[name] = front.broker
            fronts[broker].insert(0, front)  # left in the other order
        await trio.testing.wait_all_tasks_blocked()
        for front in fronts[broker]:
            assert front.broker.links is not None
            assert "b" in front.broker.links.reachable
        return broker

    async def left(
        broker: Broker, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        async with AsyncExitStack() as stack:
            for each in (broker, *(front.broker for front in reversed(fronts.pop(broker, [])))):
                stack.push_async_callback(leave, each, kind, error, trace)

    def connected(broker: Broker, **options: Any) -> Any:
        of_stage = fronts.get(broker)
        if of_stage is None:
            return connect(broker, **options)
        return connect(of_stage[next(turns) % len(of_stage)].broker, **options)

    monkeypatch.setattr(Broker, "__aenter__", entered)
    monkeypatch.setattr(Broker, "__aexit__", left)
    monkeypatch.setattr(Broker, "connect_memory", connected)
