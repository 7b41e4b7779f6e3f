"""A broker inside a trio program, and a client without a socket: bytes through memory, STOMP by the sans-I/O machine.

    python -m examples.in_trio

With `trio.testing.MockClock` such a program needs no real time: heart-beats, expiry and timeouts of hours pass at once.
"""

from __future__ import annotations

import trio

from sluiceway import Broker, Config
from sluiceway.config import Listener
from sluiceway.protocols.stomp.frames import Fault, Frame
from sluiceway.protocols.stomp.machine import ClientMachine
from sluiceway.protocols.streams import MemoryStream


async def next_frame(stream: MemoryStream, machine: ClientMachine, waiting: list[Frame]) -> Frame:
    """The next frame from the broker; `waiting` keeps those that came together with it."""
    while not waiting:
        data = await stream.receive_some()
        if not data:
            raise ConnectionError("the broker closed the connection")
        for event in machine.receive_data(data):
            if isinstance(event, Fault):
                raise event.error
            assert isinstance(event, Frame)
            waiting.append(event)
    return waiting.pop(0)


async def main() -> None:
    """Subscribe, send, receive, acknowledge: four frames over a memory stream."""
    async with Broker(Config(listeners=(Listener(address="127.0.0.1:0"),))) as broker:
        print("listening as well:", broker.urls[0])
        stream, machine, waiting = broker.connect_memory(), ClientMachine(), list[Frame]()
        await stream.send_all(machine.connect("localhost"))
        print((await next_frame(stream, machine, waiting)).command)
        subscribe = {"destination": "/queue/a", "id": "1", "ack": "client-individual"}
        await stream.send_all(machine.send("SUBSCRIBE", subscribe.items()))
        await stream.send_all(machine.send("SEND", {"destination": "/queue/a"}.items(), b"hello"))
        message = await next_frame(stream, machine, waiting)
        print(message.command, message.body.decode())
        ack = {"id": message.headers["ack"], "receipt": "acked"}
        await stream.send_all(machine.send("ACK", ack.items()))
        print((await next_frame(stream, machine, waiting)).command)
        stream.close()


if __name__ == "__main__":
    trio.run(main)
