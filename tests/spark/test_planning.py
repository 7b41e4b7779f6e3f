"""What the planner of a stream of logs decides, without a Spark session: where to begin, how far to go, what
to read.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from pyspark_stomp.logs import DataLossError, LogReader, LogStreamReader, Range
from pyspark_stomp.options import Mark, OptionError, read_options
from pyspark_stomp.schema import COLUMNS
from sluiceway.embedded import EmbeddedBroker
from tests.spark.conftest import BrokerMaker, connected, fill, numbers

ALL = ReadAllAvailable()
_readers: list[LogStreamReader] = []


@pytest.fixture(autouse=True)
def stopped(make_broker: BrokerMaker) -> Iterator[None]:
    """The readers of a test, at its end, and before the brokers: these wait a second for clients that are there."""
    yield
    while _readers:
        _readers.pop().stop()


class Indexes(LogStreamReader):
    """Shows offsets without the ids of logs, and puts these back: for tests of indexes."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._ids: dict[tuple[str, str, int], Any] = {}

    def _shown(self, offsets: Any) -> Any:
        for log, partitions in offsets.items():
            for number, offset in partitions.items():
                self._ids[log, number, Mark.of(offset).index] = offset
        return {log: {number: Mark.of(offset).index for number, offset in by.items()} for log, by in offsets.items()}

    def _meant(self, offsets: Any) -> Any:
        return {
            log: {number: self._ids.get((log, number, index), index) for number, index in by.items()}
            for log, by in offsets.items()
        }

    def initialOffset(self) -> Any:
        return self._shown(super().initialOffset())

    def latestOffset(self, start: Any, limit: Any) -> Any:
        return self._shown(super().latestOffset(self._meant(start), limit))

    def reportLatestOffset(self) -> Any:
        return self._shown(super().reportLatestOffset())

    def partitions(self, start: Any, end: Any) -> Any:
        return super().partitions(self._meant(start), self._meant(end))


def stream(*brokers: EmbeddedBroker, subscribe: str = "/log/a", **given: Any) -> LogStreamReader:
    options = {"brokers": ",".join(broker.address for broker in brokers), "reconnectSeconds": "5"}
    if "subscribePattern" not in given and "assign" not in given:
        options["subscribe"] = subscribe
    given = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in given.items()}
    _readers.append(Indexes(read_options(options | given, streaming=True), [*COLUMNS]))
    return _readers[-1]


def batch(*brokers: EmbeddedBroker, subscribe: str = "/log/a", **given: Any) -> LogReader:
    options = {"brokers": ",".join(broker.address for broker in brokers), "subscribe": subscribe}
    return LogReader(read_options(options | {k: str(v) for k, v in given.items()}, streaming=False), [*COLUMNS])


def spans(ranges: Any) -> list[tuple[str, int, int, int]]:
    return [(each.log, each.partition, each.start, each.end) for each in ranges]


# ---------------------------------------------------------------------- where to begin


def test_a_stream_begins_where_it_is_told(broker: EmbeddedBroker) -> None:
    fill(broker, "/log/a", numbers(100))
    with connected(broker) as connection:
        connection.request("log/truncate", log="/log/a", before=10)
    assert stream(broker).initialOffset() == {"/log/a": {"0": 100}}
    assert stream(broker, startingOffsets="earliest").initialOffset() == {"/log/a": {"0": 10}}
    assert stream(broker, startingOffsets='{"/log/a":{"0":42}}').initialOffset() == {"/log/a": {"0": 42}}
    assert stream(broker, startingOffsets='{"/log/a":{"0":-2}}').initialOffset() == {"/log/a": {"0": 10}}
    assert stream(broker, startingTimestamp=1).initialOffset() == {"/log/a": {"0": 10}}
    assert stream(broker, startingTimestamp=10**15).initialOffset() == {"/log/a": {"0": 100}}
    assert stream(broker, subscribe="/log/none").initialOffset() == {"/log/none": {"0": 0}}


