"""Snapshot of the flow map: frozen data, made by `FlowManager.snapshot`, that can be kept, compared and sent as JSON.

Every object has `to_dict()` (only dicts, lists, strings, numbers, booleans and None) and, where people read it,
`words`. Words are made on demand: ten thousand blocked producers cost ten thousand small tuples, not ten thousand
sentences.
"""

from collections.abc import Mapping
from typing import Literal

import attrs

from .kinds import ResourceKind
from .words import age_in_words, count_in_words, facts_in_words, size_in_words

Unit = Literal["bytes", "messages"]
LimiterKind = Literal["size", "window", "rate", "composite"]


@attrs.frozen(slots=True)
class Circumstances:
    """Facts that decide how to help when a resource blocks others."""

    owner: str
    """Name of the resource, or of the object to which it belongs: for a subscription, its connection."""
    paused: bool = False
    has_consumers: bool | None = None
    """None: it never has any."""


@attrs.frozen(slots=True)
class Dimension:
    """One limit of a limiter, in messages or in bytes."""

    label: str
    """Name of the dimension for people: "memory", "window", "disk"."""
    unit: Unit
    used: int
    capacity: int
    """Capacity in the dimension's unit; for a rate, the burst."""
    resume_at: int | None
    """A throttled limiter resumes when no more than this is used; None where time resumes it."""

    @property
    def share(self) -> float:
        """Return how much of the capacity is used: 1.0 is full, and a capacity of 0 is full."""
        return self.used / self.capacity if self.capacity else 1.0

    @property
    def holds_back(self) -> bool:
        """Whether a throttled limiter cannot resume before less of this dimension is used."""
        return self.resume_at is not None and self.used > self.resume_at

    def amount_in_words(self, amount: int) -> str:
        """Return an amount in the unit of this limit: ``18``, ``32.0 MiB``."""
        return size_in_words(amount) if self.unit == "bytes" else f"{amount:,}"

    @property
    def words(self) -> str:
        """Usage and capacity: ``64.0 MiB of 64.0 MiB``, ``3 of 500 messages``."""
        if self.unit == "bytes":
            return f"{size_in_words(self.used)} of {size_in_words(self.capacity)}"
        return f"{self.used:,} of {count_in_words(self.capacity, 'message')}"


@attrs.frozen(slots=True)
class LimiterSnapshot:
    """One limiter: its limits and its usage."""

    kind: LimiterKind
    name: str
    """Name of the limiter; people read `label`."""
    used_count: int
    used_bytes: int
    dimensions: tuple[Dimension, ...]
    """Limited dimensions: messages before bytes, at most one of each; empty if none is limited, or if only the parts
    say so.
    """
    throttled: bool
    throttled_since: float | None
    """Clock reading when it throttled; None while it is not throttled."""
    throttled_seconds: float | None
    """Seconds since it became throttled; None while it is not throttled."""
    throttle_count: int
    """Number of times it became throttled so far."""
    per_second: float | None = None
    """The rate of a rate limiter, in the unit of its dimension; None for others."""
    parts: tuple["LimiterSnapshot", ...] = ()
    """The parts of a composite."""
    refused: bool = False
    """Throttled because the memory of the broker has no more for it, however little it holds."""

    @property
    def scarce(self) -> Dimension | None:
        """Dimension nearest to its capacity; of a throttled limiter, among those that hold it back. None: nothing is
        limited.
        """
        holding = [dimension for dimension in self.dimensions if dimension.holds_back] if self.throttled else []
        return max(holding or self.dimensions, key=lambda dimension: dimension.share, default=None)

    @property
    def label(self) -> str:
        """Name of the scarce dimension, for people: "memory", "window", "disk"."""
        scarce = self.scarce
        return self.name if scarce is None else scarce.label

    @property
    def words(self) -> str:
        """Say the state: ``memory full, 64.0 MiB of 64.0 MiB``; ``window open, 3 of 500 messages``."""
        if self.parts:
            said = [part for part in self.parts if part.throttled] or list(self.parts)
            return " and ".join(part.words for part in said)
        scarce = self.scarce
        if scarce is None:
            used = f"{count_in_words(self.used_count, 'message')}, {size_in_words(self.used_bytes)}"
            return f"{self.name} {'full' if self.throttled else 'open'}, {used}"
        if self.per_second is not None:
            unit = "" if scarce.unit == "bytes" else " messages"
            rate = f"{scarce.amount_in_words(round(self.per_second))}{unit}/s"
            return f"{scarce.label} of {rate} {'used up' if self.throttled else 'not used up'}"
        return f"{scarce.label} {self._state_in_words(scarce)}, {scarce.words}"

    def to_dict(self) -> dict[str, object]:
        """Return the limiter as JSON-able data, with `words`."""
        by_unit = {dimension.unit: dimension for dimension in self.dimensions}
        messages, octets = by_unit.get("messages"), by_unit.get("bytes")
        return {
            "kind": self.kind,
            "label": self.label,
            "used_count": self.used_count,
            "used_bytes": self.used_bytes,
            "capacity_count": messages and messages.capacity,
            "capacity_bytes": octets and octets.capacity,
            "resume_count": messages and messages.resume_at,
            "resume_bytes": octets and octets.resume_at,
            "throttled": self.throttled,
            "throttled_since": self.throttled_since,
            "throttled_seconds": self.throttled_seconds,
            "throttle_count": self.throttle_count,
            "per_second": self.per_second,
            "unit": None if self.per_second is None else self.dimensions[0].unit,
            "parts": [part.to_dict() for part in self.parts],
            "refused": self.refused,
            "words": self.words,
        }

    def _state_in_words(self, scarce: Dimension) -> str:
        if not self.throttled:
            return "open"
        if self.refused:
            return "held back"
        if scarce.resume_at is None or scarce.used >= scarce.capacity:
            return "full"
        return f"draining to {scarce.amount_in_words(scarce.resume_at)}"


