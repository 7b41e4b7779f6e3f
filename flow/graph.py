"""Analysis of the graph of waits: chains, bottlenecks, cycles.

Nodes are flows of resources. A resource that passes things through (`FlowResource.passes_through`) is one node for all
its flows; one that does not has a node for each flow, so that a connection's producing side is not blamed on its
consuming side.

Everything here is O(resources + edges) in time and space, whatever the graph looks like, and never recurses:

    - A chain follows the *longest* wait of each node, so that there is one way on; it stops at a node it has seen,
      and after `CHAIN_LENGTH_MAX` edges.
    - Bottlenecks count each blocked flow once at each sink along that same way. Where every flow waits on one sink
      (the usual case) this is exact; counting exactly in any graph would cost the square of its size.
    - Cycles come from the strongly connected components (Tarjan 1972, iterative) of the whole graph, not only of the
      longest waits: one ring is reported from each. To list all rings of a knot can take exponential time.

Each answer comes *in steps*: a generator that yields every few microseconds and returns the answer, so that the event
loop is not blocked for as long as ten thousand edges take.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator, Iterable, Sequence
from itertools import islice
from typing import Any, TypeVar

from .resource import ResourceId
from .snapshot import BlockCycle, BlockedByChain, BlockEdge, Bottleneck

T = TypeVar("T")

Steps = Generator[None, None, T]
"""Work in small pieces: run it to its end for the T that it returns."""

CHAIN_LENGTH_MAX = 16
"""Edges of a chain. No sane route of messages is longer, and without a bound ten thousand queues in a row would cost
their square."""

Node = tuple[int, int | None]
"""A resource id, and a flow id or None: the resource as a whole."""

# Flow ids start at 1. The edges of a resource whose flows are apart, but that wait in common, hang on a node of their
# own.
_COMMON = 0


def at_once(steps: Generator[object, None, T]) -> T:
    """Run all steps now; returns their result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


SORTED_PER_STEP = 256
"""Items that one step sorts, or merges."""


def sorted_in_steps(items: Iterable[T], key: Callable[[T], Any]) -> Steps[list[T]]:
    """`sorted(items, key=key)`, in steps."""
    runs: list[list[T]] = []
    rest = iter(items)
    while run := list(islice(rest, SORTED_PER_STEP)):
        yield
        run.sort(key=key)
        runs.append(run)
    merged: list[T] = []
    ordered = heapq.merge(*runs, key=key)
    while run := list(islice(ordered, SORTED_PER_STEP)):
        yield
        merged += run
    return merged


def best_in_steps(items: Iterable[T], rank: Callable[[T], Any], count_max: int) -> Steps[tuple[list[T], int]]:
    """Return the items of the highest rank in steps, of equals the first, and how many items there are in all."""
    best: list[tuple[Any, int, T]] = []
    """A heap, the worst first."""
    total = 0
    for item in items:
        yield
        total += 1
        entry = rank(item), -total, item
        if len(best) < count_max:
            heapq.heappush(best, entry)
        elif best and entry > best[0]:
            heapq.heapreplace(best, entry)
    best = yield from sorted_in_steps(best, lambda entry: entry[:2])
    return [item for _rank, _place, item in reversed(best)], total


