"""Change of the limits of one destination at run time: checked, explained, and undone by the configuration's values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs

from sluiceway.admin.done import Done
from sluiceway.admin.errors import bad_request, conflict
from sluiceway.config.units import parse_bytes
from sluiceway.flow.shares import SOFT, MemoryBudget
from sluiceway.flow.words import count_in_words, size_in_words
from sluiceway.queues.destination import Destination
from sluiceway.queues.policy import LIMITS, QueuePolicy
from sluiceway.queues.queue import MessageQueue
from sluiceway.queues.registry import DestinationRegistry
from sluiceway.views.destinations import changed_limits
from sluiceway.views.limits import limit_in_words

LIMIT_MAX: Final = 2**53 - 1
"""Largest integer that JSON carries exactly."""
_UNTIL: Final = "until the broker restarts, or a reload of the configuration changes the same limit"


def change_limits(
    registry: DestinationRegistry, budget: MemoryBudget, destination: Destination, limits: Mapping[str, Any]
) -> Done:
    """Set limits of a queue or a topic in place of the configured ones. Raises ApiError: nothing has changed."""
    values = _values(destination, limits)
    wanted = attrs.evolve(destination.policy, **values)
    for queue in destination.queues:
        _refuse_loss(queue, wanted)
    before = destination.policy
    registry.change_limits(destination, values)
    after = destination.policy
    words = [
        f"{limit} of {destination.name} is {limit_in_words(limit, getattr(after, limit))} now, after "
        f"{limit_in_words(limit, getattr(before, limit))}."
        for limit in LIMITS
        if getattr(before, limit) != getattr(after, limit)
    ]
    if not words:
        words = [f"The limits of {destination.name} stay as they are."]
    words += [said for queue in destination.queues if (said := _overhang_in_words(queue))]
    budget_bytes = int(budget.capacity_bytes * SOFT)
    if after.memory_bytes > budget_bytes:
        words.append(f"memory_bytes of [broker] allows one destination {size_in_words(budget_bytes)}: it gets no more.")
    if destination.changed_limits:
        words.append(f"Changed at run time: {', '.join(destination.changed_limits)}, {_UNTIL}.")
    else:
        words.append("All limits are as configured.")
    return Done({"limits": limits_of(after), "changed_limits": changed_limits(destination)}, " ".join(words))


def configured_limits(registry: DestinationRegistry, destination: Destination) -> dict[str, int | None]:
    """Return the limits that the configuration gives a destination."""
    return limits_of(registry.policy_for(destination.address))


def limits_of(policy: QueuePolicy) -> dict[str, int | None]:
    """Return the limits of a policy, by name."""
    return {limit: getattr(policy, limit) for limit in LIMITS}


def _values(destination: Destination, limits: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of limits, sizes as numbers. Raises ApiError for a limit that can't be set, or not so."""
    if not limits:
        raise bad_request("name a limit to change", f"Known: {', '.join(LIMITS)}.")
    values: dict[str, Any] = {}
    for limit, given in limits.items():
        if limit not in LIMITS:
            raise bad_request(
                f"{limit[:40]!r} can't be changed at run time",
                f"Known: {', '.join(LIMITS)}. Change others in [[destinations]], and reload.",
            )
        value = _number(limit, given)
        if limit == "lead_bytes" and value != destination.policy.lead_bytes and not destination.address.kind.is_topic:
            raise bad_request("lead_bytes is a limit of topics", f"{destination.name} is a queue.")
        if value is None and limit in ("memory_bytes", "lead_bytes"):
            raise bad_request(f"{limit} can't be without limit", "Give a number of bytes.")
        if value is not None and not 1 <= value <= LIMIT_MAX:
            raise bad_request(f"{limit} must be from 1 to {LIMIT_MAX:,}, got {value}")
        values[limit] = value
    return values


def _number(limit: str, given: Any) -> int | None:
    if given is None or (isinstance(given, int) and not isinstance(given, bool)):
        return given
    try:
        return parse_bytes(given) if limit != "count_max" and isinstance(given, str) else int(given, 10)
    except (TypeError, ValueError) as error:
        said = str(error) if limit != "count_max" else f"{str(given)[:40]!r} is not a number of messages"
        raise bad_request(f"{limit}: {said[:200]}", "Give null for no limit.") from None


def _refuse_loss(queue: MessageQueue, wanted: QueuePolicy) -> None:
    """Raise ApiError if the next message would make messages leave that fit now."""
    intake = queue.intake
    if not intake.action.lets_oldest_leave:
        return
    over_count, over_bytes = intake.overhang_with(wanted)
    present_count, present_bytes = intake.overhang(0, 0)
    if over_count <= max(0, present_count) and over_bytes <= max(0, present_bytes):
        return
    excess = count_in_words(over_count, "message") if over_count > 0 else size_in_words(over_bytes)
    leave = "drop them" if intake.action.drops_oldest else "move them to the dead-letter queue"
    raise conflict(
        "would-lose",
        f"{queue.name} holds {excess} more than that, and with full = {intake.action.name!r} the next message would "
        f"{leave}",
        "Let consumers take some first, or purge it; or give a higher limit.",
    )


def _overhang_in_words(queue: MessageQueue) -> str:
    """Return what becomes of the content of a queue beyond its limits; empty: there is none."""
    over_count, over_bytes = queue.intake.overhang(0, 0)
    if over_count <= 0 and over_bytes <= 0:
        return ""
    excess = count_in_words(over_count, "message") if over_count > 0 else size_in_words(over_bytes)
    action = queue.intake.action
    fate = (
        "senders wait"
        if action.holds_back
        else "new messages are refused"
        if action.refuses
        else "new messages are dropped"
        if not action.lets_oldest_leave
        else "the oldest messages leave for new ones"
    )
    return f"{queue.name} holds {excess} more than its limits: nothing of it is lost, and {fate} until it fits."
