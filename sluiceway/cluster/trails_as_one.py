"""Trails of messages that several hubs tell of, as one list.

A message has its trail at the hub that took it in, whichever hub its sender is connected to; it goes on at another hub
when its shard moves there, or with a dead letter, under the same id. Entries and trails say their `hub`, and names of
clients the hub of their connection: `from web-3 (10.0.0.7:1) on hub-1, over its link`. Entries are in the order of the
clocks of their hubs.

Pure, and in steps.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sluiceway.cluster.seen_as_one import hub_order
from sluiceway.flow.graph import Steps, sorted_in_steps
from sluiceway.trails.answering import Trail, leave_out_entries

OVER_LINK: Final = ", over its link"


def trails_in_steps(found: Mapping[str, Sequence[Trail]], hubs: Sequence[str], limit: int) -> Steps[list[Trail]]:
    """Return the trails that hubs have told, as one list: the latest `limit`, the oldest first. `found`: by hub;
    `hubs`: ids of all hubs of the cluster.
    """
    longest_first = "|".join(map(re.escape, sorted(hubs, key=len, reverse=True)))
    names = re.compile(rf"(?<=\d) by (?P<hub>{longest_first})(?P<end>\)?)(?![\w-]|\.\w)")
    by_id: dict[str, list[Trail]] = {}
    for hub in sorted(found, key=hub_order):
        for trail in found[hub]:
            yield
            by_id.setdefault(trail["message_id"], []).append(_placed(trail, hub, names))
    merged = []
    for parts in by_id.values():
        merged.append((yield from _joined(parts)))
    merged = yield from sorted_in_steps(merged, _first_ms)
    merged = merged[-limit:]
    leave_out_entries(merged)
    return merged


def _placed(trail: Trail, hub: str, names: re.Pattern[str]) -> Trail:
    """Return a trail with its hub, where clients are named as the cluster knows them."""

    def named(text: str) -> str:
        return names.sub(r"\g<end> on \g<hub>", text)

    def entry(each: Mapping[str, Any]) -> dict[str, Any]:
        detail = named(each["detail"])
        over_link = OVER_LINK if detail != each["detail"] and each["what"] in ("accepted", "parked") else ""
        return {**each, "hub": hub, "detail": detail + over_link}

    place = trail["place"]
    return {
        **trail,
        "hub": hub,
        "words": named(trail["words"]),
        "place": place
        and {
            **place,
            "holder": place["holder"] and named(place["holder"]),
            "needed_by": [named(each) for each in place["needed_by"]],
        },
        "entries": [entry(each) for each in trail["entries"]],
    }


def _joined(parts: list[Trail]) -> Steps[Trail]:
    """Return the trail of one message from what several hubs know of it."""
    yield
    if len(parts) == 1:
        return parts[0]
    last = max(parts, key=lambda part: (part["place"] is not None, _last_ms(part)))
    entries = yield from sorted_in_steps([entry for part in parts for entry in part["entries"]], _at_ms)
    return {
        **last,
        "correlation_id": next((part["correlation_id"] for part in parts if part["correlation_id"] is not None), None),
        "complete": any(part["complete"] for part in parts),
        "omitted_count": sum(part["omitted_count"] for part in parts),
        "entries": entries,
    }


def _at_ms(entry: Mapping[str, Any]) -> float:
    return float(entry["at_ms"])


def _first_ms(trail: Trail) -> float:
    return _at_ms(trail["entries"][0]) if trail["entries"] else 0.0


def _last_ms(trail: Trail) -> float:
    return _at_ms(trail["entries"][-1]) if trail["entries"] else 0.0
