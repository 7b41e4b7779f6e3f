"""The scenarios say what their names say, and their plans wire every stream to the right consumers."""

from __future__ import annotations

import re
from itertools import chain

import pytest

from perf.load.plans import Endpoint
from perf.load.topology import Layout, disturbing_load, measured_load
from perf.reports.figures import FIGURES, percentile, show
from perf.reports.tables import figures_of
from perf.scenarios import BY_NAME, CATALOGUE, Scenario, UnknownScenarioError, choose

ENDPOINT = Endpoint("127.0.0.1", 1)


@pytest.mark.parametrize("scenario", CATALOGUE, ids=lambda scenario: scenario.name)
def test_numbers_in_a_name_are_those_of_the_scenario(scenario: Scenario) -> None:
    """`10_1_10` is ten producers, one destination, ten consumers."""
    numbers = re.search(r"(\d+)_(\d+)_(\d+)", scenario.name)
    if numbers:
        shape = (scenario.producer_count, scenario.destination_count, scenario.consumer_count)
        assert tuple(map(int, numbers.groups())) == shape
        assert (scenario.kind == "topic") == scenario.name.startswith("topic-")


@pytest.mark.parametrize("scenario", CATALOGUE, ids=lambda scenario: scenario.name)
def test_targets_and_columns_name_known_figures(scenario: Scenario) -> None:
    """A misspelt figure would silently be `not measured`."""
    for name in chain((target.figure for target in scenario.targets), figures_of(scenario)):
        assert name in FIGURES


def test_names_are_unique() -> None:
    """Results are kept by name."""
    assert len(BY_NAME) == len(CATALOGUE)


def test_choose_keeps_order_without_doubles_and_helps_with_typing_errors() -> None:
    """`targets` expands; a near miss is answered with what was meant."""
    assert choose(["idle-10000", "targets"])[0].name == "idle-10000"
    assert len(choose(["all", "idle-10000"])) == len(CATALOGUE)
    assert {"persistent-sync", "backlog-1k", "flood-paging-topic"} < {one.name for one in choose(["persistence"])}
    with pytest.raises(UnknownScenarioError, match="did you mean 1_1_1-20b-auto"):
        choose(["1_1_1-20-auto"])


def test_each_pair_of_ten_has_its_own_queue() -> None:
    """Stream i and consumer i share destination i and nothing else."""
    load = measured_load(BY_NAME["10_10_10-100b-auto"], ENDPOINT, Layout())
    assert len({stream.destination for stream in load.producers.streams}) == 10
    for stream, subscriber in zip(load.producers.streams, load.consumers.subscribers, strict=True):
        assert stream.destination == subscriber.destination
        assert stream.consumer_slots == (subscriber.delivered_slot,)
        assert stream.peer_slots == (stream.sent_slot,)
        assert subscriber.stream_numbers == (stream.number,)


def test_no_slot_has_two_writers() -> None:
    """Also not with a neighbour's load on the same board."""
    scenario, layout = BY_NAME["sleepy-consumers-50ms"], Layout()
    assert scenario.disturbance is not None
    measured = measured_load(scenario, ENDPOINT, layout)
    loads = [
        measured,
        disturbing_load(scenario, scenario.disturbance, ENDPOINT, layout, measured),
    ]
    slots = [
        slot
        for load in loads
        for slot in load.sent_slots + load.idle_slots + load.confirmed_slots + load.delivered_slots
    ]
    assert len(set(slots)) == len(slots)
    assert max(slots) < layout.slot_count
    assert loads[0].producers.quota_slot != loads[1].producers.quota_slot


def test_a_topic_delivers_to_everybody_and_a_queue_to_one() -> None:
    """What is expected of the runner's count."""
    topic = measured_load(BY_NAME["topic-1_1_10-100b-auto"], ENDPOINT, Layout())
    queue = measured_load(BY_NAME["10_1_10-100b-auto"], ENDPOINT, Layout())
    assert topic.expected_count((7,)) == 70
    assert queue.expected_count((1,) * 10) == 10


def test_late_consumers_bound_nothing_and_receipts_are_counted_per_stream() -> None:
    """Without a consumer a window of messages under way would never open again."""
    late = measured_load(BY_NAME["persistent-sync-stored"], ENDPOINT, Layout())
    assert late.producers.window_count is None
    assert len(set(late.confirmed_slots)) == 10
    assert measured_load(BY_NAME["persistent-sync"], ENDPOINT, Layout()).producers.window_count == 10_000


def test_consumers_do_not_nap_where_a_producer_waits_for_few_receipts() -> None:
    """A nap would be measured as the broker's; with thousands of receipts to go nobody notices."""
    naps = {
        name: measured_load(BY_NAME[name], ENDPOINT, Layout()).consumers.naps
        for name in ("persistent-window", "persistent-sync", "backlog-100b", "1_1_1-20b-auto", "latency-1000ps-100b")
    }
    assert naps == {
        "persistent-window": False,
        "persistent-sync": False,
        "backlog-100b": True,
        "1_1_1-20b-auto": True,
        "latency-1000ps-100b": False,
    }


def test_percentiles_are_nearest_rank() -> None:
    """The 99th of a hundred is the 99th, and the ends are the ends."""
    ordered = list(range(1, 101))
    assert [percentile(ordered, share) for share in (0.0, 0.5, 0.99, 0.999, 1.0)] == [1, 50, 99, 100, 100]
    assert percentile([4.0], 0.5) == 4.0
    with pytest.raises(ValueError, match="no sample"):
        percentile([], 0.5)


def test_figures_are_shown_in_their_unit() -> None:
    """Large microseconds become milliseconds, large bytes MiB."""
    assert show("rate_per_second", 49123.4) == "49,123/s"
    assert show("p99_us", 2500) == "2.50 ms"
    assert show("p99_us", 250.04) == "250.0 µs"
    assert show("rss_peak_bytes", 3 * 1024 * 1024) == "3 MiB"
    assert show("rss_slope_bytes_per_second", 1536) == "1.5 KiB/s"
    assert show("idle_bytes_per_connection", 10 * 1024) == "10.0 KiB"
