"""Walk over all resources that makes a picture of holdings and waits.

At once (`FlowManager.snapshot`), or in steps of some microseconds where other work must not wait: thirty thousand
resources take a good part of a second. Other work runs between steps, so the picture is then not of a single moment: an
edge in it existed when it was visited, and its age is that at the beginning of the walk.

A resource that is waited on, but not open, joins at the end and is walked too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from .account import Account
from .graph import Steps, WaitGraph, at_once
from .limiters import FlowLimiter
from .resource import FlowResource, ResourceId, WaitEdge
from .snapshot import BlockEdge, FlowSnapshot, LimiterSnapshot, ResourceSnapshot


class Survey:
    """One walk. Made once, walked once."""

    __slots__ = ("_edges", "_limiters", "_now", "_open", "_pictures", "_resources", "_sum", "_waits")

    def __init__(self, resources: Iterable[FlowResource], now: float) -> None:
        self._now = now
        self._open = list(resources)
        self._resources: dict[ResourceId, FlowResource] = {}
        self._waits: dict[ResourceId, tuple[WaitEdge, ...]] = {}
        self._edges: list[BlockEdge] = []
        self._pictures: dict[ResourceId, ResourceSnapshot] = {}
        # By identity: controllers may share one, and edges show it again.
        self._limiters: dict[int, LimiterSnapshot] = {}
        self._sum = MemorySum()

    def snapshot_in_steps(self, *, with_idle: bool = True) -> Steps[FlowSnapshot]:
        """Walk, and return the picture. `with_idle` False: only of resources that wait or on which others wait, which
        are far fewer; the sums are always those of all.
        """
        yield from self._find_waits()
        for resource in list(self._resources.values()):
            yield from self._sum.take_in_steps(resource)
            if with_idle:
                yield from self._picture(resource)
        for resource_id in self._waits:
            yield from self._find_edges(self._resources[resource_id])
        apart: set[ResourceId] = set()
        for edge in self._edges:
            yield
            for end in (edge.source, edge.sink):
                if not self._resources[ResourceId(end.resource_id)].passes_through:
                    apart.add(ResourceId(end.resource_id))
        graph = WaitGraph(self._edges, frozenset(apart))
        yield from graph.read_in_steps()
        chains = yield from graph.chains_in_steps()
        bottlenecks = yield from graph.bottlenecks_in_steps()
        cycles = yield from graph.cycles_in_steps()
        total = self._sum
        return FlowSnapshot(
            taken_at=self._now,
            resources=tuple(self._pictures.values()),
            edges=tuple(self._edges),
            chains=chains,
            bottlenecks=bottlenecks,
            cycles=cycles,
            used_count=total.used_count,
            used_bytes=total.used_bytes,
            overflow_bytes=total.overflow_bytes,
            reserved_bytes=total.reserved_bytes,
        )

    def _find_waits(self) -> Steps[None]:
        """Ask every resource on whom it waits, those included that are known only because another one waits on them."""
        for resource in self._open:
            yield
            self._resources[resource.resource_id] = resource
        pending = deque(self._open)
        while pending:
            yield
            resource = pending.popleft()
            waits = tuple(resource.waits_on())
            sinks = [wait.sink for wait in waits]
            for controller in resource.controllers:
                yield
                if controller.waits:
                    sinks += [sink.resource for sink in controller.blocked_by]
            if sinks:
                self._waits[resource.resource_id] = waits
            for sink in sinks:
                if sink.resource_id not in self._resources:
                    self._resources[sink.resource_id] = sink
                    pending.append(sink)

    def _picture(self, resource: FlowResource) -> Steps[ResourceSnapshot]:
        picture = self._pictures.get(resource.resource_id)
        if picture is None:
            picture = yield from picture_in_steps(resource, self._limiters)
            self._pictures[resource.resource_id] = picture
        return picture

    def _find_edges(self, resource: FlowResource) -> Steps[None]:
        """Add the edges that start at `resource`, those that began after `_find_waits` included: their sinks may be
        new.
        """
        source = yield from self._picture(resource)
        for controller in resource.controllers:
            yield
            for sink, since in tuple(controller.blocked_by.items()) if controller.waits else ():
                sink_picture = yield from self._picture(sink.resource)
                self._resources.setdefault(sink.resource.resource_id, sink.resource)
                limiter = self._limiters.get(id(sink.limiter))
                self._edges.append(
                    BlockEdge(
                        kind="block",
                        source=source,
                        sink=sink_picture,
                        flow_id=controller.flow.flow_id,
                        flow=controller.flow.name,
                        sink_flow_id=sink.flow.flow_id,
                        age_seconds=max(0.0, self._now - since),
                        limiter=sink.limiter.describe() if limiter is None else limiter,
                        reason="",
                    )
                )
        for wait in self._waits[resource.resource_id]:
            waited_for = yield from self._picture(wait.sink)
            self._edges.append(
                BlockEdge(
                    kind="wait",
                    source=source,
                    sink=waited_for,
                    flow_id=None if wait.flow is None else wait.flow.flow_id,
                    flow="" if wait.flow is None else wait.flow.name,
                    sink_flow_id=None if wait.sink_flow is None else wait.sink_flow.flow_id,
                    age_seconds=0.0 if wait.since is None else max(0.0, self._now - wait.since),
                    limiter=None,
                    reason=wait.reason,
                )
            )


def picture_in_steps(
    resource: FlowResource, limiters: dict[int, LimiterSnapshot] | None = None
) -> Steps[ResourceSnapshot]:
    """One resource as it is now: a topic may have ten thousand controllers, one for each subscription. `limiters`:
    where pictures of limiters are noted, by the identity of the limiter.
    """
    controllers = []
    for controller in resource.controllers:
        yield
        picture = controller.describe()
        if limiters is not None and controller.sink_limiter is not None and picture.limiter is not None:
            limiters[id(controller.sink_limiter)] = picture.limiter
        controllers.append(picture)
    return ResourceSnapshot(
        resource_id=resource.resource_id,
        kind=resource.kind,
        name=resource.name,
        registered=resource.is_open,
        facts=dict(resource.facts()),
        controllers=tuple(controllers),
        circumstances=resource.circumstances(),
    )


class MemorySum:
    """Memory in use: the sum over all limiters that count memory, each counted once, even if controllers share it, and
    the overflow that no limiter counts.
    """

    __slots__ = ("_known", "overflow_bytes", "reserved_bytes", "used_bytes", "used_count")

    def __init__(self) -> None:
        self._known: dict[int, FlowLimiter] = {}  # holds the limiters, so that no other gets the same identity
        self.used_count = 0
        self.used_bytes = 0
        self.overflow_bytes = 0
        self.reserved_bytes = 0

    def take(self, resource: FlowResource) -> None:
        """Count this one, too."""
        at_once(self.take_in_steps(resource))

    def take_in_steps(self, resource: FlowResource) -> Steps[None]:
        """`take`, in steps."""
        for controller in resource.controllers:
            yield
            if not isinstance(controller, Account):
                continue
            self.used_bytes += controller.unaccounted_bytes
            self.overflow_bytes += controller.overflow_bytes
            self.reserved_bytes += controller.reserved_bytes
            limiter = controller.limiter
            if controller.counts_memory and id(limiter) not in self._known:
                self._known[id(limiter)] = limiter
                self.used_count += limiter.used_count
                self.used_bytes += limiter.used_bytes
