"""Whatever part of a queue, a topic or a log is interrupted, it is known whose it is."""

from __future__ import annotations

import ast
from collections import OrderedDict, deque
from collections.abc import Iterator
from functools import cache, partial
from gc import get_referents
from importlib import import_module
from types import CellType, FunctionType, GeneratorType, MethodType
from typing import Any, Final

from sluiceway.faults import ONLOOKERS, WHOLES, Faults
from sluiceway.queues.destination import Destination
from sluiceway.queues.logs.log import Log
from sluiceway.queues.queue import MessageQueue
from tests.architecture.sources import modules, name_of, parsed
from tests.scenarios.client import Client
from tests.scenarios.log_stage import LOG, LogStage, fill
from tests.scenarios.test_claims import QUEUE, planner
from tests.scenarios.test_log_groups import join

TOPIC = "/topic/t"
RETRIED = {"redelivery_delay_ms": 1000, "redeliveries_max": 0, "dead_letter": "/queue/dead"}
POLICIES: dict[str, dict[str, Any]] = {
    QUEUE: RETRIED,
    TOPIC: RETRIED,
    LOG: RETRIED,
    "/queue/parts": {"partition_by": "header:customer", "partitions_count": 2},
    "/queue/relay": {"kind": "relay"},
    "/queue/paced": {"disconnected_per_second": 10.0},
}

CONTAINERS: Final = (
    dict, list, tuple, set, deque, OrderedDict, partial, MethodType, CellType, GeneratorType,
)  # fmt: skip
LOGGING: Final = frozenset({"sluiceway.store.damage.DamageReports", "sluiceway.store.paged.PagedBlocks"})
"""Their Log is that of the process."""
PASSING: Final = frozenset(
    f"sluiceway.{name}"
    for name in (
        "queues.log_drain.LogDrain", "queues.logs.compaction.Compactor", "queues.logs.fetching.Fetch",
        "queues.logs.offers.OfferCheck",
        "queues.spools.SpoolDrain", "queues.transfers.Transfer", "queues.turns.Turn", "store.batch.PageOut",
        "store.storequeue.StoreQueue", "store.together.StoreJoint",
    )
)  # fmt: skip
"""There while one piece of work is done, or shared by all."""
SHARED: Final = frozenset(
    {
        "DeadLetterRouter", "DestinationRegistry", "LogTable", "PagedBlocks", "QueueEnvironment", "StoreQueue",
        "StoredPlaces", "Together", "Worker", "WildcardConsumer", "DurableTable",
    }
)  # fmt: skip
"""What leads from one destination to others."""
WHOLE_TYPES: Final = frozenset({"MessageQueue", "ConsumedQueue", "Topic", "Log", "LogReaders", "FlowResource"})
WHOLE_NAMES: Final = frozenset({"queue", "topic", "log", "outlet", "shelf"})
OTHER_TYPES: Final = frozenset({"str", "int", "bool", "CursoredQueue", "BodyShelf", "EngineBodies"})
"""These know no destination: bodies have a shelf of their own, and a cursor is interrupted only in the midst of what a
part does.
"""


@cache
def parts() -> dict[str, set[str]]:
    """Every class of parts, those that are made with a queue, a topic, a log, or a nearer part: what they keep."""
    found: dict[str, set[str]] = {}
    for path in modules("queues", "store"):
        for made in ast.walk(parsed(path.read_text(encoding="utf-8"))):
            if isinstance(made, ast.ClassDef) and (names := _kept(made)):
                found[f"{name_of(path)}.{made.name}"] = names
    return found


def _kept(made: ast.ClassDef) -> set[str]:
    if any(ast.unparse(base).startswith("Protocol") for base in made.bases):
        return set()
    fields = [item for item in made.body if isinstance(item, ast.AnnAssign)]
    kept = {ast.unparse(item.target) for item in fields if _is_whole(ast.unparse(item.target), item.annotation)}
    for item in made.body:
        if isinstance(item, ast.FunctionDef) and item.name == "__init__":
            taken = (*item.args.args, *item.args.kwonlyargs)
            if any(_is_whole(each.arg, each.annotation) for each in taken):
                kept |= {node.attr for node in ast.walk(item) if isinstance(node, ast.Attribute) and _is_own(node)}
    return kept


def _is_whole(name: str, annotation: ast.expr | None) -> bool:
    types = set() if annotation is None else set(ast.unparse(annotation).split(" | "))
    return bool(WHOLE_TYPES & types) or (name in WHOLE_NAMES and not types & OTHER_TYPES)


