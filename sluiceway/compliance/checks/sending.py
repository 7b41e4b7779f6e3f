"""SEND and MESSAGE."""

from __future__ import annotations

from sluiceway.compliance.client import shown
from sluiceway.compliance.kit import Kit
from sluiceway.compliance.registry import CHOICE, LATER, MUST, SHOULD, Failed, check
from sluiceway.compliance.wire import Frame, frame


def _message(kit: Kit, *more: tuple[str, str], body: bytes = b"body", ack: str = "") -> Frame:
    where = kit.queue()
    client = kit.subscribed(where, ack)
    client.write("SEND", kit.to(where, *more), body)
    return client.message()


def _has(message: Frame, name: str, value: str | None = None) -> None:
    found = message.get(name)
    if found is None or (value is not None and found != value):
        raise Failed(f"the header {name}{'' if value is None else f':{value}'}", f"came {shown(message)}")


@check("send/delivered", "SEND", MUST)
def delivered(kit: Kit) -> None:
    """Deliver a message to a consumer of its destination."""
    if (message := _message(kit)).body != b"body":
        raise Failed("the same body", f"came {shown(message)}")


@check("send/kept", "SEND", CHOICE)
def kept(kit: Kit) -> None:
    """Keep a message in a queue until there is a consumer."""
    where = kit.queue()
    kit.produce(where, b"early")
    kit.saw("keeps it" if kit.remaining(where, [b"early"]) == [b"early"] else "does not keep it")


@check("send/destination-required", "SEND", {"1.0": SHOULD})
def destination_required(kit: Kit) -> None:
    """Answer a SEND without destination with ERROR, and from 1.1 on close."""
    client = kit.connect()
    client.write("SEND", [("receipt", "r")], b"where to?")
    if kit.is_later:
        client.error()
    else:
        client.refusal()


@check("send/user-headers", "SEND", {"1.0": CHOICE, "1.1": MUST, "1.2": MUST})
def user_headers(kit: Kit) -> None:
    """Pass on headers that the user defined."""
    message = _message(kit, ("x-first", "one"), ("x-second", "two words"))
    if kit.is_later:
        _has(message, "x-first", "one")
        _has(message, "x-second", "two words")
    else:
        kit.saw("passes them on" if message.get("x-second") == "two words" else "drops them")


@check("send/many-headers", "SEND", MUST, LATER)
def many_headers(kit: Kit) -> None:
    """Pass on 50 headers of a message, or refuse it with ERROR and the end."""
    where = kit.queue()
    client = kit.subscribed(where)
    client.write("SEND", kit.to(where, *((f"x{number}", str(number)) for number in range(50))), b"a")
    came = client.frame("a MESSAGE or an ERROR")
    if came.command == "ERROR":
        client.end()
        kit.saw("refuses them")
        return
    for number in range(50):
        _has(came, f"x{number}", str(number))


@check("send/order", "SEND", CHOICE)
def order(kit: Kit) -> None:
    """Deliver the messages of one sender to one consumer in their order."""
    where = kit.queue()
    client = kit.subscribed(where)
    client.send(b"".join(client.bytes_of("SEND", kit.to(where), b"%d" % number) for number in range(30)))
    found = [int(message.body) for message in client.messages(30)]
    kit.saw("keeps it" if found == list(range(30)) else "does not keep it")


@check("send/topic", "SEND", CHOICE)
def topic(kit: Kit) -> None:
    """Deliver a message to all subscribers of a topic."""
    where = kit.topic()
    readers = [kit.connect(), kit.connect()]
    for reader in readers:
        reader.receipted("SUBSCRIBE", [("id", "1"), ("destination", where)])
    with kit.connect() as sender:
        sender.receipted("SEND", [("destination", where)], b"for all")
    for reader in readers:
        reader.message(b"for all")
    kit.saw("to each of two")


@check("message/destination", "MESSAGE", MUST)
def message_destination(kit: Kit) -> None:
    """Name the destination in a MESSAGE."""
    _has(_message(kit), "destination")


@check("message/same-destination", "MESSAGE", SHOULD)
def message_same_destination(kit: Kit) -> None:
    """Name the same destination as the SEND did."""
    _has(_message(kit), "destination", kit.queue())


@check("message/message-id", "MESSAGE", MUST)
def message_id(kit: Kit) -> None:
    """Give each message an identifier of its own in message-id."""
    where = kit.queue()
    client = kit.subscribed(where)
    for _ in range(5):
        client.write("SEND", kit.to(where), b"same")
    found = {message.get("message-id") for message in client.messages(5)}
    if None in found or len(found) != 5:
        raise Failed("5 different values of message-id", f"came {found}")


@check("message/subscription", "MESSAGE", {"1.0": SHOULD})
def message_subscription(kit: Kit) -> None:
    """Name the subscription in a MESSAGE by its id."""
    _has(_message(kit), "subscription", "1")


@check("message/ack-client", "MESSAGE", MUST, ("1.2",))
def message_ack_client(kit: Kit) -> None:
    """Write the header ack in a MESSAGE to a subscription with ack client."""
    _has(_message(kit, ack="client"), "ack")


@check("message/ack-client-individual", "MESSAGE", MUST, ("1.2",))
def message_ack_individual(kit: Kit) -> None:
    """Write the header ack in a MESSAGE to a subscription with ack client-individual."""
    _has(_message(kit, ack="client-individual"), "ack")


@check("message/content-length", "MESSAGE", SHOULD)
def message_content_length(kit: Kit) -> None:
    """Write content-length in a MESSAGE with a body."""
    _has(_message(kit), "content-length", "4")


@check("message/content-type", "MESSAGE", SHOULD, LATER)
def message_content_type(kit: Kit) -> None:
    """Pass on the content-type of a message."""
    _has(_message(kit, ("content-type", "text/plain;charset=utf-8")), "content-type", "text/plain;charset=utf-8")


@check("message/no-content-length-sent", "Header content-length", CHOICE)
def message_no_content_length_sent(kit: Kit) -> None:
    """Write content-length for a message whose sender gave none."""
    where = kit.queue()
    message = kit.round_trip(frame("SEND", kit.to(where), b"text"), where)
    kit.saw("adds it" if message.get("content-length") == "4" else "leaves it out")


@check("message/receipt-of-sender", "Header receipt", CHOICE)
def message_receipt(kit: Kit) -> None:
    """Keep the sender's receipt from consumers."""
    where = kit.queue()
    client = kit.subscribed(where)
    client.receipted("SEND", kit.to(where), b"a")
    kit.saw("passes it on" if client.message().get("receipt") else "keeps it back")
