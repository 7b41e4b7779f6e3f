"""Memory budget of the broker's messages: the configured value, or a share of the memory that the process may use.

The machine's memory is the value of the kernel, or the limit of a control group of the process if that is lower (both
versions; a group's limit holds for the groups below it, so all groups up to the root are checked). The rest is left to
the interpreter, to the page cache, which the store and the logs depend on, and to the overhead of the allocator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final, Protocol

from sluiceway.dispatcher import Periodic
from sluiceway.flow import FlowManager, MemoryBudget, Upkeep, size_in_words
from sluiceway.flow.shares import SOFT, STEP_SECONDS_MAX
from sluiceway.protocols.log import get_logger
from sluiceway.protocols.warning_limiter import WarningLimiter

if TYPE_CHECKING:
    from sluiceway.config import Config

log = get_logger("sluiceway.memory")

MEMORY_SHARE: Final = 0.5
"""Share of the machine's memory for messages without a setting. Objects and allocator take up to 1.3 times the charged
bytes, the process by itself about 60 MiB, and the store is slow without page cache: so half leaves a quarter for all of
that.
"""
MEMORY_MIN_BYTES: Final = 64 * 1024 * 1024
"""However small the machine: one queue of the default settings."""
UPKEEP_SHARE: Final = 0.5
"""Share of the budget for connections, subscriptions and destinations without a setting: the rest is for messages."""
UPKEEP_MIN_BYTES: Final = 16 * 1024 * 1024
"""However small that is: some hundred connections."""
UNKNOWN_BYTES: Final = 2 << 30
"""Assumed memory of a machine that does not tell its size."""

_V2: Final = Path("/sys/fs/cgroup")
_V1: Final = Path("/sys/fs/cgroup/memory")


class Timers(Protocol):
    """Part of a dispatcher that `keep` needs."""

    def call_later(self, delay_seconds: float, callback: Callable[[], None]) -> Any: ...


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return None


def machine_memory_bytes(read: Callable[[Path], str | None] = _read) -> int | None:
    """Return the maximum memory of this process: the machine's memory or the tightest limit of its control groups.
    None: it is unknown. `read` returns the text of a file, None if the file can't be read.
    """
    limits = [*_physical(read(Path("/proc/meminfo"))), *_group_limits(read(Path("/proc/self/cgroup")) or "", read)]
    return min(limits, default=None)


def _physical(meminfo: str | None) -> Iterator[int]:
    for line in (meminfo or "").splitlines():
        name, _colon, rest = line.partition(":")
        words = rest.split()
        if name == "MemTotal" and words and words[0].isdecimal():
            yield int(words[0]) * 1024


def _group_limits(groups: str, read: Callable[[Path], str | None]) -> Iterator[int]:
    """Yield the limits of the groups that `/proc/self/cgroup` names, and of those above them. In a container its own
    group is mounted as the root, and the name may be that of the host: then only the root exists.
    """
    for line in groups.splitlines():
        _number, _colon, rest = line.partition(":")
        controllers, _colon, name = rest.partition(":")
        if not controllers:
            root, file_name = _V2, "memory.max"
        elif "memory" in controllers.split(","):
            root, file_name = _V1, "memory.limit_in_bytes"
        else:
            continue
        group = PurePosixPath(name)
        for each in [group, *group.parents]:
            said = (read(root / str(each).lstrip("/") / file_name) or "").strip()
            if said.isdecimal() and int(said) < 1 << 60:  # "max", or as good as no limit
                yield int(said)


def budget_bytes(configured_bytes: int | None, machine_bytes: int | None) -> int:
    """Return the memory budget of messages."""
    if configured_bytes is not None:
        return configured_bytes
    return max(MEMORY_MIN_BYTES, int((machine_bytes or UNKNOWN_BYTES) * MEMORY_SHARE))


def upkeep_bytes_max(configured_bytes: int | None, capacity_bytes: int) -> int:
    """Return the part of the budget for connections, subscriptions and destinations."""
    if configured_bytes is not None:
        return configured_bytes
    return max(UPKEEP_MIN_BYTES, int(capacity_bytes * UPKEEP_SHARE))


def memory_warnings(config: Config, capacity_bytes: int, machine_bytes: int | None) -> Iterable[str]:
    """Yield a warning for each setting that can't be fulfilled."""
    if machine_bytes is not None and capacity_bytes > machine_bytes:
        yield (
            f"broker.memory_bytes is {size_in_words(capacity_bytes)}, and this process may use "
            f"{size_in_words(machine_bytes)} only: it would be killed before it blocks any sender. Lower it, or leave "
            "it out"
        )
    most_bytes = int(capacity_bytes * SOFT)
    for entry in config.destinations:
        wanted = entry.settings.get("memory_bytes")
        if isinstance(wanted, int) and wanted > most_bytes:
            yield (
                f"memory_bytes of {entry.match} is {size_in_words(wanted)}, and broker.memory_bytes allows one "
                f"destination {size_in_words(most_bytes)}: it gets no more than that. Lower it, or raise "
                "broker.memory_bytes"
            )


