"""The registry of flow resources, and the map of who holds what and who waits on whom.

Resources put themselves here when they open. Nothing on the hot path comes by: a snapshot walks the controllers when
somebody asks for it. Memory in use is the sum of the limiters, and of what waits in overflow and is charged nowhere
else; there is no central limit (seed: none is needed, and deadlocks come from it).

Source: seed 002 "Flow Control", FlowManager and Management/Visibility ("to see the relationships between sources and
sinks of messages and to find bottlenecks").
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator

from flow.controller import FlowController
from flow.errors import RegistrationError
from flow.graph import WaitGraph
from flow.limiters import Clock, FlowLimiter
from flow.resource import FlowResource, ResourceId, WaitEdge
from flow.snapshot import BlockEdge, FlowSnapshot, LimiterSnapshot, ResourceSnapshot


class FlowManager:
    """Knows every open resource. One per broker."""

    __slots__ = ("_resources", "clock")

    def __init__(self, clock: Clock) -> None:
        """`clock` must be the one that limiters and controllers use: ages are differences of its readings."""
        self.clock = clock
        self._resources: dict[ResourceId, FlowResource] = {}

    def register(self, resource: FlowResource) -> None:
        """Called by `FlowResource.open`. Raises RegistrationError if it is registered already."""
        if resource.resource_id in self._resources:
            raise RegistrationError(f"{resource.kind} {resource.name} is open already: open a resource once")
        self._resources[resource.resource_id] = resource

    def unregister(self, resource: FlowResource) -> None:
        """Called by `FlowResource.close`. Raises RegistrationError if it is not registered."""
        if self._resources.pop(resource.resource_id, None) is None:
            raise RegistrationError(f"{resource.kind} {resource.name} is not open here: close what this manager opened")

    @property
    def resources(self) -> tuple[FlowResource, ...]:
        """The open resources, in order of opening."""
        return tuple(self._resources.values())

    @property
    def used_bytes(self) -> int:
        """Memory in use: the sum over all limiters that count memory, and the overflow that no limiter counts.

        O(controllers), without the cost of a snapshot.
        """
        return _used_bytes(self._resources.values())

    def snapshot(self) -> FlowSnapshot:
        """Return the flow map as it is now.

        O(resources + controllers + edges); calls `facts` and `waits_on` of every resource.
        """
        return _Survey(self._resources.values(), self.clock()).finish()

    def __repr__(self) -> str:
        return f"<FlowManager of {len(self._resources)} resources>"


class _Survey:
    """One walk over all resources. A resource that is waited on, but not open, joins at the end and is walked too."""

    __slots__ = ("_limiters", "_now", "_open_count", "_resources", "_waits")

    def __init__(self, resources: Iterable[FlowResource], now: float) -> None:
        self._now = now
        self._resources = {resource.resource_id: resource for resource in resources}
        self._open_count = len(self._resources)
        self._waits: dict[ResourceId, tuple[WaitEdge, ...]] = {}
        # By identity: controllers may share one, and edges show it again.
        self._limiters: dict[int, LimiterSnapshot] = {}

    def finish(self) -> FlowSnapshot:
        self._find_waits()
        pictures = {
            resource.resource_id: self._picture(resource, registered=position < self._open_count)
            for position, resource in enumerate(self._resources.values())
        }
        edges = [edge for resource in self._resources.values() for edge in self._edges_of(resource, pictures)]
        graph = WaitGraph(edges, frozenset(r.resource_id for r in self._resources.values() if not r.passes_through))
        controllers = [controller for picture in pictures.values() for controller in picture.controllers]
        return FlowSnapshot(
            taken_at=self._now,
            resources=tuple(pictures.values()),
            edges=tuple(edges),
            chains=graph.chains(),
            bottlenecks=graph.bottlenecks(),
            cycles=graph.cycles(),
            used_count=sum(limiter.used_count for limiter in _memory_limiters(self._resources.values())),
            used_bytes=_used_bytes(self._resources.values()),
            overflow_bytes=sum(controller.overflow_bytes for controller in controllers),
            reserved_bytes=sum(controller.reserved_bytes for controller in controllers),
        )

    def _find_waits(self) -> None:
        """Ask everybody whom they wait on, those included who are only known because somebody waits on them."""
        pending = deque(self._resources.values())
        while pending:
            resource = pending.popleft()
            waits = self._waits[resource.resource_id] = tuple(resource.waits_on())
            sinks = [wait.sink for wait in waits]
            sinks += [sink.resource for controller in resource.controllers for sink in controller.blocked_by]
            for sink in sinks:
                if sink.resource_id not in self._resources:
                    self._resources[sink.resource_id] = sink
                    pending.append(sink)

    def _picture(self, resource: FlowResource, *, registered: bool) -> ResourceSnapshot:
        controllers = []
        for controller in resource.controllers:
            picture = controller.describe()
            if controller.sink_limiter is not None and picture.limiter is not None:
                self._limiters[id(controller.sink_limiter)] = picture.limiter
            controllers.append(picture)
        return ResourceSnapshot(
            resource_id=resource.resource_id,
            kind=resource.kind,
            name=resource.name,
            registered=registered,
            facts=dict(resource.facts()),
            controllers=tuple(controllers),
        )

    def _edges_of(self, resource: FlowResource, pictures: dict[ResourceId, ResourceSnapshot]) -> Iterator[BlockEdge]:
        source = pictures[resource.resource_id]
        for controller in resource.controllers:
            for sink, since in controller.blocked_by.items():
                yield BlockEdge(
                    kind="block",
                    source=source,
                    sink=pictures[sink.resource.resource_id],
                    flow_id=controller.flow.flow_id,
                    flow=controller.flow.name,
                    sink_flow_id=sink.flow.flow_id,
                    age_seconds=max(0.0, self._now - since),
                    limiter=self._limiters[id(sink.limiter)],
                    reason="",
                )
        for wait in self._waits[resource.resource_id]:
            yield BlockEdge(
                kind="wait",
                source=source,
                sink=pictures[wait.sink.resource_id],
                flow_id=None if wait.flow is None else wait.flow.flow_id,
                flow="" if wait.flow is None else wait.flow.name,
                sink_flow_id=None if wait.sink_flow is None else wait.sink_flow.flow_id,
                age_seconds=0.0 if wait.since is None else max(0.0, self._now - wait.since),
                limiter=None,
                reason=wait.reason,
            )


def _used_bytes(resources: Collection[FlowResource]) -> int:
    unaccounted_bytes = sum(
        controller.unaccounted_bytes
        for resource in resources
        for controller in resource.controllers
        if isinstance(controller, FlowController)
    )
    return sum(limiter.used_bytes for limiter in _memory_limiters(resources)) + unaccounted_bytes


def _memory_limiters(resources: Iterable[FlowResource]) -> list[FlowLimiter]:
    """Return each limiter that counts memory once, even if controllers share it."""
    limiters = {
        id(controller.limiter): controller.limiter
        for resource in resources
        for controller in resource.controllers
        if isinstance(controller, FlowController) and controller.counts_memory
    }
    return list(limiters.values())
