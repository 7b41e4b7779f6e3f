"""Frames as bytes: their ends, lengths, line ends, pieces, and what is wrong with some."""

from __future__ import annotations

from sluiceway.compliance.client import Closed, shown
from sluiceway.compliance.kit import Kit
from sluiceway.compliance.registry import CHOICE, LATER, MUST, SHOULD, Failed, check
from sluiceway.compliance.wire import frame

ALL_BYTES = bytes(range(256))


def _refused(kit: Kit, data: bytes) -> None:
    """Send a malformed frame with the receipt `r`: it must not be confirmed, and not be waited for."""
    client = kit.connect()
    client.send(data)
    found = client.reaction()
    if not found.startswith(("ERROR", "closes")):
        raise Failed("ERROR, or the end of the connection", f"came {found}")
    kit.saw(found)


@check("framing/byte-by-byte", "STOMP Frames", MUST)
def byte_by_byte(kit: Kit) -> None:
    """Read frames that come in pieces of one byte."""
    client = kit.open()
    for byte in frame("CONNECT", kit.connect_headers()):
        client.send(bytes([byte]))
    kit.accepted(client)
    where = kit.queue()
    kit.subscribe(client, where)
    for byte in client.bytes_of("SEND", kit.to(where), b"one by one"):
        client.send(bytes([byte]))
    client.message(b"one by one")


@check("framing/many-in-one-write", "STOMP Frames", MUST)
def many_in_one_write(kit: Kit) -> None:
    """Read all frames of a burst that comes at once."""
    where = kit.queue()
    client = kit.subscribed(where)
    client.send(b"".join(client.bytes_of("SEND", kit.to(where), b"%d" % number) for number in range(60)))
    found = sorted(int(message.body) for message in client.messages(60))
    if found != list(range(60)):
        raise Failed("each of 60 messages once", f"came {found}")


@check("framing/eols-between", "STOMP Frames", MUST)
def eols_between(kit: Kit) -> None:
    """Skip line ends between frames."""
    where = kit.queue()
    client = kit.subscribed(where)
    client.send(b"\n\n\n" + client.bytes_of("SEND", kit.to(where), b"a") + b"\n\n" * 20)
    client.send(b"\n" + client.bytes_of("SEND", kit.to(where), b"b"))
    found = {message.body for message in client.messages(2)}
    if found != {b"a", b"b"}:
        raise Failed("both messages", f"came {found}")


@check("framing/crlf", "STOMP Frames", {"1.0": CHOICE, "1.1": CHOICE, "1.2": MUST})
def crlf(kit: Kit) -> None:
    """Take CR LF as the end of a line, in all lines of a frame and between frames."""
    where = kit.queue()
    client = kit.open()
    client.send(frame("CONNECT", kit.connect_headers(), eol=b"\r\n") + b"\r\n\r\n")
    try:
        kit.accepted(client)
        client.send(frame("SUBSCRIBE", kit.of(where), eol=b"\r\n") + b"\r\n")
        client.send(frame("SEND", kit.to(where, ("content-length", "4")), b"\r\n\r\n", eol=b"\r\n") + b"\r\n")
        client.message(b"\r\n\r\n")
    except Failed as failed:
        if kit.version == "1.2":
            raise
        kit.saw(f"does not take it: {failed.came}")
        return
    kit.saw("takes it")


@check("framing/cr-in-value", "Value Encoding", SHOULD, ("1.1",))
def cr_in_value(kit: Kit) -> None:
    """Take a CR before the end of a line for a part of the value: lines of 1.1 end with LF alone."""
    where = kit.queue()
    message = kit.round_trip(frame("SEND", kit.to(where, ("x", "a\r"), ("y", "b")), b"cr"), where)
    if message.get("x") != "a\r":
        raise Failed("the value a^M of the header x", f"came {shown(message)}")


