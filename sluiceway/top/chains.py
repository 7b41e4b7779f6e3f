"""«Waits on …», step by step: the broker's chains of waits, with the known state of each resource on the way.

The map comes as the broker's JSON (`chains`, `edges`, `resources`, `bottlenecks`); any of it may be missing. A row that
does not wait itself has a chain of one step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs

from sluiceway.cli.answers import circumstances_of, is_number, list_of, missing_hubs, rows_of, title_of, words_of
from sluiceway.flow.words import age_in_words, count_in_words
from sluiceway.remedies import remedy_for
from sluiceway.views.waits import is_lasting, root_causes_of, waited_seconds

_KINDS: Final = ("delay queue ", "queue ", "relay ", "topic ", "log group ", "log ", "connection ")
"""Beginnings of the titles by which rows are looked up."""


@attrs.frozen(slots=True)
class MapEdge:
    """One edge of the map."""

    source_id: int
    source: str
    sink_id: int
    sink: str
    age_seconds: float
    details: str


@attrs.frozen(slots=True)
class Step:
    """One resource on the way."""

    title: str
    words: str
    """Reason to wait for the next step; of the last step, its own state."""
    age_seconds: float | None
    """Time for which the step has waited; None: it does not wait."""
    details: tuple[str, ...]
    """Lines about it: its limiters, its facts, who waits on it, what to do."""


@attrs.frozen(slots=True)
class Chain:
    """Chain of waits from one row to its end."""

    steps: tuple[Step, ...]
    cyclic: bool = False
    """Whether the last step waits on one that is in the chain already: the chain never resolves by itself."""


class FlowMap:
    """The waits of one answer, to be asked for."""

    def __init__(self, report: Mapping[str, Any]) -> None:
        self._chains: dict[int, tuple[list[MapEdge], bool]] = {}
        """Chain of each source whose first wait is the longest, and whether the chain is cyclic."""
        self._behind: dict[int, list[MapEdge]] = {}
        """Waits on each sink."""
        self._titles: dict[str, int] = {}
        self._by_name: dict[str, set[str]] = {}
        """Titles by the name of their whole: a queue of high priority is a part of its destination."""
        self._resources: dict[int, Mapping[str, Any]] = {}
        self._places = tuple(f" on {hub.get('name')}" for hub in rows_of(report, "hubs"))
        for wait in _waits_of(report):
            self._behind.setdefault(wait.sink_id, []).append(wait)
            self._know(wait.source, wait.source_id)
            self._know(wait.sink, wait.sink_id)
        for chain in rows_of(report, "chains"):  # the longest wait first
            if waits := _waits_of(chain):
                self._chains.setdefault(waits[0].source_id, (waits, bool(chain.get("cyclic"))))
                self._know(waits[0].source, waits[0].source_id)
        for resource in rows_of(report, "resources"):
            resource_id = resource.get("resource_id")
            if isinstance(resource_id, int):
                self._resources[resource_id] = resource
                self._know(title_of(resource), resource_id)

    def _know(self, title: str, resource_id: int) -> None:
        self._titles[title] = resource_id
        kind = next((kind for kind in _KINDS if title.startswith(kind)), "")
        name = title.removeprefix(kind)
        place = next((place for place in self._places if name.endswith(place)), "")
        self._by_name.setdefault(name.removesuffix(place).partition(" (")[0], set()).add(title)

    def title(self, name: str) -> str | None:
        """The resource of that name that matters most: who waits longest, else who is waited for; None: the map knows
        none.
        """
        return max(self._by_name.get(name, ()), key=self._weight, default=None)

    def _weight(self, title: str) -> tuple[float, float, str]:
        wait, behind = self.wait_of(title), self.behind(title)
        return (wait.age_seconds if wait else -1.0, behind[0].age_seconds if behind else -1.0, title)

    def wait_of(self, title: str) -> MapEdge | None:
        """The longest wait of that resource; None: it does not wait."""
        waits, _cyclic = self._waits_from(title)
        return waits[0] if waits else None

    def _waits_from(self, title: str) -> tuple[list[MapEdge], bool]:
        return self._chains.get(self._titles.get(title, -1), ([], False))

    def behind(self, title: str) -> list[MapEdge]:
        """The waits on that resource, the longest first."""
        waits = self._behind.get(self._titles.get(title, -1), [])
        return sorted(waits, key=lambda wait: -wait.age_seconds)

    def chain(self, title: str) -> Chain:
        """Return the chain from that resource on; a resource that the map does not know neither waits nor holds
        anything.
        """
        waits, cyclic = self._waits_from(title)
        steps = [self._step(wait.source, wait) for wait in waits]
        if not cyclic:
            steps.append(self._step(waits[-1].sink if waits else title, None))
        return Chain(tuple(steps), cyclic)

    def _step(self, title: str, wait: MapEdge | None) -> Step:
        resource = self._resources.get(self._titles.get(title, -1), {})
        details = [
            words_of(controller["limiter"])
            for controller in rows_of(resource, "controllers")
            if isinstance(controller.get("limiter"), Mapping)
        ]
        facts = str(resource.get("facts_words") or "")
        if facts:
            details.append(facts)
        behind = self.behind(title)
        if behind:
            oldest = behind[0]
            details.append(
                f"{count_in_words(len(behind), 'flow')} wait{'s' if len(behind) == 1 else ''} on it, the longest for "
                f"{age_in_words(oldest.age_seconds)}: {oldest.source}"
            )
        if wait is not None:
            return Step(title, f"waits on {wait.sink} ({wait.details})", wait.age_seconds, _once(details))
        remedy = remedy_for(str(resource.get("kind")), circumstances_of(resource))
        if remedy and behind and is_lasting(behind[0].age_seconds):
            details.append(f"what to do: {remedy}")
        if behind:
            return Step(title, facts or "waits on nothing", None, _once(details))
        return Step(title, "waits on nothing, and nothing waits on it", None, _once(details))


def troubles(report: Mapping[str, Any]) -> list[tuple[float | None, str]]:
    """Return the causes of blocking in words, with the age in seconds where there is one: hubs that have not answered
    and cycles first, then the root causes, the worst one first.
    """
    said: list[tuple[float | None, str]] = [(None, line) for line in missing_hubs(report)]
    said += [(None, f"never resolves by itself: {words_of(cycle)}") for cycle in list_of(report, "cycles")]
    return said + [(waited_seconds(cause), words_of(cause)) for cause in root_causes_of(report)]


def _waits_of(parent: Mapping[str, Any]) -> list[MapEdge]:
    """Read the edges of a report, or of one of its chains."""
    waits = []
    for edge in rows_of(parent, "edges"):
        source_id, sink_id, age_seconds = edge.get("source_id"), edge.get("sink_id"), edge.get("age_seconds")
        if isinstance(source_id, int) and isinstance(sink_id, int) and is_number(age_seconds):
            source, sink = str(edge.get("source")), str(edge.get("sink"))
            waits.append(MapEdge(source_id, source, sink_id, sink, age_seconds, str(edge.get("details") or "")))
    return waits


def _once(lines: list[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(line for line in lines if line))
