"""Flows, and the resources that they run through.

A `Flow` is a stream of elements that can be blocked as one. A `FlowResource` is whatever elements stay in or pass: a
queue, a connection's outbound buffer, a subscription's window, the store's operation queue. It owns controllers, one
for each flow that it takes in or sends on (`sluiceway.flow.account`); an opened resource is on the map that
`FlowManager` draws.

Granular flows: a connection has one flow for each destination that it sends to, so that a full queue blocks only the
sends to that queue.

Deliberately not here: blocking (controllers), limits (limiters).

Source: seed 002 "Flow Control" (Flow, FlowResource).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import count
from typing import TYPE_CHECKING, ClassVar, Final, NewType

import attrs

from .errors import RegistrationError
from .kinds import ResourceKind
from .snapshot import Circumstances

if TYPE_CHECKING:
    from .manager import FlowManager
    from .source import SourceController

FlowId = NewType("FlowId", int)
ResourceId = NewType("ResourceId", int)

_flow_ids = count(1)
_resource_ids = count(1)

NAME_COPIES: Final = 3
"""Copies of a name in memory: in the resource, its flows, its dispatch context, and the index that finds it."""


class Flow:
    """A stream of elements which can be blocked as one. Two flows are never equal, even if their names are."""

    __slots__ = ("flow_id", "name")

    def __init__(self, name: str) -> None:
        """`name` is for people and need not be unique; `flow_id` is unique in this process."""
        self.name = name
        self.flow_id = FlowId(next(_flow_ids))

    def __repr__(self) -> str:
        return f"<Flow {self.flow_id} {self.name}>"


@attrs.frozen(slots=True)
class WaitEdge:
    """A resource says that it waits on another, without a controller that blocked it: a queue on the acks of a
    subscription.
    """

    sink: FlowResource
    since: float | None = None
    """Clock reading at which the wait began; None: unknown."""
    reason: str = ""
    """Reason of the wait for people; may be empty if the facts of the sink say it all."""
    flow: Flow | None = None
    """Flow of the resource that waits; None: all of them."""
    sink_flow: Flow | None = None
    """Flow of the sink that is waited on; None: the sink as a whole."""


class FlowResource:
    """Resource in which elements stay or through which they pass. Subclass it, make controllers for it, `open` it, and
    `close` it at the end.

    Attributes:
        name: for people, need not be unique.
        kind: its kind, see `kinds`.
        resource_id: unique in this process.
        manager: the registry where `open` puts it.
        held_up_seconds: total time for which it blocked sources, summed over all of them; without waits that continue.
    """

    __slots__ = ("_controllers", "_is_open", "held_up_seconds", "kept_bytes", "kind", "manager", "name", "resource_id")

    passes_through: ClassVar[bool] = True
    """Whether a source that waits on one flow of this resource waits for whatever blocks any of its flows: true of a
    queue, which sends on what it takes in. Set it to False where flows in and flows out have nothing to do with each
    other, as in a connection that produces and consumes: otherwise the map shows false cycles. Then only the same
    `Flow` object connects a sink with a source, or `waits_on` does.
    """

    upkeep_bytes: ClassVar[int] = 0
    """Memory of one resource while it is open, in bytes, beside its name and what its limiters count
    (`sluiceway.flow.upkeep`).
    """

    def __init__(self, name: str, kind: ResourceKind, manager: FlowManager) -> None:
        self.name = name
        self.kept_bytes = 0
        self.kind = kind
        self.manager = manager
        self.resource_id = ResourceId(next(_resource_ids))
        self.held_up_seconds = 0.0
        # A dict for its order and its cheap removal: a connection may have thousands of flows.
        self._controllers: dict[SourceController, None] = {}
        self._is_open = False

    def open(self) -> None:
        """Put the resource on the manager's map. Raises RegistrationError if it is there already."""
        self.manager.register(self)
        self._is_open = True
        self.keep(self.upkeep_bytes + NAME_COPIES * len(self.name))

    def keep(self, size_bytes: int) -> None:
        """Count `size_bytes` more (or fewer) kept for this resource beside what its limiters count, until it is closed.
        Does nothing if the resource is not open.
        """
        if self._is_open:
            self.kept_bytes += size_bytes
            self.manager.keep(size_bytes)

    def close(self) -> None:
        """Close the controllers that are still open and take the resource off the map.

        Sources that its controllers hold blocked are resumed. Raises RegistrationError if the resource is not open,
        or if elements wait in the overflow of a controller: take them with that controller's own `close` first, or
        they would be lost. Nothing changes then.
        """
        if not self._is_open:
            raise RegistrationError(f"{self.kind} {self.name} is not open: open it before, and close it once")
        for controller in self._controllers:
            if controller.overflow_count:
                raise RegistrationError(
                    f"{self.kind} {self.name}: {controller.overflow_count} elements of flow {controller.flow.name} "
                    "still wait in overflow; call the controller's close() and keep what it returns"
                )
        for controller in tuple(self._controllers):
            controller.close()
        self.manager.unregister(self)
        self._is_open = False
        self.manager.keep(-self.kept_bytes)
        self.kept_bytes = 0

    @property
    def is_open(self) -> bool:
        """Whether the resource is on the manager's map."""
        return self._is_open

    @property
    def controllers(self) -> tuple[SourceController, ...]:
        """Controllers of this resource that are not closed, in order of their making."""
        return tuple(self._controllers)

    def attach_controller(self, controller: SourceController) -> None:
        """Called by a controller when it is made."""
        self._controllers[controller] = None

    def detach_controller(self, controller: SourceController) -> None:
        """Called by a controller when it is closed; a controller that is not attached is ignored."""
        self._controllers.pop(controller, None)

    def facts(self) -> Mapping[str, object]:
        """Return live details for people, such as ``{"unacked": 500, "idle_seconds": 41.0}``. Override; must be cheap.

        Keys end in their unit (`sluiceway.flow.words.facts_in_words`); values are strings, numbers, booleans or None.
        Code decides by `circumstances`, never by facts.
        """
        return {}

    def circumstances(self) -> Circumstances:
        """Return what decides what to do about this resource. Override; must be cheap."""
        return Circumstances(self.name)

    def waits_on(self) -> Iterable[WaitEdge]:
        """Return the waits of this resource other than those on controllers that block it. Override; must be cheap."""
        return ()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.resource_id} {self.kind} {self.name}>"