def test_latest_with_a_group_is_resolved_once(make_broker: BrokerMaker) -> None:
    """Spark asks again after a crash before the first commit: nothing that came between is skipped."""
    broker = make_broker()
    fill(broker, "/log/a", numbers(10))
    assert stream(broker, groupId="g").initialOffset() == {"/log/a": {"0": 10}}
    assert stream(broker, groupId="g", subscribe="/log/new").initialOffset() == {"/log/new": {"0": 0}}
    fill(broker, "/log/a", numbers(10))
    fill(broker, "/log/new", numbers(10))
    port = broker.port
    broker.stop()
    broker = make_broker(port=port)
    assert stream(broker, groupId="g").initialOffset() == {"/log/a": {"0": 10}}
    assert stream(broker, groupId="g", subscribe="/log/new").initialOffset() == {"/log/new": {"0": 0}}
    assert stream(broker, groupId="other").initialOffset() == {"/log/a": {"0": 20}}


def test_offsets_are_written_in_one_order(make_broker: BrokerMaker) -> None:
    """Spark compares them as texts."""
    brokers = [make_broker(folder=f"{number}") for number in range(3)]
    for each in brokers:
        fill(each, "/log/b", numbers(5))
        fill(each, "/log/a", numbers(5))
    reader = stream(*brokers, subscribe="/log/b,/log/a", startingOffsets="earliest")
    start = reader.initialOffset()
    assert json.dumps(start) == '{"/log/a": {"0": 0, "1": 0, "2": 0}, "/log/b": {"0": 0, "1": 0, "2": 0}}'
    end = reader.latestOffset(json.loads(json.dumps(start)), ReadMaxRows(7))
    assert json.dumps(end) == json.dumps(end, sort_keys=True)
    assert json.dumps(reader.latestOffset(end, ReadMaxRows(0))) == json.dumps(end)


# ---------------------------------------------------------------------- how far to go


def test_a_limit_is_shared_in_proportion_and_kept_exactly(make_broker: BrokerMaker) -> None:
    first, second = make_broker(folder="1"), make_broker(folder="2")
    fill(first, "/log/a", numbers(900))
    fill(second, "/log/a", numbers(100))
    reader = stream(first, second, startingOffsets="earliest")
    offsets = reader.initialOffset()
    seen = []
    while (end := reader.latestOffset(offsets, ReadMaxRows(33))) != offsets:
        seen.append((end["/log/a"]["0"] - offsets["/log/a"]["0"], end["/log/a"]["1"] - offsets["/log/a"]["1"]))
        offsets = end
    assert offsets == {"/log/a": {"0": 900, "1": 100}}
    assert {sum(step) for step in seen[:-1]} == {33}
    assert all(step[0] > 5 * step[1] for step in seen[:-1])


def test_a_limit_in_bytes_counts_by_the_average_record(broker: EmbeddedBroker) -> None:
    fill(broker, "/log/a", [bytes(1000)] * 1000)
    reader = stream(broker, startingOffsets="earliest", maxBytesPerTrigger=100_000)
    assert reader.getDefaultReadLimit() == ReadMaxBytes(100_000)
    end = reader.latestOffset({"/log/a": {"0": 0}}, ReadMaxBytes(100_000))
    assert 80 <= end["/log/a"]["0"] <= 100
    assert reader.latestOffset({"/log/a": {"0": 0}}, ReadMaxBytes(1)) == {"/log/a": {"0": 1}}
    assert reader.latestOffset({"/log/a": {"0": 0}}, ALL) == {"/log/a": {"0": 1000}}


def test_both_limits_hold_together(broker: EmbeddedBroker) -> None:
    fill(broker, "/log/a", [bytes(1000)] * 1000)
    reader = stream(broker, startingOffsets="earliest", maxBytesPerTrigger=100_000, maxOffsetsPerTrigger=500)
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(500)
    assert 80 <= reader.latestOffset({"/log/a": {"0": 0}}, limit)["/log/a"]["0"] <= 100


def test_available_now_ends_at_what_was_there_when_it_began(broker: EmbeddedBroker) -> None:
    fill(broker, "/log/a", numbers(100))
    reader = stream(broker, startingOffsets="earliest")
    reader.prepareForTriggerAvailableNow()
    fill(broker, "/log/a", numbers(100))
    offsets = reader.initialOffset()
    assert (offsets := reader.latestOffset(offsets, ReadMaxRows(60))) == {"/log/a": {"0": 60}}
    assert (offsets := reader.latestOffset(offsets, ReadMaxRows(60))) == {"/log/a": {"0": 100}}
    assert reader.latestOffset(offsets, ReadMaxRows(60)) == {"/log/a": {"0": 100}}