def _is_own(node: ast.Attribute) -> bool:
    return isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name) and node.value.id == "self"


def reached(owner: Destination | Log) -> Iterator[object]:
    """All parts that are there of this destination, as far as they lead to each other."""
    wanted = {part for part in parts() if not part.startswith(ONLOOKERS)}
    seen, left = {id(owner)}, list[object]([owner])
    own = set(owner.queues) if isinstance(owner, Destination) else {owner}
    while left:
        at = left.pop()
        if wanted.intersection(f"{each.__module__}.{each.__qualname__}" for each in type(at).__mro__):
            yield at
        for each in _behind(at):
            if id(each) in seen or type(each).__name__ in SHARED:
                continue
            if isinstance(each, MessageQueue | Log | Destination) and each not in own:
                continue
            seen.add(id(each))
            left.append(each)


def _behind(at: object) -> list[Any]:
    """What this leads to."""
    if isinstance(at, FunctionType):
        return list(at.__closure__ or ())
    if isinstance(at, CONTAINERS) or type(at).__module__.startswith(("sluiceway.queues.", "sluiceway.store.")):
        return [each for each in get_referents(at) if not isinstance(each, type)]
    return []


async def live(stage: LogStage) -> Client:
    """Have all parts of queues, topics and logs made. Returns who still holds some of it."""
    client = await stage.connect(client_id="c")
    for number, name in enumerate((QUEUE, TOPIC, "/queue/parts", "/queue/relay", "/queue/paced")):
        ack = {"ack": "client-individual", "prefetch_count": "1"}
        await client.subscribe(name, id=f"{number}", **ack)
        await client.subscribe(name, id=f"{number} red", selector="color = 'red'", **ack)
    await client.subscribe(TOPIC, id="durable", durable="true", ack="client-individual")
    await client.subscribe("/queue/alone", id="alone", ack="client-individual", exclusive="true")
    for name in (QUEUE, TOPIC, "/queue/parts", "/queue/relay", "/queue/paced", "/queue/alone"):
        for headers in ({}, {"persistent": "true"}, {"ttl": "2000"}, {"delay": "2000"}, {"color": "red"}):
            await client.send(name, "m", **headers)
    await client.sync()
    for delivery in await client.drain():
        await client.nack(delivery)
    asker = await planner(stage)
    await asker.claim(1)
    await fill(asker.client, 10)
    await join(client, id="group")
    await client.subscribe("/log/alone", id="only", group="one", exclusive="true", ack="client-individual")
    await client.subscribe("/log/keys", id="keys", group="by key", order="by-key", ack="client-individual")
    await client.subscribe(LOG, id="reader", ack="client-individual", **{"from": "earliest"})
    for delivery in await client.drain():
        await client.nack(delivery)
    await client.sync()
    return client


def test_every_part_is_known_to_what_abandons() -> None:
    """By its names alone: this holds for one that is added tomorrow."""
    for part, names in parts().items():
        module, _dot, name = part.rpartition(".")
        bases = getattr(import_module(module), name).__mro__[1:]
        inherits = any(f"{base.__module__}.{base.__name__}" in parts() for base in bases)
        is_known = inherits or part in LOGGING or bool(names & set(WHOLES))
        assert is_known or part.startswith(ONLOOKERS), f"{part} keeps {names}"


async def test_whatever_part_is_interrupted_its_destination_is_abandoned() -> None:
    """Every part of queues, topics and logs there is, in the midst of its life."""
    seen: set[str] = set()
    async with LogStage(POLICIES) as stage:
        client = await live(stage)
        registry, logs, claims = stage.broker.registry, stage.broker.logs, stage.broker.claims
        assert logs is not None and claims is not None
        for owner in (*registry.destinations.values(), *logs.logs.values()):
            for part in reached(owner):
                found = Faults._owner_of(stage.broker.faults, part, {})
                assert found is owner, f"a {type(part).__name__} of {owner.name}: {found}"
                seen.update(f"{each.__module__}.{each.__name__}" for each in type(part).__mro__)
        for group in claims.groups.values():
            assert Faults._owner_of(stage.broker.faults, group, {}) is group.log
            seen.add(f"{type(group).__module__}.{type(group).__name__}")
        await client.request("UNSUBSCRIBE", {"id": "durable", "durable": "true"})
    missing = set(parts()) - seen - PASSING - LOGGING
    assert not {part for part in missing if not part.startswith(ONLOOKERS)}, "add one to `live`"
