"""What a page of metrics says is what happened."""

from __future__ import annotations

import errno
import math
from collections.abc import AsyncIterator
from pathlib import Path

import attrs
import pytest
import trio

from sluiceway.metrics.catalogue import FAMILIES, OTHERS, TEMPORARY
from sluiceway.metrics.config import MetricsConfig
from sluiceway.store.memory import MemoryEngine
from sluiceway.store.pages import PageFiles
from tests.scenarios.lives import Lives
from tests.scenarios.log_stage import LogStage
from tests.scenarios.scrape import NOWHERE, Page, scrape, text_of
from tests.scenarios.stage import Stage

Q = "/queue/q"
T = "/topic/t"


def with_names(stage: Stage, names_max: int) -> None:
    """So many destinations have series of their own."""
    stage.broker.config = attrs.evolve(stage.broker.config, metrics=MetricsConfig(names_max))


# -- counts ------------------------------------------------------------------------------------------------------------


async def test_every_way_that_a_message_can_go_is_counted_once() -> None:
    async with Stage({Q: {"redeliveries_max": 0}, "/queue/small": {"full": "reject", "count_max": 1}}) as stage:
        client = await stage.connect()
        await client.send_all(Q, range(4))
        await client.send(Q, "dies", **{"sluiceway-ttl": "10"}, expires=str(1))
        await client.subscribe(Q, ack="client-individual")
        first, second, third = (await client.next_messages(4))[:3]
        await client.ack(first)
        await client.ack(second)
        await client.nack(third)
        await client.send(T, "nobody listens")
        await client.sync()
        page = scrape(stage.broker)
        assert page("sluiceway_messages_accepted_total", destination=Q) == 5
        assert page("sluiceway_messages_delivered_total", destination=Q) == 4
        assert page("sluiceway_messages_acknowledged_total", destination=Q) == 2
        assert page("sluiceway_messages_returned_total", destination=Q) == 1
        assert page("sluiceway_messages_dead_lettered_total", destination=Q) >= 1
        assert page("sluiceway_messages_expired_total", destination=Q) == 1
        assert page("sluiceway_messages_unheard_total", destination=T) == 1
        assert page("sluiceway_destination_unacknowledged_messages", destination=Q) == 1
        assert page("sluiceway_destination_consumers", destination=Q) == 1
        assert page("sluiceway_destination_messages", destination=Q) == 1
        assert page("sluiceway_unacknowledged_messages") == 1
        assert page("sluiceway_subscriptions") == 1


@pytest.mark.parametrize(
    ("full", "counted"), [("drop_oldest", "dropped"), ("drop_newest", "dropped"), ("reject", "rejected")]
)
async def test_what_the_full_policy_takes_is_counted(full: str, counted: str) -> None:
    async with Stage({Q: {"full": full, "count_max": 5}}) as stage:
        for _ in range(3):
            client = await stage.connect()
            await client.send_all(Q, range(5))
            await client.drain()
        lost = scrape(stage.broker)(f"sluiceway_messages_{counted}_total", destination=Q)
        assert lost >= (10 if counted == "dropped" else 2)


async def test_a_fan_out_counts_for_each_subscriber(stage: Stage) -> None:
    readers = [await stage.connect() for _ in range(3)]
    for reader in readers:
        await reader.subscribe(T)
    producer = await stage.connect()
    await producer.send_all(T, range(10))
    for reader in readers:
        await reader.next_messages(10)
    page = scrape(stage.broker)
    assert page("sluiceway_messages_accepted_total", destination=T) == 10
    assert page("sluiceway_messages_delivered_total", destination=T) == 30
    assert page("sluiceway_messages_acknowledged_total", destination=T) == 30


# -- age and lag -------------------------------------------------------------------------------------------------------


async def test_the_oldest_unacknowledged_message_tells_its_age_whoever_holds_it(stage: Stage) -> None:
    """It grows while the message waits, and goes on growing in the hands of a consumer that does not acknowledge."""
    client = await stage.connect()
    await trio.sleep(3600)  # so that it is not the broker's age
    await client.sent(Q, "old")
    await trio.sleep(100)
    await client.sent(Q, "new")
    assert 100 <= scrape(stage.broker)("sluiceway_destination_oldest_seconds", destination=Q) <= 102
    await client.subscribe(Q, ack="client-individual")
    old, new = await client.next_messages(2)
    await trio.sleep(50)
    assert 150 <= scrape(stage.broker)("sluiceway_destination_oldest_seconds", destination=Q) <= 153
    await client.ack(old)
    await client.sync()
    assert 50 <= scrape(stage.broker)("sluiceway_destination_oldest_seconds", destination=Q) <= 53
    await client.ack(new)
    await client.sync()
    assert scrape(stage.broker)("sluiceway_destination_oldest_seconds", destination=Q) == 0