@attrs.frozen(slots=True)
class ControllerSnapshot:
    """One flow of one resource: its limiter (if it takes elements in) and who holds it up (if it sends them on)."""

    flow: str
    limiter: LimiterSnapshot | None
    """Snapshot of the controller's limiter; None for a pure source."""
    blocked: bool
    """A sink has blocked this flow."""
    block_count: int
    """Number of times a sink blocked it so far."""
    waiting_source_count: int = 0
    """Sources that this controller holds blocked."""
    overflow_count: int = 0
    """Elements taken while there was no room; charged here only when there is."""
    overflow_bytes: int = 0
    reserved_count: int = 0
    """Elements that left, but overflowed a sink: still charged here until that sink resumes."""
    reserved_bytes: int = 0

    def to_dict(self) -> dict[str, object]:
        """Return the fields as JSON-able data."""
        fields: dict[str, object] = {
            field.name: getattr(self, field.name) for field in attrs.fields(ControllerSnapshot)
        }
        fields["limiter"] = None if self.limiter is None else self.limiter.to_dict()
        return fields


@attrs.frozen(slots=True)
class ResourceSnapshot:
    """One resource with its controllers and its facts."""

    resource_id: int
    kind: ResourceKind
    name: str
    registered: bool
    """Whether the resource is open; False: a source waits on it, but it was never opened, or is closed already."""
    facts: Mapping[str, object]
    """Live details for people, a copy."""
    controllers: tuple[ControllerSnapshot, ...]
    circumstances: Circumstances

    @property
    def title(self) -> str:
        """Kind and name: ``queue orders``; once if they are the same, as of the one ``store`` that there is."""
        return self.name if self.name == self.kind else f"{self.kind} {self.name}"

    @property
    def limiters(self) -> tuple[LimiterSnapshot, ...]:
        """The limiters of its controllers."""
        return tuple(controller.limiter for controller in self.controllers if controller.limiter is not None)

    @property
    def used_bytes(self) -> int:
        """Bytes that its limiters hold.

        A limiter that several controllers share counts for each; `FlowSnapshot.used_bytes` counts it once.
        """
        return sum(limiter.used_bytes for limiter in self.limiters)

    def to_dict(self) -> dict[str, object]:
        """Return the fields as JSON-able data; facts that JSON does not know are said as strings."""
        return {
            "resource_id": self.resource_id,
            "kind": self.kind,
            "name": self.name,
            "registered": self.registered,
            "facts": {key: _plain(value) for key, value in self.facts.items()},
            "facts_words": facts_in_words(self.facts),
            "controllers": [controller.to_dict() for controller in self.controllers],
        }


