"""Check of tagged messages against the promises: each once, in its stream's order, at the right destination."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from perf.load.frames import HIGH_STREAM

_FAULTS_MAX = 20


class Ledger:
    """Record of arrivals so far, over all consumers of a process.

    *Group*: consumers that share one destination's messages (all of a queue), or one topic subscriber. Doubles within a
    group are looked for only where `remember` is true, since that keeps every number; without it a double still shows
    where one consumer gets it twice, or in the runner's count.
    """

    __slots__ = ("_fault_count", "_faults", "_last", "_seen")

    def __init__(self) -> None:
        self._last: dict[tuple[int, int], int] = {}
        self._seen: dict[int, set[tuple[int, int]]] = {}
        self._faults: list[str] = []
        self._fault_count = 0

    def enter(
        self,
        consumer: int,
        group: int,
        tags: Iterable[tuple[int, int]],
        allowed_streams: tuple[int, ...],
        remember: bool,
    ) -> None:
        """Take in (stream, sequence) pairs as one consumer got them, in order; violations become faults."""
        seen = self._seen.setdefault(group, set())
        for tag in tags:
            stream, sequence = tag
            last = self._last.get((consumer, stream), -1)
            if sequence <= last:
                self.fault(f"consumer {consumer}: message {sequence} of stream {stream} came after {last}")
            self._last[consumer, stream] = sequence
            if remember:
                if tag in seen:
                    self.fault(f"consumer {consumer}: message {sequence} of stream {stream} came twice")
                seen.add(tag)
                if stream % HIGH_STREAM not in allowed_streams:
                    self.fault(f"consumer {consumer}: a message of stream {stream}, which sends to another destination")

    def fault(self, what: str) -> None:
        """Note a fault; beyond twenty they are only counted."""
        self._fault_count += 1
        if self._fault_count <= _FAULTS_MAX:
            self._faults.append(what)

    def faults(self) -> Iterator[str]:
        """Yield the faults in words."""
        yield from self._faults
        if self._fault_count > len(self._faults):
            yield f"… and {self._fault_count - len(self._faults)} more"
