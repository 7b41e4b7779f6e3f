"""Port to a service on which the hubs of a cluster agree.

A `Coordination` gives one hub four things:

    hubs       live hubs, each with address, version and weight. A hub is live while its session is
    records    values by path, written by compare-and-set (store/compare_and_set.py)
    watches    hints that a record, or the list of names below it, may have changed: late, repeated, or none at all
    a session  the hub's lease: who holds none is not in the cluster

Order. Calls of one hub take effect in their order, and what a hub reads never goes back: a read after another one sees
at least what the first had seen. A read may lag behind the writes of other hubs; a write never does.

Certainty. The hub measures on its own monotonic clock since when it has heard nothing. After two thirds of the session
time it is *uncertain* (`session_uncertain`; `certain_until_seconds` has passed): it confirms nothing until it has
heard again (`session_certain`). After nine tenths, or when the service says so, the session has *ended*
(`session_ended`): everything that stood on it is to be abandoned in that call. Both come before another hub sees the
session gone, as long as no clock runs faster than another by a tenth. Wall clocks play no part.

Every call returns at once, on the thread of the dispatch loop, where events and answers come, too. Answers never come
from inside the call. Without a session every operation is answered with a MetadataFailedError.

Adapters: simulated.py, supervised.py, zookeeper.py. One contract suite: tests/cluster/coordination/test_contract.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final, Protocol

import attrs

from sluiceway.store.compare_and_set import MetadataError, Records

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")

TEXT_CHARACTERS_MAX: Final = 255


def _name(_instance: object, _attribute: attrs.Attribute[str], value: str) -> None:
    if NAME.fullmatch(value) is None:
        raise ValueError(
            f"{value[:80]!r} is no name of a hub: 1 to 63 letters, digits, dots, hyphens and underscores, "
            "the first a letter or a digit"
        )


def _text(_instance: object, attribute: attrs.Attribute[str], value: str) -> None:
    if len(value) > TEXT_CHARACTERS_MAX or not value.isprintable():
        raise ValueError(f"the {attribute.name} of a hub has at most {TEXT_CHARACTERS_MAX} printable characters")


HUBS_MAX: Final = 64
"""Hubs of a cluster: links, and the work for each change, grow with them. More wait until one leaves."""


def too_many() -> str:
    """Say why a hub can't join a cluster that has HUBS_MAX."""
    return (
        f"the cluster has {HUBS_MAX} hubs already, which is the most: this one joins when one of them has left. Look "
        "whether hubs are started again and again under new names"
    )


def _weight(_instance: object, _attribute: attrs.Attribute[float], value: float) -> None:
    if not 0 <= value <= 1_000_000:
        raise ValueError(f"the weight of a hub is from 0 to 1,000,000, got {value}")


@attrs.frozen
class Hub:
    """One broker process of a cluster. Raises ValueError for invalid values."""

    name: str = attrs.field(validator=_name)
    """Name, which stays over restarts."""
    address: str = attrs.field(default="", validator=_text)
    """Address for links of other hubs."""
    version: str = attrs.field(default="", validator=_text)
    """Version of Sluiceway."""
    weight: float = attrs.field(default=1.0, validator=_weight)
    """Share of shards relative to other hubs; 0: none, the hub is being drained."""
    session: str = ""
    """Session, set by the service: tells one run of a hub from the next."""
    clients: str = attrs.field(default="", validator=_text)
    """URL at which clients reach the hub; empty: it has not said so."""


class SessionState(Enum):
    """State of a hub's session, by its own clock."""

    NONE = "none"
    """No session: not started, connecting, or between two sessions."""
    CERTAIN = "certain"
    UNCERTAIN = "uncertain"
    CLOSED = "closed"
    """Closed by the hub."""


class CoordinationEvents(Protocol):
    """Port to the user of a Coordination."""

    def session_began(self, session: str) -> None:
        """Begin: the hub is in the cluster, and certain."""

    def session_uncertain(self) -> None:
        """Confirm nothing: nothing was heard for two thirds of the session time."""

    def session_certain(self) -> None:
        """Go on: the service was heard again, and the session is the same."""

    def session_ended(self, reason: str) -> None:
        """Abandon at once all that stood on the session. A new one is asked for by itself."""

    def hubs_changed(self, hubs: Mapping[str, Hub]) -> None:
        """Look at the live hubs, by name: a hint, as watches are."""


OnHubs = Callable[[Mapping[str, Hub] | MetadataError], None]


class Watch(Protocol):
    """Watch of one path."""

    def cancel(self) -> None:
        """Watch no longer. Idempotent."""


class Coordination(Records, Protocol):
    """Port of one hub to the service."""

    @property
    def certain_until_seconds(self) -> float:
        """Time on the hub's monotonic clock until which the hub may confirm. Compared with the clock at the moment of
        confirming: a paused process wakes up before its timers run.
        """

    @property
    def state(self) -> SessionState: ...

    @property
    def session(self) -> str | None:
        """Session; None: there is none."""

    @property
    def words(self) -> str:
        """Words for people: why there is no session, or what is doubtful. Empty while certain."""

    def start(self, hub: Hub, events: CoordinationEvents) -> None:
        """Ask for a session, until there is one."""

    def advertise(self, hub: Hub) -> None:
        """Change address, version or weight of the hub. The name stays."""

    def read_hubs(self, done: OnHubs) -> None:
        """Read the live hubs, by name. After a read of a record they are at least as new as the record."""

    def watch(self, path: str, changed: Callable[[], None]) -> Watch:
        """Call `changed` when the record at `path` may have changed, a name directly below the path came or went, or a
        session began. Lasts over sessions.
        """

    def close(self, done: Callable[[], None]) -> None:
        """End the session in order: other hubs see it gone at once. No event follows but `done`."""


class Scheduling(Protocol):
    """Part of a dispatcher that adapters use."""

    def call_later(self, delay_seconds: float, callback: Callable[[], None]) -> TimerHandle: ...


class TimerHandle(Protocol):
    """Timer that can be cancelled."""

    def cancel(self) -> None: ...
