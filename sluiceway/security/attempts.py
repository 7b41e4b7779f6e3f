"""Delays of logins after failed attempts.

Failures are counted in three tables: by machine (an IPv6 machine is its /64), by login, and by both. An attempt from a
machine where this login succeeded recently is delayed by the pair's failures; any other attempt by those of the machine
or of the login, whichever is longer. So no attacker can lock out a user known from that machine; a user who is not
known waits at most `delay_seconds_max` for failures of others.

Delayed attempts of one machine are queued: a thousand at once take a thousand times as long. An attempt for which the
queue is too long is refused unchecked. Delays of a login run in parallel: in a queue the owner would wait behind all
attackers.

Pure: times are arguments. Bound: TABLE_MAX entries in each table, the least recently used is dropped. Logins are kept
as digests, whatever their length.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections import OrderedDict
from typing import Final

import attrs

TABLE_MAX: Final = 10_000

Key = bytes


@attrs.define(slots=True)
class Failures:
    """Failures of a machine, a login, or both."""

    count: int = 0
    last_seconds: float = 0.0
    next_seconds: float = 0.0
    """Earliest time for the next attempt in the queue."""


@attrs.frozen(slots=True)
class AttemptDecision:
    """Decision about a new attempt."""

    wait_seconds: float
    refused: bool = False
    """Whether the attempt is refused unchecked, as too many are waiting."""
    slowed: bool = False
    """Whether earlier failures delay it, even if the delay has already passed."""


class Attempts:
    """Failures of all machines and logins."""

    __slots__ = (
        "_by_host",
        "_by_login",
        "_by_pair",
        "_delay_seconds",
        "_delay_seconds_max",
        "_forget_seconds",
        "_free_count",
        "_known",
        "_line_seconds_max",
    )

    def __init__(
        self, *, free_count: int, delay_seconds: float, delay_seconds_max: float, forget_seconds: float
    ) -> None:
        self._known: OrderedDict[Key, float] = OrderedDict()
        """End of the time for which a login counts as known from a machine."""
        self._by_host: OrderedDict[Key, Failures] = OrderedDict()
        self._by_login: OrderedDict[Key, Failures] = OrderedDict()
        self._by_pair: OrderedDict[Key, Failures] = OrderedDict()
        self.configure(
            free_count=free_count,
            delay_seconds=delay_seconds,
            delay_seconds_max=delay_seconds_max,
            forget_seconds=forget_seconds,
        )

    def configure(
        self, *, free_count: int, delay_seconds: float, delay_seconds_max: float, forget_seconds: float
    ) -> None:
        """Apply other settings; recorded failures stay."""
        self._free_count = free_count
        self._delay_seconds = delay_seconds
        self._delay_seconds_max = max(delay_seconds, delay_seconds_max)
        self._forget_seconds = forget_seconds
        self._line_seconds_max = self._delay_seconds_max

    def admit(self, login: str, host: str, now_seconds: float) -> AttemptDecision:
        """Begin an attempt and queue it; return how long it waits before its passcode is checked."""
        if not self._delay_seconds:
            return AttemptDecision(0.0)
        login_key, host_key = _digest(login), _host_key(host)
        pair_key = login_key + host_key
        if self._known.get(pair_key, 0.0) > now_seconds:
            return self._in_line(self._by_pair.get(pair_key), now_seconds)
        admission = self._in_line(self._by_host.get(host_key), now_seconds)
        if admission.refused:
            return admission
        beside_seconds = self._delay(self._by_login.get(login_key), now_seconds)
        return AttemptDecision(
            max(admission.wait_seconds, beside_seconds), slowed=admission.slowed or beside_seconds > 0
        )

    def is_slowed(self, login: str, host: str, now_seconds: float) -> bool:
        """Return whether an attempt that began now would be slowed, without queueing it. For attempts that began
        before.
        """
        if not self._delay_seconds:
            return False
        login_key, host_key = _digest(login), _host_key(host)
        pair_key = login_key + host_key
        if self._known.get(pair_key, 0.0) > now_seconds:
            return self._delay(self._by_pair.get(pair_key), now_seconds) > 0
        judged_by = (self._by_host.get(host_key), self._by_login.get(login_key))
        return any(self._delay(failures, now_seconds) > 0 for failures in judged_by)

    def _in_line(self, failures: Failures | None, now_seconds: float) -> AttemptDecision:
        delay_seconds = self._delay(failures, now_seconds)
        if failures is None or not delay_seconds:
            return AttemptDecision(0.0)
        at_seconds = max(now_seconds, failures.next_seconds)
        wait_seconds = at_seconds - now_seconds
        if wait_seconds > self._line_seconds_max:
            return AttemptDecision(0.0, refused=True, slowed=True)
        failures.next_seconds = at_seconds + delay_seconds
        return AttemptDecision(wait_seconds, slowed=True)

    def _delay(self, failures: Failures | None, now_seconds: float) -> float:
        if failures is None or failures.count < self._free_count:
            return 0.0
        if now_seconds - failures.last_seconds > self._forget_seconds:
            return 0.0
        doublings = min(failures.count - self._free_count, 30)
        return min(self._delay_seconds * 2.0**doublings, self._delay_seconds_max)

    def failed(self, login: str, host: str, now_seconds: float) -> bool:
        """Record a failed attempt; return whether attempts from this machine or of this login are slowed from now on
        and were not before.
        """
        login_key, host_key = _digest(login), _host_key(host)
        begins = False
        for table, key in (
            (self._by_host, host_key),
            (self._by_login, login_key),
            (self._by_pair, login_key + host_key),
        ):
            failures = table.get(key)
            if failures is None or now_seconds - failures.last_seconds > self._forget_seconds:
                failures = table[key] = Failures()
            failures.count += 1
            failures.last_seconds = now_seconds
            if failures.count >= self._free_count:
                delay_seconds = self._delay(failures, now_seconds)
                failures.next_seconds = max(failures.next_seconds, now_seconds + delay_seconds)
            begins = begins or (failures.count == self._free_count and table is not self._by_pair)
            table.move_to_end(key)
            if len(table) > TABLE_MAX:
                table.popitem(last=False)
        return begins

    def succeeded(self, login: str, host: str, now_seconds: float) -> None:
        """Record a successful attempt: the login is known from this machine, and the failures of the pair are
        forgotten.
        """
        login_key, host_key = _digest(login), _host_key(host)
        pair_key = login_key + host_key
        self._by_pair.pop(pair_key, None)
        self._known[pair_key] = now_seconds + max(self._forget_seconds, 24 * 3600.0)
        self._known.move_to_end(pair_key)
        if len(self._known) > TABLE_MAX:
            self._known.popitem(last=False)

    @property
    def slowed_count(self) -> int:
        """Number of machines and logins with recorded failures. For statistics."""
        return len(self._by_host) + len(self._by_login)


def host_of(peer: str) -> str:
    """Return the machine of `HOST:PORT` or `[IPv6]:PORT`; a peer without a port is returned unchanged."""
    host, colon, port = peer.rpartition(":")
    return host.strip("[]") if colon and port.isdigit() else peer


def _host_key(host: str) -> Key:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return _digest(host)
    if address.version == 6:
        mapped = address.ipv4_mapped
        # A machine can have any number of addresses within its network.
        return _digest(str(mapped)) if mapped is not None else address.packed[:8]
    return _digest(str(address))


def _digest(text: str) -> Key:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
