"""Whatever a timer's work raises: what is periodic comes again, and what belongs to one destination or connection is
abandoned with that. Every timer of the product is in one of the tables here.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from types import SimpleNamespace
from typing import Any, Final

import pytest
import trio

from sluiceway.dispatcher import Periodic
from sluiceway.expiry import CHECK_SECONDS, ExpiryWatch
from sluiceway.faults import _SESSION_PARTS, SHARED, Faults
from sluiceway.flow import Account, Flow, FlowManager, FlowResource, SourceController, WindowLimiter
from sluiceway.protocols.log import get_logger
from sluiceway.protocols.stomp.header_codec import HeaderCodec
from sluiceway.protocols.stomp.session import Session
from sluiceway.queues.logs.log import Log
from sluiceway.queues.pace import Pace
from sluiceway.queues.queue import MessageQueue
from sluiceway.security.issuers import Issuer
from sluiceway.security.outside_config import OAuthIssuer
from sluiceway.security.rates import Rates, RateTable
from sluiceway.store.config import StoreConfig
from sluiceway.store.diskguard import DiskGuard
from sluiceway.store.engine import DiskFullError
from sluiceway.store.io_threads import InlineWorker
from sluiceway.store.memory import MemoryEngine
from sluiceway.store.paged import PagedBlocks
from sluiceway.store.pages import PagesError
from tests.architecture.sources import CORE, modules, name_of, parsed
from tests.scenarios.log_stage import LogStage
from tests.scenarios.stage import Stage
from tests.scenarios.test_fault_owners import parts
from tests.scenarios.test_faults import Injected, check_good

PERIODIC: Final[dict[str, Callable[[Stage], Periodic]]] = {
    "LogTable": lambda stage: stage.broker.logs._looks,  # type: ignore[union-attr]
    "DestinationRegistry": lambda stage: stage.broker.registry._sweeps,
    "Claims": lambda stage: stage.broker.claims._looks,  # type: ignore[union-attr]
    "BrokerMemory": lambda stage: stage.broker.memory._steps,
    "SlowConsumers": lambda stage: stage.broker.slow_consumers._looks,
    "LoopMonitor": lambda stage: stage.broker.pulse._beats,
    "DiskGuard": lambda stage: _guard_of(stage)._looks,
    "Issuer": lambda stage: _issuer_of(stage)._refreshes,
}
"""By the class whose work it is."""

OWNED: Final = frozenset(
    {
        "ConsumedQueue", "DeadLettering", "Publisher", "ClaimGroup", "Log", "LogReaders", "Refused",
        "DelayTimer", "Fetch", "Expiry", "Overdue", "Pager", "Refusals",
    }
)  # fmt: skip
"""Timers of one destination or connection, which does not outlive what they raise."""
PARTS: Final = {"HeartBeat": "_heart_beat", "PendingLogin": "entering"}
"""Timers of parts of a session, and what it calls them."""
OF_SUBSCRIPTIONS: Final = frozenset({"ImplicitSubscriptions"})
"""Timers of parts of its subscriptions, which `Faults` looks up by name."""
RESUMING: Final = frozenset({"Compactor", "PagedBlocks", "Pace", "RateLimit"})
"""Timers that let several go on: each looks again for the others, and compaction at all logs."""
ENDING: Final = frozenset(each.__name__ for each in (*SHARED, Faults))
"""Timers of what all share: the broker ends. That of `Faults` is how."""


SETTING: Final = ("call_later", "call_at", "_call_later", "Periodic")
"""What sets a timer."""

OF_HUBS: Final = "sluiceway.cluster."
"""Modules that only hubs of a cluster run; its simulation plays their timers."""


def _guard_of(stage: Stage) -> DiskGuard:
    """That of a broker with a folder; here it looks at a disk that is made up."""

    class Disk:
        def free_bytes(self) -> int:
            return 1 << 40

    dispatcher = stage.broker.dispatcher
    guard = DiskGuard(
        StoreConfig(),
        Disk(),
        InlineWorker(MemoryEngine(), dispatcher.executor(label="guard")),
        scheduling=dispatcher,
        changed=lambda _is_low, _free_bytes: None,
        sized=lambda _size_bytes: None,
        trouble=lambda _event, **_facts: None,
        fenced=lambda _error: None,
    )
    guard.start()
    return guard


def _issuer_of(stage: Stage) -> Issuer:
    """One with keys at a URL, whose first request is due at once; here none is sent."""
    config = OAuthIssuer(issuer="i", audiences=("a",), keys_url="https://localhost/keys", keys_refresh_seconds=1.0)
    broker = stage.broker
    issuer = Issuer(config, (), clock=broker.clock, timers=broker.dispatcher, spawn=lambda _task: None)
    issuer._refreshes.start()
    return issuer


@cache
def _timers() -> frozenset[tuple[str, str, str]]:
    """Return module and class of every call that sets a timer, and which call."""
    return frozenset(_found_timers())


def _found_timers() -> Iterator[tuple[str, str, str]]:
    for path in modules(*CORE, "sluiceway"):
        if name_of(path).startswith(("sluiceway.dispatcher", OF_HUBS)):
            continue
        text = path.read_text(encoding="utf-8")
        if not any(name in text for name in SETTING):
            continue
        for made in ast.walk(parsed(text)):
            if not isinstance(made, ast.ClassDef):
                continue
            for node in ast.walk(made):
                if isinstance(node, ast.Call):
                    called = getattr(node.func, "attr", None) or getattr(node.func, "id", "")
                    if called in SETTING:
                        yield name_of(path), made.name, called


def test_every_timer_is_in_a_table() -> None:
    found = _timers()
    assert {owner for _module, owner, call in found if call == "Periodic"} == set(PERIODIC)
    others = {owner for _module, owner, call in found if call != "Periodic"}
    assert others - ENDING == OWNED | set(PARTS) | OF_SUBSCRIPTIONS | RESUMING


def test_every_owner_of_timers_is_known_to_what_abandons() -> None:
    for module, owner, call in _timers():
        if call != "Periodic" and owner in OWNED:
            made = getattr(import_module(module), owner)
            is_part = any(f"{base.__module__}.{base.__name__}" in parts() for base in made.__mro__)
            assert is_part or issubclass(made, (Session, MessageQueue, Log)), f"whose is {module}.{owner}?"
    assert set(PARTS.values()) <= set(_SESSION_PARTS)


@pytest.mark.parametrize("owner", PERIODIC)
async def test_periodic_work_that_raises_comes_again_and_others_go_on(owner: str) -> None:
    async with LogStage() as stage:
        client = await stage.connect()
        periodic = PERIODIC[owner](stage)
        real, done = periodic._work, []

        def work() -> Any:
            done.append(stage.broker.clock())
            if len(done) < 3:
                raise Injected(owner)
            return real()

        periodic._work = work
        periodic._interval_seconds = min(periodic._interval_seconds, 60.0)  # a day has very many ticks of others
        periodic.start()
        await trio.sleep(4 * periodic._interval_seconds + 1)
        assert len(done) >= 3
        assert stage.broker.faults.counts == {"destination": 0, "connection": 0, "other": 2, "shared": 0}
        await check_good(stage, client)


async def test_one_destination_that_breaks_in_the_sweep_does_not_keep_others_from_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Stage({"/queue/>": {"auto_delete_seconds": 10}}) as stage:
        client = await stage.connect()
        for name in "abc":
            await client.sent(f"/queue/{name}", "x")
            await client.subscribe(f"/queue/{name}", id=name)
            await client.next_message()
            await client.unsubscribe(name)
        client.vanish()
        registry = stage.broker.registry
        real = registry._sweep_one

        def sweep_one(destination: Any, now_seconds: float) -> None:
            if destination.name == "/queue/b":
                raise Injected(destination.name)
            real(destination, now_seconds)

        monkeypatch.setattr(registry, "_sweep_one", sweep_one)
        await trio.sleep(600)
        assert list(registry.destinations) == ["/queue/b"]
        assert stage.broker.faults.count >= 2


async def test_one_log_that_breaks_in_the_retention_does_not_keep_others_from_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with LogStage() as stage:
        client = await stage.connect()
        for name in "abc":
            await client.sent(f"/log/{name}", "x")
        table: Any = stage.broker.logs
        looked: list[str] = []

        def look_at(log: Any, _now_ms: int) -> None:
            looked.append(log.name)
            if log.name == "/log/a":
                raise Injected(log.name)

        monkeypatch.setattr(table, "_apply_retention_to", look_at)
        await trio.sleep(11)
        assert looked == ["/log/a", "/log/b", "/log/c"] * 2
        assert stage.broker.faults.counts["other"] == 2


async def test_certificates_are_looked_at_again_the_day_after_a_look_broke() -> None:
    met: list[Exception] = []
    looks: list[float] = []

    def certificates() -> list[tuple[str, float]]:
        looks.append(trio.current_time())
        if len(looks) == 3:
            raise Injected("certificates")
        return [("one", 1e12)]

    watch = ExpiryWatch(certificates, lambda: 0, met.append)
    async with trio.open_nursery() as nursery:
        watch.look(nursery)
        await trio.sleep(3 * CHECK_SECONDS + 1)
        nursery.cancel_scope.cancel()
    assert len(met) == 1
    assert len(looks) == 5


@pytest.mark.parametrize("which", ["pace", "rate", "pages", "executor"])
async def test_a_timer_that_lets_several_go_on_looks_again_for_the_others(
    which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of those that wait breaks; the timer is armed for the rest."""
    async with Stage() as stage:
        clock, dispatcher = stage.broker.clock, stage.broker.dispatcher
        manager = FlowManager(clock)

        class Sender(FlowResource):
            pass

        went: list[str] = []

        def went_on(name: str) -> Callable[[Any], None]:
            def resume(_sink: object) -> None:
                went.append(name)
                if name == "breaks":
                    raise Injected(name)

            return resume

        sender = Sender("sender", "sender", manager)
        sender.open()
        sources = {
            name: SourceController(sender, Flow(name), on_resume=went_on(name), priority=4, clock=clock)
            for name in ("breaks", "waits")
        }
        if which == "pace":
            pace = Pace(
                sender, disconnected_per_second=1.0, catch_up_share=None, clock=clock, call_later=dispatcher.call_later
            )
            pace._limiter.resize(1.0, 1.0)
            pace.took(5)
            idle = SimpleNamespace(is_consumed=False, elements=SimpleNamespace(outside_count=0), settled_count=0)
            for source in sources.values():
                assert not pace.admits(source, idle)
        elif which == "executor":
            controller = Account(
                sender,
                Flow("gate"),
                WindowLimiter(1, None, clock=clock),
                schedule=dispatcher.executor(label="resuming sources"),
                clock=clock,
                counts_memory=False,
            )
            controller.charge(1, 0, None)
            for source in sources.values():
                controller.wait_in_line(source)
            controller.release(1, 0)
        elif which == "pages":
            paged = PagedBlocks(
                sender,
                HeaderCodec(),
                None,
                InlineWorker(MemoryEngine(), dispatcher.executor(label="pages")),
                scheduling=dispatcher,
                clock=clock,
                log=get_logger("tests"),
            )
            paged._shut(PagesError(DiskFullError("full"), []))
            for source in sources.values():
                paged.hold_back(source)
        else:
            limit = RateTable(manager=manager, clock=clock, timers=dispatcher).enter(
                "user", "u", Rates(bytes_per_second=1000, burst_seconds=1.0)
            )
            for source in sources.values():
                limit.charge(1, 2000, source)
        await trio.sleep(60)
        assert went == ["breaks", "waits"]
        assert stage.broker.faults.count == 1