def test_a_broker_that_is_away_stands_still_and_the_others_go_on(make_broker: BrokerMaker) -> None:
    first, second = make_broker(folder="1"), make_broker(folder="2")
    reader = stream(first, second, startingOffsets="earliest")
    fill(first, "/log/a", numbers(10))
    fill(second, "/log/a", numbers(10))
    offsets = reader.latestOffset(reader.initialOffset(), ALL)
    second.stop()
    fill(first, "/log/a", numbers(10))
    assert reader.latestOffset(offsets, ALL) == {"/log/a": {"0": 20, "1": 10}}
    assert reader.reportLatestOffset() == {"/log/a": {"0": 20, "1": 10}}


def test_new_logs_and_new_brokers_begin_at_their_beginning(make_broker: BrokerMaker) -> None:
    first, second = make_broker(folder="1"), make_broker(folder="2")
    fill(first, "/log/x.a", numbers(10))
    reader = stream(first, subscribePattern="/log/x\\..*")
    offsets = reader.initialOffset()
    assert offsets == {"/log/x.a": {"0": 10}}
    fill(first, "/log/x.b", numbers(5))
    fill(first, "/log/other", numbers(5))
    fill(second, "/log/x.a", numbers(7))
    with connected(second) as connection:
        connection.request("log/truncate", log="/log/x.a", before=3)
    end = reader.latestOffset(offsets, ALL)
    assert end == {"/log/x.a": {"0": 10}, "/log/x.b": {"0": 5}}
    assert spans(reader.partitions(offsets, end)) == [("/log/x.b", 0, 0, 5)]
    # Started again, with one broker more, whose log has lost its beginning before we knew of it.
    reader = stream(first, second, subscribePattern="/log/x\\..*")
    more = reader.latestOffset(end, ALL)
    assert more == {"/log/x.a": {"0": 10, "1": 7}, "/log/x.b": {"0": 5}}
    (new,) = reader.partitions(end, more)
    assert sum(made.num_rows for made in reader.read(new)) == 4


def test_logs_of_the_broker_itself_are_found_by_no_pattern(broker: EmbeddedBroker) -> None:
    fill(broker, "/log/sluiceway.stage.x", numbers(3))
    fill(broker, "/log/a", numbers(3))
    assert stream(broker, subscribePattern=".*", startingOffsets="earliest").initialOffset() == {"/log/a": {"0": 0}}


def test_assigned_partitions_are_read_and_no_others(make_broker: BrokerMaker) -> None:
    brokers = [make_broker(folder=f"{number}") for number in range(2)]
    for each in brokers:
        fill(each, "/log/a", numbers(5))
        fill(each, "/log/b", numbers(5))
    reader = stream(*brokers, assign='{"/log/a":[1],"/log/b":[0,1]}', startingOffsets="earliest")
    end = reader.latestOffset(reader.initialOffset(), ALL)
    assert end == {"/log/a": {"1": 5}, "/log/b": {"0": 5, "1": 5}}


# ---------------------------------------------------------------------- what to read


def test_ranges_split_freely_and_cover_everything_once(broker: EmbeddedBroker) -> None:
    for count in (1, 2, 3, 7, 100):
        reader = stream(broker, minPartitions=count)
        ranges = reader.partitions({"/log/a": {"0": 5}, "/log/b": {"0": 0}}, {"/log/a": {"0": 65}, "/log/b": {"0": 3}})
        assert len(ranges) >= min(count, 63)
        covered = [(each[0], index) for each in spans(ranges) for index in range(each[2], each[3])]
        assert covered == [("/log/a", index) for index in range(5, 65)] + [("/log/b", index) for index in range(3)]


