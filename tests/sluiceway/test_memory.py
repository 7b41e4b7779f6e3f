"""How much memory messages may take: what is configured, the machine, its control groups, and what can't come true."""

from __future__ import annotations

from pathlib import Path

import pytest
import structlog

from sluiceway.config import BrokerConfig, Config, DestinationPolicy
from sluiceway.dispatcher import DispatcherCore
from sluiceway.flow import FlowManager
from sluiceway.memory import MEMORY_MIN_BYTES, BrokerMemory, budget_bytes, machine_memory_bytes, memory_warnings

GIB = 1 << 30
MIB = 1 << 20
MEMINFO = "MemTotal:       16777216 kB\nMemFree:         1234 kB\n"


def machine(**files: str) -> int | None:
    """Of a machine with these files; names with `__` for slashes."""
    there = {"/" + name.replace("__", "/"): text for name, text in files.items()}
    return machine_memory_bytes(lambda path: there.get(str(path)))


def test_without_control_groups_it_is_what_the_machine_has() -> None:
    assert machine(proc__meminfo=MEMINFO) == 16 * GIB


def test_nobody_says() -> None:
    assert machine() is None


def groups(named: str, limits: dict[str, str]) -> int | None:
    files = {"/proc/meminfo": MEMINFO, "/proc/self/cgroup": named, **limits}
    return machine_memory_bytes(lambda path: files.get(str(path)))


def test_the_limit_of_a_group_of_version_2_counts_and_those_above_it() -> None:
    named = "0::/system.slice/sluiceway.service\n"
    own = "/sys/fs/cgroup/system.slice/sluiceway.service/memory.max"
    assert groups(named, {own: "max\n"}) == 16 * GIB
    assert groups(named, {own: f"{2 * GIB}\n"}) == 2 * GIB
    assert groups(named, {own: "max\n", "/sys/fs/cgroup/system.slice/memory.max": f"{GIB}\n"}) == GIB


def test_in_a_container_the_root_is_its_own_group() -> None:
    named = "0::/docker/0123\n"
    assert groups(named, {"/sys/fs/cgroup/memory.max": f"{GIB}\n"}) == GIB


def test_the_limit_of_a_group_of_version_1() -> None:
    named = "5:cpu:/a\n4:memory:/a/b\n"
    unlimited = "9223372036854771712\n"
    assert groups(named, {"/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes": unlimited}) == 16 * GIB
    limits = {
        "/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes": unlimited,
        "/sys/fs/cgroup/memory/memory.limit_in_bytes": f"{3 * GIB}",
    }
    assert groups(named, limits) == 3 * GIB


def test_the_default_is_half_of_it_and_what_is_configured_holds() -> None:
    assert budget_bytes(None, 16 * GIB) == 8 * GIB
    assert budget_bytes(None, 16 * MIB) == MEMORY_MIN_BYTES
    assert budget_bytes(None, None) == GIB
    assert budget_bytes(5 * MIB, 16 * GIB) == 5 * MIB


def test_more_than_the_machine_has_is_warned_of() -> None:
    (said,) = memory_warnings(Config(), 32 * GIB, 16 * GIB)
    assert "broker.memory_bytes is 32.0 GiB" in said and "16.0 GiB only" in said


def test_a_destination_that_is_to_have_more_than_all_is_warned_of() -> None:
    config = Config(destinations=(DestinationPolicy("/queue/>", {"memory_bytes": 100 * MIB}),))
    (said,) = memory_warnings(config, 100 * MIB, 16 * GIB)
    assert "memory_bytes of /queue/>" in said and "75.0 MiB" in said
    assert not list(memory_warnings(config, GIB, 16 * GIB))


def test_too_little_to_work_with_is_an_error_that_says_what_is_meant() -> None:
    with pytest.raises(ValueError, match="the limit of all messages together"):
        BrokerConfig(memory_bytes=1000)


def test_this_machine_says() -> None:
    assert not Path("/proc/meminfo").exists() or (machine_memory_bytes() or 0) > 0


def test_short_memory_is_said_once_a_minute_however_often_that_happens() -> None:
    now = [0.0]
    dispatcher = DispatcherCore(lambda: now[0])
    memory = BrokerMemory(Config(), manager=FlowManager(lambda: now[0]), timers=dispatcher, clock=lambda: now[0])
    assert memory.budget.on_short is not None
    with structlog.testing.capture_logs() as said:
        for _ in range(300):
            memory.budget.on_short()
            now[0] += 0.25
    assert [entry["more_since_last"] for entry in said] == [0, 239]


def test_what_is_counted_beside_messages_is_nothing_again_when_the_broker_has_stopped() -> None:
    manager = FlowManager(lambda: 0.0)
    memory = BrokerMemory(Config(), manager=manager, timers=DispatcherCore(manager.clock), clock=manager.clock)
    assert memory.upkeep.things.used_bytes == memory.budget.kept_bytes + memory.upkeep.kept_bytes > 0
    memory.close()
    memory.close()
    assert memory.upkeep.things.used_bytes == 0
    assert memory.budget.used_bytes == 0
    assert not manager.resources
