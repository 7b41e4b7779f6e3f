"""DISCONNECT, ERROR, unknown commands, and limits."""

from __future__ import annotations

from sluiceway.compliance.client import Closed, Late, shown
from sluiceway.compliance.kit import Kit
from sluiceway.compliance.registry import CHOICE, LATER, MUST, SHOULD, Failed, Unclear, check

PIECE = 1 << 16
LIMIT_BYTES = 4 << 20
"""Size of something that is sent without an end in sight."""


@check("disconnect/earlier-frames", "DISCONNECT", MUST)
def earlier_frames(kit: Kit) -> None:
    """Process all frames that were sent before a DISCONNECT with a receipt."""
    where = kit.queue()
    client = kit.connect()
    sends = b"".join(client.bytes_of("SEND", kit.to(where), b"%d" % number) for number in range(5))
    client.send(sends + client.bytes_of("DISCONNECT", [("receipt", "bye")]))
    client.receipt("bye")
    client.close()
    kit.left(where, *(b"%d" % number for number in range(5)))


@check("disconnect/closes", "DISCONNECT", CHOICE)
def closes(kit: Kit) -> None:
    """Close the connection behind the RECEIPT of a DISCONNECT."""
    client = kit.connect()
    client.receipted("DISCONNECT")
    try:
        came = client.frame(seconds=2.0)
    except Closed:
        kit.saw("closes")
    except Late:
        kit.saw("leaves it to the client")
    else:
        raise Failed("nothing but the end", f"came {shown(came)}")


@check("disconnect/without-receipt", "DISCONNECT", MUST)
def without_receipt(kit: Kit) -> None:
    """Take a DISCONNECT without receipt quietly, without ERROR."""
    client = kit.connect()
    client.write("DISCONNECT")
    try:
        came = client.frame(seconds=1.0)
    except (Closed, Late):
        return
    raise Failed("no frame", f"came {shown(came)}")


@check("disconnect/frames-behind", "DISCONNECT", CHOICE)
def frames_behind(kit: Kit) -> None:
    """Drop frames behind a DISCONNECT."""
    where = kit.queue()
    client = kit.connect()
    client.receipted("SEND", kit.to(where), b"before")
    client.send(client.bytes_of("DISCONNECT", [("receipt", "bye")]) + client.bytes_of("SEND", kit.to(where), b"behind"))
    client.receipt("bye")
    client.close()
    kit.saw("serves them" if b"behind" in kit.remaining(where, [b"before"]) else "drops them")


@check("disconnect/subscriptions-end", "DISCONNECT", SHOULD)
def subscriptions_end(kit: Kit) -> None:
    """Give nothing to a consumer that has disconnected."""
    where = kit.queue()
    client = kit.subscribed(where)
    client.receipted("DISCONNECT")
    client.close()
    kit.produce(where, b"a")
    kit.left(where, b"a")


@check("error/closes", "ERROR", {"1.0": CHOICE, "1.1": SHOULD})
def error_closes(kit: Kit) -> None:
    """Close the connection just behind an ERROR."""
    client = kit.connect()
    client.write("SEND", (), b"without destination")
    came = client.expect("ERROR")
    if kit.is_later:
        client.end("the end of the connection behind ERROR")
        return
    try:
        client.frame(seconds=2.0)
    except Closed:
        kit.saw("closes")
    except Late:
        kit.saw(f"stays open behind {shown(came)}")


@check("error/message", "ERROR", SHOULD)
def error_message(kit: Kit) -> None:
    """Say in the header message of an ERROR what is wrong."""
    client = kit.connect()
    client.write("SEND", (), b"without destination")
    came = client.expect("ERROR")
    if not came.get("message"):
        raise Failed("the header message", f"came {shown(came)}")


@check("error/frames-behind", "ERROR", {"1.1": SHOULD}, LATER)
def error_frames_behind(kit: Kit) -> None:
    """Serve no frame behind the one that was answered with ERROR."""
    where = kit.queue()
    client = kit.connect()
    wrong = client.bytes_of("SEND", (), b"without destination")
    client.send(wrong + client.bytes_of("SEND", kit.to(where, ("receipt", "behind")), b"behind"))
    client.refusal()
    client.reaction(1.0)
    client.close()
    kit.left(where)