def test_the_same_offsets_always_give_the_same_ranges(broker: EmbeddedBroker) -> None:
    fill(broker, "/log/a", numbers(100))
    start, end = {"/log/a": {"0": 5}}, {"/log/a": {"0": 65}}
    first = spans(stream(broker, minPartitions=3).partitions(start, end))
    fill(broker, "/log/a", numbers(100))
    assert spans(stream(broker, minPartitions=3).partitions(start, end)) == first


def test_a_reader_can_be_pickled_also_after_it_was_used(broker: EmbeddedBroker) -> None:
    fill(broker, "/log/a", numbers(10))
    reader = stream(broker, startingOffsets="earliest")
    end = reader.latestOffset(reader.initialOffset(), ALL)
    copy = pickle.loads(pickle.dumps(reader))
    (part,) = pickle.loads(pickle.dumps(copy.partitions({"/log/a": {"0": 0}}, end)))
    assert [row["value"] for made in copy.read(part) for row in made.to_pylist()] == numbers(10)


def test_sparks_stand_in_for_no_partitions_has_no_rows(broker: EmbeddedBroker) -> None:
    from pyspark.sql.datasource import InputPartition

    assert list(stream(broker).read(InputPartition(None))) == []


def test_a_batch_reads_what_is_between_its_ends(broker: EmbeddedBroker) -> None:
    fill(broker, "/log/a", numbers(100))
    assert spans(batch(broker).partitions()) == [("/log/a", 0, 0, 100)]
    assert spans(batch(broker, endingOffsets='{"/log/a":{"0":50}}').partitions()) == [("/log/a", 0, 0, 50)]
    assert spans(batch(broker, startingOffsets='{"/log/a":{"0":50}}').partitions()) == [("/log/a", 0, 50, 100)]
    assert spans(batch(broker, startingTimestamp=10**15).partitions()) == []
    assert spans(batch(broker, endingTimestamp=1).partitions()) == []
    with pytest.raises(DataLossError, match="no /log/typo"):
        batch(broker, subscribe="/log/typo").partitions()


def test_a_batch_by_time_takes_from_the_first_that_is_not_older(broker: EmbeddedBroker) -> None:
    fill(broker, "/log/a", numbers(10), per_batch=10)
    with connected(broker) as connection:
        first_ms = connection.request("log/describe", log="/log/a")["first_timestamp_ms"]
        last_ms = first_ms
        while last_ms == first_ms:
            fill(broker, "/log/a", numbers(1))
            described = connection.request("log/describe", log="/log/a")
            last_ms = described["last_timestamp_ms"]
    end = described["next"]
    (late,) = spans(batch(broker, startingTimestamp=last_ms).partitions())
    assert late[2] >= 10 and late[3] == end
    (early,) = spans(batch(broker, endingTimestamp=last_ms).partitions())
    assert (early[2], early[3]) == (0, late[2])


# ---------------------------------------------------------------------- what is gone


@pytest.mark.parametrize("fails", [True, False])
def test_records_that_are_gone_fail_the_reading_or_are_left_out(broker: EmbeddedBroker, fails: bool) -> None:
    fill(broker, "/log/a", numbers(100))
    reader = stream(broker, startingOffsets="earliest", failOnDataLoss=fails)
    (part,) = reader.partitions({"/log/a": {"0": 5}}, {"/log/a": {"0": 100}})
    with connected(broker) as connection:
        connection.request("log/truncate", log="/log/a", before=40)
    if fails:
        with pytest.raises(DataLossError, match=r"records 5 to 39 of /log/a .* are gone.*failOnDataLoss"):
            list(reader.read(part))
    else:
        assert [row["offset"] for made in reader.read(part) for row in made.to_pylist()] == [*range(40, 100)]


def test_a_checkpoint_with_more_brokers_than_the_option_is_refused(broker: EmbeddedBroker) -> None:
    with pytest.raises(DataLossError, match="partition 1"):
        stream(broker).partitions({"/log/a": {"0": 0, "1": 0}}, {"/log/a": {"0": 5, "1": 5}})


# ---------------------------------------------------------------------- how far it is