@check("framing/content-length", "Header content-length", MUST)
def content_length(kit: Kit) -> None:
    """Read as many octets of the body as content-length says, NULs and all, up to the NUL behind them."""
    where = kit.queue()
    body = b"\0a\0\0\n\0"
    message = kit.round_trip(frame("SEND", kit.to(where, ("content-length", str(len(body)))), body), where)
    if message.body != body:
        raise Failed("the body ^@a^@^@⏎^@", f"came {shown(message)}")


@check("framing/all-bytes", "STOMP Frames", MUST)
def all_bytes(kit: Kit) -> None:
    """Deliver each of the 256 values of an octet in a body as it was sent."""
    where = kit.queue()
    headers = kit.to(where, ("content-length", "256"), ("content-type", "application/octet-stream"))
    message = kit.round_trip(frame("SEND", headers, ALL_BYTES), where)
    if message.body != ALL_BYTES:
        raise Failed("a body of the 256 octets", f"came {shown(message)}")


@check("framing/without-content-length", "Header content-length", MUST)
def without_content_length(kit: Kit) -> None:
    """End the body at the first NUL, if there is no content-length."""
    where = kit.queue()
    client = kit.subscribed(where)
    client.send(frame("SEND", kit.to(where), b"first") + frame("SEND", kit.to(where), b"second"))
    found = {message.body for message in client.messages(2)}
    if found != {b"first", b"second"}:
        raise Failed("two messages, first and second", f"came {found}")


@check("framing/empty-body", "STOMP Frames", MUST)
def empty_body(kit: Kit) -> None:
    """Deliver a message without a body."""
    where = kit.queue()
    message = kit.round_trip(frame("SEND", kit.to(where)), where)
    if message.body:
        raise Failed("a MESSAGE without a body", f"came {shown(message)}")


@check("framing/large-body", "Size Limits", MUST)
def large_body(kit: Kit) -> None:
    """Deliver a body of 300,000 octets, or refuse it with ERROR and the end."""
    where = kit.queue()
    body = ALL_BYTES * 1172
    client = kit.subscribed(where)
    client.send(frame("SEND", kit.to(where, ("content-length", str(len(body)))), body))
    came = client.frame("a MESSAGE or an ERROR")
    if came.command == "ERROR":
        client.end()
        kit.saw("refuses it")
    elif came.command != "MESSAGE" or came.body != body:
        raise Failed("the same body", f"came {shown(came)}")


@check("framing/no-nul-behind-body", "Header content-length", SHOULD)
def no_nul_behind_body(kit: Kit) -> None:
    """Refuse a frame without NUL behind the octets of its content-length."""
    headers = kit.to(kit.queue(), ("receipt", "r"), ("content-length", "2"))
    _refused(kit, frame("SEND", headers, b"more than two") * 2)


@check("framing/content-length-no-number", "Header content-length", SHOULD)
def content_length_no_number(kit: Kit) -> None:
    """Refuse a content-length that is no number."""
    _refused(kit, frame("SEND", kit.to(kit.queue(), ("receipt", "r"), ("content-length", "two")), b"ab"))


@check("framing/content-length-negative", "Header content-length", SHOULD)
def content_length_negative(kit: Kit) -> None:
    """Refuse a negative content-length."""
    _refused(kit, frame("SEND", kit.to(kit.queue(), ("receipt", "r"), ("content-length", "-1")), b"ab"))


@check("framing/content-length-anywhere", "Header content-length", MUST, LATER)
def content_length_anywhere(kit: Kit) -> None:
    """Take content-length in any frame."""
    client = kit.connect()
    client.receipted("SUBSCRIBE", [*kit.of(kit.queue()), ("content-length", "0")])
    client.receipted("UNSUBSCRIBE", [("id", "1"), ("content-length", "0")])


@check("framing/body-of-subscribe", "SUBSCRIBE", MUST, ("1.0",))
def body_of_subscribe(kit: Kit) -> None:
    """Ignore the body of a SUBSCRIBE."""
    kit.connect().receipted("SUBSCRIBE", [*kit.of(kit.queue()), ("content-length", "4")], b"body")


