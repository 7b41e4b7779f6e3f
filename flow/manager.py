"""Registry of flow resources, and the map of holdings and waits.

Resources register themselves when they open. The hot path never calls the registry: a snapshot walks the controllers on
demand. Memory in use is the sum of the limiters, plus overflow that is charged nowhere else. With a `budget` all
limiters that count memory have shares of it (shares.py).

Source: seed 002 "Flow Control", FlowManager and Management/Visibility ("to see the relationships between sources and
sinks of messages and to find bottlenecks").
"""

from __future__ import annotations

from .errors import RegistrationError
from .graph import at_once
from .kinds import ResourceKind
from .limiters import Clock
from .resource import FlowResource, ResourceId
from .shares import MemoryBudget
from .snapshot import FlowSnapshot
from .survey import MemorySum, Survey
from .upkeep import Upkeep, UpkeepAccount


class FlowManager:
    """Knows every open resource. One per broker."""

    __slots__ = ("_resources", "budget", "clock", "gone_held_up_seconds", "upkeep")

    def __init__(self, clock: Clock) -> None:
        """`clock` must be the one that limiters and controllers use: ages are differences of its readings."""
        self.clock = clock
        self.budget: MemoryBudget | None = None
        """The memory of the broker as a whole; None: each limiter is for itself."""
        self.upkeep: Upkeep | None = None
        """Account of memory beside messages; None: not counted."""
        self._resources: dict[ResourceId, FlowResource] = {}
        self.gone_held_up_seconds: dict[ResourceKind, float] = {}
        """Seconds for which closed resources blocked sources, by kind."""

    def register(self, resource: FlowResource) -> None:
        """Called by `FlowResource.open`. Raises RegistrationError if it is registered already."""
        if resource.resource_id in self._resources:
            raise RegistrationError(f"{resource.kind} {resource.name} is open already: open a resource once")
        self._resources[resource.resource_id] = resource

    def unregister(self, resource: FlowResource) -> None:
        """Called by `FlowResource.close`. Raises RegistrationError if it is not registered."""
        if self._resources.pop(resource.resource_id, None) is None:
            raise RegistrationError(f"{resource.kind} {resource.name} is not open here: close what this manager opened")
        if resource.held_up_seconds:
            self.gone_held_up_seconds[resource.kind] = (
                self.gone_held_up_seconds.get(resource.kind, 0.0) + resource.held_up_seconds
            )

    @property
    def heads_account(self) -> UpkeepAccount | None:
        """Account of header blocks; None: not counted."""
        return None if self.upkeep is None else self.upkeep.heads

    def keep(self, size_bytes: int) -> None:
        """Count `size_bytes` more (or fewer) of memory beside messages that belongs to no resource in particular."""
        if self.upkeep is not None:
            self.upkeep.things.changed(size_bytes)

    def why_not(self, what: str) -> str:
        """Return why a new `what` can't be made for a client (see `Upkeep.why_not`); empty if it can."""
        return "" if self.upkeep is None else self.upkeep.why_not(what)

    @property
    def resources(self) -> tuple[FlowResource, ...]:
        """The open resources, in order of opening."""
        return tuple(self._resources.values())

    def resource(self, resource_id: ResourceId) -> FlowResource | None:
        """The open resource of this id; None: it is closed."""
        return self._resources.get(resource_id)

    @property
    def used_bytes(self) -> int:
        """Memory in use: the sum over all limiters that count memory, and the overflow that no limiter counts.

        O(controllers), without the cost of a snapshot.
        """
        total = MemorySum()
        for resource in self._resources.values():
            total.take(resource)
        return total.used_bytes

    def snapshot(self) -> FlowSnapshot:
        """Return the flow map as it is now.

        O(resources + controllers + edges); calls `facts` and `waits_on` of every resource.
        """
        return at_once(Survey(self._resources.values(), self.clock()).snapshot_in_steps())

    def survey(self) -> Survey:
        """Return a walk, to be made in steps, over the resources that wait and those on which they wait: see
        flow/survey.py.
        """
        return Survey(self._resources.values(), self.clock())

    def __repr__(self) -> str:
        return f"<FlowManager of {len(self._resources)} resources>"