def test_how_far_the_query_is_shows_in_its_group(broker: EmbeddedBroker) -> None:
    fill(broker, "/log/a", numbers(100))
    reader = stream(broker, startingOffsets="earliest", groupId="g", maxOffsetsPerTrigger=60)

    def lag() -> int:
        with connected(broker) as connection:
            (group,) = connection.request("log/groups", log="/log/a")["groups"]
        return int(group["lag"])

    offsets = reader.latestOffset(reader.initialOffset(), ReadMaxRows(60))
    assert lag() == 100
    offsets = reader.latestOffset(offsets, ReadMaxRows(60))
    assert offsets == reader.latestOffset(offsets, ReadMaxRows(60))  # idle: all is told
    assert lag() == 0
    with connected(broker) as connection:
        connection.request("log/delete-group", log="/log/a", group="g")
    fill(broker, "/log/a", numbers(5))
    offsets = reader.latestOffset(offsets, ALL)
    reader.latestOffset(offsets, ALL)
    assert lag() == 0


# ---------------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "brokers is missing|say what to read"),
        ({"brokers": "h:1"}, "subscribe, subscribePattern and assign"),
        ({"brokers": "h:1", "subscribe": "/log/a", "assign": '{"/log/a":[0]}'}, "subscribe and assign"),
        ({"brokers": "h:1", "subscribe": "/log/a", "startingOfsets": "earliest"}, "did you mean startingOffsets"),
        ({"brokers": "h:1", "subscribe": "/topic/a"}, "can't be read"),
        ({"brokers": "h:1", "subscribe": "/log/a,/queue/b"}, "not both kinds"),
        ({"brokers": "h:1,h:1", "subscribe": "/log/a"}, "given twice"),
        ({"brokers": "h:x", "subscribe": "/log/a"}, "not a broker's address"),
        ({"brokers": "h:1", "subscribe": "/log/a", "endingOffsets": "latest"}, "not for"),
        ({"brokers": "h:1", "subscribe": "/log/a", "topic": "/log/b"}, "not for"),
        ({"brokers": "h:1", "subscribe": "/log/a", "startingOffsets": "soon"}, "JSON such as"),
        ({"brokers": "h:1", "subscribe": "/log/a", "startingOffsets": '{"/log/a":{"0":"x"}}'}, "can't be the place"),
        ({"brokers": "h:1", "subscribe": "/log/a", "startingOffsets": '{"/log/b":{"0":1}}'}, "not read"),
        ({"brokers": "h:1", "subscribe": "/log/a", "startingOffsets": '{"/log/a":{"1":1}}'}, "1 brokers"),
        ({"brokers": "h:1", "assign": '{"/log/a":[1]}'}, "wants partition 1"),
        ({"brokers": "h:1", "assign": "[1]"}, "JSON such as"),
        ({"brokers": "h:1", "subscribe": "/log/a", "maxOffsetsPerTrigger": "0"}, "1 or more"),
        ({"brokers": "h:1", "subscribe": "/log/a", "failOnDataLoss": "perhaps"}, "true or false"),
        ({"brokers": "h:1", "subscribePattern": "("}, "regular expression"),
        ({"brokers": "h:1", "subscribe": "/queue/a"}, "groupId is missing"),
        ({"brokers": "h:1", "subscribe": "/log/a", "passwordEnv": "NO_SUCH_VARIABLE"}, "NO_SUCH_VARIABLE"),
    ],
)
def test_an_option_that_is_wrong_is_refused_by_name(given: dict[str, str], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        read_options(given, streaming=True)


def test_a_batch_can_not_begin_at_its_end() -> None:
    with pytest.raises(OptionError, match="can't be latest"):
        read_options({"brokers": "h:1", "subscribe": "/log/a", "startingOffsets": "latest"}, streaming=False)


def test_the_case_of_options_does_not_count_and_credentials_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BROKER_PASSCODE", "secret-word")
    options = read_options(
        {"BROKERS": "h:1", "Subscribe": "/log/a", "LOGIN": "ann", "passwordenv": "BROKER_PASSCODE"}, streaming=True
    )
    (address,) = options.brokers.addresses
    assert (address.login, address.passcode) == ("ann", "secret-word")
    assert "secret-word" not in repr(options)


def test_the_ranges_of_a_batch_are_pickled_small() -> None:
    assert len(pickle.dumps(Range("/log/a", 0, 0, 10**12))) < 200
