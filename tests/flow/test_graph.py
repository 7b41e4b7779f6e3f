"""Chains, bottlenecks and cycles in any graph, however long or knotted."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluiceway.flow import Flow, FlowManager, FlowResource, FlowSnapshot, SizeLimiter, WaitEdge
from sluiceway.flow.graph import CHAIN_LENGTH_MAX
from tests.flow.models import ManualClock, Source, Tank


class Station(FlowResource):
    """A resource that waits on whomever the test says."""

    def __init__(self, name: str, manager: FlowManager) -> None:
        super().__init__(name, "station", manager)
        self.waits: list[WaitEdge] = []

    def waits_on(self) -> Iterable[WaitEdge]:
        return self.waits


class SplitStation(Station):
    """The same, but its flows have nothing to do with each other."""

    passes_through = False


def snapshot_of(stations_count: int, waits: Iterable[tuple[int, int]]) -> FlowSnapshot:
    """Take the map of stations that wait on each other; the first wait is the oldest."""
    clock = ManualClock()
    manager = FlowManager(clock)
    stations = [Station(str(number), manager) for number in range(stations_count)]
    for station in stations:
        station.open()
    for age, (source, sink) in enumerate(waits):
        stations[source].waits.append(WaitEdge(stations[sink], since=clock.now - 1_000_000 + age))
    return manager.snapshot()


def names(snapshot: FlowSnapshot) -> list[str]:
    return [bottleneck.sink.name for bottleneck in snapshot.bottlenecks]


EDGES = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=24)


class TestChains:
    def test_follow_the_longest_wait_and_count_the_others(self) -> None:
        snapshot = snapshot_of(4, [(0, 1), (1, 2), (1, 3), (0, 3)])
        chain = snapshot.chains[0]
        assert [edge.sink.name for edge in chain.edges] == ["1", "2"]
        assert chain.other_count == 2
        assert chain.words.endswith("(2 other waits beside)")

    def test_begin_with_the_longest_wait(self) -> None:
        snapshot = snapshot_of(4, [(2, 3), (0, 1)])
        assert [chain.source.name for chain in snapshot.chains] == ["2", "0"]

    def test_there_is_one_for_each_blocked_flow(self, manager: FlowManager, clock: ManualClock) -> None:
        """A connection has a flow for each destination, and each has its own story."""
        source = Source("web", manager)
        other = type(source.controller)(source.resource, Flow("to audit"), clock=clock)
        source.resource.open()
        orders, audit = (Tank(name, manager, SizeLimiter(10, clock=clock)) for name in ("orders", "audit"))
        orders.add("a", 10, source)
        audit.controller.add(("b", 10), 1, 10, other)
        assert [(chain.flow, chain.edges[0].sink.name) for chain in manager.snapshot().chains] == [
            ("web", "orders"),
            ("to audit", "audit"),
        ]

    def test_are_cut_at_a_bound(self) -> None:
        snapshot = snapshot_of(40, [(number, number + 1) for number in range(39)])
        first, last = snapshot.chains[0], snapshot.chains[-1]
        assert len(first.edges) == CHAIN_LENGTH_MAX and first.truncated and first.words.endswith("and so on")
        assert len(last.edges) == 1 and not last.truncated

    def test_stop_where_a_ring_closes(self) -> None:
        snapshot = snapshot_of(4, [(0, 1), (1, 2), (2, 3), (3, 1)])
        chain = snapshot.chains[0]
        assert [edge.sink.name for edge in chain.edges] == ["1", "2", "3", "1"] and chain.cyclic

    @given(edges=EDGES)
    def test_end_in_every_graph(self, edges: list[tuple[int, int]]) -> None:
        snapshot = snapshot_of(8, edges)
        assert {chain.source.name for chain in snapshot.chains} == {str(source) for source, _ in edges}
        for chain in snapshot.chains:
            for before, after in zip(chain.edges, chain.edges[1:], strict=False):
                assert before.sink is after.source
            ends = chain.edges[-1].sink.name not in {str(source) for source, _ in edges}
            assert ends != chain.cyclic and not chain.truncated
        json.dumps(snapshot.to_dict())


class TestBottlenecks:
    def test_rank_by_all_who_wait_through_others_too(self) -> None:
        """Ten wait on a queue which waits on a subscription: the subscription is what blocks eleven."""
        waits = [(number, 10) for number in range(10)] + [(10, 11), (12, 13)]
        snapshot = snapshot_of(14, waits)
        assert [(b.sink.name, b.waiting_count, b.direct_count, b.waits_itself) for b in snapshot.bottlenecks] == [
            ("11", 11, 1, False),
            ("10", 10, 10, True),
            ("13", 1, 1, False),
        ]
        assert snapshot.bottlenecks[0].words.startswith("station 11 blocks 11 flows, for ")

    def test_of_equals_who_does_not_wait_himself_comes_first_then_the_older_wait(self) -> None:
        snapshot = snapshot_of(9, [(0, 1), (1, 2), (3, 4), (5, 6), (7, 8)])
        assert names(snapshot) == ["2", "4", "6", "8", "1"]

    def test_in_a_ring_everybody_waits_on_everybody(self) -> None:
        snapshot = snapshot_of(5, [(0, 1), (1, 2), (2, 0), (3, 0), (4, 3)])
        assert {b.sink.name: b.waiting_count for b in snapshot.bottlenecks} == {"0": 5, "1": 5, "2": 5, "3": 1}

    @given(parents=st.lists(st.integers(0, 30), min_size=1, max_size=30))
    def test_are_exact_where_everybody_waits_on_one(self, parents: list[int]) -> None:
        edges = [(child + 1, parent % (child + 1)) for child, parent in enumerate(parents)]
        snapshot = snapshot_of(len(parents) + 1, edges)
        waiting = dict.fromkeys(range(len(parents) + 1), 0)
        up = dict(edges)
        for node in up:
            above: int | None = up[node]
            while above is not None:
                waiting[above] += 1
                above = up.get(above)
        assert {int(b.sink.name): b.waiting_count for b in snapshot.bottlenecks} == {
            node: count for node, count in waiting.items() if count
        }
        counts = [b.waiting_count for b in snapshot.bottlenecks]
        assert counts == sorted(counts, reverse=True)


class TestCycles:
    @given(edges=EDGES)
    def test_one_ring_is_found_in_each_knot(self, edges: list[tuple[int, int]]) -> None:
        """Against brute force: knots are sets of stations that reach each other."""
        reach = {node: {sink for source, sink in edges if source == node} for node in range(8)}
        for middle in range(8):
            for node in range(8):
                if middle in reach[node]:
                    reach[node] = reach[node] | reach[middle]
        knots = {
            frozenset(other for other in range(8) if other in reach[node] and node in reach[other])
            for node in range(8)
            if node in reach[node]
        }
        cycles = snapshot_of(8, edges).cycles
        assert len(cycles) == len(knots)
        for cycle in cycles:
            for before, after in zip(cycle.edges, [*cycle.edges[1:], cycle.edges[0]], strict=True):
                assert before.sink is after.source
                assert (int(before.source.name), int(before.sink.name)) in edges
            members = [int(edge.source.name) for edge in cycle.edges]
            assert len(set(members)) == len(members), "a ring passes each of its members once"
            assert any(set(members) <= knot for knot in knots)

    def test_station_that_waits_on_itself_is_one(self) -> None:
        assert [cycle.words for cycle in snapshot_of(1, [(0, 0)]).cycles] == ["cycle: station 0 waits on station 0"]


class TestFlowsApart:
    """A resource that does not pass through: only the same flow, or a wait in common, leads on."""

    @pytest.fixture
    def station(self, manager: FlowManager) -> SplitStation:
        station = SplitStation("split", manager)
        station.open()
        return station

    def test_other_flows_do_not_lead_on(self, station: SplitStation, manager: FlowManager) -> None:
        flow_in, flow_out = Flow("in"), Flow("out")
        other = Station("other", manager)
        other.open()
        other.waits.append(WaitEdge(station, sink_flow=flow_in))
        station.waits.append(WaitEdge(other, flow=flow_out))
        snapshot = manager.snapshot()
        assert snapshot.cycles == ()
        assert sorted(len(chain.edges) for chain in snapshot.chains) == [1, 2]

    @pytest.mark.parametrize("how", ["same flow", "waits in common", "waited on as a whole"])
    def test_these_lead_on(self, station: SplitStation, manager: FlowManager, how: str) -> None:
        flow_in = Flow("in")
        other = Station("other", manager)
        other.open()
        other.waits.append(WaitEdge(station, sink_flow=None if how == "waited on as a whole" else flow_in))
        station.waits.append(WaitEdge(other, flow=None if how == "waits in common" else flow_in))
        snapshot = manager.snapshot()
        assert len(snapshot.cycles) == 1 and len(snapshot.cycles[0].edges) == 2
        assert all(chain.cyclic for chain in snapshot.chains)

    def test_flow_with_waits_of_its_own_waits_in_common_too(self, station: SplitStation, manager: FlowManager) -> None:
        flow_in = Flow("in")
        other, third = Station("other", manager), Station("third", manager)
        for resource in (other, third):
            resource.open()
        other.waits.append(WaitEdge(station, sink_flow=flow_in))
        station.waits += [WaitEdge(third, flow=flow_in), WaitEdge(other)]
        assert len(manager.snapshot().cycles) == 1


class TestSize:
    """Nothing recurses, and nothing grows with the square: these graphs would not finish within the test's deadline."""

    COUNT = 20_000

    def test_long_line(self) -> None:
        snapshot = snapshot_of(self.COUNT, [(number, number + 1) for number in range(self.COUNT - 1)])
        assert snapshot.cycles == ()
        assert (names(snapshot)[0], snapshot.bottlenecks[0].waiting_count) == (str(self.COUNT - 1), self.COUNT - 1)

    def test_long_ring(self) -> None:
        snapshot = snapshot_of(self.COUNT, [(number, (number + 1) % self.COUNT) for number in range(self.COUNT)])
        assert len(snapshot.cycles) == 1 and len(snapshot.cycles[0].edges) == self.COUNT

    def test_many_sources_on_one_sink(self) -> None:
        snapshot = snapshot_of(self.COUNT, [(number, 0) for number in range(1, self.COUNT)])
        assert snapshot.bottlenecks[0].waiting_count == self.COUNT - 1