class WaitGraph:
    """The graph of one snapshot. Made once, read once."""

    __slots__ = ("_apart", "_edge_counts", "_edges", "_edges_by_node", "_longest")

    def __init__(self, edges: Sequence[BlockEdge], apart: frozenset[ResourceId]) -> None:
        """Begin with `edges`. `apart`: the resources which do not pass through, whose flows stand each for itself."""
        self._edges = edges
        self._apart = apart
        self._edges_by_node: dict[Node, list[BlockEdge]] = {}
        # The oldest edge, and how many there are: of each flow (where chains start), and of each resource as a whole.
        self._longest: dict[Node, BlockEdge] = {}
        self._edge_counts: dict[Node, int] = {}

    def read_in_steps(self) -> Steps[None]:
        """Take the edges in. Before anything else, and once."""
        for edge in self._edges:
            yield
            resource_id, flow_id = edge.source.resource_id, edge.flow_id
            flow_key = (resource_id, _COMMON if flow_id is None else flow_id)
            self._edges_by_node.setdefault(flow_key, []).append(edge)
            for key in (flow_key, (resource_id, None)):
                self._edge_counts[key] = self._edge_counts.get(key, 0) + 1
                known = self._longest.get(key)
                if known is None or edge.age_seconds > known.age_seconds:
                    self._longest[key] = edge

    def chains_in_steps(self) -> Steps[tuple[BlockedByChain, ...]]:
        """Return one chain for each flow that waits, and for each resource that waits as one; longest wait first."""
        chains = []
        for start in self._edges_by_node:
            yield
            path, other_count, cyclic, truncated = self._walk(start)
            chains.append(BlockedByChain(path[0].source, path[0].flow, tuple(path), other_count, cyclic, truncated))
        chains = yield from sorted_in_steps(chains, lambda chain: -chain.edges[0].age_seconds)
        return tuple(chains)

    def bottlenecks_in_steps(self) -> Steps[tuple[Bottleneck, ...]]:
        """Return the sinks that others wait on, worst first."""
        weights = yield from self._weights()
        waiting_counts: dict[int, int] = {}
        for node, weight in weights.items():
            yield
            waiting_counts[node[0]] = waiting_counts.get(node[0], 0) + weight
        waiting_themselves: set[int] = set()
        direct: dict[int, tuple[BlockEdge, int, float]] = {}
        """Per sink: one edge to it, the number of edges, and the age of the oldest in seconds."""
        for edge in self._edges:
            yield
            first, count, oldest_seconds = direct.get(edge.sink.resource_id, (edge, 0, 0.0))
            direct[edge.sink.resource_id] = first, count + 1, max(oldest_seconds, edge.age_seconds)
            if self._next_edge(self._node_of_sink(edge)) is not None:
                waiting_themselves.add(edge.sink.resource_id)
        found = []
        for resource_id, (first, count, oldest_seconds) in direct.items():
            yield
            found.append(
                Bottleneck(
                    sink=first.sink,
                    # A sink that is no source's longest wait still blocks those that wait on it directly.
                    waiting_count=max(waiting_counts.get(resource_id, 0), count),
                    direct_count=count,
                    oldest_seconds=oldest_seconds,
                    waits_itself=resource_id in waiting_themselves,
                )
            )
        found = yield from sorted_in_steps(
            found, lambda b: (-b.waiting_count, b.waits_itself, -b.oldest_seconds, b.sink.resource_id)
        )
        return tuple(found)

    def cycles_in_steps(self) -> Steps[tuple[BlockCycle, ...]]:
        """Return one ring for each set of nodes that wait on each other."""
        successors = yield from self._successors()
        components = yield from _components(successors)
        cycles = []
        for component in components:
            ring = yield from _ring(component, successors)
            cycles.append(BlockCycle(ring))
        return tuple(cycles)

    # ------------------------------------------------------------------ the one way on from each node

    def _node_of_sink(self, edge: BlockEdge) -> Node:
        resource_id = edge.sink.resource_id
        return resource_id, edge.sink_flow_id if resource_id in self._apart else None

    def _next_edge(self, node: Node) -> BlockEdge | None:
        own = self._longest.get(node)
        if node[1] is None or node[1] == _COMMON:
            return own
        common = self._longest.get((node[0], _COMMON))
        if own is None or common is None:
            return own or common
        return common if common.age_seconds > own.age_seconds else own

    def _walk(self, start: Node) -> tuple[list[BlockEdge], int, bool, bool]:
        edge: BlockEdge | None = self._longest[start]
        other_count = self._edge_counts[start] - 1
        path: list[BlockEdge] = []
        # A start is a flow; for a resource that passes through, coming back to any flow of it closes the ring.
        seen = {start if start[0] in self._apart else (start[0], None)}
        while edge is not None:
            path.append(edge)
            node = self._node_of_sink(edge)
            if node in seen:
                return path, other_count, True, False
            if len(path) == CHAIN_LENGTH_MAX:
                return path, other_count, False, self._next_edge(node) is not None
            seen.add(node)
            edge = self._next_edge(node)
            if edge is not None:
                other_count += self._other_count(node)
        return path, other_count, False, False

    def _other_count(self, node: Node) -> int:
        """Waits of a node beside the one that is followed."""
        count = self._edge_counts.get(node, 0)
        if node[1] is not None and node[1] != _COMMON:
            count += self._edge_counts.get((node[0], _COMMON), 0)
        return count - 1

    def _weights(self) -> Steps[dict[Node, int]]:
        """Return for each node that blocks another the number of flows that reach it along their longest waits."""
        weights: dict[Node, int] = {}
        for start in self._edges_by_node:
            yield
            node = self._node_of_sink(self._longest[start])
            weights[node] = weights.get(node, 0) + 1
        following: dict[Node, Node] = {}
        pending = list(weights)
        while pending:
            yield
            node = pending.pop()
            edge = self._next_edge(node)
            if edge is None or node in following:
                continue
            following[node] = self._node_of_sink(edge)
            pending.append(following[node])
        arrivals: dict[Node, int] = {}
        for node in following.values():
            yield
            arrivals[node] = arrivals.get(node, 0) + 1
            weights.setdefault(node, 0)
        # Every node has one next node: nodes without a predecessor are done, and the rest in the end are rings.
        done = []
        for node in following:
            yield
            if node not in arrivals:
                done.append(node)
        while done:
            yield
            node = done.pop()
            onward = following.pop(node, None)
            if onward is None:
                continue
            weights[onward] += weights[node]
            arrivals[onward] -= 1
            if not arrivals[onward]:
                done.append(onward)
        for start in tuple(following):
            yield
            ring = []
            node = start
            total = 0
            while node in following:
                yield
                ring.append(node)
                total += weights[node]
                node = following.pop(node)
            for member in ring:
                yield
                weights[member] = total
        return weights

    # ------------------------------------------------------------------ the whole graph

    def _successors(self) -> Steps[dict[Node, list[tuple[Node, BlockEdge | None]]]]:
        """Return each node's edges; those without a BlockEdge tie the parts of one resource together."""
        successors: dict[Node, list[tuple[Node, BlockEdge | None]]] = {}
        for key, edges in self._edges_by_node.items():
            yield
            resource_id = key[0]
            if resource_id not in self._apart:
                key = (resource_id, None)
            node_edges = successors.setdefault(key, [])
            for edge in edges:
                yield
                node_edges.append((self._node_of_sink(edge), edge))
            if resource_id in self._apart:
                # A source that waits on the resource as a whole waits on this flow of it.
                successors.setdefault((resource_id, None), []).append((key, None))
        for edge in self._edges:
            yield
            node = self._node_of_sink(edge)
            # A flow of a resource that waits in common waits with it, whether or not it has edges of its own.
            common = (node[0], _COMMON)
            if node[1] and common in self._edges_by_node:
                ties = successors.setdefault(node, [])
                if not ties or ties[-1] != (common, None):
                    ties.append((common, None))
        return successors