async def test_a_delayed_message_is_not_late_before_it_is_due(stage: Stage) -> None:
    client = await stage.connect()
    await client.subscribe(Q, ack="client")
    await client.sent(Q, "later", delay="60000")
    await trio.sleep(50)
    page = scrape(stage.broker)
    assert page("sluiceway_destination_delayed_messages", destination=Q) == 1
    assert page("sluiceway_destination_oldest_seconds", destination=Q) == 0
    assert page("sluiceway_destination_drain_seconds", destination=Q) == 0, "nothing is to be done yet"
    await trio.sleep(30)
    assert 19 <= scrape(stage.broker)("sluiceway_destination_oldest_seconds", destination=Q) <= 21
    await client.ack(await client.next_message())


async def test_a_store_that_can_not_page_out_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its folder of pages takes nothing more. Persistent messages go on, so it does not count as failing."""

    def full(*_arguments: object) -> int:
        raise OSError(errno.ENOSPC, "no space left on device")

    async with Stage({Q: {"memory_bytes": 2_000_000}}, engine=MemoryEngine()) as stage:
        assert stage.broker.store is not None
        paged = stage.broker.store.paged
        paged.files = PageFiles(tmp_path, remove_soon=paged._remove)
        names = ("sluiceway_store_not_paging", "sluiceway_store_failing")
        assert [scrape(stage.broker)(name) for name in names] == [0, 0]
        monkeypatch.setattr("os.pwritev", full)
        producer, reader = await stage.connect(), await stage.connect()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(producer.send_all, Q, ["x" * 1000] * 4000)
            await trio.sleep(2)
            assert [scrape(stage.broker)(name) for name in names] == [1, 0]
            monkeypatch.undo()
        await trio.sleep(30)
        assert [scrape(stage.broker)(name) for name in names] == [0, 0]
        await reader.subscribe(Q)
        await reader.next_messages(4000)


async def test_messages_that_were_paged_out_keep_their_age() -> None:
    async with Stage({Q: {"memory_bytes": 2_000_000}}, engine=MemoryEngine()) as stage:
        producer = await stage.connect()
        await producer.send_all(Q, ["x" * 1000] * 4000)
        await producer.sync()
        await trio.sleep(120)
        assert any(queue.statistics().outside_count for queue in stage.partitions(Q))
        page = scrape(stage.broker)
        assert 119 <= page("sluiceway_destination_oldest_seconds", destination=Q) <= 130
        assert page("sluiceway_store_messages_paged_out_total") > 0
        assert page("sluiceway_destination_memory_bytes", destination=Q) < page(
            "sluiceway_destination_bytes", destination=Q
        )
        reader = await stage.connect()
        await reader.subscribe(Q)
        await reader.next_messages(4000)
        assert scrape(stage.broker)("sluiceway_store_messages_paged_in_total") > 0


async def test_messages_of_an_earlier_run_are_as_old_as_this_one() -> None:
    lives = Lives()
    async with lives.life() as stage:
        producer = await stage.connect()
        await producer.sent(Q, "m", persistent="true")
    async with lives.life() as stage:
        await trio.sleep(30)
        assert 30 <= scrape(stage.broker)("sluiceway_destination_oldest_seconds", destination=Q) <= 31


async def test_a_durable_subscription_tells_its_lag_in_messages_and_seconds() -> None:
    async with Stage(engine=MemoryEngine()) as stage:
        who = {"destination": T, "client_id": "shop", "subscription": "audit"}
        reader = await stage.connect(**{"client-id": "shop"})
        await reader.subscribe(T, ack="client", **{"activemq.subscriptionName": "audit"})
        producer = await stage.connect()
        for n in range(3):
            await producer.sent(T, str(n), persistent="true")
        deliveries = await reader.next_messages(3)
        await trio.sleep(40)
        page = scrape(stage.broker)
        assert page("sluiceway_durable_lag_messages", **who) == 3
        assert 40 <= page("sluiceway_durable_lag_seconds", **who) <= 42
        assert (page("sluiceway_durable_attached", **who), page("sluiceway_durable_away_seconds", **who)) == (1, 0)
        await reader.ack(deliveries[-1])
        await reader.disconnect()
        await trio.sleep(10)
        page = scrape(stage.broker)
        assert page("sluiceway_durable_lag_messages", **who) == 0
        assert page("sluiceway_durable_lag_seconds", **who) == 0
        assert page("sluiceway_durable_attached", **who) == 0
        assert page("sluiceway_durable_away_seconds", **who) == pytest.approx(10, abs=1)


async def test_a_group_of_a_log_tells_its_lag() -> None:
    async with LogStage() as stage:
        producer = await stage.connect()
        for n in range(5):
            await producer.sent("/log/orders", str(n))
        reader = await stage.connect()
        await reader.subscribe("/log/orders", ack="client-individual", group="billing", **{"from": "earliest"})
        deliveries = await reader.next_messages(5)
        for delivery in deliveries[:2]:
            await reader.ack(delivery)
        await reader.sync()
        await trio.sleep(60)
        page = scrape(stage.broker)
        who = {"log": "/log/orders", "group": "billing"}
        assert page("sluiceway_log_group_lag_records", **who) == 3
        assert page("sluiceway_log_group_unacknowledged_records", **who) == 3
        assert 59 <= page("sluiceway_log_group_lag_seconds", **who) <= 61
        assert page("sluiceway_log_group_consumers", **who) == 1
        assert page("sluiceway_log_records_appended_total", log="/log/orders") == 5


# -- who waits ---------------------------------------------------------------------------------------------------------


async def test_blocked_seconds_grow_while_senders_wait_and_stay_when_they_go_on() -> None:
    async with Stage({Q: {"full": "block", "count_max": 5}}) as stage:
        senders = [await stage.connect() for _ in range(2)]
        for sender in senders:
            await sender.send_all(Q, range(20))
        await trio.sleep(30)
        page = scrape(stage.broker)
        assert page("sluiceway_destination_blocked_senders", destination=Q) == 2
        assert page("sluiceway_blocked_flows", kind="queue") == 2
        assert page("sluiceway_blocked_longest_seconds", kind="queue") == pytest.approx(30, abs=1)
        waited = page("sluiceway_destination_blocked_seconds_total", destination=Q)
        assert waited == pytest.approx(60, abs=2), "two senders, half a minute each"
        assert page("sluiceway_blocked_seconds_total", kind="queue") == pytest.approx(waited)
        reader = await stage.connect()
        await reader.subscribe(Q)
        await reader.next_messages(40)
        await reader.silence()
        page = scrape(stage.broker)
        assert page("sluiceway_destination_blocked_senders", destination=Q) == 0
        waited = page("sluiceway_destination_blocked_seconds_total", destination=Q)
        await trio.sleep(100)
        assert scrape(stage.broker)("sluiceway_destination_blocked_seconds_total", destination=Q) == waited


async def test_a_sender_that_leaves_while_it_waits_leaves_its_time() -> None:
    async with Stage({Q: {"full": "block", "count_max": 5}}) as stage:
        sender = await stage.connect()
        await sender.send_all(Q, range(20))
        await trio.sleep(30)
        sender.vanish()
        await stage.settled_down()
        assert scrape(stage.broker)("sluiceway_destination_blocked_seconds_total", destination=Q) >= 30


async def test_time_that_resources_held_others_up_outlives_them() -> None:
    """A consumer that did not acknowledge, and went: its kind still tells."""
    async with Stage() as stage:
        reader = await stage.connect()
        await reader.subscribe(Q, ack="client", **{"prefetch-count": "1"})
        await reader.send_all(Q, range(3))
        await reader.next_message()
        await trio.sleep(20)
        before = scrape(stage.broker)("sluiceway_blocked_seconds_total", kind="subscription")
        assert before >= 20
        await reader.disconnect()
        await stage.settled_down()
        assert scrape(stage.broker)("sluiceway_blocked_seconds_total", kind="subscription") >= before


async def test_memory_is_told_by_kind_and_adds_up(stage: Stage) -> None:
    client = await stage.connect()
    await client.send_all(Q, ["x" * 1000] * 50)
    await client.sync()
    page = scrape(stage.broker)
    assert page("sluiceway_held_bytes", kind="queue") >= 50_000
    assert page.sum("sluiceway_held_bytes") == stage.broker.manager.used_bytes


# -- forecasts ---------------------------------------------------------------------------------------------------------


async def test_drain_and_quota_are_foretold_from_how_it_goes() -> None:
    async with Stage({Q: {"count_max": 1000, "bytes_max": 10_000_000}}) as stage:
        client = await stage.connect()
        await client.sent(Q, "first")
        page = scrape(stage.broker)
        assert page.get("sluiceway_destination_drain_seconds", destination=Q) is None, "seen once: no course yet"
        for _ in range(20):
            await client.send_all(Q, range(10))
            await trio.sleep(1)
            page = scrape(stage.broker)
        assert page("sluiceway_destination_drain_seconds", destination=Q) == math.inf
        assert page("sluiceway_destination_quota_used_ratio", destination=Q) == pytest.approx(0.201, abs=0.01)
        assert page("sluiceway_destination_quota_seconds", destination=Q) == pytest.approx(80, rel=0.15)
        await client.subscribe(Q, ack="client-individual", **{"prefetch-count": "10"})
        for _ in range(15):
            for delivery in await client.next_messages(10):
                await client.ack(delivery)
            await trio.sleep(10)
            page = scrape(stage.broker)
        assert page("sluiceway_destination_quota_seconds", destination=Q) == math.inf
        assert page("sluiceway_destination_drain_seconds", destination=Q) == pytest.approx(51, rel=0.5)


async def test_without_a_quota_none_is_told() -> None:
    async with Stage(engine=MemoryEngine()) as stage:
        client = await stage.connect()
        await client.sent(Q, "m")
        assert scrape(stage.broker).get("sluiceway_destination_quota_used_ratio", destination=Q) is None


# -- names -------------------------------------------------------------------------------------------------------------


async def test_beyond_the_limit_destinations_are_added_up_and_sums_stay_right() -> None:
    async with Stage() as stage:
        with_names(stage, 2)
        client = await stage.connect()
        for n in range(5):
            await client.send_all(f"/queue/{n}", range(n + 1))
        await client.sync()
        await trio.sleep(5)
        page = scrape(stage.broker)
        assert page("sluiceway_messages_accepted_total", destination="/queue/1") == 2
        assert page.get("sluiceway_messages_accepted_total", destination="/queue/2") is None
        assert page("sluiceway_messages_accepted_total", destination=OTHERS) == 3 + 4 + 5
        assert page.sum("sluiceway_messages_accepted_total") == 15
        assert page.sum("sluiceway_destination_messages") == 15
        assert page("sluiceway_destination_oldest_seconds", destination=OTHERS) >= 5
        assert page.get("sluiceway_destination_drain_seconds", destination=OTHERS) is None


async def test_counters_of_others_do_not_go_back_when_destinations_go() -> None:
    async with Stage({"/queue/>": {"auto_delete_seconds": 5}}) as stage:
        with_names(stage, 1)
        client = await stage.connect()
        for n in range(4):
            await client.sent(f"/queue/{n}", "m")
            await client.subscribe(f"/queue/{n}", id=str(n))
            await client.next_message()
            await client.unsubscribe(str(n))
        await client.disconnect()
        before = scrape(stage.broker)("sluiceway_messages_accepted_total", destination=OTHERS)
        assert before == 3
        await trio.sleep(60)
        assert not stage.broker.registry.destinations
        page = scrape(stage.broker)
        assert page("sluiceway_messages_accepted_total", destination=OTHERS) == before
        assert page("sluiceway_destinations_deleted_total") == 4


async def test_temporary_destinations_are_one_series_however_many_come() -> None:
    async with Stage() as stage:
        for n in range(5):
            client = await stage.connect()
            await client.subscribe(f"/temp-queue/r{n}", id="r")
            await client.sent(f"/temp-queue/r{n}", "m")
            await client.next_message()
            if n % 2:
                await client.disconnect()
        await stage.settled_down()
        page = scrape(stage.broker)
        assert page("sluiceway_messages_accepted_total", destination=TEMPORARY) == 5
        assert page.sum("sluiceway_messages_accepted_total") == 5


NASTY = (
    'quote"s',
    "back\\slash",
    "<script>alert(1)</script>",
    "new\nline",
    'brace}{="x",',
    "ünïcödé ☃",
    "# HELP x",
    "(others)",
    "../../etc/passwd",
)


@pytest.mark.parametrize("name", NASTY)
@pytest.mark.parametrize("openmetrics", [False, True])
async def test_a_name_is_a_label_whatever_is_in_it(stage: Stage, name: str, openmetrics: bool) -> None:
    """Parsed back it is the same. (Some of these no destination may have: then there is none.)"""
    client = await stage.connect("1.2")
    await client.send(f"/queue/{name}", "m")
    await stage.settled_down()
    page = Page(text_of(stage.broker, openmetrics=openmetrics), openmetrics=openmetrics)
    count = page.get("sluiceway_messages_accepted_total", destination=f"/queue/{name}")
    assert count == (1 if f"/queue/{name}" in stage.broker.registry.destinations else None)
    assert page.sum("sluiceway_messages_accepted_total") == (count or 0)


# -- the page as a whole -----------------------------------------------------------------------------------------------


@pytest.fixture
async def busy() -> AsyncIterator[Stage]:
    """A broker with something of everything."""
    async with LogStage({Q: {"count_max": 100}}) as stage:
        client = await stage.connect(**{"client-id": "shop"})
        await client.subscribe(T, id="t", ack="client", **{"activemq.subscriptionName": "audit"})
        await client.send_all(Q, range(200))
        other = await stage.connect()
        await other.sent(T, "m", persistent="true")
        await other.sent("/log/orders", "r")
        await other.subscribe("/log/orders", id="g", ack="client", group="billing")
        scrape(stage.broker)
        await trio.sleep(5)
        yield stage
        await client.ack(await client.next_message())


NOT_IN_VIRTUAL_TIME = {"sluiceway_store_disk_free_bytes", "sluiceway_store_disk_free_min_bytes"}
ONLY_IF_CONFIGURED = {
    "sluiceway_store_bytes_max",
    "sluiceway_certificate_expires_timestamp_seconds",
    "sluiceway_hub_up",
    "sluiceway_link_copies_bytes_total",
    "sluiceway_link_copies_missed_total",
    "sluiceway_link_copies_total",
    "sluiceway_link_up",
    "sluiceway_shards_open",
    "sluiceway_shards_without_owner",
}


async def test_all_that_the_catalogue_promises_is_on_the_page_of_a_busy_broker(busy: Stage) -> None:
    said = scrape(busy.broker).names
    for family in FAMILIES.values():
        if family.name in NOT_IN_VIRTUAL_TIME | ONLY_IF_CONFIGURED or family.name.startswith("process_"):
            continue
        assert said.issuperset(family.sample_names), family.name


async def test_all_that_is_on_the_page_is_in_the_catalogue_with_its_type_labels_and_help(busy: Stage) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    for metric in text_string_to_metric_families(text_of(busy.broker)):
        family = FAMILIES.get(metric.name) or FAMILIES[f"{metric.name}_total"]
        assert metric.type == ("gauge" if family.kind == "info" else family.kind)
        assert metric.documentation == family.help
        for sample in metric.samples:
            assert sample.name in family.sample_names
            assert set(sample.labels) - {"le"} == set(family.labels)


async def test_each_family_is_introduced_once_however_many_samples_it_has(stage: Stage) -> None:
    """They are written in parts; the parts must not show."""
    client = await stage.connect()
    for n in range(130):
        await client.send(f"/queue/{n}", "m")
    await client.sync()
    for openmetrics in (False, True):
        lines = text_of(stage.broker, openmetrics=openmetrics).splitlines()
        heads = [line for line in lines if line.startswith("#")]
        assert len(heads) == len(set(heads))
        assert sum(line.startswith("sluiceway_destination_messages{") for line in lines) == 130
    assert lines[-1] == "# EOF"


async def test_a_page_is_made_in_steps_one_destination_at_a_time(stage: Stage) -> None:
    """So that messages go on in between, however many destinations there are."""
    client = await stage.connect()
    for n in range(50):
        await client.send(f"/queue/{n}", "m")
    await client.sync()
    steps = stage.broker.metrics.page_in_steps(NOWHERE, openmetrics=False)
    steps_count = sum(1 for _ in steps)
    assert steps_count > 50


async def test_what_goes_while_a_page_is_made_is_no_harm() -> None:
    """Destinations, connections and subscriptions may be deleted between any two steps."""
    async with Stage() as stage:
        client = await stage.connect()
        for n in range(20):
            await client.send(f"/queue/{n}", "m")
            await client.subscribe(f"/queue/{n}", id=str(n), ack="client")
        await client.sync()
        before = scrape(stage.broker).sum("sluiceway_messages_accepted_total")
        for at in range(0, 200, 3):
            steps = stage.broker.metrics.page_in_steps(NOWHERE, openmetrics=False)
            for _, _step in zip(range(at), steps, strict=False):
                pass
            name = f"/queue/{at % 20}"
            stage.broker.registry.delete(stage.destination(name), "a test deletes it")
            client = await stage.connect()
            await client.sent(name, "m")
            for _ in steps:
                pass
            client.vanish()
        assert before == 20
        assert scrape(stage.broker).sum("sluiceway_messages_accepted_total") >= 20


async def test_a_closing_broker_says_so(stage: Stage) -> None:
    assert scrape(stage.broker)("sluiceway_draining") == 0
    assert scrape(stage.broker)("sluiceway_build_info", **_labels_of(stage)) == 1


def _labels_of(stage: Stage) -> dict[str, str]:
    page = scrape(stage.broker)
    ((_name, labels),) = [key for key in page.samples if key[0] == "sluiceway_build_info"]
    return dict(labels)