@check("framing/body-where-none-belongs", "STOMP Frames", CHOICE, LATER)
def body_where_none_belongs(kit: Kit) -> None:
    """Refuse or ignore a body in a frame that must not have one."""
    client = kit.connect()
    client.send(frame("SUBSCRIBE", [*kit.of(kit.queue()), ("receipt", "r"), ("content-length", "4")], b"body"))
    found = client.reaction()
    kit.saw("ignores it" if found == "RECEIPT" else found)


@check("framing/case-of-commands", "STOMP Frames", SHOULD)
def case_of_commands(kit: Kit) -> None:
    """Tell commands by their case: `send` is not SEND."""
    _refused(kit, frame("send", kit.to(kit.queue(), ("receipt", "r")), b"a"))


@check("framing/case-of-headers", "STOMP Frames", SHOULD)
def case_of_headers(kit: Kit) -> None:
    """Tell headers by their case: `Destination` is not destination."""
    _refused(kit, frame("SEND", [("Destination", kit.queue()), ("receipt", "r")], b"a"))


@check("framing/header-without-colon", "Augmented BNF", SHOULD)
def header_without_colon(kit: Kit) -> None:
    """Refuse a header without a colon."""
    head = "".join(f"{name}:{value}\n" for name, value in kit.to(kit.queue()))
    _refused(kit, f"SEND\n{head}no colon\nreceipt:r\n\na\0".encode())


@check("framing/empty-header-name", "Augmented BNF", CHOICE)
def empty_header_name(kit: Kit) -> None:
    """Answer a frame with an empty name of a header."""
    client = kit.connect()
    client.send(frame("SEND", kit.to(kit.queue(), ("", "value"), ("receipt", "r")), b"a"))
    found = client.reaction()
    kit.saw("accepts it" if found == "RECEIPT" else found)


@check("framing/empty-header-value", "Augmented BNF", MUST, LATER)
def empty_header_value(kit: Kit) -> None:
    """Pass on a header with an empty value."""
    where = kit.queue()
    message = kit.round_trip(frame("SEND", kit.to(where, ("x-empty", ""))), where)
    if message.get("x-empty") != "":
        raise Failed("the header x-empty with an empty value", f"came {shown(message)}")


@check("framing/half-a-frame", "STOMP Frames", MUST)
def half_a_frame(kit: Kit) -> None:
    """Serve no frame of which the connection ended in the middle."""
    where = kit.queue()
    with kit.connect() as client:
        whole = client.bytes_of("SEND", kit.to(where), b"half")
        client.receipted("SEND", kit.to(where), b"whole")
        client.send(whole[:-2])
    kit.left(where, b"whole")


@check("framing/own-frames", "Augmented BNF", MUST)
def own_frames(kit: Kit) -> None:
    """Write frames as the grammar says: line ends, escapes, no body where none may be."""
    where = kit.queue()
    client = kit.subscribed(where)
    client.write("SEND", kit.to(where, ("receipt", "r:1" if kit.is_later else "r1")), b"a")
    for _ in range(2):
        client.frame()
    client.write("SEND", [("receipt", "r2")], b"without destination")
    try:
        while client.frame("ERROR").command != "ERROR":
            pass
    except Closed:
        kit.saw("closes without ERROR")
    if client.irregularities:
        raise Failed("frames of the grammar", "; ".join(dict.fromkeys(client.irregularities)))


@check("framing/repeated-header", "Repeated Header Entries", SHOULD, LATER)
def repeated_header(kit: Kit) -> None:
    """Use the first of repeated headers."""
    where = kit.queue()
    message = kit.round_trip(frame("SEND", kit.to(where, ("x", "World"), ("x", "Hello"))), where)
    if message.get("x") != "World":
        raise Failed("the first value of x, World", f"came {shown(message)}")


@check("framing/repeated-destination", "Repeated Header Entries", SHOULD, LATER)
def repeated_destination(kit: Kit) -> None:
    """Send to the first of two destinations."""
    first, second = kit.queue("a"), kit.queue("b")
    client = kit.subscribed(first)
    client.write("SEND", [*kit.to(first), ("destination", second)], b"to the first")
    client.message(b"to the first")