@check("error/others-stay", "ERROR", MUST, LATER)
def error_others_stay(kit: Kit) -> None:
    """Keep all other connections when one gets an ERROR."""
    where = kit.queue()
    reader = kit.subscribed(where)
    client = kit.connect()
    client.write("SEND", (), b"without destination")
    client.refusal()
    kit.produce(where, b"a")
    reader.message(b"a")


@check("command/unknown", "Once Connected", CHOICE)
def command_unknown(kit: Kit) -> None:
    """Answer a command that the specification does not have."""
    client = kit.connect()
    client.write("DANCE", [("receipt", "r")])
    found = client.reaction(2.0)
    kit.saw("takes it" if found == "RECEIPT" else found)


@check("command/of-server", "Once Connected", CHOICE)
def command_of_server(kit: Kit) -> None:
    """Answer a frame that only servers send."""
    client = kit.connect()
    client.write("MESSAGE", [("destination", kit.queue()), ("message-id", "1"), ("receipt", "r")], b"a")
    found = client.reaction(2.0)
    kit.saw("takes it" if found == "RECEIPT" else found)


def _until_refused(kit: Kit, first: bytes, piece: bytes, what: str) -> None:
    """Send pieces of a frame without an end until the broker refuses, which should be with ERROR."""
    client = kit.connect()
    sent = 0
    try:
        client.send(first)
        while sent < LIMIT_BYTES:
            client.send(piece)
            sent += len(piece)
    except Closed:
        sent += len(piece)
    except Late:
        raise Unclear(f"the broker stopped reading after {sent:,} bytes of {what}, and says nothing") from None
    try:
        came = client.frame("ERROR", min(2.0, kit.settings.timeout_seconds))
    except Late:
        raise Unclear(f"no limit within {sent:,} bytes of {what}") from None
    except Closed:
        kit.saw(f"closes within {sent:,} bytes; an ERROR, if there was one, was lost with the connection")
        return
    if came.command != "ERROR":
        raise Failed("ERROR", f"came {shown(came)}")
    try:
        while client.frame("the end of the connection behind ERROR").command == "ERROR":  # more of them are harmless
            pass
    except Closed:
        pass
    kit.saw(f"ERROR within {sent:,} bytes")


@check("limits/header-line", "Size Limits", SHOULD)
def header_line(kit: Kit) -> None:
    """Answer a line of a header without an end with ERROR, and close."""
    _until_refused(kit, b"SEND\nx:", b"x" * PIECE, "one header")


@check("limits/headers-count", "Size Limits", SHOULD)
def headers_count(kit: Kit) -> None:
    """Answer headers without an end with ERROR, and close."""
    _until_refused(kit, b"SEND\n", b"x:1\n" * (PIECE // 4), "short headers")


@check("limits/command", "Size Limits", SHOULD)
def command_line(kit: Kit) -> None:
    """Answer a command without an end with ERROR, and close."""
    _until_refused(kit, b"S", b"E" * PIECE, "a command")


@check("limits/body", "Size Limits", SHOULD)
def body(kit: Kit) -> None:
    """Refuse a content-length of 900,000,000,000 octets with ERROR, and close."""
    client = kit.connect()
    head = client.bytes_of("SEND", kit.to(kit.queue(), ("content-length", "900000000000")))
    _until_refused(kit, head[:-1], b"b" * PIECE, "the body")


@check("limits/survives-reset", "Connection Lingering", MUST)
def survives_reset(kit: Kit) -> None:
    """Serve others when connections end in the middle of anything."""
    where = kit.queue()
    for data in (b"", b"SEND\n", b"SEND\ndestination:" + where.encode() + b"\ncontent-length:100\n\nabc"):
        client = kit.connect()
        if data:
            client.send(data)
        client.close()
    kit.produce(where, b"a")
    kit.left(where, b"a")
