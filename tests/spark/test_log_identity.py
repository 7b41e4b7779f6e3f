"""A log that was deleted, made anew or restored while a query was at an index of it: noticed, whatever the new one
holds; at the offset layer, without Spark. With Spark: test_logs.py.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from pyspark_stomp.claims import QueueStreamReader
from pyspark_stomp.logs import DataLossError, LogReader, LogStreamReader
from pyspark_stomp.options import OptionError, read_options
from pyspark_stomp.schema import COLUMNS
from pyspark_stomp.wire import Connection, Gap
from sluiceway.client.address import Address
from sluiceway.embedded import EmbeddedBroker
from tests.spark.conftest import BrokerMaker, connected, fill, numbers
from tests.spark.cutting_proxy import CuttingProxy

ALL = ReadAllAvailable()
LOG = "/log/a"
NEW_COUNTS = [0, 7, 100, 250]
"""Of records of the new log, where the query was at 100 of the old one."""


@pytest.fixture
def deleting(make_broker: BrokerMaker) -> EmbeddedBroker:
    return make_broker(delete_passcode="pw")


@pytest.fixture
def stream(request: pytest.FixtureRequest) -> Iterator[Callable[..., LogStreamReader]]:
    made: list[LogStreamReader] = []

    def make(*brokers: EmbeddedBroker, **given: Any) -> LogStreamReader:
        options = {"brokers": ",".join(broker.address for broker in brokers), "reconnectSeconds": "5", "subscribe": LOG}
        given = {"startingOffsets": "earliest", **given}
        made.append(LogStreamReader(read_options(options | given, streaming=True), [*COLUMNS]))
        return made[-1]

    yield make
    for reader in made:
        reader.stop()


def delete(broker: EmbeddedBroker) -> None:
    with connected(broker) as connection:
        connection.request("log/delete", log=LOG, passcode="pw")


def make(broker: EmbeddedBroker, count: int) -> None:
    with connected(broker) as connection:
        connection.request("log/cursor", log=LOG, group="maker")
    fill(broker, LOG, numbers(count, 1000))


def id_of(broker: EmbeddedBroker) -> str:
    with connected(broker) as connection:
        return str(connection.request("log/describe", log=LOG)["log_id"])


def through_json(offsets: Any) -> Any:
    """As Spark keeps them."""
    return json.loads(json.dumps(offsets))


def read(reader: Any, start: Any, end: Any) -> list[int]:
    """The values of a micro-batch."""
    return [
        int(row["value"])
        for part in reader.partitions(through_json(start), through_json(end))
        for made in reader.read(part)
        for row in made.to_pylist()
    ]


def test_offsets_say_which_log_they_are_of(broker: EmbeddedBroker, stream: Callable[..., LogStreamReader]) -> None:
    fill(broker, LOG, numbers(100))
    reader, log_id = stream(broker), id_of(broker)
    start = reader.initialOffset()
    assert start == {LOG: {"0": f"0@{log_id}"}}
    end = reader.latestOffset(through_json(start), ReadMaxRows(60))
    assert end == {LOG: {"0": f"60@{log_id}"}}
    assert read(reader, start, end) == [*range(60)]


@pytest.mark.parametrize("count", NEW_COUNTS)
@pytest.mark.parametrize("fails", ["true", "false"])
@pytest.mark.parametrize("limit", [ALL, ReadMaxRows(30)])
def test_another_log_is_noticed_however_long_it_is(
    deleting: EmbeddedBroker, stream: Callable[..., LogStreamReader], count: int, fails: str, limit: Any
) -> None:
    """Between two triggers, and between two runs of the query."""
    fill(deleting, LOG, numbers(100))
    reader = stream(deleting, failOnDataLoss=fails)
    offsets = through_json(reader.latestOffset(reader.initialOffset(), ALL))
    delete(deleting)
    make(deleting, count)
    for each in (reader, stream(deleting, failOnDataLoss=fails)):
        if fails == "true":
            with pytest.raises(DataLossError, match=r"/log/a at .* is another log than .* index 100.*failOnDataLoss"):
                each.latestOffset(offsets, limit)
            continue
        start, seen = offsets, []
        while (end := through_json(each.latestOffset(start, limit))) != start:
            seen += read(each, start, end)
            start = end
        assert seen == [*range(1000, 1000 + count)]
        assert end == {LOG: {"0": f"{count}@{id_of(deleting)}"}}


@pytest.mark.parametrize("fails", ["true", "false"])
@pytest.mark.parametrize("read_count", [0, 100])
def test_a_log_that_is_gone_is_an_error_or_waited_for(
    deleting: EmbeddedBroker,
    stream: Callable[..., LogStreamReader],
    fails: str,
    read_count: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fill(deleting, LOG, numbers(100))
    reader = stream(deleting, failOnDataLoss=fails)
    offsets = reader.latestOffset(reader.initialOffset(), ReadMaxRows(read_count))
    delete(deleting)
    if fails == "true":
        with pytest.raises(DataLossError, match=f"/log/a at .* is gone, and the query was at index {read_count}"):
            reader.latestOffset(offsets, ALL)
        return
    with caplog.at_level(logging.WARNING, "pyspark_stomp"):
        for _ in range(3):
            assert reader.latestOffset(offsets, ALL) == offsets
    assert [record.message for record in caplog.records if "is gone" in record.message] == [caplog.records[0].message]
    make(deleting, 150)
    end = reader.latestOffset(offsets, ALL)
    assert read(reader, offsets, end) == [*range(1000, 1150)]


@pytest.mark.parametrize("remade", [False, True])
def test_a_log_that_a_pattern_has_found_is_noticed_like_one_that_is_named(
    deleting: EmbeddedBroker, remade: bool
) -> None:
    fill(deleting, LOG, numbers(100))
    fill(deleting, "/log/b", numbers(100))
    given = {"brokers": deleting.address, "subscribePattern": "/log/.*", "startingOffsets": "earliest"}
    reader = LogStreamReader(read_options(given, streaming=True), [*COLUMNS])
    offsets = reader.latestOffset(reader.initialOffset(), ALL)
    delete(deleting)
    if remade:
        make(deleting, 300)
    with pytest.raises(DataLossError, match="another log" if remade else "is gone"):
        reader.latestOffset(offsets, ALL)
    reader.stop()
    # Who does not read it any more has lost nothing.
    narrower = LogStreamReader(read_options(given | {"subscribePattern": "/log/b"}, streaming=True), [*COLUMNS])
    assert narrower.latestOffset(offsets, ALL) == offsets
    narrower.stop()


def test_a_log_that_is_yet_to_be_made_is_waited_for(
    deleting: EmbeddedBroker, stream: Callable[..., LogStreamReader]
) -> None:
    reader = stream(deleting)
    start = reader.initialOffset()
    assert start == {LOG: {"0": 0}}
    assert reader.latestOffset(start, ALL) == start
    make(deleting, 5)
    assert read(reader, start, reader.latestOffset(start, ALL)) == [*range(1000, 1005)]


@pytest.mark.parametrize("fails", ["true", "false"])
@pytest.mark.parametrize("count", [None, *NEW_COUNTS])
def test_a_log_that_is_deleted_between_planning_and_reading(
    deleting: EmbeddedBroker, stream: Callable[..., LogStreamReader], count: int | None, fails: str
) -> None:
    fill(deleting, LOG, numbers(100))
    reader = stream(deleting, failOnDataLoss=fails)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    delete(deleting)
    if count is not None:
        make(deleting, count)
    if fails == "true":
        with pytest.raises(DataLossError, match=r"records 0 to 99 of /log/a at .* are gone: the log was deleted"):
            read(reader, start, end)
        return
    assert read(reader, start, end) == []
    if count is not None:
        assert read(reader, end, reader.latestOffset(end, ALL)) == [*range(1000, 1000 + count)]


@pytest.mark.parametrize("remade", [False, True])
def test_a_log_that_is_deleted_in_the_middle_of_a_read(deleting: EmbeddedBroker, remade: bool) -> None:
    """What came is whole, the rest is a gap; also if the log was made anew while the connection was lost."""
    fill(deleting, LOG, [b"%10000d" % number for number in range(4000)])  # more than sockets hold

    def at_cut() -> None:
        delete(deleting)
        make(deleting, 5000)

    cuts = [("down", 10_000_000)] if remade else []
    proxy = CuttingProxy(("127.0.0.1", deleting.port), cuts, at_first_cut=at_cut)
    with closing(proxy), Connection(Address.parse(proxy.address), patience_seconds=5) as connection:
        place = 0
        for part in connection.read_batches(LOG, 0, 4000):
            if isinstance(part, Gap):
                assert (part.first, part.end, part.reason) == (place, 4000, "other-log" if remade else "deleted")
                place = part.end
                continue
            assert part.first_index == place
            if not place and not remade:
                delete(deleting)
            place = part.end_index
            assert bytes(part.value(0)) == b"%10000d" % part.first_index
        assert place == 4000


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_broker_that_was_restored_from_an_older_backup_is_noticed(
    make_broker: BrokerMaker, stream: Callable[..., LogStreamReader], tmp_path: Path, fails: str
) -> None:
    """The same log, with fewer records: what was read is not read again, what comes is."""
    broker = make_broker(folder="one")
    fill(broker, LOG, numbers(60))
    broker.stop()
    shutil.copytree(tmp_path / "one", tmp_path / "backup")
    broker = make_broker(folder="one")
    log_id = id_of(broker)
    fill(broker, LOG, numbers(40, 60))
    reader = stream(broker, failOnDataLoss=fails)
    offsets = reader.latestOffset(reader.initialOffset(), ALL)
    port = broker.port
    broker.stop()
    broker = make_broker(folder="backup", port=port)
    if fails == "true":
        with pytest.raises(DataLossError, match=r"ends before index 60, and the query was at 100.*restored"):
            reader.latestOffset(offsets, ALL)
        return
    end = reader.latestOffset(offsets, ALL)
    assert end == {LOG: {"0": f"60@{log_id}"}}
    assert read(reader, offsets, end) == []
    fill(broker, LOG, numbers(5, 60))
    assert read(reader, end, reader.latestOffset(end, ALL)) == [*range(60, 65)]


def test_each_broker_has_a_log_of_its_own(
    make_broker: BrokerMaker, stream: Callable[..., LogStreamReader], caplog: pytest.LogCaptureFixture
) -> None:
    brokers = [make_broker(folder=str(number), delete_passcode="pw") for number in range(3)]
    for each in brokers:
        fill(each, LOG, numbers(100))
    assert len({id_of(each) for each in brokers}) == 3
    reader = stream(*brokers, failOnDataLoss="false")
    offsets = reader.latestOffset(reader.initialOffset(), ALL)
    delete(brokers[1])
    make(brokers[1], 200)
    end = reader.latestOffset(offsets, ALL)
    assert read(reader, offsets, end) == [*range(1000, 1200)]
    assert [each.message.split(" is ")[0] for each in caplog.records if "another log" in each.message] == [
        f"/log/a at {brokers[1].address}"
    ]
    strict = stream(*brokers)
    with pytest.raises(DataLossError, match=brokers[1].address):
        strict.latestOffset(offsets, ALL)
    # The place of a broker in the list is whose log it is.
    with pytest.raises(DataLossError, match="another log"):
        stream(brokers[1], brokers[0], brokers[2]).latestOffset(end, ALL)


def test_a_checkpoint_without_ids_goes_on_with_a_warning_and_has_them_then(
    deleting: EmbeddedBroker, stream: Callable[..., LogStreamReader], caplog: pytest.LogCaptureFixture
) -> None:
    fill(deleting, LOG, numbers(100))
    reader = stream(deleting)
    old = {LOG: {"0": 40}}
    with caplog.at_level(logging.WARNING, "pyspark_stomp"):
        end = reader.latestOffset(old, ALL)
        assert reader.latestOffset(old, ALL) == end == {LOG: {"0": f"100@{id_of(deleting)}"}}
    assert len([each for each in caplog.records if "does not say which log" in each.message]) == 1
    assert read(reader, old, end) == [*range(40, 100)]
    assert read(reader, old, {LOG: {"0": 60}}) == [*range(40, 60)], "a batch that an earlier version has begun"
    delete(deleting)
    make(deleting, 300)
    with pytest.raises(DataLossError, match="another log"):
        reader.latestOffset(end, ALL)
    # Shorter than it was, it is noticed even without.
    with pytest.raises(DataLossError, match="ends before index 300, and the query was at 400"):
        stream(deleting).latestOffset({LOG: {"0": 400}}, ALL)


def test_available_now_looks_at_the_log_that_it_begins_with(
    deleting: EmbeddedBroker, stream: Callable[..., LogStreamReader]
) -> None:
    fill(deleting, LOG, numbers(100))
    reader = stream(deleting)
    offsets = reader.latestOffset(reader.initialOffset(), ALL)
    again = stream(deleting)
    delete(deleting)
    again.prepareForTriggerAvailableNow()
    with pytest.raises(DataLossError, match="is gone"):
        again.latestOffset(offsets, ALL)
    make(deleting, 300)
    again = stream(deleting)
    again.prepareForTriggerAvailableNow()
    with pytest.raises(DataLossError, match="another log"):
        again.latestOffset(offsets, ALL)


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_batch_of_a_log_that_is_made_anew_after_it_was_planned(deleting: EmbeddedBroker, fails: str) -> None:
    fill(deleting, LOG, numbers(100))
    given = {"brokers": deleting.address, "subscribe": LOG, "failOnDataLoss": fails, "reconnectSeconds": "5"}
    reader = LogReader(read_options(given, streaming=False), [*COLUMNS])
    (part,) = reader.partitions()
    delete(deleting)
    make(deleting, 300)
    if fails == "true":
        with pytest.raises(DataLossError, match="there is another one of its name"):
            list(reader.read(part))
    else:
        assert list(reader.read(part)) == []


def test_offsets_of_a_checkpoint_can_be_given_as_options(
    deleting: EmbeddedBroker, stream: Callable[..., LogStreamReader]
) -> None:
    fill(deleting, LOG, numbers(100))
    here = json.dumps({LOG: {"0": f"40@{id_of(deleting)}"}})
    reader = stream(deleting, startingOffsets=here)
    assert json.dumps(reader.initialOffset()) == here
    given = {"brokers": deleting.address, "subscribe": LOG, "startingOffsets": here, "reconnectSeconds": "5"}
    batch = LogReader(read_options(given, streaming=False), [*COLUMNS])
    (part,) = batch.partitions()
    assert sum(made.num_rows for made in batch.read(part)) == 60
    elsewhere = json.dumps({LOG: {"0": "40@another"}})
    reader = stream(deleting, startingOffsets=elsewhere)
    with pytest.raises(DataLossError, match="another log"):
        reader.latestOffset(reader.initialOffset(), ALL)
    (part,) = LogReader(read_options(given | {"startingOffsets": elsewhere}, streaming=False), [*COLUMNS]).partitions()
    with pytest.raises(DataLossError, match="another one of its name"):
        list(batch.read(part))
    with pytest.raises(OptionError, match="INDEX@LOGID"):
        stream(deleting, startingOffsets='{"/log/a":{"0":"40@"}}')


def test_how_far_a_query_is_is_not_told_to_another_log(
    deleting: EmbeddedBroker, stream: Callable[..., LogStreamReader]
) -> None:
    fill(deleting, LOG, numbers(100))
    reader = stream(deleting, groupId="g", failOnDataLoss="false")
    offsets = reader.latestOffset(reader.initialOffset(), ALL)
    delete(deleting)
    make(deleting, 300)
    reader.latestOffset(offsets, ALL)
    with connected(deleting) as connection:
        assert [group["group"] for group in connection.request("log/groups", log=LOG)["groups"]] == ["maker"]


@pytest.mark.parametrize("fails", ["true", "false"])
def test_claims_whose_log_is_made_anew_before_they_are_read(make_broker: BrokerMaker, fails: str) -> None:
    """Its first records are those of another claim: not these messages."""
    broker = make_broker(delete_passcode="pw")
    given = {
        "brokers": broker.address, "subscribe": "/queue/in", "groupId": "g", "failOnDataLoss": fails,
        "reconnectSeconds": "5",
    }  # fmt: skip
    reader = QueueStreamReader(read_options(given, streaming=True), [*COLUMNS])
    try:
        start = reader.initialOffset()
        with connected(broker) as connection, connection.sender("/queue/in") as sender:
            for body in numbers(20):
                sender.send(body, [("persistent", "true")])
        end = reader.latestOffset(start, ALL)
        parts = reader.partitions(start, end)
        assert parts
        with connected(broker) as connection:
            connection.request("log/delete", log=parts[0].log, passcode="pw")
        with connected(broker) as connection, connection.sender("/queue/in") as sender:
            for body in numbers(20, 1000):
                sender.send(body, [("persistent", "true")])
        later = reader.latestOffset(end, ALL)
        assert later != end
        if fails == "true":
            with pytest.raises(DataLossError, match="are gone, with their claims: other-log"):
                list(reader.read(parts[0]))
        else:
            assert [made.num_rows for made in reader.read(parts[0])] == []
        assert read(reader, end, later) == [*range(1000, 1020)]
    finally:
        reader.stop()
