"""The smoke test of a version of Python: a broker process, a client at full speed, a restart on the same folder.

Short, and through everything: arguments, sockets, parser, queues, store and recovery. `.ci/run` runs it on every Python
that it finds.
"""

from __future__ import annotations

import random
import signal
from pathlib import Path
from typing import Final

import pytest

from tests.interop.raw_client import RawClient, frame
from tests.sluiceway.broker_process import BrokerProcess

COUNT: Final = 4_000
DESTINATION: Final = "/queue/speed"


def acks_of(messages: list[dict[str, str]], version: str, gap: bytes) -> bytes:
    """An ACK for each MESSAGE by itself."""
    if version == "1.2":
        return b"".join(frame("ACK", id=headers["ack"]) + gap for headers in messages)
    return b"".join(
        frame("ACK", subscription=headers["subscription"], message_id=headers["message-id"]) + gap
        for headers in messages
    )


@pytest.mark.parametrize(("version", "gap"), [("1.1", b""), ("1.2", b"\n")])
def test_messages_acknowledged_one_by_one_at_full_speed_are_gone_and_all_others_are_there_after_a_restart(
    version: str, gap: bytes, tmp_path: Path
) -> None:
    """The ACKs reach the broker in pieces that end anywhere, most of them inside a frame."""
    chance = random.Random(7)
    with BrokerProcess(tmp_path, "--data", "data") as broker:
        with RawClient(broker.address) as client:
            client.connect(version)
            for number in range(COUNT):
                receipt = {"receipt": "all"} if number == COUNT - 1 else {}
                client.send(frame("SEND", b"%d" % number, destination=DESTINATION, persistent="true", **receipt))
            client.expect("RECEIPT")
            client.send(frame("SUBSCRIBE", id="s", destination=DESTINATION, ack="client-individual"))
            left = COUNT // 2
            while left:
                messages = [client.expect("MESSAGE").headers for _ in range(min(left, 50))]
                left -= len(messages)
                data = acks_of(messages, version, gap)
                while data:
                    size = chance.randint(1, 400)
                    client.send(data[:size])
                    data = data[size:]
            client.send(frame("DISCONNECT", receipt="bye"))
            assert client.frames_to_end()[-1].command == "RECEIPT"
        broker.signal(signal.SIGTERM)
        assert broker.wait() == 0
        assert '"level": "error"' not in broker.log
    with BrokerProcess(tmp_path, "--data", "data") as broker, RawClient(broker.address) as client:
        client.connect(version)
        client.send(frame("SUBSCRIBE", id="s", destination=DESTINATION))
        bodies = [client.expect("MESSAGE").body for _ in range(COUNT // 2)]
        assert bodies == [b"%d" % number for number in range(COUNT // 2, COUNT)]
        # Nothing else is left: the next one sent is the next one that comes.
        client.send(frame("SEND", b"last", destination=DESTINATION))
        assert client.expect("MESSAGE").body == b"last"