@attrs.frozen(slots=True)
class BlockEdge:
    """A source that waits on a sink."""

    kind: Literal["block", "wait"]
    """``block``: the sink's controller blocked it. ``wait``: the source says so itself (`FlowResource.waits_on`)."""
    source: ResourceSnapshot
    sink: ResourceSnapshot
    flow_id: int | None
    """The flow of the source that waits; None: all its flows (only for ``wait``)."""
    flow: str
    sink_flow_id: int | None
    """The flow of the sink; None: the sink as a whole (only for ``wait``)."""
    age_seconds: float
    limiter: LimiterSnapshot | None
    """The limiter of the sink; None for ``wait``."""
    reason: str
    """Reason that a ``wait`` gives; empty for ``block``."""

    @property
    def details(self) -> str:
        """Reason and duration: ``memory full, 64.0 MiB of 64.0 MiB, 41 s``."""
        reason = self.reason
        if self.limiter is not None:
            # Not throttled, yet a source is blocked: old sources resume one after the other.
            reason = self.limiter.words if self.limiter.throttled else f"in line to resume, {self.limiter.words}"
        age = age_in_words(self.age_seconds)
        return f"{reason}, {age}" if reason else age

    def to_dict(self) -> dict[str, object]:
        """Return the edge as JSON-able data; resources by id and title."""
        return {
            "kind": self.kind,
            "source_id": self.source.resource_id,
            "source": self.source.title,
            "sink_id": self.sink.resource_id,
            "sink": self.sink.title,
            "flow": self.flow,
            "age_seconds": self.age_seconds,
            "details": self.details,
        }


@attrs.frozen(slots=True)
class BlockedByChain:
    """Chain from a blocked source to the sink that blocks it, to the sink that blocks that one, and so on to the end.

    Where a source waits on several sinks, the chain follows the longest wait; `other_count` is the number of the
    others.
    """

    source: ResourceSnapshot
    flow: str
    """The flow that is blocked; empty if the source as a whole waits."""
    edges: tuple[BlockEdge, ...]
    """Edges of the chain, at least one; the sink of the last one is what everything waits on."""
    other_count: int
    """Waits beside this chain that its members have."""
    cyclic: bool
    """Whether the last sink is in the chain already: no source in it will ever be resumed."""
    truncated: bool
    """Whether the chain goes on behind its last edge, but is cut there."""

    @property
    def words(self) -> str:
        """Say it: ``producer web-3 waits on queue orders (memory full, ...), waits on subscription billing-2: 500
        unacked, idle 41 s``.
        """
        said = []
        for edge in self.edges[:-1]:
            bare = edge.kind == "wait" and not edge.reason
            said.append(f"waits on {edge.sink.title} ({edge.details})" if not bare else f"waits on {edge.sink.title}")
        last = self.edges[-1]
        facts = facts_in_words(last.sink.facts)
        end = f"waits on {last.sink.title}"
        if last.limiter is not None or last.reason or not facts:
            end += f" ({last.details})"
        if self.cyclic:
            end += ", which is a cycle"
        elif self.truncated:
            end += ", and so on"
        elif facts:
            end += f": {facts}"
        said.append(end)
        others = f" ({count_in_words(self.other_count, 'other wait')} beside)" if self.other_count else ""
        return f"{self.source.title} {', '.join(said)}{others}"

    def to_dict(self) -> dict[str, object]:
        """Return the chain as JSON-able data, with `words`."""
        return {
            "source_id": self.source.resource_id,
            "source": self.source.title,
            "flow": self.flow,
            "edges": [edge.to_dict() for edge in self.edges],
            "other_count": self.other_count,
            "cyclic": self.cyclic,
            "truncated": self.truncated,
            "words": self.words,
        }


