"""Waits that are more than those of a busy broker: one rule for the console, `stat`, `top`, doctor and metrics.

Back-pressure works by waiting, so most waits are none of an operator's business. A *bottleneck* is a resource that
senders have waited for, directly or by way of others, for LASTING_SECONDS or longer. A consumer at its prefetch limit
for which no sender waits is none: it has enough to do (and is *stalled* if it acknowledges nothing for STALLED_SECONDS,
see subscriptions.py). A *root cause* is a bottleneck that waits for nothing itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from sluiceway.flow.graph import Steps
from sluiceway.flow.kinds import ResourceKind
from sluiceway.flow.snapshot import BlockedByChain, FlowSnapshot, ResourceSnapshot
from sluiceway.flow.words import age_in_words, count_in_words, facts_in_words

LASTING_SECONDS: Final = 1.0
"""Duration below which a wait is normal in a busy broker."""
STALLED_SECONDS: Final = 5.0
SENDERS: Final = (ResourceKind.CONNECTION, ResourceKind.STASH)
"""Kinds of resources whose waits are those of senders."""


class WaitingSenders(NamedTuple):
    """Number of senders that wait, and the seconds of the longest wait."""

    flows_count: int
    seconds: float


NOTHING_WAITS: Final = WaitingSenders(0, 0.0)


def is_lasting(seconds: float) -> bool:
    """Return whether a wait is more than that of a busy broker."""
    return seconds >= LASTING_SECONDS


def senders_in_steps(
    chains: Iterable[BlockedByChain], node_of: Callable[[int], int] = lambda resource_id: resource_id
) -> Steps[dict[int, WaitingSenders]]:
    """Return the senders that wait for each node, also by way of others. `node_of`: the node of a resource."""
    senders: dict[int, WaitingSenders] = {}
    for chain in chains:
        yield
        if chain.source.kind not in SENDERS:
            continue
        age_seconds = chain.edges[0].age_seconds
        path = {node_of(edge.sink.resource_id) for edge in chain.edges}
        for node in path - {node_of(chain.source.resource_id)}:
            count, seconds = senders.get(node, NOTHING_WAITS)
            senders[node] = WaitingSenders(count + 1, max(seconds, age_seconds))
    return senders


def bottleneck_in_words(sink: ResourceSnapshot, waiting: WaitingSenders) -> str:
    """Say what blocks senders: ``subscription billing-2 blocks 7 senders, for 41 s: 500 unacked, idle 41 s``."""
    senders = count_in_words(waiting.flows_count, "sender")
    said = f"{sink.title} blocks {senders}, for {age_in_words(waiting.seconds)}"
    facts = facts_in_words(sink.facts)
    return f"{said}: {facts}" if facts else said


def bottlenecks_in_steps(snapshot: FlowSnapshot) -> Steps[list[dict[str, Any]]]:
    """Return the bottlenecks as JSON-able rows, the worst first."""
    senders = yield from senders_in_steps(snapshot.chains)
    rows: list[dict[str, Any]] = []
    for bottleneck in snapshot.bottlenecks:
        yield
        waiting = senders.get(bottleneck.sink.resource_id, NOTHING_WAITS)
        if is_lasting(waiting.seconds):
            rows.append(
                {
                    **bottleneck.to_dict(),
                    "senders_count": waiting.flows_count,
                    "senders_seconds": waiting.seconds,
                    "words": bottleneck_in_words(bottleneck.sink, waiting),
                }
            )
    return rows


# ---------------------------------------------------------------------- of an answer, perhaps of an older broker


def bottlenecks_of(report: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the bottlenecks in an answer of a broker, perhaps an older one that names every wait."""
    rows = report.get("bottlenecks")
    found = [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, Sequence) else []
    return [row for row in found if (seconds := waited_seconds(row)) is None or is_lasting(seconds)]


def root_causes_of(report: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the bottlenecks in an answer that wait for nothing themselves; in a ring all wait."""
    found = bottlenecks_of(report)
    return [row for row in found if not row.get("waits_itself")] or found


def waited_seconds(bottleneck: Mapping[str, Any]) -> float | None:
    """Return for how long senders have waited for a bottleneck in an answer; None: it is not in the answer."""
    for key in ("senders_seconds", "oldest_seconds"):
        seconds = bottleneck.get(key)
        if isinstance(seconds, int | float) and not isinstance(seconds, bool):
            return float(seconds)
    return None
