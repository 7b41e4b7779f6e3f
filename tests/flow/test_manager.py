"""The registry and the map: who is on it, what it sums, what it says in words."""

import json
from collections.abc import Iterable

import attrs
import pytest

from sluiceway.flow import (
    CompositeLimiter,
    Flow,
    FlowController,
    FlowManager,
    FlowResource,
    RateLimiter,
    RegistrationError,
    SizeLimiter,
    SourceController,
    WaitEdge,
    WindowLimiter,
)
from tests.flow.models import ManualClock, Resource, Source, Tank

MIB = 1024 * 1024


class WaitingQueue(Resource):
    """A queue that waits on its subscriptions without being blocked by them."""

    def __init__(self, name: str, manager: FlowManager, waits: Iterable[WaitEdge] = ()) -> None:
        super().__init__(name, "queue", manager)
        self.waits = list(waits)

    def waits_on(self) -> Iterable[WaitEdge]:
        return self.waits


def sink_on(resource: FlowResource, limiter: SizeLimiter | WindowLimiter, clock: ManualClock) -> FlowController[str]:
    return FlowController(resource, Flow(resource.name), limiter, accept=lambda _element: None, clock=clock)


class TestRegistry:
    def test_open_and_close_put_on_the_map_and_take_off(self, manager: FlowManager) -> None:
        resource = Resource("orders", "queue", manager)
        assert not resource.is_open and manager.resources == ()
        resource.open()
        assert resource.is_open and manager.resources == (resource,)
        resource.close()
        assert not resource.is_open and manager.resources == ()

    def test_second_open_and_second_close_raise(self, manager: FlowManager) -> None:
        resource = Resource("orders", "queue", manager)
        with pytest.raises(RegistrationError, match="queue orders is not open"):
            resource.close()
        resource.open()
        with pytest.raises(RegistrationError, match="queue orders is open already"):
            resource.open()
        resource.close()
        with pytest.raises(RegistrationError):
            resource.close()

    def test_close_closes_the_controllers(self, manager: FlowManager, clock: ManualClock) -> None:
        tank, source = Tank("orders", manager, SizeLimiter(100, clock=clock)), Source("web", manager)
        tank.resource.open()
        tank.add("a", 100, source)
        tank.resource.close()
        assert not source.controller.blocked and tank.controller.closed and tank.resource.controllers == ()

    def test_close_refuses_to_lose_overflow(self, manager: FlowManager, clock: ManualClock) -> None:
        tank = Tank("orders", manager, SizeLimiter(100, clock=clock))
        tank.resource.open()
        tank.add("a", 100, None)
        tank.add("b", 1, None)
        with pytest.raises(RegistrationError, match="1 elements of flow orders still wait in overflow"):
            tank.resource.close()
        assert tank.resource.is_open and not tank.controller.closed
        assert tank.controller.close() == [("b", 1)]
        tank.resource.close()


class TestSums:
    def test_memory_in_use_is_the_sum_of_the_limiters(self, manager: FlowManager, clock: ManualClock) -> None:
        for size_bytes in (10, 20, 30):
            tank = Tank("t", manager, SizeLimiter(100, clock=clock))
            tank.resource.open()
            tank.add("x", size_bytes, None)
        snapshot = manager.snapshot()
        assert snapshot.used_bytes == manager.used_bytes == 60 and snapshot.used_count == 3

    def test_composite_and_its_parts_count_once(self, manager: FlowManager, clock: ManualClock) -> None:
        limiter = CompositeLimiter([SizeLimiter(100, clock=clock), RateLimiter(100, 100, clock=clock)])
        tank = Tank("t", manager, limiter)
        tank.resource.open()
        tank.add("x", 40, None)
        assert manager.snapshot().used_bytes == 40

    def test_limiter_shared_by_controllers_counts_once(self, manager: FlowManager, clock: ManualClock) -> None:
        limiter = SizeLimiter(100, clock=clock)
        tank = Tank("t", manager, limiter)
        tank.resource.open()
        sink_on(tank.resource, limiter, clock)
        tank.add("x", 40, None)
        assert manager.snapshot().used_bytes == manager.used_bytes == 40

    def test_window_over_what_a_queue_holds_is_left_out(self, manager: FlowManager, clock: ManualClock) -> None:
        resource = Resource("billing", "subscription", manager)
        resource.open()
        window = FlowController[str](
            resource,
            Flow("x"),
            WindowLimiter(5, None, clock=clock),
            accept=lambda _element: None,
            clock=clock,
            counts_memory=False,
        )
        window.charge(5, 500, None)
        snapshot = manager.snapshot()
        assert snapshot.used_bytes == 0
        assert snapshot.resources[0].limiters[0].used_bytes == 500, "it is on the map all the same"

    def test_overflow_and_reserved_space_are_shown(self, manager: FlowManager, clock: ManualClock) -> None:
        first, second = (Tank(name, manager, SizeLimiter(100, clock=clock)) for name in ("first", "second"))
        for tank in (first, second):
            tank.resource.open()
        second.add("x", 100, None)
        first.add("a", 30, None)
        first.pass_on(second)
        snapshot = manager.snapshot()
        assert (snapshot.used_bytes, snapshot.overflow_bytes, snapshot.reserved_bytes) == (130, 30, 30)


