"""A log that was deleted and made anew while somebody read it, or was away: told, and nothing of it is skipped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
from click.testing import CliRunner

from perf.peers.daemon import free_port
from sluiceway.cli import main
from sluiceway.client import Consumer, Gap, GapError, LogClient, LogDeletedError, Producer, RequestError
from sluiceway.config import Config, Listener
from sluiceway.embedded import EmbeddedBroker
from sluiceway.store.config import StoreConfig
from sluiceway.store.log_storage import LogStorageConfig
from tests.client.conftest import quick
from tests.client.test_producer import numbers

pytestmark = pytest.mark.interop
NEW_COUNTS = [0, 3, 10, 25]


@pytest.fixture
def broker(sluiceway_config: Config) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(attrs.evolve(sluiceway_config, logs=LogStorageConfig(delete_passcode="pw"))) as broker:
        yield broker


def fill(broker: EmbeddedBroker, values: list[bytes]) -> None:
    with Producer(broker.address, "orders", mode="sync") as producer:
        if values:
            producer.send_many(values)


def remake(broker: EmbeddedBroker, count: int) -> None:
    with LogClient(broker.address) as client:
        client.delete("orders", "pw")
        client.request("cursor", log="orders", group="maker")
    fill(broker, [b"new %d" % number for number in range(count)])


def place_behind(broker: EmbeddedBroker, index: int) -> str:
    """What a program keeps that has taken this record."""
    with Consumer(broker.address, from_=index) as consumer:
        return next(consumer.stream("orders")).next_place


def test_a_place_goes_on_in_its_log(broker: EmbeddedBroker) -> None:
    fill(broker, numbers(10))
    with Consumer(broker.address, from_=place_behind(broker, 6), to=10) as consumer:
        assert [record.index for record in consumer.stream("orders")] == [7, 8, 9]
    with pytest.raises(ValueError, match="INDEX@LOGID"):
        Consumer(broker.address, from_="7@")


@pytest.mark.parametrize("count", NEW_COUNTS)
def test_a_place_in_another_log_is_told_and_all_of_this_one_is_read(broker: EmbeddedBroker, count: int) -> None:
    fill(broker, numbers(10))
    place = place_behind(broker, 6)
    remake(broker, count)
    gaps: list[Gap] = []
    with Consumer(broker.address, from_=place, gap_callback=gaps.append) as consumer:
        stream = consumer.stream("orders")
        found: list[bytes] = []
        while len(found) < count or not gaps:
            found += [record.value for record in stream.poll(0.2)]
        assert found == [b"new %d" % number for number in range(count)]
    assert [(gap.first, gap.end, gap.reason) for gap in gaps] == [(7, 0, "other-log")]
    with (
        Consumer(broker.address, from_=place, on_gap="error") as consumer,
        pytest.raises(GapError, match="was deleted, and another one is there: index 7 was next"),
    ):
        next(consumer.stream("orders"))


@pytest.mark.parametrize("group", [None, "g"])
@pytest.mark.parametrize("later", ["another", "none"])
def test_a_reader_whose_log_goes_while_it_is_away(
    sluiceway_config: Config, tmp_path: Path, group: str | None, later: str
) -> None:
    """Its connection comes back to another log of that name, or to none, which it does not make."""

    def made(folder: str, *, port: int = 0) -> EmbeddedBroker:
        return EmbeddedBroker(
            attrs.evolve(
                sluiceway_config,
                broker=attrs.evolve(sluiceway_config.broker, data_dir=tmp_path / folder),
                store=StoreConfig(engine="leveldb"),
                listeners=(Listener(address=f"127.0.0.1:{port}"),),
            )
        )

    with made("two") as other:
        if later == "another":
            fill(other, [b"new %d" % number for number in range(25)])
    first = made("one", port=free_port()).start()
    fill(first, numbers(10))
    gaps: list[Gap] = []
    with Consumer(first.address, group=group, from_="earliest", backoff=quick, gap_callback=gaps.append) as consumer:
        stream = consumer.stream("orders")
        found = [next(stream).value for _ in range(10)]
        assert stream.poll(0.05) == []
        first.stop()
        with made("two", port=first.port) as second:
            if later == "none":
                with pytest.raises(LogDeletedError):
                    next(stream)
                with LogClient(second.address) as client:
                    assert client.list_logs() == []
                return
            while len(found) < 35:
                found.append(next(stream).value)
    assert found == [*numbers(10), *[b"new %d" % number for number in range(25)]]
    assert [gap.reason for gap in gaps] == ["other-log"]


def test_orders_can_mean_one_log(broker: EmbeddedBroker) -> None:
    fill(broker, numbers(10))
    with LogClient(broker.address) as client:
        old_id = client.describe("orders").log_id
        remake(broker, 20)
        for order in (
            lambda: client.seek("orders", "maker", 5, log_id=old_id),
            lambda: client.truncate("orders", 5, log_id=old_id),
            lambda: client.delete("orders", "pw", log_id=old_id),
        ):
            with pytest.raises(RequestError, match="other-log"):
                order()
        info = client.describe("orders")
        assert (info.first, info.next) == (0, 20)
        assert client.truncate("orders", 5, log_id=info.log_id) == 5


@pytest.mark.parametrize("count", NEW_COUNTS)
def test_the_command_line_goes_on_in_the_log_that_is_meant(broker: EmbeddedBroker, count: int) -> None:
    fill(broker, numbers(10))
    place = place_behind(broker, 6)
    url = ["--url", f"stomp://{broker.address}"]
    run = CliRunner().invoke
    shown = run(main, ["log", "tail", "orders", "--from", place, *url])
    assert (shown.exit_code, shown.stdout_bytes) == (0, b"".join(value + b"\n" for value in numbers(10)[7:]))
    remake(broker, count)
    shown = run(main, ["log", "tail", "orders", "--from", place, *url])
    assert "was made anew: continuing at its index 0, not at 7" in shown.stderr
    assert shown.stdout.splitlines() == [f"new {number}" for number in range(count)]
    assert run(main, ["log", "tail", "orders", "--from", place, "--on-gap", "error", *url]).exit_code == 1
    shown = run(main, ["log", "seek", "orders", "maker", "--to", place, *url])
    assert (shown.exit_code != 0, "other-log" in shown.stderr) == (True, True)
    shown = run(main, ["log", "truncate", "orders", "--before", place, *url])
    assert (shown.exit_code != 0, "other-log" in shown.stderr) == (True, True)
