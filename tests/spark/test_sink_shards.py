"""The sink and brokers with several shards: one commit for each, and each once. Without a Spark session."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sluiceway.client.errors import RequestError
from sluiceway.embedded import EmbeddedBroker
from sluiceway.queues.shard_hash import shard_of
from sluiceway.store.shard_folders import make_shards
from tests.spark.conftest import BrokerMaker, connected
from tests.spark.test_sink import stages, values

if TYPE_CHECKING:
    from pyspark_stomp.sink import BatchWriter, Written

LOGS = ["/log/a", "/log/b", "/log/c", "/log/{a}.new"]
SHARDS_COUNT = 8


@pytest.fixture
def broker(make_broker: BrokerMaker, tmp_path: Path) -> EmbeddedBroker:
    """With several shards, in different ones of which are most of the logs."""
    make_shards(tmp_path / "data", SHARDS_COUNT)
    assert len({shard_of(log, SHARDS_COUNT) for log in LOGS}) > 2
    return make_broker()


def writer_of(broker: EmbeddedBroker, **options: str) -> BatchWriter:
    pytest.importorskip("pyspark")
    from pyspark.sql.types import StringType, StructField, StructType

    from pyspark_stomp.options import write_options
    from pyspark_stomp.sink import BatchWriter

    columns = StructType([StructField("value", StringType()), StructField("topic", StringType())])
    given = {"brokers": broker.address, "transactionId": "{one}", "reconnectSeconds": "5"}
    return BatchWriter(write_options({**given, **options}), columns, overwrite=False)


def written(writer: BatchWriter, logs: list[str]) -> list[Written | None]:
    """What one task says that has written a row to each of these logs."""
    import pyarrow as pa

    rows = pa.RecordBatch.from_pydict({"value": [f"of {log}" for log in logs], "topic": logs})
    return [writer.write(iter([rows]))]


def test_a_batch_is_published_once_in_every_shard(broker: EmbeddedBroker) -> None:
    """A second writing under the same id does nothing, whichever logs it has."""
    writer = writer_of(broker)
    for logs in (LOGS, LOGS, ["/log/d"]):
        writer.commit(list(written(writer, logs)))
        assert {log: values(broker, log) for log in LOGS} == {log: [f"of {log}".encode()] for log in LOGS}
        assert stages(broker) == []
    with connected(broker) as connection, pytest.raises(RequestError, match="TOPIC_NOT_EXIST"):
        connection.request("log/size", log="/log/d")


@pytest.mark.parametrize("published_count", [1, 2])
def test_what_an_attempt_has_published_in_some_shards_is_completed_by_the_next(
    broker: EmbeddedBroker, published_count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark_stomp import sink

    writer = writer_of(broker)
    commits = 0
    commit = sink._commit

    def dying(*arguments: object) -> None:
        nonlocal commits
        commits += 1
        if commits > published_count:
            raise RuntimeError("dead")
        commit(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(sink, "_commit", dying)
    with pytest.raises(RuntimeError):
        writer.commit(list(written(writer, LOGS)))
    monkeypatch.setattr(sink, "_commit", commit)
    with connected(broker) as connection:
        names = {each["log"] for each in connection.request("log/list")["logs"]}
    assert 0 < len(names & set(LOGS)) < len(LOGS)
    writer.commit(list(written(writer, LOGS)))
    assert {log: values(broker, log) for log in LOGS} == {log: [f"of {log}".encode()] for log in LOGS}


def test_stages_of_a_job_that_failed_are_dropped_in_every_shard(broker: EmbeddedBroker) -> None:
    writer = writer_of(broker)
    messages = written(writer, LOGS)
    assert len(stages(broker)) == len(LOGS)
    writer.abort(list(messages))
    assert stages(broker) == []


def test_a_batch_that_an_earlier_version_has_published_is_not_published_again(broker: EmbeddedBroker) -> None:
    """It had one name for all shards."""
    writer = writer_of(broker)
    with connected(broker) as connection:
        connection.request("sink/commit", query="transaction {one}", batch=0, parts=[])
    writer.commit(list(written(writer, LOGS)))
    with connected(broker) as connection:
        assert connection.request("log/list")["logs"] == []


def test_a_batch_that_was_begun_and_has_nothing_when_it_is_run_again_keeps_no_other_back(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its intent is completed first."""
    from pyspark_stomp.sink import Staged, _commit

    staged = next(iter(written(writer_of(broker), ["/log/a"])))
    assert staged is not None
    (first,) = staged.staged
    (second,) = written(writer_of(broker), ["/log/a"])[0].staged  # type: ignore[union-attr]

    def kept(running: object) -> None:
        """As if the broker had died when it had saved what it intends."""
        sinks = running.shards.claims.sinks  # type: ignore[attr-defined]
        begin = sinks._begin
        sinks._begin = lambda commit: (sinks._commits.pop(commit.query), setattr(sinks, "_begin", begin))

    broker.call(kept)
    with connected(broker, patience_seconds=0.0) as connection:
        body = {"query": "q", "batch": 3, "parts": [{"stage": first.stage, "to": first.target, "count": 1}]}
        connection.connect()
        link = connection._link
        assert link is not None
        link.post("/sluiceway/sink/commit", json.dumps(body).encode())
        while connection.request("sink/state", query="q")["publishing"] != 3:
            pass
    assert isinstance(second, Staged)
    with connected(broker) as connection:
        _commit(connection, "q", 4, [second])
    assert values(broker, "/log/a") == [b"of /log/a"] * 2


@pytest.mark.parametrize("part", [{"whole": False}, {"whole": "no", "count": 1}, {"whole": 0, "count": 1}])
def test_a_part_of_a_stage_needs_its_number_of_records(broker: EmbeddedBroker, part: dict[str, object]) -> None:
    with connected(broker) as connection, pytest.raises(RequestError, match="whole"):
        parts = [{"stage": "/log/sluiceway.stage.x", "to": "/log/a", **part}]
        connection.request("sink/commit", query="q", batch=0, parts=parts)