class TestMap:
    def test_edge_has_source_sink_flow_and_age(self, manager: FlowManager, clock: ManualClock) -> None:
        tank, source = Tank("orders", manager, SizeLimiter(100, clock=clock)), Source("web-3", manager)
        for resource in (tank.resource, source.resource):
            resource.open()
        tank.add("a", 100, source)
        clock.advance(41)
        (edge,) = manager.snapshot().edges
        assert (edge.source.title, edge.sink.title, edge.flow, edge.age_seconds) == (
            "producer web-3",
            "queue orders",
            "web-3",
            41.0,
        )
        assert edge.details == "memory full, 100 B of 100 B, 41 s"

    def test_chain_says_the_whole_story(self, manager: FlowManager, clock: ManualClock) -> None:
        """The sentence of the design, word for word."""
        subscription = Resource("billing-2", "subscription", manager, {"unacked": 500, "idle_seconds": 41.0})
        queue = WaitingQueue("orders", manager, [WaitEdge(subscription, since=clock())])
        limiter = SizeLimiter(64 * MIB, clock=clock)
        source = Source("web-3", manager)
        for resource in (source.resource, queue, subscription):
            resource.open()
        sink_on(queue, limiter, clock).charge(1, 64 * MIB, source.controller)
        clock.advance(41)
        snapshot = manager.snapshot()
        assert [chain.words for chain in snapshot.chains] == [
            "producer web-3 waits on queue orders (memory full, 64.0 MiB of 64.0 MiB, 41 s), "
            "waits on subscription billing-2: 500 unacked, idle 41 s",
            "queue orders waits on subscription billing-2: 500 unacked, idle 41 s",
        ]

    def test_chain_ends_with_limiter_and_facts_of_the_last(self, manager: FlowManager, clock: ManualClock) -> None:
        subscription = Resource("billing", "subscription", manager, {"idle_seconds": 41.0})
        window = sink_on(subscription, WindowLimiter(500, None, clock=clock), clock)
        source = Source("orders", manager)
        window.charge(500, 0, source.controller)
        for resource in (source.resource, subscription):
            resource.open()
        clock.advance(41)
        (chain,) = manager.snapshot().chains
        assert chain.words == (
            "producer orders waits on subscription billing (window full, 500 of 500 messages, 41 s): idle 41 s"
        )

    def test_wait_without_facts_says_reason_and_age(self, manager: FlowManager, clock: ManualClock) -> None:
        sink = Resource("store", "store", manager)
        queue = WaitingQueue("orders", manager, [WaitEdge(sink, since=clock(), reason="12 page-ins")])
        queue.open()
        clock.advance(3)
        assert manager.snapshot().chains[0].words == "queue orders waits on store (12 page-ins, 3 s)"

    def test_draining_sink_says_so(self, manager: FlowManager, clock: ManualClock) -> None:
        tank, source = Tank("orders", manager, SizeLimiter(100, clock=clock)), Source("web", manager)
        source.resource.open()
        for name in "abcd":
            tank.add(name, 25, source)
        tank.drain()
        clock.advance(2)
        assert manager.snapshot().chains[0].words == (
            "producer web waits on queue orders (memory draining to 50 B, 75 B of 100 B, 2 s)"
        )

    def test_source_in_line_to_resume_says_so(self, manager: FlowManager, clock: ManualClock) -> None:
        turns: list[object] = []
        tank = Tank("orders", manager, SizeLimiter(100, clock=clock), schedule=turns.append)
        source = Source("web", manager)
        source.resource.open()
        tank.add("a", 100, source)
        tank.drain()
        assert "in line to resume, memory open, 0 B of 100 B" in manager.snapshot().chains[0].words

    def test_sink_that_was_never_opened_is_shown_as_such(self, manager: FlowManager, clock: ManualClock) -> None:
        """A resource that was forgotten still explains who waits, and its memory counts."""
        source, tank = Source("web", manager), Tank("orders", manager, SizeLimiter(100, clock=clock))
        source.resource.open()
        tank.add("a", 100, source)
        snapshot = manager.snapshot()
        assert [(r.title, r.registered) for r in snapshot.resources] == [
            ("producer web", True),
            ("queue orders", False),
        ]
        assert snapshot.used_bytes == 100 and len(snapshot.chains) == 1

    def test_connection_that_produces_and_consumes_is_no_cycle(self, manager: FlowManager, clock: ManualClock) -> None:
        """Its outbound buffer waits for its peer, not for the queues to which the same connection sends."""

        class Connection(Resource):
            passes_through = False

        connection = Connection("5", "connection", manager)
        outbound = sink_on(connection, WindowLimiter(1, None, clock=clock), clock)
        to_orders = SourceController(connection, Flow("to orders"), clock=clock)
        queue = Tank("orders", manager, SizeLimiter(100, clock=clock))
        for resource in (connection, queue.resource):
            resource.open()
        queue.controller.add(("a", 100), 1, 100, to_orders)
        outbound.charge(1, 1, queue.controller)
        snapshot = manager.snapshot()
        assert snapshot.cycles == () and not any(chain.cyclic for chain in snapshot.chains)
        assert [b.sink.title for b in snapshot.bottlenecks] == ["connection 5", "queue orders"]
        assert snapshot.bottlenecks[0].waits_itself is False

    def test_stages_that_fill_each_other_are_a_cycle(self, manager: FlowManager, clock: ManualClock) -> None:
        first, second = (Tank(name, manager, SizeLimiter(10, clock=clock)) for name in "ab")
        for tank in (first, second):
            tank.resource.open()
        first.add("x", 10, second)
        second.add("y", 10, first)
        snapshot = manager.snapshot()
        assert [cycle.words for cycle in snapshot.cycles] == ["cycle: queue a waits on queue b, waits on queue a"]
        assert all(chain.cyclic for chain in snapshot.chains)
        assert snapshot.chains[0].words.endswith("which is a cycle")

    def test_everything_is_jsonable(self, manager: FlowManager, clock: ManualClock) -> None:
        subscription = Resource(
            "billing", "subscription", manager, {"unacked": 5, "peer": ("10.0.0.1", 80), "tls": None}
        )
        queue = WaitingQueue("orders", manager, [WaitEdge(subscription), WaitEdge(subscription, reason="again")])
        limiter = CompositeLimiter([SizeLimiter(10, clock=clock), RateLimiter(5, 5, unit="messages", clock=clock)])
        tank, source = Tank("audit", manager, limiter), Source("web", manager)
        for resource in (source.resource, queue, subscription, tank.resource):
            resource.open()
        sink_on(queue, SizeLimiter(10, clock=clock), clock).charge(1, 10, source.controller)
        tank.add("a", 10, source)
        snapshot = manager.snapshot()
        sent = json.loads(json.dumps(snapshot.to_dict()))
        assert sent["taken_at"] == 1000.0 and sent["used_bytes"] == 20
        assert sent["resources"][2]["facts"] == {"unacked": 5, "peer": "('10.0.0.1', 80)", "tls": None}
        assert len(sent["edges"]) == 4 and len(sent["chains"]) == 2 and sent["bottlenecks"]

    def test_snapshot_is_frozen(self, manager: FlowManager) -> None:
        resource = Resource("orders", "queue", manager, {"unacked": 1})
        resource.open()
        snapshot = manager.snapshot()
        resource.said["unacked"] = 2
        assert snapshot.resources[0].facts == {"unacked": 1}
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            snapshot.used_bytes = 1  # type: ignore[misc]
