"""Headers and names of other brokers: the table, and what it says of each."""

from __future__ import annotations

from collections import Counter

import pytest

from sluiceway.protocols.stomp.dialects import (
    DESTINATIONS,
    TABLES,
    Fate,
    form_of,
    known_as,
    remedies,
    subscribe_headers,
)
from sluiceway.protocols.stomp.errors import ProtocolError
from tests.protocols.stomp.connections import fault_of
from tests.protocols.stomp.test_client_frames import wire
from tests.protocols.stomp.test_send_runs import send


def test_no_word_is_in_a_table_twice() -> None:
    for title, table in TABLES.items():
        names = Counter(name for word in table for name in word.name.split(", "))
        assert not [name for name, count in names.items() if count > 1], title


def test_whatever_is_not_served_says_what_to_do() -> None:
    for table in TABLES.values():
        for word in table:
            assert word.words or word.fate is Fate.PASSED_ON, word.name
        assert all("`" not in remedy for remedy in remedies(table).values())


@pytest.mark.parametrize("mode", ["AUTO", "Client", "CLIENT-INDIVIDUAL"])
def test_an_ack_mode_is_taken_in_any_case_of_letters(mode: str) -> None:
    assert subscribe_headers({"destination": "/queue/a", "ack": mode})["ack"] == mode.lower()


@pytest.mark.parametrize("value", ["jms-map-json", "JMS-XML", "x"])
def test_a_transformation_is_refused_in_words(value: str) -> None:
    with pytest.raises(ProtocolError, match="bodies are bytes"):
        subscribe_headers({"destination": "/queue/a", "transformation": value})
    subscription = wire("SUBSCRIBE", destination="/queue/a", id="0", transformation=value)
    for frame in (subscription, send("destination:/queue/a", f"transformation:{value}")):
        error = fault_of(frame, "1.2").error
        assert (error.code, "Leave the header" in error.detail) == ("not-supported", True)


def test_a_transformation_to_bytes_is_what_is_done_anyway() -> None:
    assert subscribe_headers({"destination": "/queue/a", "transformation": "jms-byte"})


def test_a_date_of_delivery_is_refused_with_what_to_send() -> None:
    error = fault_of(send("destination:/queue/a", "AMQ_SCHEDULED_TIME:1900000000000"), "1.2").error
    assert (error.code, "AMQ_SCHEDULED_DELAY" in error.detail) == ("not-supported", True)


@pytest.mark.parametrize(
    "name",
    [
        "/exchange/logs/info",
        "/reply-queue/a",
        "/queue/a?consumer.prefetchSize=10",
        "/queue/Consumer.A.VirtualTopic.Orders",
        "/topic/ActiveMQ.Advisory.Connection",
    ],
)
def test_a_name_that_means_nothing_here_has_words(name: str) -> None:
    assert form_of(name) in remedies(DESTINATIONS)


@pytest.mark.parametrize("name", ["/queue/a", "/topic/Consumer.A", "/queue/what?", "/shop/a", "/"])
def test_plain_names_are_no_foreign_ones(name: str) -> None:
    assert form_of(name) == ""


@pytest.mark.parametrize("name", ["/queue/a", "/exchange/amq.direct/a", "/exchange/amq.fanoutx", "/a/amq/queue/b"])
def test_other_names_stay_as_they_are(name: str) -> None:
    assert known_as(name) == name
