"""Addresses, partitioners, waits between attempts, and what a client loads."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sluiceway.client import Backoff, Consumer, Producer, by_hash
from sluiceway.client.address import Address, parse_all
from sluiceway.client.partitioning import at_random, partitioner_named

BROKERS = ["a:1", "b:1", "c:1"]


def test_a_key_goes_to_the_same_broker_forever() -> None:
    """The documented rule, by values that another program could have computed: CRC-32 modulo the number of brokers."""
    assert [by_hash(key, BROKERS) for key in ("123456789", b"123456789", "duck")] == [0xCBF43926 % 3] * 2 + [
        by_hash(b"duck", BROKERS)
    ]


def test_without_a_key_any_broker_will_do() -> None:
    assert {by_hash(None, BROKERS) for _ in range(200)} == {0, 1, 2}
    assert {at_random("key", BROKERS) for _ in range(200)} == {0, 1, 2}


def test_a_key_that_is_no_text_is_refused_with_its_type() -> None:
    with pytest.raises(TypeError, match="not int"):
        by_hash(7, BROKERS)


def test_an_unknown_partitioner_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="'random', 'hash'"):
        partitioner_named("roundrobin")


def test_addresses_may_say_who_comes() -> None:
    assert Address.parse("broker") == Address("broker", 61613)
    assert Address.parse("stomp://me:se%40cret@broker:1", login="you") == Address("broker", 1, "me", "se@cret")
    assert Address.parse("broker:1", login="you", passcode="x") == Address("broker", 1, "you", "x")
    assert str(Address.parse("[::1]:7")) == "[::1]:7"
    assert "secret" not in repr(Address.parse("me:secret@broker:1"))


@pytest.mark.parametrize("text", ["", "http://broker:1", "broker:port", "stomp://broker/path"])
def test_what_is_no_address_is_refused_with_the_right_form(text: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        Address.parse(text)


def test_brokers_are_given_once_each() -> None:
    with pytest.raises(ValueError, match="at least one"):
        parse_all([], None, None)
    with pytest.raises(ValueError, match="twice"):
        parse_all(["a:1", "stomp://me:x@a:1"], None, None)


def test_waits_grow_to_a_limit_and_begin_anew() -> None:
    backoff = Backoff(1.0, 4.0)
    waits = [backoff.next_seconds() for _ in range(5)]
    assert all(low / 2 <= wait <= low for wait, low in zip(waits, (1, 2, 4, 4, 4), strict=True))
    backoff.succeeded()
    assert backoff.next_seconds() <= 1.0


@pytest.mark.parametrize(
    "options",
    [
        {"batch_count": 0},
        {"batch_count": 1 << 21},
        {"window_count": 0},
        {"mode": "later"},
        {"compression": "rar"},
        {"partitioner": "x"},
        {"headers": {"destination": "/log/other"}},
    ],
)
def test_a_producer_refuses_what_can_not_be(options: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        Producer("a:1", "orders", **options)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    "options",
    [
        {"from_": -1},
        {"from_": "yesterday"},
        {"from_": "time:soon"},
        {"auto_ack": False},
        {"group": "g", "to": 7},
        {"on_gap": "ignore"},
        {"compression": ["rar"]},
        {"buffer_bytes": 0},
    ],
)
def test_a_consumer_refuses_what_can_not_be(options: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        Consumer("a:1", **options)  # type: ignore[arg-type]


def test_a_log_is_asked_for_once() -> None:
    consumer = Consumer("127.0.0.1:1")
    with pytest.raises(ValueError, match="at least one"):
        consumer.streams({"orders": 0})
    with pytest.raises(ValueError, match="read already"):
        consumer.streams({"orders": 1, "/log/orders": 1})


def test_a_client_loads_neither_trio_nor_the_store_nor_flow_control() -> None:
    """Spark starts processes for each micro-batch, which import a client."""
    forbidden = "{'trio', 'plyvel', 'sluiceway.store', 'sluiceway.flow', 'structlog'}"
    code = f"import sys, pyspark_stomp.wire; from sluiceway.client import *; print({forbidden} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