def _components(successors: dict[Node, list[tuple[Node, BlockEdge | None]]]) -> Steps[list[set[Node]]]:
    """Return the strongly connected components with a cycle: of several nodes, or of one that waits on itself."""
    order: dict[Node, int] = {}
    low: dict[Node, int] = {}
    stack: list[Node] = []
    on_stack: set[Node] = set()
    found = []
    for root in successors:
        if root in order:
            continue
        order[root] = low[root] = len(order)
        stack.append(root)
        on_stack.add(root)
        path = [(root, iter(successors[root]))]
        while path:
            yield
            node, rest = path[-1]
            for onward, _ in rest:
                yield
                if onward not in order:
                    order[onward] = low[onward] = len(order)
                    stack.append(onward)
                    on_stack.add(onward)
                    path.append((onward, iter(successors.get(onward, ()))))
                    break
                if onward in on_stack:
                    low[node] = min(low[node], order[onward])
            else:
                path.pop()
                if path:
                    parent = path[-1][0]
                    low[parent] = min(low[parent], low[node])
                if low[node] == order[node]:
                    component = set()
                    while True:
                        yield
                        member = stack.pop()
                        on_stack.discard(member)
                        component.add(member)
                        if member == node:
                            break
                    is_ring = len(component) > 1
                    for onward, _ in () if is_ring else successors.get(node, ()):
                        yield
                        is_ring = is_ring or onward == node
                    if is_ring:
                        found.append(component)
    return found


def _ring(
    component: set[Node], successors: dict[Node, list[tuple[Node, BlockEdge | None]]]
) -> Steps[tuple[BlockEdge, ...]]:
    """Return one ring inside a component: walk on within it until a node comes again.

    The least node starts, so it is always the same.
    """
    least: tuple[int, int] | None = None
    for member in component:
        yield
        key = (member[0], -1 if member[1] is None else member[1])
        if least is None or key < least:
            least, node = key, member
    position: dict[Node, int] = {}
    walked: list[BlockEdge | None] = []
    while node not in position:
        position[node] = len(walked)
        for onward, edge in successors[node]:
            yield
            if onward in component:
                walked.append(edge)
                node = onward
                break
    return tuple(edge for edge in walked[position[node] :] if edge is not None)