class BrokerMemory:
    """Budget of one broker, and the timer that checks it while memory is short."""

    def __init__(self, config: Config, *, manager: FlowManager, timers: Timers, clock: Callable[[], float]) -> None:
        self._steps = Periodic(timers.call_later, STEP_SECONDS_MAX, self._step)
        self._bursts = WarningLimiter(clock)
        """Near the limit memory becomes short and free again several times a second."""
        self.machine_bytes = machine_memory_bytes()
        self.budget = manager.budget = MemoryBudget(
            budget_bytes(config.broker.memory_bytes, self.machine_bytes), manager=manager
        )
        self.budget.on_short = self._begin
        self.upkeep = manager.upkeep = Upkeep(manager)  # before both are opened: opening charges it
        self.budget.open()
        self.upkeep.open()
        self._upkeep_bytes_max = upkeep_bytes_max(config.broker.upkeep_bytes_max, self.budget.capacity_bytes)
        self._warn(config)

    def limit_upkeep(self) -> None:
        """Limit the upkeep from now on: everything that an earlier run left has been restored."""
        self.upkeep.limit(self._upkeep_bytes_max)

    def reconfigure(self, config: Config) -> None:
        """Apply other settings."""
        self.budget.resize(budget_bytes(config.broker.memory_bytes, self.machine_bytes))
        self._upkeep_bytes_max = upkeep_bytes_max(config.broker.upkeep_bytes_max, self.budget.capacity_bytes)
        self.limit_upkeep()
        self._warn(config)

    def close(self) -> None:
        """Close the accounts and the budget, last of all resources. A second call does nothing."""
        if self.upkeep.is_open:
            self.upkeep.close()
        if self.budget.is_open:
            self.budget.close()

    def _warn(self, config: Config) -> None:
        for warning in memory_warnings(config, self.budget.capacity_bytes, self.machine_bytes):
            log.warning(warning)

    def _begin(self) -> None:
        self._steps.start(0.0)
        unsaid_count = self._bursts.say("short")
        if unsaid_count is None:
            return
        budget = self.budget
        log.warning(
            "memory is short: the largest destinations page out, or hold their senders back",
            more_since_last=unsaid_count,
            used_bytes=budget.used_bytes,
            capacity_bytes=budget.capacity_bytes,
            largest=[f"{name}: {size_in_words(size)}" for name, size in budget.largest_holders(3)],
        )

    def _step(self) -> None:
        if self.budget.is_open:
            self.upkeep.settle()
            self._steps.start()
            delay_seconds = self.budget.step()
            if delay_seconds is None:
                self._steps.stop()
            else:
                self._steps.start(delay_seconds)

    def report(self) -> dict[str, Any]:
        """Return the figures of memory, for statistics."""
        budget = self.budget
        return {
            "used_bytes": budget.used_bytes,
            "capacity_bytes": budget.capacity_bytes,
            "machine_bytes": self.machine_bytes,
            "short": budget.short,
            "allowance_bytes": budget.allowance_bytes if budget.short else None,
            "held_back_count": budget.waiting_count,
            "refused_count": budget.refused_count,
            "upkeep_bytes": self.upkeep.things.charged_bytes,
            "upkeep_bytes_max": self.upkeep.bytes_max,
            "upkeep_refused_count": self.upkeep.refused_count,
            "largest": [{"name": name, "used_bytes": size_bytes} for name, size_bytes in budget.largest_holders(3)],
        }
