"""What a message of another region becomes here, and what its receipt means there."""

from __future__ import annotations

import pytest

from sluiceway.config.sources import ConfigError, load
from sluiceway.protocols.stomp.frames import Frame
from sluiceway.protocols.stomp.machine import ClientMachine
from sluiceway.regions.config import Region, RegionsConfig
from sluiceway.regions.courier import LARGE_BYTES, Courier

T = "/topic/t"


def message(ack: str, body: bytes = b"b", **headers: str) -> Frame:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Frame(
        "MESSAGE", {"subscription": "region", "message-id": "m-1", "ack": ack, "destination": T, **named}, body
    )


def test_a_message_becomes_a_send_with_a_receipt() -> None:
    courier = Courier(T, "us")
    (sent,) = courier.take(message("1", key="v", persistent="true", user="anna", delay="500", content_length="1"))
    assert sent.startswith(b"SEND\ndestination:/topic/t\nkey:v\npersistent:true\nreceipt:1\n")
    assert b"user" not in sent
    assert b"delay" not in sent
    assert (courier.underway_count, courier.underway_bytes) == (1, 1)
    assert courier.receipted("1") == b"ACK\nid:1\n\n\0"
    assert (courier.underway_count, courier.taken_count) == (0, 1)
    assert courier.receipted("1") == b""


def test_a_large_body_is_not_copied() -> None:
    body = bytes(LARGE_BYTES)
    head, same, end = Courier(T, "us").take(message("1", body, content_length=str(len(body))))
    assert same is body
    assert head == b"SEND\ndestination:/topic/t\nreceipt:1\ncontent-length:65536\n\n"
    assert end == b"\0"


def test_one_that_may_have_come_before_says_so() -> None:
    courier = Courier(T, "us")
    assert b"possible-duplicate:true\n" in courier.take(message("1", redelivered="true"))[0]
    assert b"possible-duplicate:true\n" in courier.take(message("2", possible_duplicate="true"))[0]
    assert b"possible-duplicate" not in courier.take(message("3"))[0]


def test_one_that_is_refused_here_is_a_dead_letter_there() -> None:
    courier = Courier(T, "us")
    courier.take(message("7"))
    assert courier.refused("1") == b"NACK\nid:7\nrequeue:false\n\n\0"
    assert courier.refused("1") == b""
    assert courier.refused(None) == b""
    assert courier.refused_count == 1


def test_the_subscription_keeps_its_place_and_takes_nothing_of_regions() -> None:
    headers = Courier(T, "us").subscribe()
    assert headers["activemq.subscriptionName"] == T
    assert headers["selector"] == '"origin-region" IS NULL'
    assert headers["ack"] == "client-individual"
    assert (
        ClientMachine()
        .connect("h", extra=[("client-id", Courier(T, "us").client_id)])
        .endswith(b"client-id:region-us\n\n\0")
    )


GOOD = {"name": "eu", "hubs": ("eu:61613",), "topics": (T,)}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"name": ""}, "name must have 1 to 64"),
        ({"name": "a b"}, "name must have 1 to 64"),
        ({"hubs": ()}, "hubs must name a hub"),
        ({"hubs": ("stomp://a:b@eu:1",)}, "passcode_file"),
        ({"hubs": ("http://eu",)}, "is not a broker's address"),
        ({"topics": ()}, "topics must name a topic"),
        ({"topics": ("/queue/q",)}, "must be whole names of topics"),
        ({"topics": ("/topic/a.>",)}, "must be whole names of topics"),
        ({"topics": (T, T)}, "names a topic twice"),
        ({"topics": T}, "list of texts"),
    ],
)
def test_mistakes_of_the_configuration_are_named(changes: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Region(**{**GOOD, **changes})  # type: ignore[arg-type]


def test_two_regions_have_two_names() -> None:
    with pytest.raises(ValueError, match="two regions are called 'eu'"):
        RegionsConfig(origins=(Region(**GOOD), Region(**GOOD)))  # type: ignore[arg-type]


def test_it_is_read_from_a_file(tmp_path: object) -> None:
    from pathlib import Path

    file = Path(str(tmp_path)) / "c.toml"
    file.write_text('[[regions.origins]]\nname = "eu"\nhubs = ["eu:61613"]\ntopics = ["/topic/t"]\n')
    (found,) = load(file).regions.origins
    assert (found.name, found.hubs, found.topics) == ("eu", ("eu:61613",), (T,))
    file.write_text('[[regions.origins]]\nname = "eu"\nhubs = ["eu:61613"]\ntopics = ["/queue/t"]\n')
    with pytest.raises(ConfigError, match=r"regions\.origins\[1\]\.topics"):
        load(file)