@attrs.frozen(slots=True)
class Bottleneck:
    """A sink that others wait on."""

    sink: ResourceSnapshot
    waiting_count: int
    """Blocked flows that wait on it, directly or through others, each counted along its longest wait."""
    direct_count: int
    """Waits on this very sink."""
    oldest_seconds: float
    """The longest of the direct waits."""
    waits_itself: bool
    """Whether the resource itself waits on another one, so that the fault is probably further down."""

    @property
    def words(self) -> str:
        """Say it: ``subscription billing-2 blocks 7 flows, for 41 s: 500 unacked, idle 41 s``."""
        facts = facts_in_words(self.sink.facts)
        flows, age = count_in_words(self.waiting_count, "flow"), age_in_words(self.oldest_seconds)
        held = f"{self.sink.title} blocks {flows}, for {age}"
        return f"{held}: {facts}" if facts else held

    def to_dict(self) -> dict[str, object]:
        """Return the bottleneck as JSON-able data, with `words`."""
        return {
            "sink_id": self.sink.resource_id,
            "sink": self.sink.title,
            "waiting_count": self.waiting_count,
            "direct_count": self.direct_count,
            "oldest_seconds": self.oldest_seconds,
            "waits_itself": self.waits_itself,
            "words": self.words,
        }


@attrs.frozen(slots=True)
class BlockCycle:
    """Resources that wait on each other in a ring: none of them will continue until one outside gives way."""

    edges: tuple[BlockEdge, ...]
    """The ring: the sink of each edge is the source of the next, the sink of the last is the source of the first."""

    @property
    def words(self) -> str:
        """Say it: ``cycle: queue a waits on queue b, waits on queue a``."""
        waits = ", ".join(f"waits on {edge.sink.title}" for edge in self.edges)
        return f"cycle: {self.edges[0].source.title} {waits}"

    def to_dict(self) -> dict[str, object]:
        """Return the cycle as JSON-able data, with `words`."""
        return {"edges": [edge.to_dict() for edge in self.edges], "words": self.words}


@attrs.frozen(slots=True)
class FlowSnapshot:
    """The whole flow map at one moment."""

    taken_at: float
    """Clock reading."""
    resources: tuple[ResourceSnapshot, ...]
    """Resources in order of opening, then those known only because another one waits on them."""
    edges: tuple[BlockEdge, ...]
    chains: tuple[BlockedByChain, ...]
    """Chains of the flows that wait, longest wait first."""
    bottlenecks: tuple[Bottleneck, ...]
    """Worst first: most flows held up; of equals the one that does not wait itself, then the oldest wait."""
    cycles: tuple[BlockCycle, ...]
    """Cycles: at least one of each knot of resources that wait on each other; empty in a healthy broker."""
    used_count: int
    used_bytes: int
    """Memory in use: the sum over all limiters, each counted once, and the overflow of sources that have none. Includes
    reserved bytes.
    """
    overflow_bytes: int
    """Elements in overflow lists. Overflow of sources without a limiter is in `used_bytes`; the rest is charged to its
    sources.
    """
    reserved_bytes: int
    """The part of `used_bytes` whose elements have left already."""

    def to_dict(self, *, with_idle: bool = True) -> dict[str, object]:
        """Return everything as JSON-able data; `with_idle` False leaves out resources that hold nothing and on which no
        source waits, which are most of them and expensive to write.
        """
        waited_for = {end.resource_id for edge in self.edges for end in (edge.source, edge.sink)}
        return {
            "taken_at": self.taken_at,
            "used_count": self.used_count,
            "used_bytes": self.used_bytes,
            "overflow_bytes": self.overflow_bytes,
            "reserved_bytes": self.reserved_bytes,
            "resources_count": len(self.resources),
            "resources": [
                resource.to_dict()
                for resource in self.resources
                if with_idle or resource.used_bytes or resource.resource_id in waited_for
            ],
            "edges": [edge.to_dict() for edge in self.edges],
            "chains": [chain.to_dict() for chain in self.chains],
            "bottlenecks": [bottleneck.to_dict() for bottleneck in self.bottlenecks],
            "cycles": [cycle.to_dict() for cycle in self.cycles],
        }


def _plain(value: object) -> object:
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
